"""A trained model is loaded with everything that it needs, and predicts what the run evaluated."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet
from tests.party_folders import collection_draft, graph_draft, two_drafts
from torch import nn
from torch_geometric.nn import GCNConv

import isthmus
from isthmus import own_code
from isthmus.data.level import Level
from isthmus.data.partition import Partition
from isthmus.data.party import Party
from isthmus.data.pool import DataSet
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from isthmus.study.export import export_model
from isthmus.study.model_files import load_model
from isthmus.study.models import TrainedModel, write_predictions
from isthmus.study.results import Results
from isthmus.study.run import run_study
from isthmus.testing import small_parties


class Wide(nn.Module):
    head = "last"

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.conv, self.last = GCNConv(features, 8), nn.Linear(8, classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(x, edge_index).relu())


def study_of(*methods: str, **more: Any) -> Study:
    training = {"rounds": 3, "select": "last"}
    return Study.of({"methods": [{"name": name} for name in methods], "training": training, **more})


def accuracy(table: pa.Table, study: Study, model: TrainedModel) -> float:
    """Of a table of predictions for all parties, on the test items."""
    parties = study.load(0).parties
    names = [*model.labels] or [str(at) for at in range(100)]
    due = [names[at] for party in parties for at in party.graph.y.tolist()]
    test = torch.cat([party.test for party in parties])
    right = torch.tensor([one == two for one, two in zip(table["prediction"].to_pylist(), due, strict=True)])
    return float(right[test].double().mean())


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Results, Path]:
    study = study_of("fedavg", "fedper", "ditto", "fedproto", "local")
    out = tmp_path_factory.mktemp("banks") / "run"
    return study, run_study(study, out), out


def test_predictions_of_the_shared_model_have_the_accuracy_of_the_run(banks: tuple[Study, Results, Path]) -> None:
    study, results, out = banks
    due = next(run for run in results.runs if run.method == "fedavg").metrics["test_accuracy"]
    for model in (results.model("fedavg"), load_model(out, "fedavg")):
        table = model.predict(study.load(0).parties)
        assert accuracy(table, study, model) == pytest.approx(due, abs=1e-12)


@pytest.mark.parametrize("method", ["fedper", "ditto", "fedproto", "local"])
def test_predictions_of_personal_models_have_each_partys_accuracy(
    method: str, banks: tuple[Study, Results, Path]
) -> None:
    study, results, out = banks
    run = next(run for run in results.runs if run.method == method)
    for party in study.load(0).parties:
        model = load_model(out, method, party=party.name)
        guess = model.outputs(party).argmax(1)
        right = (guess == party.graph.y)[party.test].double().mean()
        assert float(right) == pytest.approx(run.parties[party.name]["test_accuracy"], abs=1e-12)
        assert model.predict(party).equals(results.model(method, party=party.name).predict(party))


@pytest.mark.parametrize(("method", "together"), [("fedgcn", True), ("centralized", True), ("fedcog-gcn", False)])
def test_a_model_trained_across_borders_says_which_edges_it_lacks(method: str, together: bool) -> None:
    study = study_of(method)
    results, parties = run_study(study), study.load(0).parties
    model = results.model(method)
    found = accuracy(model.predict(parties), study, model) - results.runs[0].metrics["test_accuracy"]
    assert len(model.notes) == (0 if together else len(parties))
    assert found == pytest.approx(0, abs=1e-12) or not together
    assert len(model.embeddings(parties)) == sum(party.nodes for party in parties)
    model.outputs(parties[0])
    (note,) = model.notes
    assert note.startswith(f"{method} trained on edges between parties; 'party-0' is predicted without those to par")


def parties_of(kind: str) -> list[Party]:
    if kind == "overlap":
        return list(Partition.named("overlap")().cut(DataSet.named("banks")().load(0), 3, 0))
    return small_parties(cast(Level, kind), 3)


@pytest.mark.parametrize("kind", ["node", "edge", "pair", "overlap"])
def test_a_model_of_all_data_in_one_place_reads_them_in_one_place(kind: str) -> None:
    parties = parties_of(kind)
    task = {"node": "node-classification", "overlap": "node-classification", "edge": "edge-classification"}
    results = isthmus.run("centralized", parties, task=task.get(kind, "link-prediction"), rounds=1)
    model, whole = results.model("centralized"), pool_parties(parties)
    found = model.outputs(parties)
    assert model.notes == []
    alone = model.outputs(whole)
    if kind == "edge":
        due = alone
    else:
        assert whole.ids is not None
        position = {each: at for at, each in enumerate(whole.ids.tolist())}
        due = alone[[position[each] for party in parties if party.ids is not None for each in party.ids.tolist()]]
    torch.testing.assert_close(found, due, rtol=0, atol=1e-6)
    apart = torch.cat([model.outputs(party) for party in parties])
    assert float((apart - due).abs().max()) > 1e-3, "edges between parties matter"
    torch.testing.assert_close(model.embeddings(parties[:1]), model.embeddings(parties[0]), rtol=0, atol=0)


def test_a_personal_head_needs_a_party(banks: tuple[Study, Results, Path]) -> None:
    _, results, out = banks
    with pytest.raises(IsthmusError, match=r"weight 'convs.1.bias' is each party's own: .*'party-0' \(party-0, p"):
        load_model(out, "fedper")
    with pytest.raises(IsthmusError, match=r"'local' has a model for each party: .*\(party-0, party-1"):
        results.model("local")
    with pytest.raises(IsthmusError, match="'local' has no model of party 'x': known: party-0"):
        load_model(out, "local", party="x")


def test_a_shared_model_is_not_given_to_a_party_that_is_none(banks: tuple[Study, Results, Path]) -> None:
    _, results, out = banks
    for ask in (results.model, lambda *args, **given: load_model(out, *args, **given)):
        with pytest.raises(IsthmusError, match="the run has no party 'party1': did you mean 'party-1'"):
            ask("fedavg", party="party1")
        assert ask("fedavg", party="party-1").party == "", "it is all parties'"


def test_a_constant_predicts_and_has_nothing_to_embed_with(tmp_path: Path) -> None:
    study = study_of("majority", "fedavg")
    results = run_study(study, tmp_path / "run")
    parties = study.load(0).parties
    trained = torch.cat([party.graph.y[party.train] for party in parties])
    for model in (results.model("majority"), load_model(tmp_path / "run", "majority")):
        table = model.predict(parties)
        assert set(table["prediction"].to_pylist()) == {f"{trained.bincount().argmax()}"}
        with pytest.raises(IsthmusError, match="method 'majority' trains no model: there is nothing to embed with"):
            model.embeddings(parties)
        with pytest.raises(IsthmusError, match="'majority' predicts with more than its module: use isthmus predict"):
            export_model(model, tmp_path / "m.pt2")


def test_a_choice_is_asked_for_where_there_are_several(banks: tuple[Study, Results, Path], tmp_path: Path) -> None:
    _, results, out = banks
    line = "several models: choose method='ditto', 'fedavg', 'fedper', 'fedproto' or 'local'$"
    with pytest.raises(IsthmusError, match=f"run holds {line}"):
        load_model(out)
    with pytest.raises(IsthmusError, match=f"^the results hold {line}"):
        results.model()
    line = "no model with seed 7: method 'fedavg' has seed 0$"
    with pytest.raises(IsthmusError, match=f"run holds {line}"):
        load_model(out, "fedavg", seed=7)
    with pytest.raises(IsthmusError, match=f"^the results hold {line}"):
        results.model("fedavg", 7)
    with pytest.raises(IsthmusError, match="run holds no model of method 'fedavgg': did you mean 'fedavg'"):
        load_model(out, "fedavgg")
    with pytest.raises(IsthmusError, match=r"run holds no model with seed '0': the runs have seed 0$"):
        load_model(out, seed="0")  # type: ignore[arg-type]
    with pytest.raises(IsthmusError, match="holds no models: give a folder that isthmus run wrote"):
        load_model(tmp_path)
    (tmp_path / "stopped" / ".state").mkdir(parents=True)
    with pytest.raises(IsthmusError, match="holds no models yet: finish its study"):
        load_model(tmp_path / "stopped")


def test_the_embedding_is_what_the_head_receives(banks: tuple[Study, Results, Path]) -> None:
    study, _, out = banks
    party, model = study.load(0).parties[0], load_model(out, "fedavg")
    embedding = model.embeddings(party)
    assert embedding.shape == (party.nodes, 64)
    h = model.module.get_submodule("convs.1")(embedding, party.graph.edge_index, party.graph.get("edge_weight"))
    assert torch.allclose(h, model.outputs(party), atol=1e-5)
    table = model.embed(party)
    assert table["id"].to_pylist() == party.ids.tolist()
    assert torch.equal(torch.tensor(table["embedding"].to_pylist()), embedding)


def test_new_rows_of_folders_are_encoded_as_in_training(tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "parties" / draft.settings["name"])
    study = study_of("fedavg", data={"name": "folder", "path": str(tmp_path / "parties")})
    results = run_study(study, tmp_path / "run")
    model, party = load_model(tmp_path / "run"), study.load(0).parties[0]
    assert model.labels == ("low", "high")
    alone = model.predict(tmp_path / "parties" / "north")  # its own mean and values are others than those of both
    due = results.model().task.predictions(results.model().outputs(party), ("low", "high"))
    assert alone["prediction"].to_pylist() == due["prediction"]
    assert alone["score.high"].to_pylist() == due["score.high"].tolist()
    assert alone["id"].to_pylist() == list(range(8))
    assert alone.column_names[-2:] == ["label", "split"]
    assert alone["label"].to_pylist() == [["low", "high"][at] for at in party.graph.y.tolist()]
    splits = {name: getattr(party, name).tolist() for name in ("train", "val", "test")}
    assert alone["split"].to_pylist() == [next((name for name in splits if splits[name][at]), None) for at in range(8)]
    table = model.predict(two_drafts()[0].without("label").without("split").write(tmp_path / "new"))
    assert table.column_names[-1] == "score.high"


def test_a_split_that_is_not_the_models_is_left_out(tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "parties" / draft.settings["name"])
    data, partition = {"name": "folder", "path": str(tmp_path / "parties")}, {"split": [0.5, 0.25, 0.25]}
    study = study_of("fedavg", data=data, partition=partition)
    model = run_study(study).model()
    assert model.predict(tmp_path / "parties").column_names[-1] == "label"
    assert "the study drew its own split, so that of the data is left out" in model.notes
    assert model.predict(study.load(0).parties).column_names[-1] == "split"


@pytest.mark.parametrize(
    ("weights", "effect"),
    [
        ("balanced", "(balanced), so it chooses classes as if all were equally frequent"),
        (
            [1.0, 1.0, 1.0, 5.0],
            "([1.0, 1.0, 1.0, 5.0]), so it chooses classes as if their frequencies were multiplied by these weights",
        ),
    ],
)
def test_predictions_of_a_model_with_class_weights_say_so(weights: Any, effect: str) -> None:
    model = isthmus.run("fedavg", rounds=1, task={"class_weights": weights}).model()
    model.predict("banks")
    remedy = "rank items by a score column, and choose a threshold on validation data"
    assert model.notes == [f"the model was trained with class weights {effect}: {remedy}"]
    model.embed("banks")
    assert model.notes == []


def test_outputs_and_tables_are_of_the_same_kinds_of_data(tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "parties" / draft.settings["name"])
    study = study_of("fedavg", data={"name": "folder", "path": str(tmp_path / "parties")})
    model, parties = run_study(study).model(), study.load(0).parties
    assert torch.equal(model.outputs(parties), torch.cat([model.outputs(party) for party in parties]))
    uses = (model.outputs, model.embeddings, model.predict, model.embed)
    for use in uses:
        assert len(use(tmp_path / "parties")) == len(use(str(tmp_path / "parties"))) == len(use(parties)) == 16
        for wrong, name in (
            ({"a": [1]}, "a dict"),
            ([], "an empty list"),
            (["north"], "a list"),
            (pa.table({"a": [1]}), "a Table"),
        ):
            with pytest.raises(IsthmusError, match=f"data is {name}: give the path of a party folder or of a folder"):
                use(wrong)


def test_graphs_keep_the_ids_of_their_files(tmp_path: Path) -> None:
    collection_draft(first=0).write(tmp_path / "parties" / "one")
    study = study_of("fedavg", data={"name": "folder", "path": str(tmp_path / "parties")}, unlabelled="idle")
    model = run_study(study).model()
    new = collection_draft("new", graphs=4, first=50)
    new.tables["graphs.parquet"] = {"id": new.tables["graphs.parquet"]["id"][::-1]}  # no labels, another order
    table = model.predict(new.write(tmp_path / "new"))
    assert table["id"].to_pylist() == ["g53", "g52", "g51", "g50"]
    assert set(table["prediction"].to_pylist()) <= {"low", "high"}


def test_a_module_of_ones_own_is_given_again(tmp_path: Path) -> None:
    results = isthmus.run("fedavg", model=Wide, rounds=1, out=tmp_path / "run")
    due = results.model(module=Wide).predict("banks")
    assert load_model(tmp_path / "run", module=Wide).predict("banks").equals(due)
    assert results.model().predict("banks").equals(due)  # these results hold the class
    with pytest.raises(IsthmusError, match=r"model of your own, .*Wide: give it, isthmus.load_model\(RUN, module"):
        load_model(tmp_path / "run")
    with pytest.raises(IsthmusError, match=r"or results.model\(..., module=MyModule\)$"):
        replace(results, own_models={}).model()


@pytest.mark.parametrize(
    ("method", "unit", "noted"), [("fedgcn", "edge", 1), ("local", "edge", 1), ("local", "node", 0)]
)
def test_a_model_trained_on_noisy_sums_says_that_it_reads_exact_ones(method: str, unit: str, noted: int) -> None:
    privacy = {"unit": unit, "epsilon": 8.0, **({"neighbours": 300} if unit == "node" else {})}
    results = isthmus.run(method, "banks", rounds=1, model="gap", privacy=privacy)
    model = results.model(party="party-0" if method == "local" else None)
    model.predict("banks") if method == "fedgcn" else model.predict(Study().load(0).parties[0])
    notes = [note for note in model.notes if "noise" in note]
    assert (
        notes
        == [
            "the model was trained on sums over neighbours with noise and reads exact ones here: its scores "
            "differ from the study's"
        ]
        * noted
    )
    assert not [note for note in model.notes if "at once" in note]


@pytest.mark.parametrize(
    ("method", "level", "model", "privacy", "left_out"),
    [
        ("fedavg", "node", "gap", {"unit": "edge", "epsilon": 8.0}, True),
        ("fedgcn", "node", "gap", {"unit": "edge", "epsilon": 8.0}, True),
        ("fedavg", "node", "gap", {"unit": "node", "epsilon": 8.0, "neighbours": 300}, True),
        ("fedavg", "node", "gap", None, False),
        ("fgcl", "graph", "gcn", None, True),
    ],
)
@pytest.mark.thinned(3)
def test_features_that_training_read_as_zeros_are_zeros_in_use(
    method: str, level: Any, model: str, privacy: Any, left_out: bool, tmp_path: Path
) -> None:
    parties = [replace(party, structural=torch.tensor([0, 2])) for party in small_parties(level)]
    trained = isthmus.run(method, parties, rounds=2, model=model, privacy=privacy).model()
    party, changed = parties[0], copy(parties[0].graph)
    changed.x = party.graph.x.to_dense().index_add(1, torch.tensor([0, 2]), torch.full((changed.num_nodes, 2), 9.0))
    other = replace(party, graph=changed)
    assert torch.equal(trained.outputs(party), trained.outputs(other)) == left_out
    assert torch.equal(trained.embeddings(party), trained.embeddings(other)) == left_out
    export_model(trained, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    batch = (changed.batch,) if level == "graph" else ()
    given = changed.x, changed.edge_index, torch.ones(changed.num_edges), *batch
    torch.testing.assert_close(program(*given), trained.outputs(other), atol=1e-5, rtol=0)


def test_a_model_of_all_beside_models_of_their_own_says_so(tmp_path: Path) -> None:
    results = isthmus.run(["fedavg", "ditto"], small_parties("node"), rounds=1, out=tmp_path / "run")
    assert [(run.method, run.evaluated) for run in results.runs] == [("fedavg", "sent"), ("ditto", "own")]
    own = small_parties("node")[0].name
    said = "the run's figures of ditto are of each party's own model, and this is the one that all share"
    for load in (results.model, partial(load_model, tmp_path / "run")):
        assert [each.partition(";")[0] for each in load("ditto").about] == [said]
        assert load("ditto", party=own).about == load("fedavg").about == []


def test_a_model_of_a_party_that_trained_nothing_says_so() -> None:
    parties = small_parties("node")
    idle = replace(parties[1], train=torch.zeros_like(parties[1].train))
    results = isthmus.run("fedrep", [parties[0], idle, *parties[2:]], rounds=1, unlabelled="idle")
    for party, noted in ((idle, True), (parties[0], False)):
        model = results.model(party=party.name)
        model.predict(party)
        assert any("had no training label: what only it trains" in note for note in model.notes) == noted


def test_a_method_of_ones_own_is_asked_for_by_its_file(tmp_path: Path) -> None:
    model = isthmus.run("fedavg", rounds=1).model()
    description = {**model.description, "method": {"name": "nowhere"}, "code": {"own:Nowhere": "1f"}}
    with pytest.raises(
        IsthmusError, match=r"method 'nowhere' is code of your own \(own:Nowhere\): give it, import the file"
    ):
        TrainedModel(description, model.weights, {})


def wide_by(width: int) -> Any:
    return lambda features, outputs: Sized(features, outputs, width)


@pytest.mark.parametrize("make", [lambda: Wide(16, 4), lambda: wide_by(3)])
def test_results_hold_the_model_that_they_are_of(make: Callable[[], Any]) -> None:
    model = make()
    results = isthmus.run(["fedavg", "local"], "banks", model=model, rounds=1)
    kept = results.model("fedavg").predict("banks")
    assert kept.equals(results.model("fedavg", module=model).predict("banks"))
    party = results.model("local", party="party-1")
    assert not kept["score.1"].equals(party.predict("banks")["score.1"])
    assert kept.equals(results.model("fedavg").predict("banks"))  # the object given is copied, not changed


class Sized(Wide):
    def __init__(self, features: int, classes: int, width: int = 8) -> None:
        super().__init__(features, classes)
        self.conv, self.last = GCNConv(features, width), nn.Linear(width, classes)


def test_a_module_of_ones_own_has_the_options_that_it_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = f"{__name__}:Sized"
    results = isthmus.run("fedavg", model={"encoder": reference, "width": 5}, rounds=1, out=tmp_path / "run")
    assert repr(results.model()) == "TrainedModel: fedavg, node-classification, 16 features to 4 outputs"
    for given in (Sized, reference):
        model = load_model(tmp_path / "run", module=given)
        assert model.module.get_submodule("conv").out_channels == 5
        assert model.predict("banks").equals(results.model(module=Sized).predict("banks"))
        assert model.predict("banks").equals(results.model().predict("banks"))
    with pytest.raises(IsthmusError, match="unknown option 'width': there are none"):
        load_model(tmp_path / "run", module=Wide)
    with pytest.raises(IsthmusError, match="module is 3: give the model, or the class or function"):
        load_model(tmp_path / "run", module=3)
    monkeypatch.setattr(own_code, "imported", {__name__})  # as with --import
    assert load_model(tmp_path / "run").predict("banks").equals(model.predict("banks"))


def test_links_are_embedded_and_not_predicted() -> None:
    model = run_study(study_of("fedavg", task={"name": "link-prediction"})).model()
    assert model.embed("banks")["embedding"].type.list_size == 100
    with pytest.raises(
        IsthmusError, match="task 'link-prediction' predicts nothing of single items: use isthmus embed"
    ):
        model.predict("banks")


def test_graphs_without_labels_are_embedded() -> None:
    data = {"name": "motifs", "graphs": 60}
    task, training = {"name": "graph-clustering"}, {"rounds": 3}
    model = run_study(study_of("infograph", data=data, task=task, training=training)).model()
    assert model.embed("motifs").num_rows == model.embed("motifs")["id"].to_numpy().max() + 1


def test_data_of_another_kind_are_refused(tmp_path: Path) -> None:
    model = run_study(study_of("fedavg")).model()
    with pytest.raises(IsthmusError, match="holds graphs, the model is for nodes"):
        model.predict("motifs")
    nodes = graph_draft(partner=None).write(tmp_path / "new")
    with pytest.raises(IsthmusError, match="not trained on party folders, so it cannot encode"):
        model.predict(nodes)
    collection_draft(first=0).write(tmp_path / "parties" / "one")
    of_graphs = run_study(study_of("fedavg", data={"name": "folder", "path": str(tmp_path / "parties")})).model()
    with pytest.raises(IsthmusError, match="holds nodes, the model is for graphs: give other data"):
        of_graphs.predict(nodes)


def test_tables_are_parquet_or_csv(tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2.0, 3.0, 4.0]), 2)
    table = pa.table({"id": ["x", "y"], "embedding": vectors})
    write_predictions(tmp_path / "table.parquet", table)
    assert parquet.read_table(tmp_path / "table.parquet").to_pylist() == table.to_pylist()
    write_predictions(tmp_path / "table.csv", table)
    found = csv.read_csv(tmp_path / "table.csv").to_pydict()
    assert found == {"id": ["x", "y"], "embedding.0": [1.0, 3.0], "embedding.1": [2.0, 4.0]}


def test_the_threshold_that_validation_items_choose_is_kept_and_used(tmp_path: Path) -> None:
    task = {"threshold": "f1", "class_weights": [1.0, 20.0], "metric": "macro_f1"}
    study = study_of("fedavg", data={"name": "banks", "classes": 2, "nodes": 400}, task=task)
    results = run_study(study, tmp_path / "run")
    run = results.runs[0]
    for model in (results.model("fedavg"), load_model(tmp_path / "run", "fedavg")):
        threshold = model.task.threshold  # type: ignore[attr-defined]
        assert threshold == run.description["task"]["threshold"] != 0.5
        table = model.predict(study.load(0).parties)
        flagged = [name == "1" for name in table["prediction"].to_pylist()]
        assert flagged == [score >= threshold for score in table["score.1"].to_pylist()]
        assert accuracy(table, study, model) == pytest.approx(run.metrics["test_accuracy"], abs=1e-12)
    weights = [items["test_accuracy"] for items in run.parties.values()]
    assert min(weights) <= run.metrics["test_accuracy"] <= max(weights)
    assert run.by_label["1"]["f1"] is not None


def test_labels_of_another_kind_are_left_out_with_a_note() -> None:
    parties = small_parties("node", 2)
    classes = isthmus.run("fedavg", parties, rounds=1).model("fedavg")
    numbers = isthmus.run("fedavg", small_parties("node", 2, "regression"), rounds=1).model("fedavg")
    for model, other in ((classes, small_parties("node", 2, "regression")), (numbers, parties)):
        table = model.predict(other)
        assert not [name for name in table.column_names if name.startswith("label")]
        assert model.notes == [
            f"the labels of '{party.name}' are of another kind than the model's: they are left out" for party in other
        ]


@pytest.mark.parametrize(("encoder", "noted"), [("gcn", True), ("sage", False)])
def test_edges_weighted_otherwise_than_in_training_are_a_note(encoder: str, noted: bool) -> None:
    parties = small_parties("node", 2)
    weighted = []
    for party in parties:
        graph = party.graph.clone()
        graph.edge_weight = torch.full((party.edges,), 0.5)
        weighted.append(party.with_graph(graph, party.border))
    with_weights, without = (isthmus.run("fedavg", each, model=encoder, rounds=1) for each in (weighted, parties))
    names = ", ".join(party.name for party in parties)
    for results, data, due in (
        (with_weights, weighted, []),
        (with_weights, parties, [f"the model was trained with edge weights; here all edges of {names} weigh 1"]),
        (without, parties, []),
        (without, weighted, [f"the model was trained without edge weights and reads those of {names}"]),
    ):
        model = results.model("fedavg")
        model.predict(data)
        assert model.notes == (due if noted else [])


@pytest.mark.parametrize(("encoder", "noted"), [("gcn", True), ("mlp", False)])
def test_edges_that_run_otherwise_than_in_training_are_a_note(encoder: str, noted: bool) -> None:
    parties = small_parties("node", 2)
    one_way = []
    for party in parties:
        graph = party.graph.clone()
        graph.edge_index = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
        one_way.append(party.with_graph(graph, party.border))
    both, one = (isthmus.run("fedavg", each, model=encoder, rounds=1) for each in (parties, one_way))
    assert [party.both_ways for party in (*parties, *one_way)] == [True] * 2 + [False] * 2
    for results, data, due in (
        (both, parties, ""),
        (both, one_way, "run both ways, those of"),
        (one, one_way, ""),
        (one, parties, "run one way, those of"),
    ):
        model = results.model("fedavg")
        model.predict(data)
        assert len(model.notes) == (noted and bool(due))
        assert due in "".join(model.notes) or not noted


def test_other_names_of_classes_are_a_note(tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "in" / draft.settings["name"])
    model = isthmus.run("fedavg", str(tmp_path / "in"), rounds=1).model("fedavg")
    for names, noted in ((["low", "high"], []), (["no", "yes"], ["no, yes"])):
        new = graph_draft("new", None)
        new.tables["nodes.parquet"]["label"] = names * 4
        table = model.predict(new.with_settings(labels=names).write(tmp_path / names[0]))
        assert table["label"].to_pylist() == names * 4
        due = [f"'new' has the classes {each}, the model low, high: label is as the data have it" for each in noted]
        assert [each for each in model.notes if "classes" in each] == due
