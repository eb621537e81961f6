"""Methods that leave training to another: which options the trainer gets, and what is refused."""

import pytest
from unlabelled_runs import SGD, run

from helpers import make_graph_parties
from isthmus.errors import IsthmusError
from isthmus.methods.fclg import FCLG
from isthmus.methods.fedprox import FedProx
from isthmus.methods.infograph import InfoGraph
from isthmus.methods.training import LocalTraining
from isthmus.testing import small_parties


def test_a_proximal_term_holds_weights_back():
    parties, gaps = make_graph_parties(), []
    for trainer in ({"name": "fedavg"}, {"name": "fedprox", "mu": 5.0}):
        job = run(InfoGraph.read({"rounds": 1, "local": SGD, "trainer": trainer}, "infograph"), parties)
        before = {name: weight.clone() for name, weight in job.module.named_parameters()}
        after = job.go().weights
        gaps.append(sum(float((after[name] - weight.detach()).square().sum()) for name, weight in before.items()))
    assert gaps[1] < gaps[0]


@pytest.mark.parametrize("trainer", ["centralized", "fedgcn", "infograph", "fedgl", "fgcl"])
def test_what_does_not_train_parties_is_no_trainer(trainer):
    with pytest.raises(IsthmusError, match=f"'{trainer}' is no trainer"):
        run(InfoGraph(trainer={"name": trainer}), small_parties("graph"))


def test_a_trainer_keeps_what_it_has_for_a_reason_and_gets_the_rest():
    scaffold = FCLG(trainer={"name": "scaffold"}).training()
    assert (scaffold.local.optimizer, scaffold.weighting, scaffold.rounds) == ("sgd", "even", 20)
    prox = FCLG.read(
        {"trainer": {"name": "fedprox", "mu": 0.5, "local": {"epochs": 2}}, "quorum": 1}, "fclg"
    ).training()
    assert (prox.mu, prox.quorum, prox.local.epochs, prox.local.batch_size, prox.local.lr) == (0.5, 1.0, 2, 128, 1e-3)
    asked = FCLG.read({"trainer": {"name": "scaffold"}, "local": {"lr": 0.3}}, "fclg").training()
    assert (asked.local.lr, asked.local.batch_size) == (0.3, 128)
    with pytest.raises(IsthmusError, match="'rounds' is set for the whole method: take it out of trainer"):
        FCLG(trainer={"name": "fedavg", "rounds": 2}).training()


def test_a_trainer_is_named_or_made_or_a_table():
    for trainer in ("fedprox", {"name": "fedprox"}, FedProx()):
        assert type(FCLG(trainer=trainer).training()) is FedProx
    made = InfoGraph(trainer=FedProx(mu=0.3, local=LocalTraining(lr=0.5))).training()
    assert (made.mu, made.local.lr, made.local.batch_size) == (0.3, 0.5, 128)
