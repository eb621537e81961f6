"""Check the names in a party's limits against the methods, actions and protections that exist."""

from __future__ import annotations

from typing import get_args

from isthmus.data.folder.limits import Limits, Verb
from isthmus.data.folder.problems import Problem
from isthmus.data.folder.settings import FILE
from isthmus.errors import did_you_mean
from isthmus.methods.base import Method
from isthmus.protect.options import Protection

SET_UP = ("introduce", "values", "first", "second", "encode")
"""Actions of the set-up."""


def limit_problems(limits: Limits) -> list[Problem]:
    """List the names in `limits` that do not exist, as problems of `party.toml`."""
    actions = set(SET_UP).union(*(method.AtParty.actions() for method in Method.known().values()))
    wrong = [
        f"limits.{option}: unknown name '{name}': {did_you_mean(name, known)}"
        for option, names, known in (
            ("methods", limits.methods, Method.known()),
            ("totals", limits.totals, Protection.known()),
        )
        for name in names or ()
        if name not in known
    ]
    for name in limits.actions or ():
        verb, colon, action = name.rpartition(":")
        if action not in actions or (colon and verb not in get_args(Verb)):
            wrong.append(f"limits.actions: unknown action '{name}': {did_you_mean(action, actions)}")
    return [Problem(FILE, each) for each in wrong]
