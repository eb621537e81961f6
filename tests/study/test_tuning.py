"""Tuning: every method has as many trials, only validation data choose, and trials are resumed."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import torch

from in_this_process import InThisProcess
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.nn.encoders import Gcn
from isthmus.result_files import load_summary
from isthmus.study import tuning
from isthmus.study.config import Loaded, Study, read_toml
from isthmus.study.results import Results
from isthmus.study.run import run_study
from isthmus.study.tuning import BEST, search_space, tune

TRIALS = 3


def study_of(*methods: str, **more: Any) -> Study:
    return Study.of(
        {
            "data": {"name": "banks", "nodes": 120},
            "methods": [{"name": name} for name in methods],
            "training": {"rounds": 2, "local": {"epochs": 1}},
            "seeds": [0, 1],
            **more,
        }
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Results, Path]:
    study, out = study_of("fedprox", "local", "majority"), tmp_path_factory.mktemp("tuned") / "out"
    return study, tune(study, out, trials=TRIALS), out


def tried(results: Results) -> list[tuple[str, dict[str, Any], float | None]]:
    assert results.search is not None
    return [(each.of, dict(each.values), each.mean) for each in results.search.tried]


def test_every_method_has_as_many_trials_of_which_the_first_has_its_own_options(tuned: Any) -> None:
    _, results, _ = tuned
    methods = [of for of, _, _ in tried(results)]
    assert {name: methods.count(name) for name in methods} == {"fedprox": TRIALS, "local": TRIALS, "majority": 1}
    assert "majority ran once, as it has no option that is searched" in results.notes
    assert not any("federation" in note for note in results.notes), "the study has no options of one"
    values = [values for of, values, _ in tried(results) if of == "fedprox"]
    assert {"local.lr": Method.named("fedprox").rate_for(Gcn.lr), "mu": 0.01} in values
    assert all(set(each) == {"local.lr", "mu"} for each in values)


def test_the_best_settings_are_run_and_reach_what_their_trials_did(tuned: Any) -> None:
    _, results, _ = tuned
    validation = {line["method"]: line["mean"] for line in results.summary() if line["metric"] == "val_accuracy"}
    chosen = {each.of: each for each in results.search.tried if each.chosen}
    assert {of: each.mean for of, each in chosen.items()} == validation
    means = {of: max(mean for own, _, mean in tried(results) if own == of and mean) for of in chosen}
    assert means == validation
    assert all("test_accuracy" in run.metrics for run in results.runs)


def test_the_study_file_of_the_best_settings_runs_as_it_is(tuned: Any) -> None:
    _, results, out = tuned
    again = run_study(Study.of(read_toml(out / BEST)))
    assert [run.metrics for run in again.runs] == [run.metrics for run in results.runs]
    assert (out / BEST).read_text() == (out / "study.toml").read_text()
    assert load_summary(out)["search"]["metric"] == "val_accuracy"
    assert set(load_summary(out)["search"]["importance"]) <= {"fedprox", "local"}


def test_a_trial_gets_no_test_item_and_other_test_labels_change_nothing(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, results, _ = tuned
    load, build, seen = Study.load, tuning.build_run, []

    def with_wrong_test_labels(self: Study, seed: int) -> Loaded:
        loaded = load(self, seed)
        parties = []
        for party in loaded.parties:
            graph = party.graph.clone()
            graph.y = torch.where(party.test, (graph.y + 1) % loaded.classes, graph.y)
            parties.append(replace(party, graph=graph))
        return replace(loaded, parties=parties)

    def watched(study: Study, method: Method, seed: int, loaded: Loaded, **options: Any) -> Any:
        run = build(study, method, seed, loaded, **options)
        seen.extend(name for name in run.go().metrics if "test" in name)
        seen.extend("test" for party in loaded.parties if party.test.any())
        return build(study, method, seed, loaded, **options)

    tuning._loaded.clear()
    monkeypatch.setattr(Study, "load", with_wrong_test_labels)
    monkeypatch.setattr(tuning, "build_run", watched)
    wrong = tune(study, tmp_path / "out", trials=TRIALS)
    tuning._loaded.clear()
    assert tried(wrong) == tried(results)
    assert not seen
    assert [run.metrics["test_accuracy"] for run in wrong.runs] != [
        run.metrics["test_accuracy"] for run in results.runs
    ]


class Curves:
    """Stands in for training: a validation curve that depends on the learning rate alone."""

    def __init__(self, study: Study, method: Any, seed: int, loaded: Loaded, on_round: Any) -> None:
        self.level, self.rounds, self.on_round = -abs(math.log10(method.local.lr) + 1.5), method.rounds, on_round

    def go(self) -> Any:
        for at in range(1, self.rounds + 1):
            self.on_round(at, {"val_accuracy": self.level + at / 100, "test_accuracy": -self.level})
        return SimpleNamespace(metrics={"val_accuracy": self.level if self.level > -0.9 else math.nan})


def test_trials_that_stay_below_the_median_are_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "build_run", Curves)
    study = study_of("fedavg", tune={"local": {"lr": "0.001..0.5"}})
    results = tune(study, tmp_path / "out", trials=14)
    assert results.search is not None
    ended = [each.mean for each in results.search.tried if each.mean is not None]
    pruned = [each for each in results.search.tried if each.pruned]
    assert len(results.search.tried) == 14
    assert pruned
    assert max(ended) > -0.2
    assert any(each.mean is None and not each.pruned for each in results.search.tried)  # it diverged
    assert results.search.importance == {"fedavg": {"local.lr": 1.0}}


def test_a_trial_whose_training_diverges_stops_no_search(tmp_path: Path) -> None:
    study = study_of("fedavg", tune={"local": {"lr": [0.01, 1e30]}})
    study = Study.of(study.model_dump(exclude_unset=True) | {"training": {"rounds": 2, "local": {"optimizer": "sgd"}}})
    results = tune(study, tmp_path / "out", trials=2)
    assert [(values["local.lr"], mean is None) for _, values, mean in tried(results)] == [(0.01, False), (1e30, True)]
    assert results.runs[0].metrics["test_accuracy"] > 0


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_to_the_same_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "build_run", Curves)
    study, count = study_of("fedavg", "local"), []
    whole = tune(study, tmp_path / "whole", trials=12)

    def stopped(*given: Any, **options: Any) -> Any:
        count.append(1)
        if len(count) == 30:  # in the middle of a trial, which has two seeds
            raise KeyboardInterrupt
        return Curves(*given, **options)

    monkeypatch.setattr(tuning, "build_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        tune(study, tmp_path / "out", trials=12)
    assert not (tmp_path / "out" / BEST).exists()
    assert tried(tune(study, tmp_path / "out", trials=12, resume=True)) == tried(whole)
    trained = len(count)
    assert len(tried(tune(study, tmp_path / "out", trials=12, resume=True))) == 24
    assert len(count) == trained
    with pytest.raises(IsthmusError, match="holds the trials of another study"):
        tune(study_of("fedavg", "fedprox"), tmp_path / "out", resume=True)
    with pytest.raises(IsthmusError, match="is not empty: use resume=True"):
        tune(study, tmp_path / "out")


def test_the_first_trial_keeps_the_own_options_that_lie_in_the_ranges(tmp_path: Path) -> None:
    study = study_of("fedprox", tune={"local": {"lr": "1e-6..1e-5"}, "mu": [0.01, 0.1, 0.5, 0.7, 0.9]}, seeds=[0])
    ((_, values, _),) = tried(tune(study, tmp_path / "out", trials=1))
    assert values["mu"] == 0.01
    assert 1e-6 <= values["local.lr"] <= 1e-5


def test_no_setting_is_tried_twice_and_a_search_ends_when_all_are_tried(tmp_path: Path) -> None:
    study = study_of("fedavg", tune={"local": {"lr": [0.001, 0.01, 0.1]}}, seeds=[0])
    results = tune(study, tmp_path / "out", trials=5)
    assert sorted(values["local.lr"] for _, values, _ in tried(results)) == [0.001, 0.01, 0.1]
    assert "fedavg has 3 settings to search, which were all tried" in results.notes


def test_trials_that_choose_at_the_same_time_choose_different_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [0.001, 0.01, 0.1]
    study = study_of("fedavg", tune={"local": {"lr": values}}, seeds=[0])
    method = study.listed_methods()[0]
    tuning._open_journal(tmp_path, study, {"fedavg": search_space(method, study.tune)}, "val_loss", resume=False)
    ask = optuna.Study.ask

    def slow_ask(own: optuna.Study, space: Any) -> optuna.Trial:
        time.sleep(0.02)
        return ask(own, space)

    monkeypatch.setattr(optuna.Study, "ask", slow_ask)
    monkeypatch.setattr(tuning, "_score", lambda *_: 0.0)
    plain, journal = study.model_dump_json(), str(tmp_path / tuning.JOURNAL)
    jobs = [tuning.TrialJob(plain, study.modules(), "fedavg", at, journal) for at in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(tuning.do_trial, jobs))
    assert sorted(each.values["local.lr"] for each in found) == values


def test_trials_side_by_side_are_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Processes", InThisProcess)
    monkeypatch.setattr(tuning, "count_processes", lambda jobs: jobs)
    monkeypatch.setattr(tuning, "build_run", Curves)
    monkeypatch.setattr(tuning, "run_study", lambda study, jobs, watcher: run_study(study))
    told: list[str] = []
    results = tune(study_of("fedavg", "local"), tmp_path, trials=2, jobs=2, on_trial=lambda of, *_: told.append(of))
    assert told == ["fedavg", "local", "fedavg", "local"]
    assert len(tried(results)) == 4


@pytest.mark.slow
def test_trials_run_in_processes(tmp_path: Path) -> None:
    results = tune(study_of("fedavg"), tmp_path / "out", trials=2, jobs=2)
    assert len(tried(results)) == 2


def space_of(name: str, **ranges: Any) -> dict[str, Any]:
    """The search space of a method, in short."""
    found = {}
    for option, each in search_space(Method.named(name)(), ranges).items():
        found[option] = getattr(each, "choices", None) or (each.low, each.high, each.log)  # type: ignore[attr-defined]
    return found


def test_learning_rates_and_what_a_method_names_are_searched_a_decade_around_their_defaults() -> None:
    assert space_of("fedavg") == {"local.lr": (0.001, 0.1, True)}
    assert space_of("fedprox") == {"local.lr": (0.001, 0.1, True), "mu": (0.001, 0.1, True)}
    assert set(space_of("fedadam")) == {"local.lr", "server_lr"}
    assert space_of("majority") == {}


def test_ranges_give_numbers_choices_and_fixed_values() -> None:
    given = space_of(
        "fedprox", local={"lr": "0.01..0.02", "epochs": "1..20", "optimizer": ["adam", "sgd"]}, mu=0, fraction="0.5..1"
    )
    assert given == {
        "local.lr": (0.01, 0.02, False), "mu": (0,), "local.epochs": (1, 20, True),
        "local.optimizer": ("adam", "sgd"), "fraction": (0.5, 1.0, False),
    }  # fmt: skip


def test_types_and_bounds_suggest_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Method.named("fedavg")
    monkeypatch.setattr(kind, "tuned", ("weighting", "fraction", "local.epochs"))
    found = space_of("fedavg")
    assert found["weighting"] == ("train", "size", "even")
    assert found["fraction"] == (0.1, 1.0, True)
    assert found["local.epochs"] == (1, 50, True)
    monkeypatch.setattr(kind, "tuned", ("local.clip",))
    with pytest.raises(
        IsthmusError,
        match=r"'local.clip' of fedavg suggests no range: give one, tune=\{'local'",
    ):
        space_of("fedavg")


@pytest.mark.parametrize(
    ("ranges", "line"),
    [
        ({"local": {"lr": "1..0.1"}}, "its first number must be the smaller one"),
        ({"local": {"lr": "a..b"}}, "write it as 0.001..0.1"),
        ({"local": {"epochs": "0.5..2"}}, "or as 1..10 for whole numbers"),
        ({"local": {"lr": "0..1"}}, "option 'local.lr' is 0.0: give more than 0"),
        ({"local": {"lr": "nan..1"}}, "its first number must be the smaller one"),
        ({"weighting": ["train", "odd"]}, "option 'weighting' is 'odd'"),
        ({"local": {"fan_out": [[5]]}}, "give numbers, texts, true or false"),
        ({"local": {"lr": []}}, "give numbers, texts, true or false"),
        ({"local": {"lr": "0.1-1"}}, "the range is '0.1-1': write it as 0.001..0.1"),
        ({"lr": "0.1..1"}, "did you mean 'local.lr'?"),
        ({"model": {"hidden": "8..64"}}, "'model.hidden' is an option of the model, which all methods share"),
    ],
)
def test_ranges_that_cannot_be_are_refused_before_anything_is_written(
    ranges: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(IsthmusError) as error:
        tune(study_of("fedavg", tune=ranges), tmp_path / "out")
    assert line in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("methods", "more", "line"),
    [
        (["fedavg"], {"grid": {"local": {"lr": [0.1, 1]}}}, "the study has a grid"),
        (["majority"], {"training": {}}, "no method of the study has an option to search"),
        (["fedavg"], {"data": {"name": "banks", "nodes": 120, "val": 0}}, "no validation labels"),
    ],
)
def test_what_cannot_be_tuned_is_refused(methods: list[str], more: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match=line):
        tune(study_of(*methods, **more), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_holds_no_trials_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="holds no trials: tune without resume=True"):
        tune(study_of("fedavg"), tmp_path / "out", resume=True)
    with pytest.raises(IsthmusError, match="trials is 0"):
        tune(study_of("fedavg"), tmp_path / "out", trials=0)
    assert not (tmp_path / "out").exists()


def test_optuna_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(IsthmusError, match=r"tuning needs Optuna: install it with pip install 'isthmus\[tune\]'"):
        tune(study_of("fedavg"), tmp_path / "out")
