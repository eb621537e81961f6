"""The benchmark of a study's start runs, on a few parties and without looking at the clock."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed" / "start.py"
TIMES = {"generate_s", "cut_s", "set_up_s", "start_s", "round_s", "results_s"}


@pytest.fixture
def start(monkeypatch, capsys):
    """The benchmark's module; what it measures in fresh processes is measured in this one."""
    spec = importlib.util.spec_from_file_location("bench_start", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.sources = []

    def of_process(script, options, source):
        assert (Path(script), options[0]) == (SCRIPT, "--alone")
        module.sources.append(source)
        module.say_alone(int(options[1]))
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(module, "of_process", of_process)
    return module


def test_it_tells_what_each_stage_took(start, tmp_path, monkeypatch, capsys):
    figures = start.figures_of([3, 5], 2, None)
    assert [(row["parties"], row["version"]) for row in figures["rows"]] == [(3, "now"), (5, "now")]
    assert start.sources == [start.SOURCE] * 4
    assert figures["before"] is None
    for row in figures["rows"]:
        assert min(row[name] for name in TIMES) >= 0
        assert 0 < row["start_mb"] <= row["peak_mb"]

    readme = tmp_path / "README.md"
    readme.write_text("before\n\n{}\nstale\n{}\n\nafter\n".format(*start.MARKS))
    monkeypatch.setattr(start, "README", readme)
    monkeypatch.setattr(start, "RESULTS", tmp_path / "results" / "start.json")
    start.write(figures)
    assert json.loads(start.RESULTS.read_text()) == figures
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| 5 | now |" in text
    start.print_table(start.title_of(figures), start.HEAD, start.cells(figures["rows"]), left=2)
    assert "now" in capsys.readouterr().out


def test_an_earlier_version_is_timed_in_turn(start, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "commit_of", lambda checkout: f"commit of {checkout.name}")
    figures = start.figures_of([2], 2, tmp_path / "old")
    assert start.sources == [tmp_path / "old" / "src", start.SOURCE] * 2
    assert [row["version"] for row in figures["rows"]] == ["before", "now", "before / now"]
    assert all(figures["rows"][2][name] >= 0 for name in TIMES)
    assert figures["before"] == "commit of old"


def test_stages_add_up_and_are_those_of_one_study(start, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(start.time, "process_time", lambda: next(clock))
    stages = start.Stages()
    with (
        stages.clock(start.Banks, "load", "generate"),
        stages.clock(start.Given, "cut", "cut"),
        stages.mark_start(),
    ):
        start.run_study(start.study_of(2), watcher=stages)
    found = stages.figures()
    times = {name: value for name, value in found.items() if name in TIMES}
    # the clock is read at the start, before and after generating and cutting, at the round's begin and end, at the end;
    # and by the run: as it begins, which is part of the round, after the round and at its end
    assert times == {"generate_s": 1, "cut_s": 1, "set_up_s": 3, "start_s": 5, "round_s": 2, "results_s": 3}
    assert "clocked" not in start.Banks.load.__qualname__


def test_a_process_imports_the_source_that_it_is_given(start, tmp_path):
    script = tmp_path / "says.py"
    script.write_text("import json, sys, isthmus\nprint(json.dumps({'at': isthmus.HERE, 'options': sys.argv[1:]}))\n")
    package = tmp_path / "old" / "src" / "isthmus"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("HERE = 'old'\n")
    figures = importlib.import_module("figures")
    assert figures.of_process(str(script), ["--x"], package.parent) == {"at": "old", "options": ["--x"]}


def test_the_page_has_the_marks_that_figures_go_between(start):
    text = start.README.read_text()
    begin, end = start.MARKS
    assert text.count(begin) == text.count(end) == 1
    assert text.index(begin) < text.index(end)
