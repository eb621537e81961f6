"""Results say what a method did not use, and what a reference does as well."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data

import isthmus
from isthmus.data.party import Party
from isthmus.errors import IsthmusError, flags_in_messages
from isthmus.methods.base import Method
from isthmus.nn.encoders import Gcn, GraphSage, Mlp
from isthmus.progress.terminal import results_table, search_table
from isthmus.report.compare import compare
from isthmus.report.loading import read_folders
from isthmus.study.config import Study
from isthmus.study.notes import is_majority, probability_notes, result_notes
from isthmus.study.results import Results
from isthmus.study.run import run_study
from isthmus.study.setup import task_for
from isthmus.testing import small_parties

CROSSING = sorted(name for name, kind in Method.known().items() if kind.for_crossing)


def results_of(out: Path | None = None, **study: Any) -> Results:
    return run_study(Study.of({"data": {"name": "banks", "nodes": 120, "parties": 2}, **study}), out)


def test_methods_for_coupled_graphs_say_so() -> None:
    assert len(CROSSING) >= 4


@pytest.mark.parametrize("method", ["fedgcn", "fedcog-gcn"])
def test_no_crossing_edge_is_a_note(method: str) -> None:
    for cross, noted in ((0.0, True), (0.3, False)):
        data = {"name": "banks", "nodes": 120, "parties": 2, "cross": cross}
        notes = results_of(data=data, methods=[{"name": method, "rounds": 1}, {"name": "fedavg", "rounds": 1}]).notes
        due = f"{method} is for edges that cross between parties, and these data have none"
        assert (due in notes) == noted
        assert not any(note.startswith("fedavg is for") for note in notes)


def test_no_node_in_common_is_a_note() -> None:
    methods = [{"name": "fedgl", "rounds": 1}, {"name": "fedavg", "rounds": 1}]
    data = {"name": "banks", "nodes": 120, "parties": 2}
    for partition, noted in ({"name": "given"}, True), ({"name": "overlap", "proportions": [0.6, 0.7]}, False):
        notes = results_of(data=data, partition=partition, methods=methods).notes
        assert ("fedgl is for nodes that several parties hold, and these data have none" in notes) == noted


@pytest.mark.parametrize(("table", "named"), [({"protect": {"total": "masks"}}, True), ({"wire": True}, False)])
def test_options_of_a_federation_are_a_note(table: dict[str, Any], named: bool) -> None:
    notes = results_of(methods=[{"name": "fedavg", "rounds": 1}], **table).notes
    assert ("[protect] of the study: only a federation follows them" in notes) == named


def test_features_that_a_method_leaves_out_are_a_note() -> None:
    parties = [replace(party, structural=torch.tensor([0, 2])) for party in small_parties("graph")]
    notes = isthmus.run(["fgcl", "fedavg"], parties, rounds=1).notes
    width = parties[0].features
    assert f"fgcl leaves out 2 of {width} features, which follow from edges" in notes
    assert not any("leaves out" in note for note in isthmus.run("fgcl", parties, rounds=1, features="all").notes)


class Probable(nn.Module):
    """Returns what a function makes of scores."""

    def __init__(self, last: nn.Module, features: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.last = gnn.GCNConv(features, outputs), last

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(self.conv(x, edge_index))
        return output


@pytest.mark.parametrize("tasks", [0, 3])
def test_a_model_that_returns_probabilities_is_a_note(tasks: int) -> None:
    parties = small_parties("node")
    if tasks:
        for party in parties:
            party.graph.y = torch.randint(2, (party.nodes, tasks), generator=torch.Generator().manual_seed(0)).float()
    task = task_for(parties)
    own: list[Any] = [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid(), nn.ReLU(), nn.Identity()]
    found = [probability_notes([partial(Probable, last)], parties, task) for last in own]
    due = ["softmax", "sigmoid"] if tasks else ["softmax"]
    assert [notes[0].partition(" returns")[2] for notes in found if notes] == [
        f" probabilities, the loss expects scores: leave out the {each} at its end" for each in due
    ]
    assert [bool(notes) for notes in found] == [True, False, bool(tasks), False, False]


@pytest.mark.parametrize(
    ("model", "note"),
    [
        (GraphSage(), "sage ignores the edge weights of 2 of 3 parties: set model.weighted = true"),
        (
            gnn.GraphSAGE(16, 8, 2, 4),
            "torch_geometric.nn.models.basic_gnn:GraphSAGE ignores the edge weights of 2 of 3 parties: "
            "use another model, such as gcn, or add edge_weight to forward in a class of your own",
        ),
        *((model, "") for model in (GraphSage(weighted=True), Gcn(), Mlp(), gnn.GCN(16, 8, 2, 4))),
    ],
    ids=["sage", "pyg-sage", "weighted-sage", "gcn", "mlp", "pyg-gcn"],
)
def test_edge_weights_that_a_model_ignores_are_a_note(model: Any, note: str) -> None:
    parties = small_parties("node", parties=3)
    for party, weight in zip(parties, (1.0, 2.0, 0.5), strict=True):  # weights of 1 are as good as none
        party.graph.edge_weight = torch.full((party.edges,), weight)
    notes = isthmus.run(["fedavg", "local"], parties, model=model, rounds=1).notes
    assert [each for each in notes if "edge weights" in each] == [note] * bool(note)


def flat_parties() -> list[Party]:
    """Parties whose features say nothing, and three quarters of whose items are of one class."""
    y = torch.tensor([0, 0, 0, 1]).repeat(10)
    graph = Data(x=torch.ones(40, 3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y)
    for at, split in enumerate(("train", "val", "test")):
        graph[f"{split}_mask"] = torch.arange(40) // 4 % 3 == at
    return [Party.of_graph(name, graph) for name in ("north", "south")]


def test_a_majority_predictor_is_marked_in_table_report_and_headline(tmp_path: Path) -> None:
    results = isthmus.run(["fedavg", "majority"], flat_parties(), rounds=3, out=tmp_path / "out")
    assert [is_majority([run]) for run in results.runs] == [True, True]
    assert [run.majority_score for run in results.runs] == [0.5, 0.5]
    due = "fedavg is no better than the majority class of the test items, whose ROC AUC is 50.0 %"
    assert results.notes == [due]
    table = results_table(results, Console())
    assert list(table.columns[0].cells) == ["fedavg *", "majority"]
    assert table.caption == "* no better than the majority class"
    findings = read_folders([tmp_path / "out"])
    assert [findings.is_majority(name) for name in ("fedavg", "majority")] == [True, False]
    page = isthmus.write_report([tmp_path / "out"]).read_text()
    assert page.count("no better than the majority class</small>") >= 1
    assert f"<b>Note:</b> {due}." in page


def test_what_the_data_cannot_measure_is_said(tmp_path: Path) -> None:
    parties = flat_parties()
    none = torch.zeros(40, dtype=torch.bool)
    one_class = [replace(party, test=party.test & (party.graph.y == 0)) for party in parties]
    nothing, no_choice = ([replace(party, **{split: none}) for party in parties] for split in ("test", "val"))
    for parties, due in (
        (one_class, "test data with a single class give no ROC AUC: other metrics of them say little"),
        (nothing, "no party has test items: what is known are validation figures alone"),
        (no_choice, "no party has validation items: the last round is the result"),
    ):
        assert due in isthmus.run(["fedavg", "local"], parties, rounds=1).notes
    isthmus.run("fedavg", nothing, rounds=1, out=tmp_path / "out")
    (row,) = compare(tmp_path / "out").rows
    assert row["metric"] == "val_roc_auc"


def test_it_is_marked_among_settings_and_beside_a_reference_too(tmp_path: Path) -> None:
    results = isthmus.run(
        ["fedavg", "local"], flat_parties(), grid={"local.lr": [0.1, 0.2]}, rounds=2, out=tmp_path / "out"
    )
    assert results.search is not None
    table = search_table(results, results.search, Console())
    assert sorted(table.columns[0].cells) == ["fedavg", "fedavg *", "local", "local *"]
    assert table.caption == "* no better than the majority class"
    findings = read_folders([tmp_path / "out"])
    remarks = {name: findings.remark(name) for name in findings.about}
    assert all(each.endswith("no better than the majority class") for each in remarks.values())
    assert sum(";" in each for each in remarks.values()) == len([name for name in remarks if name.startswith("local")])


def test_numbers_that_are_far_away_are_told_and_so_is_who_is_no_better_than_one_answer() -> None:
    parties = flat_parties()
    for party in parties:
        party.graph.y = 100 + party.graph.y.float()
    results = isthmus.run(["fedavg", "majority"], parties, rounds=1)
    assert results.notes == [
        "labels are numbers of about 100, and models start near 0: give more rounds or a larger local.lr, or divide "
        "them in your tables, and compare",
        "fedavg is no better than the mean label of the test items, whose RMSE is 0.433: labels are not scaled, so a "
        "model learns their mean first; give more rounds, without dropout",
    ]
    assert results_table(results, Console()).caption == "* no better than the mean label"
    notes = isthmus.run(["fedavg", "majority"], parties, rounds=1, metric="mae").notes
    assert "fedavg is no better than majority, one answer for all items, by MAE" in notes


@pytest.mark.parametrize(
    ("labels", "said"),
    [((0, 1), ""), ((1, 2), "class 0, of 3 classes"), ((0, 5), "class 1, class 2, class 3 and 1 more, of 6 classes")],
)
def test_classes_that_nobody_has_are_a_note(labels: tuple[int, int], said: str) -> None:
    parties = flat_parties()
    for party in parties:
        party.graph.y = torch.tensor(labels)[party.graph.y]
    notes = [each for each in isthmus.run("fedavg", parties, rounds=1).notes if "no item is of" in each]
    assert notes == ([f"no item is of {said}: classes are numbers from 0, without gaps"] if said else [])


def test_a_metric_of_one_class_says_if_that_is_the_common_one() -> None:
    parties = flat_parties()
    for party in parties:
        party.graph.y = (torch.arange(40) % 20 > 0).long()  # a rare class 0
    note = "average precision is about 'class 1', 95.0 % of the items: for 'class 0' give task={'positive': 0}"
    for options, due in (({}, [note]), ({"positive": 0}, [])):
        task = {"metric": "average_precision", **options}
        results = isthmus.run("fedavg", parties, rounds=1, task=task)
        assert [each for each in results.notes if "is about" in each] == due


@pytest.mark.parametrize(
    ("metric", "marked"), [("accuracy", True), ("balanced_accuracy", True), ("average_precision", False)]
)
def test_the_chosen_metric_says_who_is_no_better_than_the_majority_class(
    metric: str, marked: bool, tmp_path: Path
) -> None:
    parties = flat_parties()
    for party in parties:  # one in three of the items that look rare is: they rank first, and none is called rare
        party.graph.x = (torch.arange(40) % 4 > 0)[:, None].expand(-1, 3).float()
    results = isthmus.run("fedavg", parties, rounds=10, metric=metric, out=tmp_path / "out")
    assert results.runs[0].metrics["test_accuracy"] == 0.75
    assert is_majority(results.runs) == marked
    assert any("no better than the majority class" in note for note in results.notes) == marked
    assert read_folders([tmp_path / "out"]).is_majority("fedavg") == marked


def test_a_method_that_learns_is_not_marked() -> None:
    results = results_of(methods=[{"name": "fedavg", "rounds": 10}, {"name": "majority"}])
    assert not is_majority([results.runs[0]])
    assert list(results_table(results, Console()).columns[0].cells) == ["fedavg", "majority"]


def test_training_alone_that_is_best_is_a_note() -> None:
    data = {"name": "banks", "nodes": 300, "parties": 2, "skew": 0.3}
    learned = {"name": "local", "rounds": 30}
    untrained = {"name": "fedavg", "rounds": 3, "local": {"lr": 1e-9}}
    due = "local is better than every federated method: by these results, parties gain nothing together"
    assert due in results_of(data=data, methods=[learned, untrained], seeds=3).notes
    (few,) = [note for note in results_of(data=data, methods=[learned, untrained]).notes if "ahead" in note]
    assert few.endswith("fewer than 3 seeds do not show that parties gain nothing together: give --seeds 3")
    weak = {"name": "local", "rounds": 1, "local": {"lr": 1e-9}}
    assert due not in results_of(data=data, methods=[weak, {"name": "fedavg", "rounds": 30}]).notes


def test_training_alone_is_not_called_best_while_other_methods_still_improve(tmp_path: Path) -> None:
    data = {"name": "banks", "nodes": 300, "parties": 2, "skew": 0.3}
    slow = {"name": "fedavg", "rounds": 3, "local": {"lr": 0.001}}
    results = results_of(tmp_path / "out", data=data, methods=[{"name": "local", "rounds": 30}, slow])
    assert [run.chosen_round for run in results.runs if run.method == "fedavg"] == [3]
    due = "local is better than every federated method, but the best round of fedavg was the last: train longer"
    assert f"{due} (--rounds 6)" in results.notes
    assert not any("gain nothing together" in note for note in results.notes)
    assert isthmus.write_report([tmp_path / "out"]).read_text().count(f"<b>Note:</b> {due} (--rounds 6).") == 1


def test_a_split_without_a_rare_class_is_a_note() -> None:
    def parties(places: dict[str, list[int]]) -> list[Party]:
        found = []
        for name, at in places.items():
            party = replace(flat_parties()[0], name=name)
            party.graph.y = torch.zeros(40, dtype=torch.long)
            party.graph.y[at] = 1
            found.append(party)
        return found

    def notes(held: list[Party]) -> list[str]:
        return [each for each in isthmus.run("majority", held, rounds=1).notes if "item of" in each]

    # items 0 to 3 are for training, 4 to 7 for validation, 8 to 11 for testing
    # far holds none, so that no split can help there
    (note,) = notes(parties({"north": [0, 4, 8], "south": [0, 4], "east": [0, 1], "west": [0, 8], "far": []}))
    assert note == (
        "'class 1' has no validation item of east, west and no test item of south, "
        "east: what is said of it rests on the other parties; larger shares for validation and test (--split, or "
        "the tables' own column) may help"
    )
    assert notes(parties({"north": [0, 4, 8], "south": [1, 5, 9]})) == []
    (unchosen,) = notes(parties({"north": [0, 1, 8], "far": []}))
    assert "'class 1' has no validation item of any party: no round is chosen by it;" in unchosen
    (alone,) = notes(parties({"north": [0, 1, 2], "far": []}))
    assert "no validation item of any party and no test item of any party: no score says anything of it;" in alone
    assert notes(parties({"north": [*range(40)][::3], "south": [0, 1, 2, 12, 13, 14, 24, 25, 26, 36]})) == []


def test_yes_or_no_among_numbers_is_a_note() -> None:
    held = flat_parties()
    for party in held:
        party.graph.y = torch.stack([torch.arange(40) % 2, torch.arange(40)], dim=1).float()
    assert (
        "labels of task 0 are 0 and 1, and are measured values here as others are: predict them in another study"
        in isthmus.run("majority", held, rounds=1).notes
    )
    for party in held:
        party.graph.y[:, 1] = party.graph.y[:, 0]
    assert not any("another study" in note for note in isthmus.run("majority", held, rounds=1).notes)
    for party in held:  # one task is 0 wherever it is known, and may be measured
        party.graph.y = torch.stack([torch.zeros(40), torch.arange(40.0)], dim=1)
    assert not any("another study" in note for note in isthmus.run("majority", held, rounds=1).notes)


def test_many_rare_classes_are_one_note() -> None:
    held = flat_parties()
    for at, party in enumerate(held):
        party.graph.y[:] = 0
        if at < 2:
            party.graph.y[torch.arange(12)[at::2]] = torch.arange(1, 7)  # six classes with two items each
    notes = [each for each in isthmus.run("majority", held, rounds=1).notes if "rare classes" in each]
    assert notes == [
        "6 rare classes lack validation or test items at parties that hold them (class 1, class 2, class 3 and 3 "
        "more): what is said of them rests on few items, and no score says anything of 4 of them; larger shares for "
        "validation and test (--split, or the tables' own column) may help"
    ]


def rare_parties() -> list[Party]:
    parties = flat_parties()
    for party in parties:
        party.graph.y = (torch.arange(40) // 12 == 0).long() * (torch.arange(40) % 4 == 0).long()
    return parties


def test_a_rare_class_is_a_note_unless_a_metric_or_weights_are_chosen() -> None:
    def notes(**options: Any) -> list[str]:
        return [each for each in isthmus.run("majority", rare_parties(), rounds=1, **options).notes if "judge" in each]

    (note,) = notes()
    assert note == (
        "class 1 is rare, 7.5% of the labels: a model that never predicts it can have an accuracy of 92.5% (and ROC "
        "AUC tells little of it), so judge by another metric, and weigh classes in the loss: "
        "metric='average_precision', task={'class_weights': 'balanced'}"
    )
    assert notes(metric="average_precision") == notes(task={"class_weights": "balanced"}) == []
    with flags_in_messages():
        assert notes()[0].endswith(": --metric average_precision --set task.class_weights=balanced")


def test_one_party_alone_is_a_note() -> None:
    due = "there is one party, so nothing is federated: its data alone train fedavg, ditto"
    assert due in isthmus.run(["local", "fedavg", "ditto"], flat_parties()[:1], rounds=1).notes
    for method, parties in (("local", flat_parties()[:1]), ("fedavg", flat_parties())):
        assert not any("one party" in note for note in isthmus.run(method, parties, rounds=1).notes)


def test_edge_attributes_are_kept() -> None:
    graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]))
    graph.edge_attr = torch.arange(2)
    assert Party.of_graph("north", graph).graph.edge_attr.tolist() == [[0.0], [1.0]]
    for values, due in (
        (torch.ones(3, 2), r"\[3, 2\], it must be \[2, features\]"),
        (torch.ones(2) / 0, "2 NaN or inf"),
    ):
        graph.edge_attr = values
        with pytest.raises(IsthmusError, match=f"^party 'north': edge_attr has.*{due}"):
            Party.of_graph("north", graph)


def test_validation_data_with_one_class_are_a_note() -> None:
    parties = flat_parties()
    one = [replace(party, val=party.val & (party.graph.y == 0)) for party in parties]
    due = "validation data with a single class give no ROC AUC: the last round is the result"
    for held, noted in ((parties, False), (one, True)):
        results = isthmus.run("fedavg", held, rounds=3)
        assert (due in results.notes) == noted
        assert results.runs[0].select_by == "roc_auc"
    assert results.runs[0].chosen_round == 3


def test_parties_that_a_metric_leaves_out_are_a_note() -> None:
    """Test items of a single class give no ROC AUC."""
    first, *others = small_parties("node")
    graph = first.graph.clone()
    graph.y = torch.where(first.test, 0, graph.y % 2)
    two = [replace(party, graph=party.graph.clone()) for party in others]
    for party in two:
        party.graph.y %= 2
    results = isthmus.run("fedavg", [replace(first, graph=graph), *two], rounds=1, metric="roc_auc")
    line = "1 of 4 parties have test items that give no ROC AUC: means over parties leave them out"
    assert line in results.notes
    (run,), fedavg = results.runs, [Method.named("fedavg")(rounds=1)]
    other = replace(run, seed=1, over_parties={"test_roc_auc": {**run.over_parties["test_roc_auc"], "parties": 1}})
    (several,) = (each for each in result_notes(fedavg, [run, other], "roc_auc") if "leave them out" in each)
    assert several.startswith("by seed, 1 to 3 parties have test items that give no ROC AUC: ")
    assert not any("leave them out" in note for note in isthmus.run("fedavg", small_parties("node"), rounds=1).notes)


def test_an_average_precision_that_bins_make_uncertain_is_told() -> None:
    method = Method.named("fedavg")(rounds=1)
    run = isthmus.run(method, {"name": "banks", "classes": 2}, metric="average_precision").runs[0]
    assert list(run.by_label["1"])[-2:] == ["average_precision", "average_precision_error"]
    assert run.by_label["0"]["average_precision"] is None  # of two classes one is looked for
    for error, due in ((0.004, []), (0.0213, ["fedavg is up to 2.1 points off the exact one, since many"])):
        other = replace(run, by_label={"1": {"items": 9.0, "average_precision_error": error}})
        found = [note for note in result_notes([method], [other], "average_precision") if "share a bin" in note]
        assert [note.split(" of ", 1)[1].split(" scores")[0] for note in found] == due


def test_who_is_ahead_by_party_is_said_where_training_alone_is_best_by_all_items() -> None:
    def run_of(method: str, score: float, mean: float) -> Any:
        run = isthmus.run(method, rounds=1).runs[0]
        run.metrics["test_accuracy"] = score
        return replace(run, over_parties={"test_accuracy": {"mean": mean, "worst": mean, "parties": 3}})

    methods = [Method.named(name)(rounds=1) for name in ("local", "fedavg")]
    for mean, due in ((0.5, False), (0.8, True)):
        notes = result_notes(methods, [run_of("local", 0.9, 0.7), run_of("fedavg", 0.85, mean)], "accuracy")
        (note,) = [each for each in notes if "every federated method" in each]
        assert note.startswith("over all test items together, local is better than every") is due
        assert note.endswith("; fedavg is ahead by the mean over parties and by the worst party") is due


def test_training_alone_is_not_called_ahead_where_the_figures_shown_are_equal() -> None:
    def run_of(method: str, score: float) -> Any:
        results = isthmus.run(method, rounds=1)
        results.runs[0].metrics["test_accuracy"] = score
        return results.runs[0]

    methods = [Method.named(name)(rounds=1) for name in ("local", "fedavg")]
    for alone, noted in ((0.95569, False), (0.9567, True)):
        runs = [run_of("local", alone), run_of("fedavg", 0.95557)]
        assert any("every federated method" in note for note in result_notes(methods, runs, "accuracy")) is noted
