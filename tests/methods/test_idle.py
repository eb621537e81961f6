"""Parties without training items take part, and change nothing."""

from dataclasses import replace

import pytest
import torch

import isthmus
from isthmus.methods.base import Method


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "scaffold", "feddyn"])
def test_a_round_that_draws_only_idle_parties_keeps_the_weights(name, node_parties):
    idle = [replace(party, train=torch.zeros_like(party.train)) for party in node_parties[:3]]
    options = {"rounds": 6, "fraction": 0.25, "weighting": "train", "local": {"epochs": 1}}
    method = Method.named(name).read(options, name)
    run = isthmus.run(method, [*idle, node_parties[3]], seed=0, unlabelled="idle").runs[0]
    losses = [value for _, metric, value in run.history if metric == "val_loss"]
    assert run.rounds == 6
    if name != "fedadam":  # whose momentum goes on
        assert len(set(losses)) < len(losses)  # some rounds drew an idle party alone
