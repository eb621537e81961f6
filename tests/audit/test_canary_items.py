"""Canaries among training items: sound noise keeps the claim, and what is broken is found."""

import pytest
from games import AUDIT, a_tenth, assert_broken, assert_sound, of_items

from isthmus.privacy import items
from isthmus.privacy.items import ItemPlan


def test_sound_noise_keeps_the_claim():
    assert_sound(of_items())


def test_noise_of_a_tenth_is_found(monkeypatch):
    monkeypatch.setattr(items, "discrete_gaussian", a_tenth(items.discrete_gaussian))
    assert_broken(of_items())


def test_clipping_that_is_skipped_is_found(monkeypatch):
    def as_they_are(plan, gradients):
        return [(gradient.double() / plan.grid).trunc() for gradient in gradients]

    monkeypatch.setattr(ItemPlan, "clipped", as_they_are)
    assert_broken(of_items())


@pytest.mark.slow
def test_sampling_keeps_the_claim():
    found = AUDIT.shown(of_items(rate=0.3))
    assert found.kept
    assert found.bound.epsilon > 0.1
