"""The account against dp-accounting, whose privacy loss distributions and Renyi bounds know nothing of its formulas."""

import math

import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from isthmus.privacy.account import Account, GaussianNoise, best_chance, gaussian_epsilon, gaussian_multiplier
from isthmus.privacy.accounting import PrivacyCost

DELTA = 1e-6


def by_library(*events, accountant=PLDAccountant):
    account = accountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event, times in events:
        account.compose(event, times)
    return account.get_epsilon(DELTA)


@pytest.mark.parametrize(("multiplier", "times"), [(0.8, 1), (4.0, 30), (20.0, 100)])
def test_gaussian_noise_composes_as_in_dp_accounting(multiplier, times):
    account = Account()
    account.add("party", GaussianNoise(multiplier), times)
    event = dp_event.GaussianDpEvent(multiplier)
    assert account.cost(DELTA).epsilon == pytest.approx(by_library((event, times)), rel=2e-3)
    assert account.cost(DELTA).epsilon < by_library((event, times), accountant=RdpAccountant)


def test_noise_of_several_sizes_and_sampled_noise_compose_as_in_dp_accounting():
    account = Account()
    account.add("item", GaussianNoise(3.0), 2, "sums")
    account.add("item", GaussianNoise(5.0), 4, "moments")
    plain = [(dp_event.GaussianDpEvent(3.0), 2), (dp_event.GaussianDpEvent(5.0), 4)]
    assert account.cost(DELTA).epsilon == pytest.approx(by_library(*plain), rel=1e-3)
    account.add("item", GaussianNoise(1.1, sampled=0.05), 8, "gradients")
    sampled = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(1.1))
    assert account.cost(DELTA).epsilon == pytest.approx(by_library(*plain, (sampled, 8)), rel=1e-3)


def test_other_releases_of_the_same_unit_count_beside_gaussian_noise():
    account = Account()
    account.add("edge", GaussianNoise(2.0), 3)
    alone = account.cost(DELTA).epsilon
    account.add("edge", PrivacyCost(0.5))
    both = account.cost(DELTA).epsilon
    assert alone + 0.05 < both <= alone + 0.5 + 1e-3


def test_slack_and_tail_are_added():
    account = Account()
    account.add("party", GaussianNoise(2.0, slack=0.01, tail=1e-8), 10)
    assert account.cost(DELTA).epsilon == pytest.approx(0.1 + gaussian_epsilon(2 / math.sqrt(10), DELTA - 1e-7))
    with pytest.raises(ValueError, match="delta of 0"):
        account.cost()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 1e4, 1e9])
@pytest.mark.parametrize("times", [1, 100])
def test_the_multiplier_is_the_least_that_an_epsilon_allows(epsilon, times):
    found = gaussian_multiplier(epsilon, DELTA, times, slack_of=1e-5, tail=1e-20)
    account = Account()
    account.add("party", GaussianNoise(found, slack=1e-5 / found**2, tail=1e-20), times)
    assert epsilon * (1 - 1e-6) <= account.cost(DELTA).epsilon <= epsilon


def test_units_do_not_add_up():
    account = Account()
    account.add("edge", PrivacyCost(1.0))
    account.add("edge", PrivacyCost(0.5), 3, "a view")
    account.add("edge", PrivacyCost(9.0), 0)
    account.add("party", GaussianNoise(1.0))
    assert account.cost() == PrivacyCost(2.5)
    saved = account.to_dict(1e-5)
    assert saved["unit"] == "one edge of a party's graph"
    assert [(each["epsilon"], each["times"]) for each in saved["releases"]] == [(1.0, 1), (0.5, 3)]
    assert saved["basic"] == {"epsilon": 2.5, "delta": 0.0}
    (other,) = saved["others"]
    assert other["of"] == "party"
    assert other["epsilon"] == pytest.approx(4.377, abs=1e-3)
    assert other["chance"] == pytest.approx(best_chance(other["epsilon"]))
    with pytest.raises(ValueError, match="no unit of privacy: there are party, item, edge"):
        account.add("patient", PrivacyCost(1.0))
    assert Account().to_dict() == {}
    assert Account().cost() == PrivacyCost(0.0)


def test_the_best_chance_is_that_of_the_likelier_data():
    """With randomised response of this epsilon, and a prior of a half, what was seen is true with this chance."""
    for epsilon in (0.0, 0.3, 2.0, 50.0):
        assert best_chance(epsilon) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)))
