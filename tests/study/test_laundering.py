"""Banks' tables with transfers that two banks have: what is classified by whom, and that nothing counts twice."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from tests.deploy.federated_studies import federated, in_one_process

from isthmus.data.datasets import ledgers
from isthmus.data.folder.from_database import DatabaseSource, create_databases
from isthmus.data.party import SPLITS, Party
from isthmus.data.pooled import pool_parties
from isthmus.study.config import Study
from party_folders import load_folders


def banks(root: Path) -> Path:
    """Party folders of three small banks."""
    pytest.importorskip("duckdb")
    ledgers.write(root / "exports", parties=3, customers=20, transfers=15, laundering=0.1)
    create_databases(root / "data", DatabaseSource([root / "exports" / "*"], "transfers.laundering"))
    return root / "data"


def study(folder: Path) -> Study:
    return Study.of(
        {
            "data": {"name": "folder", "path": str(folder)},
            "task": {"metric": "average_precision", "class_weights": "balanced", "threshold": "f1"},
            "model": {"encoder": "hetero-sage", "hidden": 8},
            "methods": [{"name": "fedavg", "rounds": 2}],
            "protect": {"total": "none"},
        }
    )


def transfers(party: Party) -> dict[int, tuple[int, str]]:
    """By id of a transfer its class and its split, empty without one."""
    assert party.ids is not None
    assert party.schema is not None
    at = (party.graph.node_type == party.schema.node_types.index("transfers")).nonzero().flatten()
    masks = {split: getattr(party, split)[at] for split in SPLITS}
    ids, y = party.ids[at].tolist(), party.graph.y[at].tolist()
    split = ["".join(name for name, mask in masks.items() if mask[row]) for row in range(len(ids))]
    return {one: (label, name) for one, label, name in zip(ids, y, split, strict=True)}


def test_a_transfer_of_two_banks_is_classified_by_the_sender_and_pooled_once(tmp_path: Path) -> None:
    parties = load_folders(banks(tmp_path)).parties
    held = [transfers(each) for each in parties]
    holders = Counter(one for own in held for one in own)
    assert max(holders.values()) == 2
    labelled = {one: own[one] for own in held for one in own if own[one][0] >= 0}
    assert labelled.keys() == holders.keys()
    assert sum(label >= 0 for own in held for label, _ in own.values()) == len(labelled)  # never by both
    assert all((label >= 0) == bool(split) for own in held for label, split in own.values())
    pooled = pool_parties(parties)
    assert transfers(pooled) == labelled
    assert int(pooled.test.sum()) == sum(int(each.test.sum()) for each in parties)


def test_pooled_accounts_have_what_their_own_bank_knows(tmp_path: Path) -> None:
    parties = load_folders(banks(tmp_path)).parties
    pooled = pool_parties(parties)
    assert pooled.schema is not None
    accounts = pooled.graph.x[pooled.graph.node_type == pooled.schema.node_types.index("accounts")]
    # a constant 1, the bank, the kind and the moment of opening: an account of another bank lacks the last two
    assert int((accounts != 0).sum(1).min()) == 4


def test_the_page_federates_the_study_that_it_compares() -> None:
    page = (Path(__file__).parents[2] / "docs" / "laundering.md").read_text(encoding="utf-8")
    alone, together = (
        Study.of(tomllib.loads(re.search(rf'title="{name}"\n(.*?)```', page, re.DOTALL)[1]))  # type: ignore[index]
        for name in ("laundering.toml", "together.toml")
    )
    assert together.task == alone.task
    assert together.encoder() == alone.encoder()
    assert together.method_list() == [each for each in alone.method_list() if each.name == "fedavg"]


@pytest.mark.slow
def test_a_federation_of_banks_gives_the_numbers_of_the_study(tmp_path: Path) -> None:
    plan = study(banks(tmp_path))
    here, there = in_one_process(plan), federated(plan, tmp_path).runs[0]
    found = {(at, metric): value for at, metric, value in here.history}
    assert {metric for _, metric, _ in there.history} >= {"test_average_precision", "test_recall_at_fpr"}
    assert all(found[at, metric] == value for at, metric, value in there.history)
