"""A signal ends a command with one line, whatever is being imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import os, signal, sys

class AtImport:
    def find_spec(self, name, *_):
        if name == "{name}":
            os.kill(os.getpid(), signal.{by})

sys.meta_path.insert(0, AtImport())
sys.argv = ["isthmus", "run", "--rounds", "1", "--out", "out"]
from isthmus.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("name", "by"),
    [("typer", "SIGTERM"), ("torch.nn", "SIGTERM"), ("torch.nn", "SIGINT"), ("isthmus.study.run", "SIGINT")],
)
@pytest.mark.thinned(2)
def test_a_signal_during_an_import_is_one_line(name: str, by: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", COMMAND.format(name=name, by=by)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (130, "isthmus: stopped", "")
    assert not list(tmp_path.iterdir())
