"""FedStar against its algorithm in plain PyTorch."""

import pytest
import torch
from personal import ADAMW, built, fitted, mean, run, weights_of

from helpers import assert_close, make_parties
from isthmus.errors import IsthmusError
from isthmus.methods.fedstar import FedStar, structure_weights

pytestmark = pytest.mark.usefixtures("double_precision")
LAYERS = ("embed.weight", "embed.bias", *(f"convs.{at}.{name}" for at in range(3) for name in ("bias", "lin.weight")))
SHARED = {f"structure.{name}" for name in LAYERS}
"""Names of the structure channel's weights in a model of nodes, by hand."""


@pytest.mark.parametrize("level", ["node", "graph"])
def test_structure_is_averaged_and_all_else_stays(level):
    module, parties = built("two-channel", level), make_parties(level)
    found = run(FedStar(rounds=3, select="last", local=ADAMW), module, make_parties(level, sparse=True))
    prefix = "" if level == "node" else "body."
    models = [weights_of(module) for _ in parties]
    for _ in range(3):
        models = [fitted(module, own, party, ADAMW) for own, party in zip(models, parties, strict=True)]
        shared = {name: weight for name, weight in mean(parties, models).items() if name.removeprefix(prefix) in SHARED}
        models = [{**own, **shared} for own in models]
    assert len(shared) == len(SHARED)
    assert_close(found.models["shared"], shared, within=1e-8)
    for own, party in zip(models, parties, strict=True):
        assert_close(found.models["parties"][party.name], own, within=1e-8)


def test_a_party_has_what_it_downloads_in_its_model_and_sends_nothing_else():
    parties = make_parties("node")
    found = run(FedStar(rounds=3, fraction=0.5, local=ADAMW), module := built("two-channel", "node"), parties)
    shared, start = found.models["shared"], weights_of(module)
    assert set(shared) == SHARED == set(structure_weights(module))
    assert all(not torch.equal(shared[name], start[name]) for name in SHARED)
    for party in parties:
        assert all(torch.equal(found.models["parties"][party.name][name], shared[name]) for name in SHARED)
    sent = {row["fields"] for row in found.ledger.rows() if row["action"] == "train"}
    names = {field.partition("[")[0].removeprefix("weights/") for fields in sent for field in fields.split(", ")}
    assert {name for name in names if name in start} == SHARED


def test_a_party_that_was_not_drawn_has_the_first_weights_of_the_features_channel():
    module, parties = built("two-channel", "node"), make_parties("node")
    found = run(FedStar(rounds=1, fraction=0.5, local=ADAMW), module, parties)
    drawn = next(set(call.parties) for call in found.ledger.entries if call.action == "train")
    assert 0 < len(drawn) < len(parties)
    for party in parties:
        own = found.models["parties"][party.name]["join.weight"]
        assert torch.equal(own, weights_of(module)["join.weight"]) == (party.name not in drawn)


def test_a_model_without_a_structure_channel_is_refused():
    with pytest.raises(IsthmusError, match="which this model lacks: use the encoder two-channel"):
        run(FedStar(rounds=1), built("gin", "node"), make_parties("node"))
