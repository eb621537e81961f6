import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import assert_sound_links
from isthmus.data.datasets.hospitals import Hospitals
from isthmus.data.partition.given import Given
from isthmus.data.pool import DataSet
from isthmus.errors import IsthmusError


def holds(pool):
    """Which hospital holds which patient, `[hospitals, patients]`."""
    found = torch.zeros(len(pool.holders), pool.party.nodes, dtype=torch.bool)
    for at, held in enumerate(pool.holders):
        found[at, held] = True
    return found


def seen_by_nobody(pool):
    """For every edge whether no hospital holds both of its ends."""
    held = holds(pool)
    source, target = pool.party.graph.edge_index
    return ~(held[:, source] & held[:, target]).any(0)


def test_same_seed_same_data_whatever_else_was_drawn():
    data = Hospitals(nodes=200)
    torch.manual_seed(1)
    first = data.load(seed=5)
    torch.manual_seed(2)
    again, other = data.load(seed=5), data.load(seed=6)
    assert all(torch.equal(first.party.graph[key], again.party.graph[key]) for key in ("x", "edge_index", "y"))
    assert torch.equal(holds(first), holds(again))
    assert not torch.equal(first.party.graph.x, other.party.graph.x)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("cross", [0.0, 0.2])
def test_hospitals_have_the_shares_asked_for(overlap, cross, seed):
    pool = Hospitals(overlap=overlap, cross=cross, degree=5).load(seed)
    count = holds(pool).sum(0)
    assert count.min() >= 1
    assert int((count == 2).sum()) == round(overlap * 1200)
    assert pool.party.edges == pytest.approx(1200 * (1 + overlap) * 5, rel=0.02)
    assert float(seen_by_nobody(pool).float().mean()) == pytest.approx(cross, abs=0.01)


def test_few_patients_are_diagnosed_and_shared_ones_are_in_one_split_everywhere():
    pool = Hospitals().load(0)
    assert float(pool.party.train.float().mean()) == pytest.approx(0.03, abs=0.005)
    parties = Given().cut(pool, 4, seed=0)
    for split in ("train", "val", "test"):
        whole = getattr(pool.party, split)
        assert all(torch.equal(getattr(party, split), whole[party.ids]) for party in parties)


def test_a_shared_patient_has_links_at_each_of_its_hospitals():
    pool = Hospitals(cross=0.0).load(0)
    held, (source, target) = holds(pool), pool.party.graph.edge_index
    at_each = torch.stack([torch.bincount(target[(own[source] & own[target])], minlength=1200) for own in held])
    shared = held.sum(0) == 2
    assert float((at_each > 0)[held & shared].float().mean()) > 0.9
    assert float(at_each[held & shared].float().mean()) == pytest.approx(5, abs=1)


def test_skew_makes_hospitals_differ_in_illnesses():
    def spread(skew):
        pool = Hospitals(skew=skew, overlap=0.0).load(0)
        mixes = [torch.bincount(pool.party.graph.y[held], minlength=4).float() for held in pool.holders]
        return float(torch.stack([mix / mix.sum() for mix in mixes]).std(0).mean())

    assert spread(0.0) < 0.05 < 0.15 < spread(0.6)


def smoothed(party):
    """Features averaged with those of the neighbours."""
    source, target = party.graph.edge_index
    x = party.graph.x.index_add(0, target, party.graph.x[source])
    return x / (1 + torch.bincount(target, minlength=party.nodes)).unsqueeze(1)


def scores(x, means):
    return -torch.cdist(x, means).square()


@pytest.mark.parametrize("seed", range(3))
def test_what_hospitals_find_of_a_shared_patient_adds_up(seed):
    """The mean of two hospitals' scores is right more often than one hospital's: shared nodes carry information."""
    pool = Hospitals(nodes=3000).load(seed)
    y = pool.party.graph.y
    parties = Given().cut(pool, 4, seed=0)
    x = smoothed(pool.party)
    means = torch.stack([x[y == label].mean(0) for label in range(4)])
    total, alone = torch.zeros(3000, 4), []
    shared = holds(pool).sum(0) == 2
    for party in parties:
        found = scores(smoothed(party), means)
        total.index_add_(0, party.ids, found)
        alone.append((found.argmax(1) == party.graph.y)[shared[party.ids]])
    together = (total.argmax(1) == y)[shared]
    assert float(torch.cat(alone).float().mean()) + 0.03 < float(together.float().mean())


@pytest.mark.parametrize("seed", range(3))
def test_patients_without_a_diagnosis_tell_what_an_illness_looks_like(seed):
    """Means over all patients, by the class that the few diagnosed ones suggest, are right more often than theirs."""
    party = Hospitals(train=0.01).load(seed).party
    x, y = smoothed(party), party.graph.y
    first = torch.stack([x[party.train & (y == label)].mean(0) for label in range(4)])
    guess = scores(x, first).argmax(1)
    second = torch.stack([x[guess == label].mean(0) for label in range(4)])

    def right(means):
        return float((scores(x, means).argmax(1) == y)[party.test].float().mean())

    assert right(first) + 0.02 < right(second)


@settings(max_examples=25)
@given(
    parties=st.integers(1, 6),
    nodes=st.integers(6, 80),
    cross=st.floats(0, 1),
    overlap=st.floats(0, 1),
    classes=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_links_go_both_ways_once_and_never_to_oneself_and_no_cut_loses_one(seed, **options):
    pool = Hospitals(**options).load(seed)
    assert_sound_links(pool, options["parties"], seed)


@pytest.mark.parametrize("odd", [{"parties": 1}, {"nodes": 4}, {"classes": 1}, {"degree": 0}, {"overlap": 1.0}])
def test_odd_hospitals_work(odd):
    hospitals = Hospitals(**odd)
    assert len(Given().cut(hospitals.load(0), hospitals.parties, seed=0)) == hospitals.parties


def test_too_few_patients_are_refused():
    with pytest.raises(IsthmusError, match="'hospitals': 3 nodes are too few for 4 parties: ask for more nodes"):
        Hospitals(nodes=3).load(0)


def test_hospitals_are_known_by_name_and_documented():
    assert DataSet.named("hospitals") is Hospitals
    assert all(option["help"] for option in Hospitals.describe()["options"])
