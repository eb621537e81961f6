"""`python -m isthmus` runs the command line."""

from __future__ import annotations

import runpy
import sys

import pytest

import isthmus


def test_module_runs_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["isthmus", "--version"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("isthmus", run_name="__main__")
    assert stopped.value.code == 0
    assert isthmus.__version__ in capsys.readouterr().out
