"""What the docstrings show is what happens."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import isthmus

EXTRAS = {"pymetis", "rdkit", "nvflare"}
MODULES = ["isthmus", *(module.name for module in pkgutil.walk_packages(isthmus.__path__, "isthmus."))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_module_hold(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        pytest.skip(f"{error.name} is not installed")
    found = doctest.testmod(module)
    assert found.failed == 0, f"{found.failed} of {found.attempted} examples in {name} fail"
