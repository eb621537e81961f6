"""The benchmark of large graphs runs, on small graphs and without looking at the clock."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed" / "large.py"
SMALL = {"parties": 3, "nodes": 300, "degree": 6, "features": 5, "classes": 4}


@pytest.fixture
def large(monkeypatch, capsys, tmp_path):
    """The benchmark's module; what it measures in fresh processes is measured in this one."""
    spec = importlib.util.spec_from_file_location("bench_large", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def of_process(script, options):
        monkeypatch.setattr("sys.argv", [script, *options])
        module.main()
        return json.loads(capsys.readouterr().out)

    monkeypatch.setenv("ISTHMUS_CACHE", "not used")
    monkeypatch.setattr(module, "of_process", of_process)
    monkeypatch.setattr(module, "PRODUCTS", SMALL)
    monkeypatch.setattr(module, "ARXIV", SMALL | {"train": 0.4, "val": 0.2})
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n\n{module.MARKS[0]}\nstale\n{module.MARKS[1]}\n\nafter\n")
    monkeypatch.setattr(module, "README", readme)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results" / "large.json")
    return module


@pytest.mark.slow
def test_it_tells_what_it_measured(large, call, capsys):
    call(large, "--write", "--seeds", 2, "--note", "which was idle")
    figures = json.loads(large.RESULTS.read_text())
    assert [row["step"] for row in figures["rows"]] == ["generate", "train", "evaluate", "fedgcn", "fedcog"]
    for row in figures["rows"]:
        assert 0 < row["before_mb"] <= row["peak_mb"] + 1  # the kernel counts in batches of pages
        assert min(row["cpu_s"], row["wall_s"], row["own_mb"], row.get("start_cpu_s", 1)) > 0
    accuracy = figures["accuracy"]
    assert list(accuracy["runs"]) == ["full batch", "fan-out"]
    apart = []
    for full, sampled in zip(*accuracy["runs"].values(), strict=True):
        assert full["seed"] == sampled["seed"]
        assert 1 <= full["round"] <= large.KINDS["full batch"]["rounds"]
        assert 1 <= sampled["round"] <= large.KINDS["fan-out"]["rounds"]
        assert 0 < full["test"] <= 100
        apart.append(sampled["test"] - full["test"])
    assert accuracy["difference"] == pytest.approx(sum(apart) / 2)
    text = large.README.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| FedGCN, sums and a round |" in text
    assert "cores x86-64, which was idle;" in text
    assert f"{accuracy['difference']:+.2f} points" in text


def test_some_lines_are_measured_anew_and_others_kept(large, call, tmp_path):
    kept = {"rows": [dict.fromkeys(large.COLUMNS, -1) | {"step": step} for step in ("train", "fedcog")]}
    large.RESULTS.parent.mkdir()
    large.RESULTS.write_text(json.dumps(kept))
    call(large, "--write", "--only", "fedcog", "evaluate", "--cache", tmp_path / "cache")
    rows = {row["step"]: row for row in json.loads(large.RESULTS.read_text())["rows"]}
    assert list(rows) == ["train", "evaluate", "fedcog"]
    assert [rows[step]["peak_mb"] > 0 for step in rows] == [False, True, True]
    assert list((tmp_path / "cache" / "mapped").iterdir())


def test_the_page_has_the_marks_that_figures_go_between():
    text = (SCRIPT.parent / "README.md").read_text()
    begin, end = "<!-- figures: written by large.py --write -->", "<!-- end of figures of large.py -->"
    assert text.count(begin) == text.count(end) == 1
    assert text.index(begin) < text.index(end)
