import pytest
import torch
from published import masks, real

from isthmus.data import rows
from isthmus.data.datasets.citations import Citations, Cora
from isthmus.data.partition.labels import Random
from isthmus.errors import IsthmusError


def same(left, right):
    return all(torch.equal(masks(left)[split], mask) for split, mask in masks(right).items())


@pytest.mark.real
def test_the_public_split_is_planetoid_s():
    party = real("cora").party
    assert [int(mask.sum()) for mask in (party.train, party.val, party.test)] == [140, 500, 1000]
    assert torch.nonzero(party.train).flatten().tolist() == list(range(140))
    assert same(real("cora", seed=1), real("cora", seed=0))


@pytest.mark.real
def test_a_random_split_is_drawn_by_seed():
    options = {"split": "random", "train_per_class": 5, "val": 100, "test": 200}
    first = real("cora", **options)
    party = first.party
    assert torch.bincount(party.graph.y[party.train]).tolist() == [5] * 7
    assert (int(party.val.sum()), int(party.test.sum())) == (100, 200)
    torch.manual_seed(7)
    assert same(real("cora", **options), first)
    assert not same(real("cora", seed=1, **options), first)
    with pytest.raises(IsthmusError, match="data set 'cora': 2568 of 2708 nodes remain"):
        real("cora", split="random", val=2500)


@pytest.mark.real
def test_bags_of_words_are_sparse_and_normalised_on_demand():
    normal, plain = real("cora").party.graph.x, real("cora", normalize=False).party.graph.x
    assert rows.is_sparse(normal)
    torch.testing.assert_close(rows.to_dense(normal).sum(1), torch.ones(2708))
    assert set(plain.values().tolist()) == {1.0}


@pytest.mark.real
def test_cora_is_cut_and_keeps_its_features_sparse():
    parties = Random().cut(real("cora"), 10, seed=0)
    assert all(rows.is_sparse(party.graph.x) for party in parties)


def test_broken_files_are_one_line_that_names_their_folder(empty_root):
    raw = Cora().raw_folder()
    raw.mkdir(parents=True)
    for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"):
        (raw / f"ind.cora.{part}").write_bytes(b"\x80\x04broken")
    with pytest.raises(
        IsthmusError, match=rf"^data set 'cora': cannot read the files in {raw} \(.*: replace them with"
    ):
        Cora().load(0)


def test_the_family_is_no_set_of_its_own():
    assert not Citations.name
