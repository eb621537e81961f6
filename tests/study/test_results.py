"""Results sum up over seeds and are read back."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from isthmus.data.description import CutDescription, PartyDescription
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import Entry, Ledger
from isthmus.result_files import COORDINATES, HISTORY, LEDGER, SET_UP, Search, Tried, load_summary, read_table
from isthmus.study.loop import RunResult
from isthmus.study.results import Results, _readable, sort_runs, versions


def result(method: str = "fedavg", seed: int = 0, **metrics: float) -> RunResult:
    ledger = Ledger()
    ledger.add(
        Entry(
            1, 0, "total", "train", "server sees the sum", "w[2]", "none", ("a", "b"), (80, 0), (72, 72), {"b": "why"}
        )
    )
    weights = {"conv.bias": torch.tensor([1.0, 2.0]), "conv.weight": torch.arange(6.0).view(2, 3).t()}
    history = [(1, "test_accuracy", 0.25)]
    return RunResult(method, seed, 3, 2, 0.5, dict(metrics), history, ledger, {"shared": weights})


def test_summary_is_mean_and_sample_deviation_over_seeds() -> None:
    values = [0.5, 0.75, 0.7]
    runs = [result(seed=seed, test_accuracy=value) for seed, value in enumerate(values)]
    (line,) = Results({}, runs).summary()
    assert line == {
        "method": "fedavg",
        "metric": "test_accuracy",
        "mean": pytest.approx(statistics.mean(values)),
        "std": pytest.approx(statistics.stdev(values)),
        "seeds": 3,
        "headline": False,
    }


def judged(method: str, seed: int, **metrics: float) -> RunResult:
    return replace(result(method, seed, **metrics), metric="roc_auc")


def test_the_metric_of_the_headline_stands_first_and_is_marked() -> None:
    runs = [judged(name, 0, test_accuracy=0.5, val_roc_auc=0.7, test_roc_auc=0.6) for name in ("a", "b")]
    lines = Results({}, runs).summary()
    assert [line["metric"] for line in lines] == ["test_roc_auc", "test_accuracy", "val_roc_auc"] * 2
    assert [line["headline"] for line in lines] == [True, False, False] * 2


def test_the_text_of_results_is_a_few_lines() -> None:
    runs = [judged(name, seed, test_accuracy=0.5, test_roc_auc=0.6 + 0.1 * seed) for name in "ab" for seed in (0, 1)]
    assert repr(Results({}, runs, notes=["b is slow"])).splitlines() == [
        "Results of 4 runs",
        "  a: 65.0 ± 7.1 % test ROC AUC, 2 seeds",
        "  b: 65.0 ± 7.1 % test ROC AUC, 2 seeds",
        "note: b is slow",
    ]
    assert len(repr(Results({}, [judged(f"m{at}", 0, test_roc_auc=0.5) for at in range(50)])).splitlines()) == 12
    tried = [Tried("a", {"lr": at}, 0.5, label=f"a lr={at}", chosen=at == 0) for at in (0, 1)]
    runs = [judged(each.label, 0, test_roc_auc=0.5) for each in tried]
    assert "lr=1" not in repr(Results({}, runs, search=Search("val_roc_auc", tried)))
    assert repr(Results({})) == "Results of 0 runs"


def test_one_seed_has_no_deviation() -> None:
    (line,) = Results({}, [result(test_accuracy=0.5)]).summary()
    assert (line["mean"], line["std"], line["seeds"]) == (0.5, 0.0, 1)


def test_summary_keeps_methods_and_metrics_apart() -> None:
    runs = [result("a", 0, x=1.0, y=2.0), result("b", 0, x=3.0), result("a", 1, x=2.0)]
    lines = [(each["method"], each["metric"], each["mean"], each["seeds"]) for each in Results({}, runs).summary()]
    assert lines == [("a", "x", 1.5, 2), ("a", "y", 2.0, 1), ("b", "x", 3.0, 1)]


def test_metrics_are_those_of_the_only_run() -> None:
    assert Results({}, [result(x=1.0)]).metrics == {"x": 1.0}
    with pytest.raises(IsthmusError, match=r"there are 2 runs: read their means from summary\(\)"):
        _ = Results({}, [result(x=1.0), result(seed=1, x=1.0)]).metrics


def test_runs_stand_in_the_order_of_the_methods_then_by_seed() -> None:
    runs = [result("a", 2), result("b", 1), result("a", 0), result("b", 0)]
    assert [(run.method, run.seed) for run in sort_runs(runs, ["b", "a"])] == [("b", 0), ("b", 1), ("a", 0), ("a", 2)]


def test_run_comes_back_from_its_dump() -> None:
    run = result(x=1.0)
    back = RunResult.of_dump(json.loads(json.dumps({**run.dump(), "models": {}})))
    assert list(back.ledger.rows()) == list(run.ledger.rows())
    assert (back.history, back.metrics, back.chosen_round) == (run.history, run.metrics, run.chosen_round)


def test_saved_folder_reads_back(tmp_path: Path) -> None:
    results = Results({"parties": None, "data": {"name": "x"}}, [result(x=1.0)])
    results.save(tmp_path)
    found = load_summary(tmp_path)
    assert found["runs"] == results.to_dict()["runs"]
    assert found["summary"] == results.summary()
    assert abs(datetime.fromisoformat(found["created"]) - datetime.now(UTC)) < timedelta(minutes=5)
    weights = load_file(tmp_path / "weights" / "fedavg-0.safetensors")
    assert torch.equal(weights["conv.weight"], results.runs[0].weights["conv.weight"])


def test_saved_tables_have_a_row_for_every_value_of_every_run(tmp_path: Path) -> None:
    drawn, empty = result("a", 3, x=1.0), result("b", 1, x=1.0)
    drawn.history.append((2, "test_loss", 0.5))
    drawn.coordinates = {"2": torch.tensor([[0.5, 1.5, -1.0], [2.0, -3.0, 4.0]]), "10": torch.zeros(1, 3)}
    empty.history.clear()
    results = Results({"data": {}}, [drawn, empty], set_up=empty.ledger)
    results.save(tmp_path)
    history, ledger, set_up, places = (
        read_table(tmp_path, name).to_pylist() for name in (HISTORY, LEDGER, SET_UP, COORDINATES)
    )
    first = {"method": "a", "seed": 3}
    assert history == [
        {**first, "round": 1, "metric": "test_accuracy", "value": 0.25},
        {**first, "round": 2, "metric": "test_loss", "value": 0.5},
    ]
    assert places == [
        {**first, "round": 2, "x": 0.5, "y": 1.5, "class": -1},
        {**first, "round": 2, "x": 2.0, "y": -3.0, "class": 4},
        {**first, "round": 10, "x": 0.0, "y": 0.0, "class": 0},
    ]
    assert ledger == [
        {"method": run.method, "seed": run.seed, **row} for run in (drawn, empty) for row in run.ledger.rows()
    ]
    assert set_up == [{"method": "set-up", "seed": -1, **row} for row in empty.ledger.rows()]


def test_reports_learn_from_the_folder_what_a_method_is_and_what_its_fields_are() -> None:
    tables = [{"name": "local"}, {"name": "centralized"}, {"name": "fedcog", "trainer": {"name": "scaffold"}}]
    methods = Results({"methods": tables}, []).methods()
    assert {name: each["role"] for name, each in methods.items()} == {
        "local": "alone", "centralized": "pooled", "fedcog": "federated"
    }  # fmt: skip
    assert methods["local"]["nouns"] == {}
    assert methods["fedcog"]["nouns"]["sum"] == "features"
    assert methods["fedcog"]["nouns"]["change"] == "changes of control variates"  # its trainer's


def described(emd: float = 0.5) -> CutDescription:
    held = PartyDescription("a", 3, 3, 4, 0, 0, 1, 1, 1, 0, labels=(1, 2))
    return CutDescription("node", "class", (held,), 3, 4, 0, emd)


def test_cuts_that_are_alike_are_told_once() -> None:
    cuts = Results({}, [result(x=1.0)], {4: described(), 7: described(0.6), 5: described()}).to_dict()["cuts"]
    assert [each["seeds"] for each in cuts] == [[4, 5], [7]]
    assert cuts[1] == {"seeds": [7], **described(0.6).to_dict()}


def test_saved_cuts_are_a_line_for_each_party(tmp_path: Path) -> None:
    results = Results({"data": {}}, [result(x=math.nan)], {0: described()})
    results.save(tmp_path)
    lines = (tmp_path / "results.json").read_text().splitlines()
    (line,) = [line for line in lines if '"labels"' in line]
    assert json.loads(line)["labels"] == [1, 2]
    assert load_summary(tmp_path)["cuts"] == json.loads(json.dumps(results.to_dict()["cuts"]))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def readable_by_definition(value: Any, margin: str = "") -> str:
    """A line for a value that has no mapping inside; else a line for each value inside."""

    def holds(outer: Any) -> bool:
        inside = outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else []
        return any(isinstance(each, dict) or holds(each) for each in inside)

    if not holds(value):
        return json.dumps(value)
    values = {str(key): each for key, each in value.items()} if isinstance(value, dict) else dict(enumerate(value))
    keys = [f"{json.dumps(key)}: " if isinstance(value, dict) else "" for key in values]
    lines = [
        f"{margin}  {key}{readable_by_definition(each, f'{margin}  ')}"
        for key, each in zip(keys, values.values(), strict=True)
    ]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([first, ",\n".join(lines), f"{margin}{last}"])


@settings(max_examples=50)
@given(plain)
def test_readable_json_is_json_with_a_line_for_each_innermost_group(value: Any) -> None:
    assert json.loads(_readable(value)) == value
    assert _readable(value) == readable_by_definition(value)


def test_versions_name_what_the_figures_depend_on() -> None:
    assert versions()["torch"] == torch.__version__
    assert set(versions()) >= {"python", "isthmus", "torch_geometric", "numpy"}
