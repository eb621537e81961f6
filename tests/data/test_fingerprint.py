"""Parties' data have a digest, which any change of them changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import make_node_parties
from isthmus.data import fingerprint as module
from isthmus.data import rows
from isthmus.data.fingerprint import digest_of_tables, fingerprint
from isthmus.data.party import Party


def test_the_same_data_have_the_same_digest() -> None:
    assert fingerprint(make_node_parties()) == fingerprint(make_node_parties())


@pytest.mark.parametrize(
    "change",
    [
        lambda party: party.graph.x.add_(1e-6),
        lambda party: party.graph.y.add_(1),
        lambda party: party.graph.edge_index.copy_(party.graph.edge_index.flip(1)),
        lambda party: party.train.logical_not_(),
        lambda party: object.__setattr__(party, "name", "another"),
    ],
)
def test_any_change_changes_it(change: Callable[[Party], object]) -> None:
    parties = make_node_parties()
    before = fingerprint(parties)
    change(parties[-1])
    assert fingerprint(parties) != before


def test_the_tables_of_a_folder_have_a_digest(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id\n1\n")
    before = digest_of_tables(tmp_path)
    (tmp_path / "party.toml").write_text("")
    assert digest_of_tables(tmp_path) == before
    (tmp_path / "nodes.csv").write_text("id\n2\n")
    assert digest_of_tables(tmp_path) != before


def test_the_order_of_parties_counts() -> None:
    parties = make_node_parties()
    assert fingerprint(parties[::-1]) != fingerprint(parties)


def test_sparse_features_count() -> None:
    parties = make_node_parties()
    parties[0].graph.x = rows.to_csr(parties[0].graph.x)
    before = fingerprint(parties)
    parties[0].graph.x.values()[0] += 1
    assert fingerprint(parties) != before


def test_of_a_large_tensor_some_blocks_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE", 64)
    monkeypatch.setattr(module, "BLOCK", 16)
    parties = make_node_parties()
    before = fingerprint(parties)
    assert before == fingerprint(make_node_parties())
    parties[0].graph.x[0, 0] += 1
    assert fingerprint(parties) != before
