from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pools import class_counts, make_pile, make_pool, members_of

from isthmus.data.partition.labels import Iid, LabelDirichlet, LabelSkew, QuantityDirichlet, Random
from isthmus.data.pool import Pool
from isthmus.data.skew import earth_movers
from isthmus.errors import IsthmusError

BOTH = pytest.mark.parametrize("make", [make_pool, make_pile])


def sizes(parties):
    return [party.items for party in parties]


def test_random_parties_are_of_equal_size():
    assert sorted(sizes(Random().cut(make_pool(0, 20), 3, seed=0))) == [6, 7, 7]


def test_random_cuts_items_with_labels_of_several_tasks():
    for partition in (Random(), QuantityDirichlet()):
        assert len(partition.cut(make_pool(0, 5, tasks=2), 2, seed=0)) == 2


@BOTH
def test_iid_parties_have_equal_sizes_and_class_shares(make):
    parties = Iid().cut(make(0, 120), 4, seed=0)
    counts = class_counts(parties, 3)
    assert set(sizes(parties)) == {30}
    assert (counts.amax(0) - counts.amin(0) <= 1).all()


@BOTH
@pytest.mark.parametrize("partition", [Iid(), LabelDirichlet(beta=0.1), LabelSkew(emd=1.0)])
def test_items_without_a_label_go_out_evenly(make, partition):
    parties = partition.cut(make(0, 600, unlabelled=0.3), 4, seed=0)
    unlabelled = [int((party.graph.y < 0).sum()) for party in parties]
    assert sum(unlabelled) > 100
    assert max(unlabelled) - min(unlabelled) <= 1


def test_small_beta_gives_few_classes_and_large_beta_the_same_mix():
    pool = make_pool(0, 600)
    near, far = (earth_movers(class_counts(LabelDirichlet(beta=beta).cut(pool, 4, 0), 3)) for beta in (1000.0, 0.1))
    assert near < 0.1 < 0.6 < far


@settings(max_examples=10)
@given(st.integers(0, 100))
def test_the_dirichlet_draw_is_that_of_its_classes(seed):
    """One class only: its proportions are the parties' sizes, so they must sum to the whole and differ."""
    found = sizes(LabelDirichlet().cut(make_pool(seed, 200, classes=1), 5, seed))
    assert sum(found) == 200
    assert len(set(found)) > 1


@BOTH
def test_small_beta_gives_unequal_and_large_beta_equal_numbers_of_any_class(make):
    pool = make(0, 900)
    skewed, even = (QuantityDirichlet(beta=beta).cut(pool, 6, seed=1) for beta in (0.2, 1e5))
    assert max(sizes(skewed)) > 3 * 150
    assert max(abs(size - 150) for size in sizes(even)) < 10
    assert min(sizes(skewed)) > 0
    assert earth_movers(class_counts(even, 3)) < 0.2, "blind parties have about the whole's mix"


def test_quantities_are_the_shares_drawn():
    """Over many draws the variance of a share is that of a Dirichlet distribution, (K - 1) / (K^2 (K beta + 1))."""
    pool, parties, beta = make_pool(0, 2000), 4, 1.5
    shares = torch.tensor([sizes(QuantityDirichlet(beta=beta).cut(pool, parties, seed)) for seed in range(60)]) / 2000
    due = (parties - 1) / (parties**2 * (parties * beta + 1))
    assert float(shares.var(correction=0)) == pytest.approx(due, rel=0.25)


@pytest.mark.parametrize("partition", [LabelDirichlet(beta=1e-4), QuantityDirichlet(beta=1e-4)])
def test_nobody_is_empty_however_small_beta_is(partition):
    assert min(sizes(partition.cut(make_pool(0, 300), 200, seed=0))) > 0


# ---- label-skew


@BOTH
@pytest.mark.parametrize("count", [2, 6, 50])
@pytest.mark.parametrize("emd", [0.2, 0.4, 0.6])
def test_the_distance_that_is_asked_for_is_reached_at_equal_sizes(make, count, emd):
    parties = LabelSkew(emd=emd).cut(make(0, 600), count, seed=0)
    assert earth_movers(class_counts(parties, 3)) == pytest.approx(emd, abs=8 / 600)
    assert max(sizes(parties)) - min(sizes(parties)) <= 1


@settings(max_examples=50)
@given(st.lists(st.integers(-1, 5), min_size=1, max_size=60), st.floats(0, 1.99), st.integers(1, 8), st.integers(0, 9))
def test_the_distance_is_reached_or_refused(labels, emd, count, seed):
    assume(count <= len(labels))
    pool, partition = pool_of(labels), LabelSkew(emd=emd)
    known = [label for label in labels if label >= 0]
    if not known or not within(emd, reach(known, count), 8 / len(known)):
        with pytest.raises(IsthmusError, match=r"is not possible|no item has a label"):
            partition.members(pool, count, seed)
        return
    members = partition.members(pool, count, seed)
    assert sorted(torch.cat(members).tolist()) == list(range(len(labels)))
    assert max(map(len, members)) - min(map(len, members)) <= 1
    found = [[labels[at] for at in held if labels[at] >= 0] for held in members]
    assert emd_of(found) == pytest.approx(emd, abs=8 / len(known) + 1e-9)


def reach(known, count):
    """Distances when all items go out in turn, and when all go out in runs, the most frequent class first."""
    ordered = sorted(known, key=lambda label: (-known.count(label), label))
    return emd_of([ordered[at::count] for at in range(count)]), emd_of(np.array_split(ordered, count))


def emd_of(held):
    return earth_movers(torch.tensor([[list(labels).count(label) for label in range(6)] for labels in held]))


def within(value, bounds, tolerance):
    return bounds[0] - tolerance <= value <= bounds[1] + tolerance


def pool_of(labels):
    party = make_pool(0, len(labels)).party
    graph = party.graph.clone()
    graph.y = torch.tensor(labels)
    return Pool(replace(party, graph=graph, **dict.fromkeys(("train", "val", "test"), graph.y > 9)), 6)


def test_a_distance_out_of_reach_names_those_that_are_not():
    pool = pool_of([0] * 500 + [1] * 500)  # pure parties differ from the whole by |1 - 1/2| + |0 - 1/2| = 1
    with pytest.raises(
        IsthmusError, match=r"^partition 'label-skew': emd = 1\.2 is not possible .* choose 0\.0 to 1\.0"
    ):
        LabelSkew(emd=1.2).cut(pool, 4, seed=0)
    parties = LabelSkew(emd=1.0).cut(pool, 4, seed=0)
    assert sorted(class_counts(parties, 2).tolist()) == [[0, 250], [0, 250], [250, 0], [250, 0]]
    with pytest.raises(IsthmusError, match=r"is not possible .* choose 1\.0 to"):
        LabelSkew(emd=0.1).cut(pool, 1000, seed=0)
    with pytest.raises(IsthmusError, match="no item has a label: use 'random'"):
        LabelSkew().cut(pool_of([-1] * 9), 2, seed=0)


def test_what_the_message_names_is_reached():
    pool = pool_of([0] * 7 + [1] * 31 + [2] * 90)
    with pytest.raises(IsthmusError, match="is not possible") as refusal:
        LabelSkew(emd=1.9).cut(pool, 5, seed=0)
    most = float(str(refusal.value).split(" to ")[1])
    found = earth_movers(class_counts(LabelSkew(emd=most).cut(pool, 5, seed=0), 3))
    assert most <= found < most + 0.001


def test_the_seed_says_who_gets_what():
    pool = make_pool(0, 90)
    first, again, other = (members_of(LabelSkew(emd=0.8).cut(pool, 3, seed)) for seed in (0, 0, 1))
    assert first == again != other
    commonest = [class_counts(LabelSkew(emd=0.8).cut(pool, 3, seed), 3).argmax(1).tolist() for seed in range(6)]
    assert len(set(map(tuple, commonest))) > 1, "the same class is not always at the same party"
