"""Studies on party folders of several tables: they run, they learn, and they read nothing of what comes later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import isthmus
from databases import bank_draft, dated_draft, days, edge_draft
from isthmus.data.folder.writing import write_party
from isthmus.deploy.preview import preview
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from isthmus.study.run import run_study
from party_folders import Draft, load_folders

ACCOUNTS = 500


def planted_draft(name: str, seed: int, where: str, *, dated: bool) -> Draft:
    """A bank in which a payment of 99 exists if the label is 1, `before` the moment of the label or `after` it.

    Nothing else says anything about the label. With `dated` each account has a check with a label on a day of its own;
    otherwise accounts have the labels, and all are of day 100.
    """
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 2, ACCOUNTS)
    moment = draw.uniform(50, 150, ACCOUNTS) if dated else np.full(ACCOUNTS, 100.0)
    account = [np.repeat(np.arange(ACCOUNTS), draw.integers(1, 4, ACCOUNTS)), np.flatnonzero(label)]
    day = [draw.uniform(0, 200, account[0].size)]
    gap = draw.uniform(1, 40, account[1].size)
    day.append(moment[account[1]] + (gap if where == "after" else -gap))
    amount = np.concatenate([draw.uniform(0, 50, account[0].size), np.full(account[1].size, 99.0)])
    accounts = [f"{name}{at}" for at in range(ACCOUNTS)]
    files = {
        "accounts.parquet": {"id": accounts},
        "payments.parquet": {
            "account": [accounts[at] for at in np.concatenate(account)],
            "day": days(*np.concatenate(day)),
            "amount": amount.tolist(),
        },
    }
    foreign = {"account": "accounts"}
    tables = {
        "accounts": {"key": "id"},
        "payments": {"time": "day", "foreign": foreign, "columns": {"amount": {"kind": "number"}}},
    }
    settings = {"name": name, "classes": 2, "tables": tables}
    if not dated:
        files["accounts.parquet"]["bad"] = label.tolist()
        return Draft({**settings, "label": "accounts.bad", "until": "2024-04-10"}, files)
    files["checks.parquet"] = {"account": accounts, "day": days(*moment), "bad": label.tolist()}
    tables["checks"] = {"time": "day", "foreign": foreign}
    dates = {"train_until": "2024-04-05", "val_until": "2024-04-20"}
    return Draft({**settings, "label": "checks.bad", **dates}, files)


def study(
    root: Path, encoder: str = "hetero-sage", methods: str = "fedavg", rounds: int = 12, **options: object
) -> Study:
    return Study.of(
        {
            "data": {"name": "folder", "path": f"{root}/"},
            "model": {"encoder": encoder},
            "methods": [{"name": each, "rounds": rounds} for each in methods.split(",")],
            "task": {"metric": "roc_auc"},
            **options,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("dated", [True, False])
def test_an_answer_planted_in_the_future_leaves_chance(tmp_path: Path, dated: bool) -> None:
    found = {}
    for where in ("after", "before"):
        for seed, name in enumerate(("north", "south")):
            planted_draft(name, seed, where, dated=dated).write(tmp_path / where / name)
        found[where] = run_study(study(tmp_path / where)).metrics["test_roc_auc"]
    assert found["before"] > 0.95  # the same answer in the past is found
    assert abs(found["after"] - 0.5) < 0.1  # three times the standard error with 300 rows


def test_a_drawn_split_of_dated_rows_is_noted(tmp_path: Path) -> None:
    drawn = {"name": "given", "split": [0.5, 0.2, 0.3]}
    for options, due in (({"train_until": "2024-05-01", "val_until": "2024-08-01"}, [0, 1]), ({}, [1, 1])):
        folder = tmp_path / f"{len(options)}"
        for seed, name in enumerate(("north", "south")):
            dated_draft(name, transfers=60, seed=seed, **options).write(folder / name)
        notes = [study(folder, partition=each).cut_here(0).note for each in ({"name": "given"}, drawn)]
        assert [note.count("training reads later rows than those that a test is on") for note in notes] == due


@pytest.mark.slow
def test_a_federation_agrees_on_tables_through_sums(tmp_path: Path) -> None:
    for seed, name in enumerate(("north", "south")):
        dated_draft(name, transfers=60, seed=seed).write(tmp_path / name)
    plan = study(tmp_path, methods="fedavg,local", unlabelled="idle")
    found = {(each.method, each.action): each for each in preview(plan)}
    assert found["set-up", "first"].eyes == "server sees the sum"
    assert found["set-up", "values"].parties == 2  # hashes of the countries
    assert found["fedavg", "train"].parties == 2


def test_trained_model_predicts_the_rows_with_labels(tmp_path: Path) -> None:
    for seed, name in enumerate(("north", "south")):
        bank_draft(name, accounts=30, seed=seed).write(tmp_path / name)
    results = isthmus.run("fedavg", data=f"{tmp_path}/", model={"encoder": "rgcn"}, rounds=2)
    table = results.model("fedavg").predict(tmp_path / "north")
    assert table.column("id").to_pylist() == [f"A{at}" for at in range(30)]


def test_edges_with_labels_are_learned_and_predicted_by_their_keys(tmp_path: Path) -> None:
    for seed, name in enumerate(("north", "south")):
        draft = edge_draft(name, transfers=120, seed=seed, labels=["fine", "bad"])
        del draft.settings["classes"]
        draft.put("bad", [["fine", "bad"][each] for each in draft.tables["transfers.parquet"]["bad"]],
                  "transfers.parquet").write(tmp_path / "banks" / name)  # fmt: skip
    fast = {"local": {"optimizer": "adam", "lr": 0.05, "epochs": 3}}
    plan = study(tmp_path / "banks", methods="fedavg,centralized", rounds=4, training=fast)
    results = run_study(plan, tmp_path / "out")
    assert results.study["task"]["name"] == "edge-classification"
    assert all(run.metrics["test_roc_auc"] > 0.9 for run in results.runs)  # the amount says it
    new = edge_draft("north", transfers=60, labels=["fine", "bad"])
    del new.settings["classes"]
    new = new.put("bad", [None] * 60, "transfers.parquet")
    table = isthmus.load_model(tmp_path / "out", "fedavg").predict(new.write(tmp_path / "new"))
    assert table.column_names == ["party", "id", "source", "target", "prediction", "score.fine", "score.bad"]
    rows = new.tables["transfers.parquet"]
    later = [at for at, date in enumerate(rows["date"]) if date.isoformat() >= "2024-04-01"]
    assert table["id"].to_pylist() == [rows["id"][at] for at in later]
    assert table["source"].to_pylist() == [rows["from_account"][at] for at in later]
    assert roc_auc_score([rows["amount"][at] > 50 for at in later], table["score.bad"].to_pylist()) > 0.9
    with pytest.raises(IsthmusError, match="party 'east' holds nodes, the model is for edges"):
        isthmus.load_model(tmp_path / "out", "fedavg").predict(dated_draft("east").write(tmp_path / "east"))


def test_parties_of_tables_are_not_written_as_one_table(tmp_path: Path) -> None:
    bank_draft().write(tmp_path / "north")
    (party,) = load_folders(tmp_path).parties
    with pytest.raises(IsthmusError, match="party 'north' has types of edges, which no party folder of one table"):
        write_party(tmp_path / "again", party, 2)


def test_links_of_dated_rows_are_not_held_out_by_chance(tmp_path: Path) -> None:
    bank_draft().write(tmp_path / "north")
    study = Study.of({"data": {"name": "folder", "path": str(tmp_path)}, "task": {"name": "link-prediction"}})
    with pytest.raises(IsthmusError, match="a prediction would read what happened later"):
        study.load(0)
