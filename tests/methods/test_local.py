"""Every party trains alone."""

import pytest
from written_out import ADAM, MODELS, ROUNDS, built, run

from helpers import assert_close, make_parties, plain_fit
from isthmus.methods.local import Local
from isthmus.nn.weights import initial_weights

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("model", MODELS)
def test_every_party_trains_on_from_its_own_weights(model, level):
    module = built(MODELS[model], level)
    method = Local(rounds=ROUNDS, select="last", local=ADAM)
    found = run(method, module, make_parties(level, sparse=True)).models["parties"]
    for party in make_parties(level):
        alone = module
        for _ in range(ROUNDS):
            alone, _ = plain_fit(alone, party, ADAM)
        assert_close(found[party.name], initial_weights(alone), within=1e-8)
