"""Every level that something is for is one of the levels."""

from typing import get_args

from isthmus.data.level import Level
from isthmus.methods.base import Method
from isthmus.tasks.base import Task


def test_methods_and_tasks_are_for_levels() -> None:
    named = {level for kind in Method.known().values() for level in kind.levels}
    named |= {kind.level for kind in Task.known().values()}
    assert named == set(get_args(Level))
