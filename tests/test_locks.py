"""The locks of what users install agree with pyproject.toml and constraints.txt, and have hashes for all."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
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


LOADED = """
import sys
from importlib import import_module
from isthmus.deploy import admin, commands, flare
for name in ("app.server.server_train", "app.server.runner_process", "app.client.client_train",
             "app.client.worker_process", "server.job_runner", "client.client_executor"):
    import_module(f"nvflare.private.fed.{name}")
for name in (*flare.PRELOADED, *(each.rpartition(".")[0] for each in admin.LOADED)):
    import_module(name)
for kind in (flare.Method, flare.Task, flare.Encoder):
    kind.known()
print(*sys.modules)
"""
"""What `serve`, `join` and the processes of their jobs import."""


@pytest.mark.slow
def test_what_a_federation_never_imports_is_as_the_page_says() -> None:
    pytest.importorskip("nvflare")
    page = " ".join((ROOT / "docs" / "hardening.md").read_text(encoding="utf-8").split())
    said = re.search(r"`serve` and `join` never import (.*?)\.", page)
    assert said is not None
    names = {str(canonicalize_name(each)) for each in re.split(r", | and ", said[1])}
    assert names <= pins(ROOT / "requirements" / "federation.lock").keys()
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    modules = {each.partition(".")[0] for each in done.stdout.split()}
    owners = packages_distributions()
    loaded = {str(canonicalize_name(owner)) for module in modules for owner in owners.get(module, ())}
    assert {"nvflare", "grpcio", "torch"} <= loaded
    assert not names & loaded
