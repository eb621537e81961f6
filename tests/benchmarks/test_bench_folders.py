"""The benchmark of party folders runs, on a small folder and without looking at the clock."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "data" / "folders.py"


@pytest.fixture
def folders(monkeypatch, capsys):
    """The benchmark's module; what it measures in fresh processes is measured in this one."""
    spec = importlib.util.spec_from_file_location("bench_folders", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def alone(folder, key):
        module.say_alone(folder, key)
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(module, "alone", alone)
    return module


def test_it_tells_what_it_measured(folders, tmp_path, monkeypatch, capsys):
    figures = folders.figures_of(nodes=400, edges=3000)
    assert [(row["ids"], row["key"]) for row in figures["rows"]] == [
        ("numbers", "no"), ("numbers", "yes"), ("texts", "no"), ("texts", "yes"),
    ]  # fmt: skip
    for row in figures["rows"]:
        assert (row["nodes"], row["features"]) == (400, 16 + 8 + 20)
        assert 250 < row["border"] < 350
        assert 2 * (3000 - row["border"]) - 40 < row["edges"] <= 2 * (3000 - row["border"])
        assert 0 < row["before_mb"] <= row["peak_mb"]
        assert min(row["load_s"], row["check_s"]) >= 0
    assert len({(row["edges"], row["border"]) for row in figures["rows"]}) == 1

    readme = tmp_path / "README.md"
    readme.write_text(f"before\n\n{folders.BEGIN}\nstale\n{folders.END}\n\nafter\n")
    monkeypatch.setattr(folders, "README", readme)
    monkeypatch.setattr(folders, "RESULTS", tmp_path / "results" / "folders.json")
    folders.write(figures)
    assert json.loads(folders.RESULTS.read_text()) == figures
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| texts | yes |" in text
    folders.print_table(folders.title_of(figures), folders.HEAD, folders.cells(figures["rows"]))
    assert "texts" in capsys.readouterr().out


def test_the_page_has_the_marks_that_figures_go_between(folders):
    text = folders.README.read_text()
    assert text.count(folders.BEGIN) == text.count(folders.END) == 1
    assert text.index(folders.BEGIN) < text.index(folders.END)
