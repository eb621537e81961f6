"""New party folders are encoded with what training knew, or refused with one line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.party_folders import graph_draft, load_folders, two_drafts
from torch_geometric.data import Data

from isthmus.data.folder.table import NODES
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.study.new_parties import new_parties


def encoding_of(tmp_path: Path, key: bytes | None = None) -> Any:
    for draft in two_drafts():
        draft.write(tmp_path / "parties" / draft.settings["name"])
    return load_folders(tmp_path / "parties", key).encoding


def test_numbers_of_another_unit_are_noted(tmp_path: Path) -> None:
    encoding = encoding_of(tmp_path)
    new = graph_draft("new", partner=None).put("age", [1000.0 * at for at in range(8)], NODES)
    (found,) = new_parties(new.write(tmp_path / "new"), encoding, None, 0, "node")
    (note,) = [each for each in found.notes if "'age'" in each]
    assert re.fullmatch(r"new: nodes.parquet: column 'age' is [\d,]+ deviations from training on average: .*", note)


def test_a_value_that_no_party_had_is_all_zeros(tmp_path: Path) -> None:
    encoding = encoding_of(tmp_path)
    new = graph_draft("new", partner=None).put("kind", ["a", "b", "c", "z", "a", "b", "0", None], NODES)
    (found,) = new_parties(new.write(tmp_path / "new"), encoding, None, 0, "node")
    kinds = found.party.graph.x.to_dense()[:, 1:3]
    assert kinds.sum(1).tolist() == [1, 1, 0, 0, 1, 1, 0, 0]
    what = "column 'kind' has a value that did not occur in training: all its features are 0"
    assert found.notes == [f"new: nodes.parquet, rows 3, 4, 7: {what}"]


def test_numbers_are_scaled_by_the_mean_in_training(tmp_path: Path) -> None:
    encoding = encoding_of(tmp_path)
    draft = graph_draft("new", partner=None)
    higher = draft.put("age", [value + 100 for value in draft.tables[NODES]["age"]], NODES)
    (near,) = new_parties(draft.write(tmp_path / "near"), encoding, None, 0, "node")
    (far,) = new_parties(higher.write(tmp_path / "far"), encoding, None, 0, "node")
    gap = (far.party.graph.x.to_dense() - near.party.graph.x.to_dense())[:, 0]
    assert float(gap.min()) > 10
    assert torch.allclose(gap, gap[:1])


def test_other_columns_are_refused(tmp_path: Path) -> None:
    encoding = encoding_of(tmp_path)
    draft = graph_draft("new", partner=None).without("age", NODES)
    age = draft.settings["columns"].pop("age")
    renamed = draft.put("agge", draft.tables[NODES]["kind"])
    renamed.settings["columns"] |= {"agge": {"kind": "category"}}
    both = renamed.put("more", [1.0] * 8).put("near", [[1.0, 2.0, 3.0]] * 8)
    both.settings["columns"] |= {"more": age, "near": {"kind": "vector", "width": 3}}
    for at, (case, line) in enumerate(
        (
            (draft, "missing 'age': add what is missing to the table and to party.toml"),
            (renamed, "missing 'age'; extra 'agge': if 'agge' is 'age', rename it in the table and in party.toml"),
            (
                both,
                "missing 'age'; extra 'agge', 'more'; 'near' is vector, width = 3, in training vector, width = 2: if ",
            ),
        )
    ):
        with pytest.raises(IsthmusError) as error:
            new_parties(case.write(tmp_path / f"new-{at}"), encoding, None, 0, "node")
        text = str(error.value)
        assert text.startswith(f"party 'new': its columns are not those in training (age, kind, near, words): {line}")


def test_of_long_lists_the_first_difference_is_shown(tmp_path: Path) -> None:
    words = [f"word {at}" for at in range(9)]
    other = [*words[:7], words[8], words[7]]
    encoding, draft = encoding_of(tmp_path), graph_draft("new", partner=None)
    encoding["columns"]["words"] = {"kind": "bag", "width": 9, "words": words}
    draft.settings["columns"]["words"] = {"kind": "bag", "width": 9, "words": other}
    with pytest.raises(IsthmusError, match=r"\[9 values, at 7 'word 8'\], in training .* at 7 'word 7'\]: declare"):
        new_parties(draft.write(tmp_path / "new"), encoding, None, 0, "node")


def test_graphs_keep_their_ids() -> None:
    held = Party.of_graphs(
        "lab",
        [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([at])) for at in range(3)],
        ids=torch.tensor([9, 4, 7]),
    )
    (found,) = new_parties(held, None, None, 0, "graph")
    assert found.names["id"].to_pylist() == [9, 4, 7]
    (found,) = new_parties(replace(held, ids=None), None, None, 0, "graph")
    assert found.names["id"].to_pylist() == [0, 1, 2]


def test_values_that_are_all_new_are_zeros_where_no_key_could_be_missing(tmp_path: Path) -> None:
    encoding = encoding_of(tmp_path)
    folder = graph_draft("new", partner=None).put("kind", ["z"] * 8, NODES).write(tmp_path / "new")
    (found,) = new_parties(folder, encoding, None, 0, "node")
    assert found.party.graph.x.to_dense()[:, 1:3].sum() == 0
    what = "column 'kind' has a value that did not occur in training: all its features are 0"
    assert any(what in note for note in found.notes)
    (tmp_path / "some.key").write_bytes(b"a key of somebody, long enough for it")
    with pytest.raises(IsthmusError, match="the model was trained without a key: leave the key out"):
        new_parties(folder, encoding, tmp_path / "some.key", 0, "node")


def test_keyed_categories_need_the_key(tmp_path: Path) -> None:
    key = b"a key of the parties, long enough"
    encoding = encoding_of(tmp_path, key)
    folder = graph_draft("new", partner=None).write(tmp_path / "new")
    with pytest.raises(IsthmusError, match=r"column 'kind' has no value that occurred in training: .*\(--key FILE\)"):
        new_parties(folder, encoding, None, 0, "node")
    (found,) = new_parties(folder, encoding, tmp_path / "some.key", 0, "node")
    assert found.party.graph.x.to_dense()[:, 1:3].sum(1).tolist() == [1] * 8
