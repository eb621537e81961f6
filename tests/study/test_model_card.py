"""A card says of a run's models what is known, and leaves out what only parties know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.party_folders import two_drafts

import isthmus
from isthmus.study.config import Study
from isthmus.study.model_card import model_card, wilson
from isthmus.study.run import run_study


def test_a_card_lies_beside_the_weights(tmp_path: Path) -> None:
    study = Study.of({"seeds": [0, 1], "training": {"rounds": 2}})
    results = run_study(study, tmp_path / "run")
    text = (tmp_path / "run" / "weights" / "fedavg-1.md").read_text()
    run = results.runs[1]
    assert text.startswith("# Model of fedavg, seed 1\n")
    assert "4 parties with" in text
    assert "[the dossier of the run](../dossier.html)" in text
    assert f"| accuracy | {run.metrics['test_accuracy']:.3f} | " in text
    mean = next(line for line in results.summary() if line["metric"] == "test_accuracy")
    assert f"{mean['mean']:.3f} ± {mean['std']:.3f} (2 seeds)" in text
    assert f"round {run.chosen_round} of {run.rounds}" in text


def test_a_card_says_what_classes_and_parties_have(tmp_path: Path) -> None:
    results = run_study(Study.of({"training": {"rounds": 1}, "task": {"metric": "macro_f1"}}), tmp_path / "run")
    run, text = results.runs[0], (tmp_path / "run" / "weights" / "fedavg-0.md").read_text()
    over = run.over_parties["test_macro_f1"]
    worst = f"the worst {over['worst']:.3f}, of {over['worst_party']}."
    assert f"the mean macro F1 is {over['mean']:.3f}, and {worst}" in text
    name, first = next(iter(run.by_label.items()))
    assert f"\n| {name} | {first['items']:,.0f} | {first['recall']:.3f} | " in text
    assert "On the test items, label by label:" in text
    federated = model_card(replace(run, by_label={"a|b\nc": first}), results.study)
    assert f"\n| a\\|b c | {first['recall']:.3f} | " in federated  # without the number of items
    assert over["worst_party"] not in federated
    assert "the mean ± the standard deviation" not in text  # of one seed there is none


def test_a_federations_card_names_no_sizes() -> None:
    results = run_study(Study.of({"training": {"rounds": 1}}))
    text = model_card(results.runs[0], results.study)
    assert "What each party holds stays with the parties." in text
    assert " items for training" not in text


def test_a_card_names_the_folder_the_class_weights_and_first_the_chosen_metric(tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "parties" / draft.settings["name"])
    for weights in ("none", "balanced"):
        task = {"metric": "macro_f1", "class_weights": weights}
        data = {"name": "folder", "path": f"{tmp_path}/parties/"}
        results = run_study(Study.of({"training": {"rounds": 1}, "task": task, "data": data}))
        text = model_card(results.runs[0], results.study, summary=results.summary())
        assert "- Data: folder parties.\n" in text
        assert str(tmp_path) not in text
        assert f"- Class weights in the loss: {weights}.\n" in text
        assert "- Threshold of the probability of yes, or of one of two classes: 0.5.\n" in text
        assert "| --- |\n| macro F1 | " in text
        assert ("chooses classes as if all were equally frequent" in text) is (weights == "balanced")


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_an_interval_lies_between_0_and_1_and_holds_the_share(share: float) -> None:
    low, high = wilson(share, 20)
    assert -1e-12 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1 + 1e-12
    assert high - low > wilson(share, 200)[1] - wilson(share, 200)[0]


def test_a_card_says_who_trained(tmp_path: Path) -> None:
    names = {
        "local": "by each party alone", "centralized": "on the data of all parties in one place",
        "fedavg": "by several parties together",
    }  # fmt: skip
    isthmus.run(list(names), "banks", rounds=1, out=tmp_path / "out")
    for name, by in names.items():
        assert f", trained {by} with Isthmus" in (tmp_path / "out" / "weights" / f"{name}-0.md").read_text()
