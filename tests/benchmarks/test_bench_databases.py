"""The benchmark of folders of several tables runs, on few rows and without looking at the clock."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "data" / "databases.py"


@pytest.fixture
def databases(monkeypatch):
    """The benchmark's module; what it measures in processes of their own is measured in this one."""
    pytest.importorskip("duckdb")
    spec = importlib.util.spec_from_file_location("bench_databases", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "alone", lambda function, *arguments: function(*arguments))
    return module


@pytest.mark.slow
def test_it_tells_what_it_measured(databases, tmp_path, monkeypatch):
    figures = databases.figures_of([300])
    assert [(row["table"], row["rows"], row["nodes"]) for row in figures["rows"]] == [
        ("customers", 30, 30), ("accounts", 60, 60), ("transfers", 210, 210), ("all three", 300, 300),
    ]  # fmt: skip
    joined = {row["table"]: row["edges"] for row in figures["rows"]}
    assert joined["customers"] == joined["accounts"] == 0
    assert joined["all three"] > 3 * 210
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n\n{databases.BEGIN}\nstale\n{databases.END}\n\nafter\n")
    monkeypatch.setattr(databases, "README", readme)
    monkeypatch.setattr(databases, "RESULTS", tmp_path / "results" / "databases.json")
    databases.write(figures)
    assert json.loads(databases.RESULTS.read_text()) == figures
    assert "stale" not in readme.read_text()
    assert "| all three | 300 |" in readme.read_text()
    assert databases.README.read_text().endswith("after\n")


def test_the_page_has_the_marks_that_figures_go_between(databases):
    text = databases.README.read_text()
    assert text.count(databases.BEGIN) == text.count(databases.END) == 1
