"""One model on all data."""

import pytest
import torch
from torch_geometric.data import Batch, Data
from written_out import ADAM, MODELS, ROUNDS, built, run

from helpers import assert_close, make_parties, plain_fit
from isthmus.data.party import Party
from isthmus.methods.centralized import Centralized
from isthmus.nn.weights import initial_weights

pytestmark = pytest.mark.usefixtures("double_precision")


def pooled(parties):
    """All graphs in one, by hand."""
    masks = {split: torch.cat([getattr(party, split) for party in parties]) for split in ("train", "val", "test")}
    if parties[0].level == "graph":
        graphs = [party.graph[at] for party in parties for at in range(party.items)]
        return Party("pooled", Batch.from_data_list(graphs), "graph", **masks)
    whole = Batch.from_data_list([party.graph for party in parties])
    return Party("pooled", Data(x=whole.x, edge_index=whole.edge_index, y=whole.y), "node", **masks)


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("model", MODELS)
def test_centralized_trains_one_model_on_all_data(model, level):
    module = built(MODELS[model], level)
    found = run(Centralized(rounds=ROUNDS, select="last", local=ADAM), module, make_parties(level, sparse=True))
    due = module
    for _ in range(ROUNDS):
        due, _ = plain_fit(due, pooled(make_parties(level)), ADAM)
    assert_close(found.weights, initial_weights(due), within=1e-8)
