"""FedRep against its algorithm in plain PyTorch."""

import pytest
from personal import ADAMW, built, fitted, mean, run, weights_of

from helpers import assert_close, make_parties
from isthmus.methods.fedrep import FedRep
from isthmus.nn.weights import body_weights, head_weights

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("encoder", ["gcn", "gin"])
@pytest.mark.thinned(2)
def test_heads_are_fitted_to_the_body_before_it_moves(encoder, level):
    module, parties = built(encoder, level), make_parties(level)
    method = FedRep(rounds=3, select="last", head_epochs=4, local=ADAMW.model_copy(update={"epochs": 2}))
    found = run(method, module, make_parties(level, sparse=True))
    head, body = head_weights(module), body_weights(module)
    models = [weights_of(module) for _ in parties]
    for _ in range(3):
        for at, party in enumerate(parties):
            own = fitted(module, models[at], party, ADAMW.model_copy(update={"epochs": 4}), only=head)
            models[at] = fitted(module, own, party, method.local, only=body)
        shared = mean(parties, models)
        models = [{name: own[name] if name in head else shared[name] for name in own} for own in models]
    assert_close(found.models["shared"], {name: shared[name] for name in body}, within=1e-8)
    for own, party in zip(models, parties, strict=True):
        assert_close(found.models["parties"][party.name], own, within=1e-8)
