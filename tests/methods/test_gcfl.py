"""GCFL against its algorithm in plain PyTorch."""

import math

import pytest
import torch
from clusters import SGD, SPLITTING, cheapest_cut, models_of, six_parties, written_out
from personal import built, fitted, run, weights_of

from helpers import assert_close
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.methods.gcfl import GCFL, minimum_cut, projections
from isthmus.nn.weights import head_weights
from isthmus.testing import check_method, small_parties

pytestmark = pytest.mark.usefixtures("double_precision")
EXACT = {**SPLITTING, "width": 0}


def cosines(updates):
    last = [own[-1] for own in updates]
    return [[float(1 + torch.cosine_similarity(a, b, dim=0)) for b in last] for a in last]


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("encoder", ["gcn", "gin"])
@pytest.mark.thinned(2)
def test_rounds_are_those_of_the_paper(encoder, level):
    module, parties = built(encoder, level), six_parties(level)
    found = run(method := GCFL(rounds=4, warm_up=1, **EXACT), module, six_parties(level, sparse=True))
    clusters, models = written_out(method, module, parties, cosines)
    assert list(found.groups.values()) == clusters
    assert len(clusters) > 2
    for party, due in models.items():
        assert_close(models_of(found)[party], due, within=1e-8)


@pytest.mark.parametrize(
    ("options", "parties"),
    [({"warm_up": 3}, 6), ({"eps1": 1e-9}, 6), ({"eps2": 1e9}, 6), ({}, 2)],
    ids=["in the first rounds", "if the mean moves", "if no party moves", "of two"],
)
def test_a_cluster_is_not_split(options, parties):
    found = run(
        GCFL(rounds=3, **{"warm_up": 0, **EXACT, **options}), built("gcn", "node"), six_parties("node")[:parties]
    )
    assert list(found.groups) == ["all"]
    asked = {row["action"] for row in found.ledger.rows()}
    assert ("compare" in asked) == ("eps2" in options)  # only what the server cannot know from the sum


def test_a_party_alone_trains_on_and_sends_nothing():
    module, parties = built("gcn", "node"), six_parties("node")
    found = run(GCFL(rounds=5, warm_up=0, **EXACT), module, parties)
    (alone,) = next(members for members in found.groups.values() if len(members) == 1)
    rows = [row for row in found.ledger.rows() if row["party"] == alone and row["action"] in ("train", "train_alone")]
    assert rows[0]["action"] == "train"
    assert rows[-1]["action"] == "train_alone"
    assert rows[-1]["fields"] == ""
    before = run(GCFL(rounds=4, warm_up=0, **EXACT), module, parties)
    party = next(each for each in parties if each.name == alone)
    due = fitted(module, models_of(before)[alone], party, SGD)
    assert_close(found.models["parties"][alone], due, within=1e-8)


def test_heads_stay_at_their_parties():
    module, parties = built("gcn", "node"), six_parties("node")
    found = run(GCFL(rounds=2, warm_up=0, share="body", **EXACT), module, parties)
    head = head_weights(module)
    assert all(not set(head) & set(weights) for weights in found.models["groups"].values())
    sent = {row["fields"] for row in found.ledger.rows() if row["action"] == "train"}
    assert all(f"weights/{name}[" not in fields for name in head for fields in sent)
    heads = [own[head[0]] for own in found.models["parties"].values()]
    assert all(not torch.equal(heads[0], other) for other in heads[1:])


@pytest.mark.parametrize("rule", ["median", "krum"])
def test_rules_that_compare_parties_are_refused(rule):
    with pytest.raises(IsthmusError, match=f"aggregate = '{rule}' compares parties"):
        run(GCFL(rounds=1, aggregate=rule), built("gcn", "node"), six_parties("node"))


def test_a_party_without_training_items_is_like_any_other():
    module, parties = built("gcn", "node"), six_parties("node", untrained=(1,))
    found = run(GCFL(rounds=4, warm_up=0, **SPLITTING), module, parties)
    assert len(found.groups) > 1
    assert all(bool(weight.isfinite().all()) for weights in models_of(found).values() for weight in weights.values())


class Away(GCFL):
    """The first party does not train in some rounds."""

    away: tuple[int, ...] = ()

    def follows_rounds(self):
        return True

    class AtParty(GCFL.AtParty):
        def fit(self, **how):
            if "party-0" in self.cohort.names and self.round in self.method.away:
                raise IsthmusError("away")
            return super().fit(**how)


def test_a_cluster_of_which_a_party_is_missing_is_not_split():
    method = Away(rounds=3, away=(1, 2, 3), warm_up=0, **EXACT)
    found = run(method, built("gcn", "node"), six_parties("node"))
    assert list(found.groups) == ["all"]
    assert "compare" not in {row["action"] for row in found.ledger.rows()}


def test_a_cluster_of_which_too_few_answer_keeps_its_model_unless_all_must():
    module, parties = built("gcn", "node"), six_parties("node")
    before = run(GCFL(rounds=2, warm_up=0, **EXACT), module, parties)
    mates = next(members for members in before.groups.values() if "party-0" in members)
    assert len(mates) < len(parties)
    with pytest.raises(TooFewAnswers, match="party-0"):
        run(Away(rounds=3, away=(3,), quorum=1.0, warm_up=0, **EXACT), module, parties)
    found = run(Away(rounds=3, away=(3,), quorum=0.9, warm_up=0, **EXACT), module, parties)
    assert mates in found.groups.values()
    for party in parties:
        same = models_of(found)[party.name]["convs.0.bias"].equal(models_of(before)[party.name]["convs.0.bias"])
        assert same == (party.name in mates)


@pytest.mark.slow
def test_conforms_while_clusters_split():
    options = {"warm_up": 0, "eps1": 1e9, "eps2": 0.0}
    checks = ["cohort_law", "wire_equals_in_process", "resume_equals_uninterrupted", "test_labels_decide_nothing"]
    checks += ["weights_travel_or_are_kept", "calls_are_declared", "faults_are_named", "ledger_counts_every_byte"]
    check_method(GCFL(rounds=4, **options), small_parties("node", parties=5), checks=checks)


def test_cuts_are_the_cheapest():
    source = torch.Generator().manual_seed(0)
    for count in (2, 3, 5, 7):
        for _ in range(5):
            values = torch.rand(count, count, generator=source)
            values = values + values.T
            assert minimum_cut(values) == cheapest_cut(values.tolist())
    assert minimum_cut(torch.zeros(3, 3)) == minimum_cut(torch.full((3, 3), math.nan))


def test_projections_keep_products_on_average_and_are_those_of_every_party():
    source = torch.Generator().manual_seed(1)
    update = {"a": torch.randn(2, 3000, generator=source), "b": torch.randn(2, 500, generator=source)}
    update["a"][1] = update["a"][0] + 0.5 * update["a"][1]
    whole = projections(update, 0)
    assert whole.shape == (2, 3500)
    found = projections(update, 256)
    both = [projections({name: value[at : at + 1] for name, value in update.items()}, 256) for at in (0, 1)]
    assert torch.equal(found, torch.cat(both))
    due = torch.cosine_similarity(*whole, dim=0)
    errors = [
        float(torch.cosine_similarity(*projections(update, width), dim=0) - due) for width in (128, 256, 512, 4096)
    ]
    assert abs(errors[1]) < 4 / 16
    assert abs(errors[3]) < 4 / 64
    assert abs(errors[3]) > 0


def test_the_server_reads_projections_that_are_no_updates():
    found = run(GCFL(rounds=1, warm_up=0, **SPLITTING), built("gcn", "node"), six_parties("node"))
    fields = {row["fields"] for row in found.ledger.rows() if row["action"] == "compare"}
    assert len(fields) == 1
    assert "projection[256]" in fields.pop()
    assert sum(weight.numel() for weight in weights_of(built("gcn", "node")).values()) > 0
