"""Budgets add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.privacy.accounting import PrivacyCost, compose_advanced, compose_basic

budgets = st.lists(st.floats(0.001, 5), min_size=1, max_size=30)


@given(epsilons=budgets, delta=st.floats(1e-9, 0.1))
def test_advanced_composition_is_never_more_than_basic(epsilons, delta):
    spent = [PrivacyCost(epsilon) for epsilon in epsilons]
    found = compose_advanced(spent, delta)
    assert found.epsilon <= compose_basic(spent).epsilon == pytest.approx(sum(epsilons))
    assert found.delta <= delta * (1 + 1e-9)


def test_many_small_releases_cost_like_a_root():
    one, hundred = (compose_advanced([PrivacyCost(0.001)] * times, 1e-6).epsilon for times in (10_000, 1_000_000))
    assert 9 < hundred / one < 12


def test_one_release_costs_itself():
    assert compose_advanced([PrivacyCost(2.0, 1e-6)], 1e-5) == PrivacyCost(2.0, 1e-6)
