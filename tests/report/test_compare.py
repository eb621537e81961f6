"""Result folders side by side: what was reached, and the options that differ, nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from result_folders import Build

from isthmus.errors import IsthmusError
from isthmus.report.compare import compare, list_runs


def with_options(hidden: int, rate: float) -> Any:
    def change(parts: dict[str, Any]) -> None:
        study = parts["results"]["study"]
        study["model"]["hidden"] = hidden
        study["methods"] = [{"name": "fedavg", "local": {"lr": rate, "epochs": 5}}, {"name": "local"}]

    return change


@pytest.fixture
def folders(build: Build) -> list[Path]:
    return [
        build("one", methods=("fedavg", "local"), change=with_options(64, 0.1)),
        build("two", methods=("fedavg", "local"), change=with_options(32, 0.2)),
    ]


def test_only_options_that_differ_are_shown(folders: list[Path]) -> None:
    found = compare(*folders, folders[0])
    assert found.differ == ["model.hidden", "local.lr"]
    assert [(row["method"], row["options"]) for row in found.rows] == [
        ("fedavg", {"model.hidden": 64, "local.lr": 0.1}), ("local", {"model.hidden": 64}),
        ("fedavg", {"model.hidden": 32, "local.lr": 0.2}), ("local", {"model.hidden": 32}),
    ]  # fmt: skip
    assert (found.rows[0]["metric"], found.rows[0]["seeds"]) == ("test_accuracy", 3)
    assert found.rows[0]["mean"] == pytest.approx(found.rows[0]["validation"] - 0.01)


def test_every_part_of_a_study_is_compared(folders: list[Path], build: Build) -> None:
    def private(unit: str, **more: Any) -> Any:
        def change(parts: dict[str, Any]) -> None:
            with_options(64, 0.1)(parts)
            study = parts["results"]["study"]
            study |= {
                "privacy": {"unit": unit, "epsilon": 50.0},
                "device": "cpu",
                "purpose": unit,
                "wire": True,
                **more,
            }

        return change

    party = build("party", methods=("fedavg",), change=private("party"))
    found = compare(folders[0], party)
    assert found.differ == ["privacy.unit", "privacy.epsilon"]
    assert [row["options"] for row in found.rows if row["method"] == "fedavg"] == [
        {"privacy.unit": None, "privacy.epsilon": None}, {"privacy.unit": "party", "privacy.epsilon": 50.0}
    ]  # fmt: skip
    item = build("item", methods=("fedavg",), change=private("item", device="cuda", wire=False))
    assert compare(party, item).differ == ["privacy.unit", "device"]


def test_data_that_changed_between_two_runs_are_shown(build: Build) -> None:
    def held(digest: str, seed: int = 0, hidden: int = 64, **data: Any) -> Any:
        def change(parts: dict[str, Any]) -> None:
            with_options(hidden, 0.1)(parts)
            parts["results"]["fingerprint"] = {"seed": seed, "digest": digest}
            parts["results"]["study"]["data"] |= data

        return change

    first = build("first", methods=("fedavg",), change=held("aa", size=5))
    assert compare(first, build("same", methods=("fedavg",), change=held("aa", size=5))).differ == []
    assert compare(first, build("seed", methods=("fedavg",), change=held("bb", seed=1, size=5))).differ == []
    assert compare(first, build("data", methods=("fedavg",), change=held("bb", size=7))).differ == ["data.size"]
    found = compare(first, build("other", methods=("fedavg",), change=held("bb", size=5)))
    assert [row["options"] for row in found.rows] == [
        {"content of the data, seed 0": "aa"}, {"content of the data, seed 0": "bb"}
    ]  # fmt: skip


def test_options_that_a_search_chose_are_shown(folders: list[Path], build: Build) -> None:
    def tuned(parts: dict[str, Any]) -> None:
        with_options(64, 0.1)(parts)
        parts["results"]["study"]["methods"].append({"name": "fedsage", "mu": 0.01})
        setting = {"of": "fedsage", "label": "fedsage", "values": {"mu": 0.3}, "mean": 0.5, "chosen": True}
        parts["results"]["search"] = {"metric": "val_accuracy", "tried": [setting]}

    found = compare(folders[0], build("tuned", methods=("fedavg", "fedsage"), change=tuned))
    assert found.differ == ["mu"]
    assert [row["options"] for row in found.rows] == [{}, {}, {}, {"mu": 0.3}]


def test_an_option_differs_if_other_methods_have_it(folders: list[Path], build: Build) -> None:
    def other(parts: dict[str, Any]) -> None:
        with_options(64, 0.1)(parts)
        parts["results"]["study"]["methods"] = [{"name": "fedsage", "local": {"lr": 0.7, "epochs": 5}}]

    assert compare(folders[0], build("other", methods=("fedsage",), change=other)).differ == ["local.lr"]

    def more(parts: dict[str, Any]) -> None:
        other(parts)
        parts["results"]["study"]["methods"] += [{"name": "fedavg", "local": {"lr": 0.1, "epochs": 5}}]

    assert compare(folders[0], build("more", methods=("fedsage", "fedavg"), change=more)).differ == []


def test_a_frame_has_a_column_for_each_option_that_differs(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compare(*folders)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    rows = found.frame()
    assert [row["local.lr"] for row in rows] == [0.1, None, 0.2, None]
    assert not {"options", "text"} & set(rows[0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        IsthmusError, match=r"a data frame needs pandas: install it with pip install 'isthmus\[frames]'"
    ):
        found.frame()


def test_runs_are_listed_newest_first_with_their_best_method(build: Build, tmp_path: Path) -> None:
    def newer(parts: dict[str, Any]) -> None:
        parts["results"]["created"] = "2026-02-02T03:04:05Z"

    build("old")
    build("new", change=newer)
    (build("torn") / "results.json").write_text("{")
    found = list_runs(tmp_path)
    assert [Path(row["run"]).name for row in found] == ["new", "old", "torn"]
    assert found[0]["headline"].startswith("centralized ")
    assert found[2]["headline"] == "cannot be read"


def test_the_metric_asked_for_ranks_runs_whose_test_items_lack_it(build: Build, tmp_path: Path) -> None:
    def with_one_class(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["task"] = {"metric": "roc_auc"}
        means = {"local": 0.9, "fedavg": 0.4}  # fedavg has the better accuracy
        kept = [each for each in parts["results"]["summary"] if each["metric"] in ("test_accuracy", "val_accuracy")]
        for each in kept:
            each["mean"] -= 0.2 * (each["method"] == "local")
        lines = [{**kept[0], "method": name, "metric": "val_roc_auc", "mean": mean} for name, mean in means.items()]
        parts["results"]["summary"] = [*kept, *lines]

    build("one", methods=("fedavg", "local"), change=with_one_class)
    assert list_runs(tmp_path)[0]["headline"].startswith("local ")
    assert compare(tmp_path / "one").rows[0]["metric"] == "test_accuracy"


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(IsthmusError, match="no result folder given"):
        compare()
