"""Budgets add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.privacy.accounting import Account, Spent, advanced, basic

budgets = st.lists(st.floats(0.001, 5), min_size=1, max_size=30)


@given(epsilons=budgets, delta=st.floats(1e-9, 0.1))
def test_advanced_composition_is_never_more_than_basic(epsilons, delta):
    spent = [Spent(epsilon) for epsilon in epsilons]
    found = advanced(spent, delta)
    assert found.epsilon <= basic(spent).epsilon == pytest.approx(sum(epsilons))
    assert found.delta <= delta * (1 + 1e-9)


def test_many_small_releases_cost_like_a_root():
    one, hundred = (advanced([Spent(0.001)] * times, 1e-6).epsilon for times in (10_000, 1_000_000))
    assert 9 < hundred / one < 12


def test_one_release_costs_itself():
    assert advanced([Spent(2.0, 1e-6)], 1e-5) == Spent(2.0, 1e-6)


def test_an_account_counts_what_was_released():
    account = Account("one edge of one graph")
    account.add(Spent(1.0))
    account.add(Spent(0.5), 3)
    account.add(Spent(9.0), 0)
    assert account.spent() == Spent(2.5)
    told = account.to_dict()
    assert told["unit"] == "one edge of one graph"
    assert [(each["epsilon"], each["times"]) for each in told["releases"]] == [(1.0, 1), (0.5, 3)]
    assert told["basic"] == {"epsilon": 2.5, "delta": 0.0}
    assert Account("x").spent() == Account("x").spent(1e-5) == Spent(0.0)
