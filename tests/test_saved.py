"""Results of a folder are those that the study gave."""

from __future__ import annotations

from pathlib import Path

import isthmus
from isthmus.study.config import Study


def test_a_folder_gives_what_the_study_gave(tmp_path: Path) -> None:
    study = Study.of(
        {
            "data": {"name": "banks", "nodes": 80},
            "methods": [{"name": "local"}, {"name": "fedavg"}],
            "training": {"rounds": 2},
            "seeds": [0, 1],
        }
    )
    given = isthmus.run_study(study, tmp_path / "run")
    saved = isthmus.load_results(tmp_path / "run")
    assert saved.summary() == given.summary()
    assert saved.frame().equals(given.frame())
    history = saved.history()
    assert given.history().equals(history)
    assert list(history.columns) == ["method", "seed", "round", "metric", "value"]
    assert len(history) == sum(len(run.history) for run in given.runs)
    assert (saved.study["seeds"], saved.notes) == ([0, 1], given.notes)
    assert repr(saved).startswith(f"SavedResults of 4 runs in '{tmp_path / 'run'}': local, fedavg; see summary()")
    tables = [each.model("fedavg", seed=1).predict("banks") for each in (saved, given)]
    assert tables[0].equals(tables[1])


def test_of_a_grid_the_chosen_settings_are_there(tmp_path: Path) -> None:
    isthmus.run("fedavg", rounds=1, grid={"local.lr": [0.01, 0.1]}, out=tmp_path / "run")
    assert len(isthmus.load_results(tmp_path / "run").frame()) == 1
