"""Which slow tests continuous integration runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ["tests/conformance", "tests/deploy", "tests/docs", "tests/test_wheel.py"]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("due", ROOT / ".ci" / "due.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changed", "due"),
    [
        (["CHANGELOG.md", "src/isthmus/report/charts.py"], []),
        (["src/isthmus/privacy/hops.py"], ["tests/deploy"]),
        (["src/isthmus/deploy/kits.py"], ["tests/deploy"]),
        (["src/isthmus/methods/fedavg.py", "docs/start.md"], ["tests/conformance", "tests/docs"]),
        (["tests/deploy/test_flare.py", "Makefile"], ["tests/deploy", "tests/test_wheel.py"]),
        (["src/isthmus/deployed/kits.py"], []),
        (["src/isthmus/store.py"], TESTS),
        (["tests/databases.py"], TESTS),
        (["tests/test_wheel.py"], ["tests/test_wheel.py"]),
        (["constraints.txt"], TESTS),
        (["tests/conftest.py"], TESTS),
    ],
)
def test_those_of_rooms_that_changed_are_due(changed: list[str], due: list[str], script: Any) -> None:
    assert script.due(changed, TESTS) == due


def test_all_folders_with_slow_tests_are_known(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = script.slow_tests()
    assert "tests/test_wheel.py" in found
    assert {"tests/conformance", "tests/deploy", "tests/docs", "tests/study"} < set(found)
    assert "tests/privacy" not in found
