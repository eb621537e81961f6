"""The doctor names what is there, what is missing, and the command that mends it."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from command_line import Isthmus
from isthmus import __version__
from isthmus.cli import doctor

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names(requirements: list[str]) -> tuple[str, ...]:
    return tuple(re.split(r"[\[<>=~ ]", each)[0] for each in requirements)


def test_it_knows_every_package_and_extra_of_the_project() -> None:
    assert names(PROJECT["dependencies"]) == doctor.NEEDED
    optional = {name: names(each) for name, each in PROJECT["optional-dependencies"].items() if name != "dev"}
    assert {name: packages for name, (_, packages) in doctor.EXTRAS.items()} == optional


def test_it_says_what_is_installed_and_where_data_are(
    isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    done = isthmus("doctor", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err, found["isthmus"], found["problems"]) == (0, "", __version__, [])
    assert found["folders"]["data"] == {
        "path": str(tmp_path / "data"), "variable": "ISTHMUS_DATA", "set": True, "exists": False, "writable": False,
    }  # fmt: skip
    assert found["threads"]["OMP_NUM_THREADS"] == "3"
    assert "cpu" in found["device"]["available"]


def test_what_is_missing_comes_with_the_command(isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("rdkit", "scipy") else "1.0")
    done = isthmus("doctor")
    text = " ".join(done.out.split())
    assert done.code == 1
    assert "pip install 'isthmus[molecules]'" in text
    assert "pip install 'isthmus[metis]'" not in text
    assert "problem: scipy: not installed; pip install isthmus" in text


def test_a_broken_package_is_a_problem_and_no_traceback(isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = isthmus("doctor")
    assert (done.code, done.err) == (1, "")
    assert "problem: PyTorch or PyTorch Geometric cannot be imported" in " ".join(done.out.split())
