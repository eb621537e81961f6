"""The locks of what users install agree with pyproject.toml and constraints.txt, and have hashes for all."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;]+)((?:.|\n)*?)(?=^[A-Za-z]|\Z)", re.MULTILINE)


def pins(path: Path) -> dict[str, tuple[str, str]]:
    """By name the version and what else is said of it."""
    return {str(canonicalize_name(name)): (version, rest) for name, version, rest in PIN.findall(path.read_text())}


def constraints() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {str(canonicalize_name(name)): version for name, _, version in (line.partition("==") for line in lines)}


def required(extra: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    more = [] if extra == "runtime" else project["optional-dependencies"][extra]
    return [Requirement(each) for each in (*project["dependencies"], *more)]


def test_there_are_locks() -> None:
    assert [path.stem for path in LOCKS] == ["federation", "ray", "runtime"]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_lock_meets_what_is_required_in_the_tested_versions(path: Path) -> None:
    locked, tested = pins(path), constraints()
    for each in required(path.stem):
        version, _ = locked[str(canonicalize_name(each.name))]
        assert each.specifier.contains(version), each
    different = {name: version for name, (version, _) in locked.items() if name in tested and tested[name] != version}
    assert not different


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_pin_has_hashes_and_nothing_names_an_index(path: Path) -> None:
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", rest) for _, rest in pins(path).values())
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith((" ", "#"))]
    assert len(lines) == len(pins(path))  # nothing else than pins
    assert "://" not in path.read_text()


def test_tools_of_development_are_not_locked_for_users() -> None:
    locked = {name for path in LOCKS for name in pins(path)}
    assert not {"pytest", "mypy", "ruff", "mkdocs", "playwright"} & locked
