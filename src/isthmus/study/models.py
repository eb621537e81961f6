"""Trained models: the weights of a run together with what they need to be used on new data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from isthmus import own_code, store
from isthmus.data.description import few_names
from isthmus.data.party import SPLITS, Party
from isthmus.data.rows import zero_columns
from isthmus.data.schema import Inputs, Schema
from isthmus.errors import (
    IsthmusError,
    format_option,
    how_to_import,
    writes_flags,
)
from isthmus.federation.site import OWN, Site
from isthmus.methods.base import Method
from isthmus.nn.aggregation import aggregations
from isthmus.nn.encoders import Encoder, uses_edge_weights
from isthmus.nn.weights import Weights, initial_weights
from isthmus.own_code import identify
from isthmus.privacy.options import EdgePrivacy, NodePrivacy, Privacy
from isthmus.study.new_parties import NewData, NewParty, check_level, new_parties
from isthmus.study.own_models import GIVEN, OwnModel, code_of, model_table, named_encoder, with_saved_options
from isthmus.study.setup import check_owned_once, extended, judged, module_of, outline, without_training
from isthmus.tasks.base import Task

TABLES = (".parquet", ".csv")
"""How the names of tables of predictions end."""


def describe_model(
    method: Method,
    encoder: Any,
    task: Task,
    seed: int,
    inputs: Inputs,
    labels: Sequence[str] = (),
    encoding: Mapping[str, Any] | None = None,
    privacy: Privacy | None = None,
    parties: Sequence[Party] = (),
    own_split: bool = False,
) -> dict[str, Any]:
    """What a run's models need beside their weights, as plain values.

    Arguments:
        encoder: the study's encoder; of a model of your own, its name and options.
        inputs: what the model may read of the data.
        labels: names of the classes, or of the tasks.
        encoding: how columns of files become features; None if the data come as numbers.
        privacy: what the study hides.
        parties: those that train, as far as they are known here.
        own_split: the study draws a split, in place of that of the data.
    """
    return {
        "method": method.to_dict(),
        "seed": seed,
        "task": task.to_dict(),
        "model": model_table(encoder),
        "features": inputs.features,
        "edge_features": inputs.edge_features,
        "label_features": inputs.label_features,
        "schema": None if inputs.schema is None else inputs.schema.to_dict(),
        "structural": list(inputs.structural),
        "labels": list(labels),
        "encoding": encoding,
        "code": _sources(method, encoder, task),
        "privacy": "" if privacy is None else privacy.name,
        "untrained": without_training(parties),
        "weighted": any(party.weighted for party in parties) if parties else None,
        "both_ways": all(party.both_ways for party in parties) if parties and inputs.schema is None else None,
        "own_split": own_split,
    }


def _sources(*things: Any) -> dict[str, str]:
    """By `module:Class` the source hash of what is a user's own among a method, a task and an encoder."""
    found = identify(code_of(each) if isinstance(each, OwnModel) else type(each) for each in things)
    return {name: each["source"] for name, each in found.items()}


class TrainedModel:
    """A model together with the encoding of its columns and the names of its classes.

    Get one from `results.model(...)` or `load_model(...)`.

    Arguments:
        description: see `describe_model`.
        weights: of the whole model.
        context: what the method needs beside weights to predict, such as prototypes.
        module: a module of your own, if the study trained one; its weights are replaced.
        party: the party that owns the model; empty if several do.
        others: parties that have models of their own, to name them where this one has no whole model.

    Attributes:
        module: the PyG module with the trained weights, in evaluation mode.
        task: what it predicts.
        labels: names of the classes, or of the tasks; empty if they are numbers.
        about: which model it is, where what was asked for leaves that open: a grid's chosen setting, what all share.
        dossier: the SHA-256 of the dossier beside it, if that is of this model.
        notes: what to know of the last answer: what was unknown in its data, and for predictions, of class weights.
    """

    notes: Sequence[str] = ()
    about: Sequence[str] = ()
    dossier: str = ""

    def __init__(
        self,
        description: Mapping[str, Any],
        weights: Weights,
        context: Mapping[str, Any] | None = None,
        *,
        module: Any = None,
        party: str = "",
        others: Collection[str] = (),
    ) -> None:
        self.description, self.context, self.party = description, dict(context or {}), party
        self.labels: tuple[str, ...] = tuple(description["labels"])
        self.method, self.task, self.module = _built(description, module, weights, others)
        initial = _check_shapes(self.method, self.module, weights, others)
        self.weights = {name: weights[name].detach().clone() for name in initial}
        self.module.load_state_dict(self.weights, strict=False)
        self.module.eval()

    def __repr__(self) -> str:
        """The method, the task, whose model it is, and what it reads and gives."""
        owner = f" of party '{self.party}'" if self.party else ""
        gives = ", ".join(self.labels) or f"{self.task.outputs} outputs"
        of_method, task, features = self.description["method"], self.task.name, self.description["features"]
        return f"TrainedModel{owner}: {of_method['name']}, {task}, {features} features to {gives}"

    def outputs(self, data: NewData, *, key: Path | str | None = None) -> Tensor:
        """What the model gives for every item, before it becomes classes: `[items, outputs]`, party after party.

        `data` and `key` are those of `predict`.
        """
        return torch.cat([self._outputs(*each) for each in self._sites(self._read(data, key))])

    def embeddings(self, data: NewData, *, key: Path | str | None = None) -> Tensor:
        """What the model's head receives for every item; without labels, its output: `[items, width]`.

        `data` and `key` are those of `predict`.
        """
        return torch.cat([self._embeddings(*each) for each in self._sites(self._read(data, key))])

    def predict(self, data: NewData, *, key: Path | str | None = None) -> pa.Table:
        """A table with a row for every item: party, id (of an edge: source and target), prediction and scores.

        Where the data have them, also label and split.

        Arguments:
            data: a party folder or a folder of them, the name of a data set, a `Party` or several.
            key: file with the parties' common key, if their ids are hashed by one.
        """
        known: dict[str, None] = {}

        def columns(given: NewParty, site: Site) -> dict[str, Any]:
            more = self._known(given)
            known.update(dict.fromkeys(more))
            return {**self.task.predictions(self._outputs(given, site), self.labels), **more}

        table = self._table(data, key, columns)
        table = table.drop_columns([name for name in known if table.column(name).null_count == table.num_rows])
        if self.method.role != "constant":  # which neither trains nor has a threshold
            self.notes = [*self.notes, *filter(None, [self.task.prediction_note])]
        return table

    def embed(self, data: NewData, *, key: Path | str | None = None) -> pa.Table:
        """A table with a row for every item: party, id and embedding; `data` and `key` are those of `predict`."""

        def columns(given: NewParty, site: Site) -> dict[str, Any]:
            values = self._embeddings(given, site).numpy()
            flat = pa.array(values.reshape(-1))
            return {"embedding": pa.FixedSizeListArray.from_arrays(flat, values.shape[1])}

        return self._table(data, key, columns)

    def _known(self, given: NewParty) -> dict[str, Any]:
        """The labels and splits of the items, None where an item has none."""
        party = given.party
        split: list[str | None] = [None] * len(self._of_items(party, party.train))
        for name in SPLITS if given.has_splits else ():
            for at in self._of_items(party, getattr(party, name)).nonzero().flatten().tolist():
                split[at] = name
        return {**self._label_columns(given), "split": pa.array(split, pa.string())}

    def _label_columns(self, given: NewParty) -> dict[str, Any]:
        """The labels of the items, in columns; a note says if they are not what the model predicts."""
        y, names, name = self._of_items(given.party, given.party.graph.y), given.labels or self.labels, given.party.name
        if not self.task.is_label(y):
            self.notes = [
                *self.notes,
                f"the labels of '{name}' are of another kind than the model's: they are left out",
            ]
            return {}
        columns = self.task.label_columns(y, names)
        if "label" in columns and self.labels and not set(names) <= set(self.labels):
            theirs, ours = few_names(list(names)), few_names(list(self.labels))
            differ = f"'{name}' has the classes {theirs}, the model {ours}: label is as the data have it"
            self.notes = [*self.notes, differ]
        return columns

    def _table(
        self, data: NewData, key: Path | str | None, columns: Callable[[NewParty, Site], dict[str, Any]]
    ) -> pa.Table:
        tables = []
        for each, site in self._sites(self._read(data, key)):
            names = each.names
            count = len(next(iter(names.values())))  # of a typed graph, the nodes with labels
            tables.append(pa.table({"party": [each.party.name] * count, **names, **columns(each, site)}))
        return pa.concat_tables(tables, promote_options="default")

    def _read(self, data: NewData, key: Path | str | None) -> list[NewParty]:
        found = new_parties(data, self.description["encoding"], key, int(self.description["seed"]), self.task.level)
        self.notes = [note for each in found for note in each.notes]
        if self.party in self.description["untrained"]:
            self.notes.append(
                f"party '{self.party}' had no training label: what only it trains of this model is as it was drawn"
            )
        for each in found:
            self._check_fit(each)
        self.notes += self._notes_on_weights([each.party for each in found])
        self.notes += self._notes_on_directions([each.party for each in found])
        if self.description["own_split"] and isinstance(data, str | Path) and any(each.has_splits for each in found):
            self.notes.append("the study drew its own split, so that of the data is left out")
            return [replace(each, has_splits=False) for each in found]
        return found

    def _sites(self, found: Sequence[NewParty]) -> Iterator[tuple[NewParty, Site]]:
        """Yield each party with the site that predicts for it, which works for this party until the next one."""
        names = {each.party.name for each in found}
        partners = {each.party.name: _partners(each.party) for each in found if self.method.reads_across}
        crossing = {name for own in partners.values() for name in own}
        joined = bool(crossing) or (self.method.role == "pooled" and _shared(each.party for each in found))
        together = self.method.predicts_together and len(names) == len(found) and joined and crossing <= names
        if together and self.method.disjoint:
            check_owned_once(self.method, [each.party for each in found])
        if self._trained_on_noise:
            noisy = "the model was trained on sums over neighbours with noise and reads exact ones here"
            self.notes = [*self.notes, f"{noisy}: its scores differ from the study's"]
        elif not together:
            self.notes = [*self.notes, *self._notes_on_borders(partners)]
        for group in [found] if together else [[each] for each in found]:
            parties = [self._as_trained(each.party) for each in group]
            site = self.method.predictor(parties, self.task, self.module, seed=int(self.description["seed"]))
            with site.asked():
                site.kept[OWN] = [self.weights] * len(group)
            for at, each in enumerate(group):
                with site.asked([at]):
                    yield each, site

    @property
    def left_out(self) -> tuple[int, ...]:
        """Positions of the features that were 0 in training, because they follow from edges that it hides."""
        hides = self._trained_on_noise or self.method.hides_structural
        return inputs_of(self.description).structural if hides else ()

    def _as_trained(self, party: Party) -> Party:
        if not (columns := self.left_out):
            return party
        graph = copy.copy(party.graph)
        graph.x = zero_columns(graph.x, torch.tensor(columns))
        return party.with_graph(graph, party.border)

    @property
    def _trained_on_noise(self) -> bool:
        """Whether the study's noise was in what the model read; a node's hides only what leaves its party."""
        unit, alone = self.description.get("privacy", ""), self.method.role == "alone"
        hidden = unit == EdgePrivacy.name or (unit == NodePrivacy.name and not alone)
        return hidden and bool(aggregations(self.module))

    def _notes_on_weights(self, parties: Sequence[Party]) -> list[str]:
        """Return a note if edges of these parties have weights and those of training had none, or the reverse."""
        trained = self.description.get("weighted")
        if trained is None or not uses_edge_weights(self.module):
            return []
        differ = [party.name for party in parties if party.edges and party.weighted != trained]
        if not differ:
            return []
        if trained:
            return [f"the model was trained with edge weights; here all edges of {few_names(differ)} weigh 1"]
        return [f"the model was trained without edge weights and reads those of {few_names(differ)}"]

    def _notes_on_directions(self, parties: Sequence[Party]) -> list[str]:
        """Return a note if edges of these parties run one way and those of training ran both ways, or the reverse."""
        trained, hops = (
            self.description.get("both_ways"),
            getattr(getattr(self.module, "body", self.module), "hops", None),
        )
        if trained is None or hops == 0 or self.method.role == "constant":
            return []
        differ = [party.name for party in parties if party.edges and party.both_ways != trained]
        ways = ("both ways", "one way") if trained else ("one way", "both ways")
        what = f"the model was trained on edges that run {ways[0]}, those of {few_names(differ)} run {ways[1]}"
        return [f"{what}: make 'directed' in party.toml as it was, if they mean the same"] if differ else []

    def _notes_on_borders(self, partners: Mapping[str, Sequence[str]]) -> list[str]:
        """Return a note for each party whose edges to others the method trained on, but does not read here."""
        more = ": give the folders of all these parties at once" if self.method.predicts_together else ""
        return [
            f"{self.method.name} trained on edges between parties; '{party}' is predicted without those to "
            f"{few_names(others)}, so its scores differ from the study's{more}"
            for party, others in partners.items()
            if others
        ]

    def _outputs(self, given: NewParty, site: Site) -> Tensor:
        return self._of_items(given.party, site.predict(self.context).cpu())

    def _embeddings(self, given: NewParty, site: Site) -> Tensor:
        if self.method.role == "constant":
            raise IsthmusError(f"method '{self.method.name}' trains no model: there is nothing to embed with")
        if self.task.unsupervised or self.task.level == "pair":
            return self._outputs(given, site)
        site.load_evaluated(self.context)
        return self._of_items(given.party, site.embed()[1].cpu())

    def _of_items(self, party: Party, values: Tensor) -> Tensor:
        """The rows of items: of a typed graph the nodes with labels, of others the party's own nodes."""
        if self.task.level not in ("node", "pair"):
            return values
        rows = party.labelled_type if self.task.level == "node" else None
        return values[: party.nodes] if rows is None else values[rows]

    def _check_fit(self, given: NewParty) -> None:
        party = given.party
        check_level(party.name, party.level, self.task.level)
        if party.features != self.description["features"]:
            raise IsthmusError(
                f"party '{party.name}' has {party.features} features, the model was trained on "
                f"{self.description['features']}: give data with the columns of training"
            )
        known = inputs_of(self.description)
        if party.schema != known.schema:
            one, other = (known.schema, party.schema) if known.schema is not None else (party.schema, None)
            assert one is not None
            raise IsthmusError(
                f"party '{party.name}' has other types of nodes and edges than the model was trained on: "
                f"{one.difference(other)}"
            )
        if party.edge_width != known.edge_features:
            raise IsthmusError(
                f"party '{party.name}' has {party.edge_width} features of an edge, the model was trained on "
                f"{known.edge_features}: give data with the columns of training"
            )
        if party.label_width != known.label_features:
            raise IsthmusError(
                f"party '{party.name}' has {party.label_width} features of a labelled edge, the model was trained on "
                f"{known.label_features}: give data with the columns of training"
            )


def _partners(party: Party) -> list[str]:
    """Return the parties that edges of its border join it to."""
    border = party.border
    return [] if border is None else [border.owners[at] for at in border.owner.unique().tolist()]


def _shared(parties: Iterable[Party]) -> bool:
    """Whether parties hold the same nodes."""
    ids = [party.ids for party in parties if party.ids is not None and party.level in ("node", "pair")]
    return bool(ids) and torch.cat(ids).unique().numel() < sum(each.numel() for each in ids)


def _check_shapes(method: Method, module: nn.Module, weights: Weights, parties: Collection[str]) -> Weights:
    """Return the initial weights of a model; refuse weights that are not all that it needs. A constant has none.

    Arguments:
        parties: those who have the rest, as far as they are known.
    """
    initial = {} if method.role == "constant" else initial_weights(module)
    if missing := [name for name in initial if name not in weights]:
        which = format_option("party", min(parties, default="NAME"))
        which += f" ({few_names(sorted(parties))})" if parties else ""
        raise IsthmusError(
            f"with method '{method.name}' weight '{missing[0]}' is each party's own: choose a party's model, {which}"
        )
    wrong = [name for name, value in initial.items() if value.shape != weights[name].shape]
    if wrong:
        raise IsthmusError(f"weight '{wrong[0]}' has another shape than the model: give the module that was trained")
    return initial


def _built(
    description: Mapping[str, Any], own: Any, weights: Weights, others: Collection[str]
) -> tuple[Method, Task, nn.Module]:
    """The method, the task and the module that a description names, if it fits the weights."""
    trained = description.get("code", {})
    for kind, key in ((Method, "method"), (Task, "task")):
        if (name := str(description[key]["name"])) not in kind.known() and trained:
            raise IsthmusError(f"{key} '{name}' is code of your own ({', '.join(trained)}): give it, {how_to_import()}")
    method, task = _named(Method, description["method"], "name"), _named(Task, description["task"], "name")
    task = judged(task, method)
    seed, inputs = int(description["seed"]), inputs_of(description)
    encoder = _named_model(description["model"]) if own is None else with_saved_options(own, description["model"])
    for name, source in _sources(method, task, *([encoder] if own is None else [])).items():
        if trained.get(name, source) != source:
            raise IsthmusError(
                f"the source of '{name}' is not the one that this model was trained with: restore it, or train again"
            )
    if isinstance(encoder, Encoder):  # before memory is taken for sizes that the weights do not have
        _check_shapes(method, outline(method, encoder, inputs, task), weights, others)
    module = module_of(copy.deepcopy(encoder) if isinstance(encoder, nn.Module) else encoder, inputs, task, seed)
    return method, task, extended(method, module, seed)


def inputs_of(description: Mapping[str, Any]) -> Inputs:
    """What the model of a description may read of the data."""
    types = description.get("schema")
    schema = None if types is None else Schema.of_dict(types)
    edge_features, label_features = (int(description.get(name, 0)) for name in ("edge_features", "label_features"))
    return Inputs(int(description["features"]), edge_features, schema, label_features, tuple(description["structural"]))


def _named_model(table: Mapping[str, Any]) -> Any:
    """The model that a description names; code of a user's own runs only if the user has named its file."""
    name = str(table.get("encoder", ""))
    if name and ":" not in name:
        return _named(Encoder, table, "encoder")
    if name.partition(":")[0] in own_code.imported:
        return named_encoder(name, {key: value for key, value in table.items() if key != "encoder"})
    what = name or table.get(GIVEN)
    in_python = "isthmus.load_model(RUN, module=MyModule) or results.model(..., module=MyModule)"
    remedy = format_option("import", "FILE.py") if writes_flags() else in_python
    raise IsthmusError(f"the study trained a model of your own{f', {what}' if what else ''}: give it, {remedy}")


def _named(kind: Any, table: Mapping[str, Any], key: str) -> Any:
    found = kind.named(str(table[key]))
    return found.read({name: value for name, value in table.items() if name != key}, f"{found.kind} '{found.name}'")


def write_predictions(path: Path, table: pa.Table) -> None:
    """Write a table to a file of one of the kinds `TABLES`; in CSV, every number of an embedding has a column."""
    from pyarrow import csv, parquet

    if path.suffix.lower() == ".parquet":
        store.write_with(path, lambda to: parquet.write_table(table, to))
        return
    if "embedding" in table.column_names:
        values = table.column("embedding").combine_chunks()
        width = values.type.list_size
        numbers = values.flatten().to_numpy().reshape(-1, width)
        table = table.drop_columns("embedding")
        for at in range(width):
            table = table.append_column(f"embedding.{at}", pa.array(numbers[:, at]))
    store.write_with(path, lambda to: csv.write_csv(table, to))
