"""Canaries among pairs of FGCL's graphs: sound noise keeps the claim, and noise that is too small is found."""

from games import a_tenth, assert_broken, assert_sound, of_views

from isthmus.privacy.mechanisms import Laplace


def test_sound_noise_keeps_the_claim():
    assert_sound(of_views())


def test_noise_of_a_tenth_is_found(monkeypatch):
    monkeypatch.setattr(Laplace, "noise", a_tenth(Laplace.noise))
    assert_broken(of_views())
