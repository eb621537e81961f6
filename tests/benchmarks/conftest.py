import importlib
import sys
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[2] / "benchmarks" / "papers"


@pytest.fixture
def scripts_of(monkeypatch):
    """Scripts of a paper's folder by name, forgotten after the test: other papers have scripts of the same names."""
    known = set(sys.modules)

    def imported(paper, *names):
        monkeypatch.syspath_prepend(str(PAPERS / paper))
        return {name: importlib.import_module(name) for name in names}

    yield imported
    for name in set(sys.modules) - known:
        if str(PAPERS.parent) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def call(monkeypatch):
    """Calls a script's `main` with arguments as from a command line."""

    def called(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, arguments)])
        script.main()

    return called
