"""Training in one place is local training of one party."""

import pytest
import torch

from helpers import CLASSES, FEATURES, assert_close, make_parties, plain_fit
from isthmus.methods.shared import alone
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Gcn
from isthmus.nn.weights import initial_weights
from isthmus.tasks.classification import NodeClassification

pytestmark = pytest.mark.usefixtures("double_precision")


def test_it_trains_from_the_given_weights_and_returns_outputs_for_all_nodes() -> None:
    torch.manual_seed(0)
    module, party = Gcn(hidden=8, dropout=0.0).build(FEATURES, CLASSES, "node"), make_parties("node")[0]
    options = LocalTraining(epochs=3, optimizer="sgd", lr=0.1)
    start = {name: weight + 0.1 for name, weight in initial_weights(module).items()}
    found, outputs = alone.trained(module, start, party, NodeClassification(classes=CLASSES), options, seed=0)
    module.load_state_dict(start, strict=False)
    due, _ = plain_fit(module, party, options)
    assert_close(found, initial_weights(due), within=1e-8)
    with torch.no_grad():
        torch.testing.assert_close(outputs, due.eval()(party.graph.x, party.graph.edge_index))
