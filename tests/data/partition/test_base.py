import importlib.util
import sys
import threading
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pools import BLIND_OR_BY_LABEL, NODES_ONLY, make_pile, make_pool, members_of, with_holders

from isthmus.data.partition import Partition, base
from isthmus.data.partition.base import fill_empty_parties, pack_groups
from isthmus.data.partition.given import Given
from isthmus.data.partition.labels import Iid, LabelDirichlet, LabelSkew, Random
from isthmus.data.partition.overlap import Overlap
from isthmus.data.partition.structure import Louvain
from isthmus.data.party import SPLITS
from isthmus.errors import IsthmusError

OF_ITS_OWN = ("given", "scaffold")
"""Cuts that need data of a kind that these pools are not."""


def every(level):
    """What comes with Isthmus for this level."""
    kinds = [kind for kind in Partition.known().values() if kind.__module__.startswith("isthmus.")]
    fit = [kind for kind in kinds if level in kind.levels and kind.name not in OF_ITS_OWN]
    return [pytest.param(kind(), id=kind.name) for kind in fit]


def cut_or_skip(partition, *arguments, **options):
    if partition.name == "metis":
        pytest.importorskip("pymetis", reason="the extra metis is not installed")
    return partition.cut(*arguments, **options)


@pytest.fixture(scope="module")
def nodes():
    return make_pool(0, 3000, unlabelled=0.1)


@pytest.fixture(scope="module")
def pile():
    return make_pile(0, 3000, unlabelled=0.1)


@pytest.mark.parametrize("partition", every("node"))
@pytest.mark.parametrize("count", [2, 1000])
@pytest.mark.thinned(3)
def test_every_cut_of_a_graph_works_for_two_to_a_thousand_parties(partition, count, nodes):
    check_cut(partition, nodes, count)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("partition", every("graph"))
@pytest.mark.parametrize("count", [2, 1000])
def test_every_cut_of_a_pile_works_for_two_to_a_thousand_parties(partition, count, pile):
    check_cut(partition, pile, count)


def check_cut(partition, pool, count):
    members = members_of(cut_or_skip(partition, pool, count, seed=0))
    assert len(members) == count
    assert all(members)
    assert all(sorted(set(held)) == sorted(held) for held in members)
    if not isinstance(partition, Overlap):
        assert sorted(at for held in members for at in held) == list(range(pool.party.items))


@pytest.mark.parametrize("partition", every("node"))
def test_same_seed_same_parties_whatever_else_was_drawn(partition):
    pool = make_pool(0, 60)
    torch.manual_seed(1)
    first = members_of(cut_or_skip(partition, pool, 5, seed=3))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert members_of(partition.cut(pool, 5, seed=3)) == first
    assert torch.equal(torch.get_rng_state(), before)
    if partition.name not in ("louvain", "metis"):
        assert members_of(partition.cut(pool, 5, seed=4)) != first


def test_splits_are_those_of_the_whole():
    for pool in (make_pool(0, 50), make_pile(0, 50)):
        for partition in (Random(), Overlap()):
            parties = partition.cut(pool, 4, seed=0)
            for party, held in zip(parties, members_of(parties), strict=True):
                for split in SPLITS:
                    assert torch.equal(getattr(party, split), getattr(pool.party, split)[torch.tensor(held)])


def test_names_have_equal_width():
    pool = make_pool(0, 20)
    assert [party.name for party in Random().cut(pool, 1, seed=0)] == ["party-0"]
    assert [party.name for party in Random().cut(pool, 3, seed=0)] == ["party-0", "party-1", "party-2"]
    names = [party.name for party in Random().cut(pool, 11, seed=0)]
    assert (names[0], names[-1]) == ("party-00", "party-10")


class Halves(Partition):
    """Hands out halves, however many are asked for."""

    def members(self, pool, parties, seed):
        return list(torch.arange(pool.party.items).chunk(2))


def test_what_cannot_be_cut_is_refused_in_one_line():
    pool, pile = make_pool(0, 5), make_pile(0, 5)
    refusals = [
        (Random(), pool, 0, "partition 'random': cannot cut into 0 parties: ask for at least 1"),
        (Random(), pool, 6, "partition 'random': 5 nodes are too few for 6 parties: ask for fewer"),
        (Iid(), pile, 6, "partition 'iid': 5 graphs are too few for 6 parties: ask for fewer"),
        (
            Louvain(),
            pile,
            2,
            "partition 'louvain': it does not cut many graphs: use another partition, such as iid",
        ),
        (Given(), with_holders(pool, 2, 0), 3, "have 2 owners and 3 parties were asked for"),
        (Given(), replace(pool, holders=(torch.arange(5), torch.empty(0).long())), 2, "party 1 would get no node"),
        (Halves(), pool, 3, r"its members() returned 2 parties instead of 3"),
        (Iid(), make_pool(0, 5, tasks=2), 2, "partition 'iid': it needs one class per item"),
        (LabelDirichlet(), make_pool(0, 5, tasks=2), 2, "needs one class per item"),
        (LabelSkew(), make_pool(0, 5, tasks=2), 2, "needs one class per item"),
    ]
    for partition, data, parties, reason in refusals:
        with pytest.raises(IsthmusError) as refusal:
            partition.cut(data, parties, seed=0)
        assert reason in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_partitions_are_known_by_name():
    here = {"given", "iid", "k-means", "label-dirichlet", "label-skew", "louvain", "metis", "overlap"}
    assert here | {"quantity-dirichlet", "random"} <= set(Partition.known())
    with pytest.raises(IsthmusError, match="unknown partition 'louvian': did you mean 'louvain'"):
        Partition.named("louvian")
    with pytest.raises(IsthmusError, match="option 'beta' is -1"):
        LabelDirichlet.read({"beta": -1}, "partition")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.data())
def test_nobody_is_empty_and_as_few_move_as_can_be(owner, data):
    owner = torch.tensor(owner)
    parties = data.draw(st.integers(int(owner.max()) + 1, max(int(owner.max()) + 1, owner.numel())))
    before = torch.bincount(owner, minlength=parties)
    if parties > owner.numel():
        return
    after = fill_empty_parties(owner, parties)
    assert torch.bincount(after, minlength=parties).min() >= 1
    assert int((after != owner).sum()) == int((before == 0).sum())


def test_packed_groups_fill_the_smallest_party():
    groups = [[0, 1, 2, 3], [4, 5, 6], [7, 8], [9]]
    assert pack_groups(groups, 2, 10).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 0]


# ---- what is kept


class Counted(Partition):
    """Deals in turn, and counts how often it is asked."""

    name: ClassVar[str] = "counted"
    asked: ClassVar[list[str]] = []

    start: int = 0
    """Who gets the first."""

    def assign(self, pool, parties, seed):
        self.asked.append(self.name)
        return (torch.arange(pool.party.items) + self.start + seed) % parties


class Recounted(Counted):
    """As `Counted`, by another name."""

    name: ClassVar[str] = "recounted"


@pytest.fixture
def asked():
    Counted.asked.clear()
    return Counted.asked


def test_a_kept_cut_is_the_cut(tmp_path):
    pool = make_pool(0, 60)
    for partition in [*BLIND_OR_BY_LABEL, *NODES_ONLY, Overlap(), Overlap(shared=0.2)]:
        fresh = members_of(partition.cut(pool, 4, seed=0))
        for _ in range(2):
            assert members_of(partition.cut(pool, 4, seed=0, cache_folder=tmp_path)) == fresh


def test_the_same_content_is_found_again_whatever_it_is_called(tmp_path, asked):
    first = Counted().cut(make_pool(0, 12), 3, seed=0, cache_folder=tmp_path)
    pool = make_pool(0, 12)
    renamed = replace(pool, whole=replace(pool.party, name="another"), note="Of another name.")
    again = Counted(edges="broken").cut(renamed, 3, seed=0, cache_folder=tmp_path)
    assert members_of(again) == members_of(first)
    assert asked == ["counted"]
    assert all(party.border is None for party in again)


def changed(pool, key, change):
    graph = pool.party.graph.clone()
    graph[key] = change(graph[key].clone())
    return replace(pool, whole=replace(pool.party, graph=graph))


def test_anything_else_is_another_cut(tmp_path, asked, monkeypatch):
    pool = make_pool(0, 12, weighted=True)

    def another(values):
        values[0] += 1
        return values

    cuts = [
        (Counted(), pool, 3, 0),
        (Counted(), pool, 3, 1),
        (Counted(), pool, 4, 0),
        (Counted(start=1), pool, 3, 0),
        (Recounted(), pool, 3, 0),
        (Counted(), replace(pool, classes=9), 3, 0),
        (Counted(), replace(pool, smiles=("C",) * 12), 3, 0),
        (Counted(), with_holders(pool, 3, 0), 3, 0),
        (Counted(), make_pool(0, 12, weighted=True, sparse=True), 3, 0),
        (Counted(), make_pile(0, 12), 3, 0),
        *((Counted(), changed(pool, key, another), 3, 0) for key in ("x", "y", "edge_weight")),
        (Counted(), changed(pool, "edge_index", lambda edges: edges.flip(1)), 3, 0),
        (Counted(), replace(pool, whole=replace(pool.party, train=~pool.party.train)), 3, 0),
    ]
    for partition, data, parties, seed in cuts:
        partition.cut(data, parties, seed, cache_folder=tmp_path)
    assert len(asked) == len(cuts) == len(list(tmp_path.iterdir()))
    monkeypatch.setattr(base, "LIBRARIES", ("numpy",))
    Counted().cut(pool, 3, seed=0, cache_folder=tmp_path)
    assert len(asked) == len(cuts) + 1, "a cut of other versions was taken"


CODE = """
from typing import ClassVar
import torch
from isthmus.data.partition import Partition

class Mine(Partition):
    name: ClassVar[str] = "mine"
    def assign(self, pool, parties, seed):
        return torch.arange(pool.party.items) % parties
"""


def test_changed_code_is_another_cut(tmp_path, monkeypatch):
    script, kept = tmp_path / "mine_alone.py", tmp_path / "kept"

    def cut(code):
        script.write_text(code, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("mine_alone", script)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "mine_alone", module)
        exec(code, module.__dict__)
        return members_of(module.Mine().cut(make_pool(0, 12), 2, seed=0, cache_folder=kept))

    even = cut(CODE)
    assert cut(CODE) == even
    assert len(list(kept.iterdir())) == 1
    assert cut(CODE.replace("% parties", "// 6")) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]] != even


def test_a_cut_whose_code_is_not_in_a_file_is_not_kept(tmp_path):
    names = {"__name__": "__notebook__"}
    exec(CODE, names)
    assert len(names["Mine"]().cut(make_pool(0, 12), 3, seed=0, cache_folder=tmp_path)) == 3
    assert not list(tmp_path.iterdir())


def test_a_cut_that_is_refused_is_not_kept(tmp_path):
    for _ in range(2):
        with pytest.raises(IsthmusError, match="returned 2 parties instead of 3"):
            Halves().cut(make_pool(0, 5), 3, seed=0, cache_folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_writers_at_once_do_no_harm(tmp_path):
    pool, found = make_pool(0, 3000), []

    def cut():
        found.extend(members_of(Random().cut(pool, 3, seed, cache_folder=tmp_path)) for seed in range(5))

    writers = [threading.Thread(target=cut) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for seed in range(5):
        due = members_of(Random().cut(pool, 3, seed))
        assert members_of(Random().cut(pool, 3, seed, cache_folder=tmp_path)) == due
        assert sum(each == due for each in found) == 4


# ---- splits of the parties' own


@pytest.mark.parametrize("pool", [make_pool(1, 300, unlabelled=0.1), make_pile(1, 300, unlabelled=0.1)])
def test_every_party_gets_its_shares_of_every_class(pool):
    usual = Random().cut(pool, 3, 0)
    parties = Random(split=(0.2, 0.4, 0.4)).cut(pool, 3, 0)
    for party, before in zip(parties, usual, strict=True):
        assert torch.equal(party.graph.x, before.graph.x)
        y, masks = party.graph.y, torch.stack([getattr(party, split) for split in SPLITS])
        assert torch.equal(masks.sum(0), (y >= 0).long())
        for label in range(3):
            shares = masks[:, y == label].sum(1) / (y == label).sum()
            assert (shares - torch.tensor([0.2, 0.4, 0.4])).abs().max() <= 1 / int((y == label).sum())
    again, other = (Random(split=(0.2, 0.4, 0.4)).cut(pool, 3, seed) for seed in (0, 1))
    assert all(torch.equal(one.train, two.train) for one, two in zip(parties, again, strict=True))
    assert not all(torch.equal(one.train, two.train) for one, two in zip(parties, other, strict=True))


def test_items_without_any_label_of_a_task_are_in_no_split():
    pool = make_pool(2, 90, tasks=2)
    pool.party.graph.y[:30] = torch.nan
    party = Random(split=(0.5, 0.25, 0.25)).cut(pool, 1, 0)[0]
    assert [int(getattr(party, split).sum()) for split in SPLITS] == [30, 15, 15]
    assert not (party.train | party.val | party.test)[party.graph.y.isnan().all(1)].any()


def test_parties_that_come_with_the_data_are_split_too(nodes):
    pool = replace(nodes, whole=None, parties=tuple(Random().cut(nodes, 3, 0)))
    parties = Given(split=(1.0, 0.0, 0.0), edges="broken").cut(pool, 3, 0)
    assert all(torch.equal(party.train, party.graph.y >= 0) and party.border is None for party in parties)


def test_a_split_of_parties_that_share_items_is_refused(nodes, pile):
    for pool, what in ((nodes, "nodes"), (pile, "graphs")):
        with pytest.raises(IsthmusError, match=f"partition 'overlap': parties share {what}, .*: leave out 'split'"):
            Overlap(split=(0.2, 0.4, 0.4)).cut(pool, 3, 0)


def test_shares_that_do_not_add_up_are_refused():
    with pytest.raises(
        IsthmusError, match=r"partition 'random': option 'split' is .*: the three shares must add up to 1"
    ):
        Random(split=(0.2, 0.4, 0.5))


def roles(party):
    """The split of each item: 0, 1, 2, and -1 for none."""
    masks = torch.stack([getattr(party, split) for split in SPLITS]).long()
    return torch.where(masks.any(0), masks.argmax(0), -1)


@pytest.mark.parametrize("pool", [make_pool(1, 300, unlabelled=0.1), make_pile(1, 300, unlabelled=0.1)])
def test_a_global_split_is_drawn_once_before_the_cut(pool):
    shares = {"split": (0.2, 0.4, 0.4), "split_by": "global", "split_per_class": False}
    found = {}
    for partition in (Random(**shares), Iid(**shares), Overlap(**shares)):
        parties = partition.cut(pool, 3, 0)
        of_item = torch.full((300,), -2)
        for party, held in zip(parties, members_of(parties), strict=True):
            seen = of_item[torch.tensor(held)]
            assert bool(((seen == -2) | (seen == roles(party))).all()), "an item has one role, whoever holds it"
            of_item[torch.tensor(held)] = roles(party)
        found[partition.name] = of_item
    assert torch.equal(found["random"], found["iid"]), "the cut does not matter"
    drawn = found["overlap"] > -2
    assert torch.equal(found["overlap"][drawn], found["iid"][drawn])
    labelled = pool.party.graph.y >= 0
    assert torch.equal(found["iid"] >= 0, labelled)
    sizes = torch.bincount(found["iid"][labelled], minlength=3) / labelled.sum()
    assert (sizes - torch.tensor([0.2, 0.4, 0.4])).abs().max() <= 1 / int(labelled.sum())
    own = Random(split=(0.2, 0.4, 0.4), split_per_class=False).cut(pool, 3, 0)
    pairs = zip(own, Random(**shares).cut(pool, 3, 0), strict=True)
    assert any(not torch.equal(roles(one), roles(two)) for one, two in pairs)


def test_a_global_split_of_parties_that_come_with_the_data_is_the_same_wherever_they_share_nodes():
    pool = make_pool(3, 120)
    for shared in (Random().cut(pool, 3, 0), Overlap().cut(pool, 3, 0), Random().cut(make_pile(3, 60), 3, 0)):
        given_parties = replace(pool, whole=None, parties=tuple(shared))
        parties = Given(split=(0.5, 0.25, 0.25), split_by="global").cut(given_parties, 3, 0)
        of_id = {}
        for party in parties:
            for item, role in zip(party.ids.tolist(), roles(party).tolist(), strict=True):
                assert of_id.setdefault(item, role) == role
        counts = torch.bincount(torch.tensor(list(of_id.values())), minlength=3) / len(of_id)
        assert (counts - torch.tensor([0.5, 0.25, 0.25])).abs().max() < 3 / len(of_id)


def test_floors_leave_the_rest_of_every_class_for_testing():
    pool = make_pool(1, 300, unlabelled=0.1)
    for party in Random(split=(0.2, 0.4, 0.4), split_rounding="floor").cut(pool, 7, 0):
        for label in range(3):
            drawn = torch.bincount(roles(party)[party.graph.y == label], minlength=3)
            items = int(drawn.sum())
            assert drawn.tolist() == [items // 5, 3 * items // 5 - items // 5, items - 3 * items // 5]


def test_without_classes_the_shares_are_those_of_all_items():
    pool = make_pool(1, 301)
    (party,) = Random(split=(0.2, 0.4, 0.4), split_per_class=False, split_rounding="floor").cut(pool, 1, 0)
    assert torch.bincount(roles(party)).tolist() == [60, 120, 121]
    (classes,) = Random(split=(0.2, 0.4, 0.4), split_rounding="floor").cut(pool, 1, 0)
    of_class = [torch.bincount(party.graph.y[each.train]).tolist() for each in (party, classes)]
    assert of_class[0] != of_class[1], "drawn blindly, the classes' shares vary"


@pytest.mark.parametrize("rounding", ["round", "floor"])
@pytest.mark.parametrize(("items", "due"), [(1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (4, [1, 1, 2])])
def test_a_party_with_few_items_trains_first(items, due, rounding):
    shares = {"split": (0.2, 0.4, 0.4), "split_rounding": rounding, "split_per_class": False}
    (party,) = Random(**shares).cut(make_pool(0, items), 1, 0)
    found = torch.bincount(roles(party), minlength=3).tolist()
    assert found == due or (items == 4 and rounding == "round" and found == [1, 2, 1])
    (party,) = Random(**{**shares, "split": (0.0, 0.5, 0.5)}).cut(make_pool(0, items), 1, 0)
    found = torch.bincount(roles(party), minlength=3).tolist()
    assert found[0] == 0, "a split without a share stays empty"
    assert found[1] > 0


def test_how_a_split_is_drawn_is_recorded_only_with_a_split():
    assert Random().model_dump() == {"edges": "coupled", "split": None}
    dumped = Louvain(split=(0.2, 0.4, 0.4), split_by="global").model_dump()
    assert {key: dumped[key] for key in base.OF_SPLIT} == {
        "split_by": "global",
        "split_per_class": True,
        "split_rounding": "round",
    }
    assert Louvain.read(dumped, "partition").model_dump() == dumped
    with pytest.raises(IsthmusError, match=r"partition 'random': split_by has no effect without split: give shares"):
        Random(split_by="global")


def test_the_split_does_not_change_the_cut(tmp_path, asked):
    pool = make_pool(0, 60)
    for options in ({}, {"split": (0.2, 0.4, 0.4)}, {"split": (0.2, 0.4, 0.4), "split_by": "global"}):
        Counted(**options).cut(pool, 3, seed=0, cache_folder=tmp_path)
    assert asked == ["counted"]
