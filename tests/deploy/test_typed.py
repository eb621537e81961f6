"""Federations whose parties hold tables: of nodes of several types, and of edges with labels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.federated_studies import federated, in_one_process

import isthmus
from databases import crossing_drafts, dated_draft, edge_draft, owned_twice, sales_draft
from isthmus.data.folder.reading import check_folder
from isthmus.deploy.setup import introduced_of
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.study.config import Study
from party_folders import Draft

FEDAVG = {"name": "fedavg", "rounds": 2, "local": {"optimizer": "adam", "lr": 0.05}}
DAYS = {"train_until": "2024-07-01", "val_until": "2024-08-15"}
HELD = {"nodes of types": lambda name, seed: dated_draft(name, transfers=120, seed=seed, **DAYS),
        "edges": lambda name, seed: edge_draft(name, transfers=120, seed=seed),
        "edges of two tables": lambda name, seed: sales_draft(name, purchases=120, seed=seed)}  # fmt: skip
Held = Callable[[str, int], Draft]


def study(root: Path, held: Held, **more: Any) -> Study:
    for seed, name in enumerate(("north", "south")):
        held(name, seed).write(root / "data" / name)
    task = {"threshold": "f1", "metric": "average_precision", "class_weights": "balanced"}
    return Study.of(
        {
            "data": {"name": "folder", "path": f"{root / 'data'}/"}, "task": task, "model": {"encoder": "hetero-sage"},
            "methods": [FEDAVG], "protect": {"total": "none"}, **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
@pytest.mark.thinned(3)
def test_a_federation_of_tables_gives_the_study_and_parties_predict_alone(tmp_path: Path, held: Held) -> None:
    plan = study(tmp_path, held)
    here, outcome = in_one_process(plan), federated(plan, tmp_path)
    there = outcome.runs[0]
    found = {(at, metric): value for at, metric, value in here.history}
    assert there.history
    assert all(found[at, metric] == value for at, metric, value in there.history)
    mine, theirs = (dict(wire.flatten(each.models["shared"])) for each in (here, there))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[path], theirs[path]) for path in mine)
    said = {(row["verb"], row["action"]): row["fields"] for row in outcome.ledger.rows()}
    asked = [("ask", step) for step in ("introduce", "values", "encode")]
    assert said.keys() == {("total", "first"), ("total", "second"), *asked}
    assert said["ask", "introduce"] == "agreed, kind, items, labels, nodes, rows"
    # what a bank has on its own disk is the model with the threshold that all banks' validation rows chose
    model = isthmus.load_model(tmp_path / "parties" / "north")
    new = held("north", 0)
    new.tables[f"{new.settings['label'].partition('.')[0]}.parquet"]["bad"] = [None] * 120
    table = model.predict(new.write(tmp_path / "new"))
    assert model.notes == []
    assert type(model.task.threshold) is float
    assert model.task.threshold == there.description["task"]["threshold"]
    assert ("source" in table.column_names) == (held is not HELD["nodes of types"])
    scores = torch.tensor(table["score.1"].to_pylist())
    assert table["prediction"].to_pylist() == [str(int(each >= model.task.threshold)) for each in scores]
    assert all(torch.equal(model.weights[name], theirs[name]) for name in model.weights)


def test_rows_that_are_edges_are_introduced_beside_the_nodes(tmp_path: Path) -> None:
    contents, _ = check_folder(edge_draft(transfers=120).write(tmp_path / "north"))
    assert contents is not None
    size = introduced_of(contents)
    assert (size.nodes, size.rows, size.counted) == (12 + 7, 120, 139)
    assert size.items == size.labels == contents.items < 120


def lacking() -> list[Draft]:
    """Two banks, of which one lacks an account that the other names as its own."""
    north, south, _ = crossing_drafts(dated=True)
    accounts, named = south.tables["accounts.parquet"], north.tables["transfers.parquet"]["to_account"]
    gone = next(each for each in named if each in accounts["id"])
    accounts["id"] = ["B9" if each == gone else each for each in accounts["id"]]
    transfers = south.tables["transfers.parquet"]
    for column in ("from_account", "to_account"):
        transfers[column] = ["B9" if each == gone else each for each in transfers[column]]
    return [north, south]


@pytest.mark.parametrize(
    ("held", "matching", "why"),
    [
        (lambda: crossing_drafts(dated=True)[:2], "oblivious", ""),
        (
            lambda: owned_twice(dated=True),
            "hashes",
            "1 of its rows are also those of another party, the first in 'accounts'",
        ),
        (
            lacking,
            "oblivious",
            r"Missing: south \(party 'north' names \d rows as this party's, which lacks 1: correct the owners",
        ),
    ],
    ids=["agreed", "owned twice", "lacking"],
)
def test_parties_of_a_federation_agree_on_the_owners_of_rows(
    tmp_path: Path, held: Callable[[], list[Draft]], matching: str, why: str
) -> None:
    drafts = {draft.settings["name"]: draft for draft in held()}
    more = {"methods": [{"name": "fedgcn", "rounds": 1}], "protect": {"matching": matching}}
    plan = study(tmp_path, lambda name, _: drafts[name], **more)
    with pytest.raises(IsthmusError, match=why) if why else nullcontext():
        federated(plan, tmp_path)
