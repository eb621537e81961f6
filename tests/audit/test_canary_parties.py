"""Canaries among parties: sound noise keeps the claim, and what is broken is found."""

import numpy as np
from games import a_tenth, assert_broken, assert_sound, of_parties

from isthmus.privacy import updates
from isthmus.privacy.updates import PartyPlan


def test_sound_noise_keeps_the_claim():
    assert_sound(of_parties())


def test_noise_of_a_tenth_is_found(monkeypatch):
    monkeypatch.setattr(updates, "discrete_gaussian", a_tenth(updates.discrete_gaussian))
    assert_broken(of_parties())


def test_clipping_that_is_skipped_is_found(monkeypatch):
    def as_it_is(plan, update, bits):
        return np.rint(update / plan.grid).astype(np.int64)

    monkeypatch.setattr(PartyPlan, "clipped", as_it_is)
    assert_broken(of_parties())


def test_shares_that_are_too_small_are_found(monkeypatch):
    whole = PartyPlan.variance
    monkeypatch.setattr(PartyPlan, "variance", lambda plan, size, parties: whole(plan, size, 50 * parties))
    assert_broken(of_parties())
