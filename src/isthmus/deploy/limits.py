"""Check the names in a party's limits against the methods, actions and protections that exist."""

from __future__ import annotations

from isthmus.data.folder.limits import Limits
from isthmus.data.folder.problems import Problem
from isthmus.data.folder.settings import FILE
from isthmus.deploy.setup import SET_UP
from isthmus.errors import did_you_mean
from isthmus.methods.base import Method
from isthmus.protect.options import Protection


def limit_problems(limits: Limits) -> list[Problem]:
    """List the names in `limits` that do not exist, as problems of `party.toml`."""
    actions = set(SET_UP).union(*(method.AtParty.actions() for method in Method.known().values()))
    wrong = [
        f"limits.{option}: unknown name '{name}': {did_you_mean(name, known)}"
        for option, names, known in (
            ("methods", limits.methods, Method.known()),
            ("actions", limits.actions, actions),
            ("totals", limits.totals, Protection.known()),
        )
        for name in names or ()
        if name not in known
    ]
    return [Problem(FILE, each) for each in wrong]
