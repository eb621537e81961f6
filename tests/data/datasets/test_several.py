import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published import real, write_tu

import isthmus
from isthmus.data import rows
from isthmus.data.datasets.motifs import Motifs
from isthmus.data.datasets.several import (
    Card,
    Several,
    column_starts,
    label_kind,
    number_labels,
    unique_names,
    widen,
)
from isthmus.data.datasets.tu import Tu
from isthmus.data.partition.given import Given
from isthmus.data.partition.labels import Iid
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool
from isthmus.errors import IsthmusError

TWO = [{"name": "motifs", "graphs": 30}, {"name": "motifs", "graphs": 20, "features": 3, "classes": 2}]


@pytest.fixture
def labelled(monkeypatch):
    """`motifs` whose options `classes` say which labels they have: of two tasks (2), of one (1), or measured (3)."""
    plain = Motifs.load

    def load(self, seed):
        pool = plain(self, seed)
        graph, tasks = pool.party.graph, min(self.classes, 2)
        graph.y = torch.arange(self.graphs * tasks).view(-1, tasks).remainder(2).float()
        graph.y[0, 0] = torch.nan
        if self.classes == 3:
            graph.y += 0.5
        texts = tuple("C" * (at + 1) for at in range(self.graphs))
        return Pool(pool.party, tasks, smiles=texts, note=f"{self.graphs} graphs.")

    monkeypatch.setattr(Motifs, "load", load)


def test_every_set_is_a_party_with_its_own_columns_and_classes():
    pool = Several(sets=["motifs", *TWO]).load(0)
    parties = Given().cut(pool, 3, seed=0)
    assert [party.name for party in parties] == ["motifs", "motifs-2", "motifs-3"]
    assert pool.classes == 3 + 3 + 2
    starts = {"motifs": (0, 0), "motifs-2": (8, 3), "motifs-3": (16, 6)}
    for party, options in zip(parties, ({}, *TWO), strict=True):
        alone = Motifs.read({key: value for key, value in options.items() if key != "name"}, "motifs").load(0).party
        column, first = starts[party.name]
        assert torch.equal(party.graph.y, alone.graph.y + first)
        assert party.features == 8 + 8 + 3
        own = torch.zeros(party.nodes, 19)
        own[:, column : column + alone.features] = alone.graph.x
        assert torch.equal(rows.to_dense(party.graph.x), own)
        assert torch.equal(party.graph.edge_index, alone.graph.edge_index)
        assert all(torch.equal(getattr(party, split), getattr(alone, split)) for split in ("train", "val", "test"))


def test_sets_put_together_are_cut_like_any_other():
    pool = Several(sets=TWO).load(0)
    assert pool.party.items == 50
    parties = Iid().cut(pool, 5, seed=0)
    assert sum(party.items for party in parties) == 50
    assert all(len(party.graph.y.unique()) == 5 for party in parties)


def test_sets_of_one_encoding_have_their_columns_in_common(empty_root):
    for title, attributes in (("A", False), ("B", False), ("C", True)):
        write_tu(Tu(title=title).raw_folder(), title, labels=False, attributes=attributes)
    sets = [{"name": "tu", "title": title, "max_degree": 4, "train": 0.5} for title in "ABC"]
    parties = Several(sets=sets).load(0).parties
    assert [party.name for party in parties] == ["A", "B", "C"]
    assert [party.features for party in parties] == [5 + 2] * 3
    assert torch.equal(parties[0].graph.x, parties[1].graph.x)
    assert not parties[2].graph.x[:, :5].any()
    sets[1]["max_degree"] = 3
    assert [party.features for party in Several(sets=sets).load(0).parties] == [5 + 4 + 2] * 3


def test_one_encoding_of_two_widths_is_refused(monkeypatch):
    monkeypatch.setattr(Motifs, "shared_encoding", lambda self: "toy", raising=False)
    with pytest.raises(IsthmusError, match="'motifs-2' has 3 features and 'motifs' 8, both encoded as 'toy'"):
        Several(sets=TWO).load(0)


def test_labels_of_tasks_get_columns_of_their_own(labelled):
    pool = Several(sets=[{"name": "motifs", "classes": 2}, {"name": "motifs", "graphs": 20, "classes": 1}]).load(0)
    assert pool.classes == 3
    first, second = (party.graph.y for party in pool.parties)
    assert first.shape == (300, 3)
    assert first[:, 2].isnan().all()
    assert first[1].tolist()[:2] == [0.0, 1.0]
    assert second[:, :2].isnan().all()
    assert second[1:, 2].tolist() == [1.0, 0.0] * 9 + [1.0]
    assert not pool.parties[1].train[0]  # its only label is missing
    assert pool.smiles == (*("C" * (at + 1) for at in range(300)), *("C" * (at + 1) for at in range(20)))
    assert pool.note == "motifs: 300 graphs. motifs-2: 20 graphs."


def test_sets_of_mixed_kinds_are_refused(labelled, monkeypatch):
    with pytest.raises(IsthmusError, match="'motifs-2' has measured values and 'motifs' labels of yes or no"):
        Several(sets=[{"name": "motifs", "classes": 1}, {"name": "motifs", "classes": 3}]).load(0)
    with pytest.raises(IsthmusError, match="data 'several': 'banks' is one graph: give sets of many graphs"):
        Several(sets=["motifs", "banks"]).load(0)


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ([], "option 'sets' is"),
        (["motif"], "unknown data set 'motif': did you mean 'motifs'"),
        ([{"title": "ENZYMES"}], "give every set a 'name'"),
        ([{"name": "tu"}], "data 'tu': option 'title' is required"),
        (["motifs", {"name": "motifs", "graph": 3}], "data 'motifs': unknown option 'graph': did you mean 'graphs'"),
        ([7], "option 'sets.0"),
    ],
)
def test_a_wrong_list_is_refused_before_anything_is_read(sets, why):
    with pytest.raises(IsthmusError, match=why) as error:
        isthmus.Study.of({"data": {"name": "several", "sets": sets}, "methods": [{"name": "fedavg"}]})
    assert "\n" not in str(error.value)


def test_a_study_of_several_sets_runs():
    study = {"data": {"name": "several", "sets": TWO}, "model": {"encoder": "gin"}}
    study["methods"] = [{"name": "fedavg", "rounds": 2}]
    results = isthmus.run_study(isthmus.Study.of(study))
    assert 0 <= results.metrics["test_accuracy"] <= 1
    assert results.study["parties"] == 2


@pytest.mark.real
def test_real_sets_keep_what_they_hold():
    for name in ("enzymes", "proteins"):
        real(name)
    pool = Several(sets=["enzymes", "proteins"]).load(0)
    first, second = pool.parties
    alone = DataSet.named("proteins")().load(0).party
    assert (first.features, pool.classes, second.items) == (25, 8, 1113)
    assert torch.equal(second.graph.x[:, 21:], alone.graph.x)
    assert torch.equal(second.train, alone.train)
    assert isinstance(pool.party, Party)


NAMES = st.lists(st.sampled_from(["a", "b", "a-2", "a-3"]), min_size=1, max_size=8)


@given(NAMES)
@settings(max_examples=50)
def test_names_become_distinct_and_first_ones_stay(names):
    found = unique_names(names)
    assert len(set(found)) == len(names)
    for at, name in enumerate(names):
        assert found[at].startswith(name)
        if name not in names[:at]:
            assert found[at] == name


WIDTHS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.booleans()), min_size=1, max_size=5)


@given(WIDTHS)
@settings(max_examples=50)
def test_columns_stand_side_by_side_sparse_or_not(shapes):
    parts = [torch.rand(height, width) + 0.1 for height, width, _ in shapes]
    given_parts = [part.to_sparse_csr() if sparse else part for part, (*_, sparse) in zip(parts, shapes, strict=True)]
    cards = [Card("graph", "classes", 2, part.size(1), False, str(at)) for at, part in enumerate(parts)]
    starts, width, _ = column_starts(cards)
    sparse = any(sparse for *_, sparse in shapes)
    found = [widen(x, starts[str(at)], width, sparse=sparse) for at, x in enumerate(given_parts)]
    assert torch.equal(rows.to_dense(rows.concat(found)), torch.block_diag(*parts))
    assert len({rows.is_sparse(x) for x in found}) == 1


def test_labels_follow_one_another():
    assert number_labels(torch.tensor([1, 0]), 2, 6).tolist() == [3, 2]
    tasks = [number_labels(torch.tensor([1.0]), 0, 3), number_labels(torch.tensor([[0.0, 1.0]]), 1, 3)]
    assert [y.nan_to_num(9).tolist() for y in tasks] == [[[1, 9, 9]], [[9, 0, 1]]]


def test_kinds_of_labels_are_told_apart():
    kinds = [label_kind(torch.tensor(y)) for y in ([3, 1], [[0.0], [float("nan")]], [[0.0], [2.0]])]
    assert kinds == ["classes", "labels of yes or no", "measured values"]


def test_structural_columns_stand_where_their_set_has_them():
    known = [
        Card("graph", "classes", 2, width, False, f"set {at}", None if columns is None else torch.tensor(columns))
        for at, (width, columns) in enumerate(((2, [1]), (3, None), (2, [0])))
    ]
    assert column_starts(known)[2].tolist() == [1, 5]
