"""Private studies: the mean of clipped updates with noise, and no release that the account does not have."""

import math
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch

import isthmus
from helpers import make_node_parties
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation.ledger import DELIVERY
from isthmus.federation.local import LocalTransport
from isthmus.methods.base import Method
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.scaffold import Scaffold
from isthmus.nn.encoders import Encoder
from isthmus.privacy.options import PartyPrivacy
from isthmus.privacy.updates import STEPS
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.private import adapted, private_answers
from isthmus.study.setup import extended, module_for, task_for
from isthmus.study.tuning import tune
from isthmus.testing import CHECKS, Subject, small_parties

LOCAL = {"epochs": 2, "lr": 0.1}
NOISELESS = 1e9
"""An epsilon with which noise is a few hundred steps of the grid."""


class Private(Subject):
    """A method under privacy, for the checks of the conformance suite."""

    def __init__(self, method, parties, encoder, privacy):
        super().__init__(adapted(method, privacy), parties, encoder)
        self.privacy = privacy

    def run(self, **options):
        return super().run(privacy=self.privacy, **options)


def subject(method, level="node", **options):
    privacy = PartyPrivacy(**{"epsilon": 8.0, **options})
    return Private(method, small_parties(level), Encoder.named("gcn")(hidden=6, dropout=0.0), privacy)


@pytest.mark.parametrize("check", ["cohort_law", "wire_equals_in_process", "same_seed_same_result"])
@pytest.mark.parametrize("method", [FedAvg(rounds=2, local=LOCAL), Scaffold(rounds=2)], ids=lambda each: each.name)
def test_private_sums_conform(check, method):
    CHECKS[check](subject(method))


def test_a_private_run_resumes_as_if_it_had_not_stopped():
    CHECKS["resume_equals_uninterrupted"](subject(FedAvg(rounds=3, fraction=0.6, local=LOCAL)))


def states(run):
    """The shared weights before the first round and after each."""
    found = [run.method.models(run.state).shared for _ in run._rounds()]
    return [{name: weight.double() for name, weight in each.items()} for each in found]


@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_with_next_to_no_noise_a_round_is_the_even_mean_of_clipped_updates(clip):
    given = subject(FedAvg(rounds=1, local=LOCAL), epsilon=NOISELESS, clip=clip, dropouts=0)
    module = module_for(given.encoder, given.parties, given.task, 0)
    start = {name: weight.clone() for name, weight in module.state_dict().items()}
    site = FedAvg(local=LOCAL).site(given.parties, given.task, module, seed=0)
    answer = site.answer("train", {"weights": start}, site.hosted.names)
    changes = []
    for at in range(len(given.parties)):
        change = {name: answer.fields(at)[f"weights/{name}"].double() - start[name] for name in start}
        norm = math.sqrt(sum(float(each.square().sum()) for each in change.values()))
        changes.append({name: each * min(1, clip / norm) for name, each in change.items()})
    (after,) = states(given.run())
    noise = 8 * given.run().private.plan.multiplier * clip
    for name, before in start.items():
        due = before.double() + sum(each[name] for each in changes) / len(changes)
        assert torch.allclose(after[name], due, rtol=0, atol=noise + clip / STEPS + 1e-6), name


def test_the_noise_in_the_mean_is_that_of_the_account():
    """Two runs with other noise and the same updates differ by twice its variance."""
    parties = make_node_parties()[:3]
    task = task_for(parties)
    privacy = PartyPrivacy(epsilon=3.0, clip=0.5, dropouts=1)
    method = adapted(FedAvg(rounds=1, local=LOCAL), privacy)
    module = module_for(Encoder.named("gcn")(hidden=400, dropout=0.0), parties, task, 0)
    run = Run(method, parties, task, module, privacy=privacy)
    start = {name: torch.zeros_like(weight) for name, weight in module.state_dict().items()}
    for site in run.transport.sites:  # nobody learns anything, so that all that comes is noise
        site.fit = lambda site=site, **how: torch.zeros(len(site.cohort))
    total = run.federation.total("train", {"weights": start})
    found = torch.cat([weight.flatten() for weight in total.mean("weights").values()]).double()
    share = run.private.plan.multiplier * 0.5 / math.sqrt(3 - 1)
    assert float(found.std()) == pytest.approx(share * math.sqrt(3) / 3, rel=0.06)
    assert found.numel() > 1500


def test_parties_may_drop_out_as_many_as_the_account_says():
    given = subject(FedAvg(rounds=1, local=LOCAL, quorum=0.0), dropouts=1)
    for many, ends in ((1, False), (2, True)):
        run = given.run()
        for site in run.transport.sites:
            answered = site.private.answer

            class Failing(type(site.private)):
                def answer(self, action, answer, request, asked, many=many, answered=answered):
                    if action == "train" and {f"party-{at}" for at in range(many)} & set(asked.names):
                        raise RuntimeError("disk on fire")
                    return answered(action, answer, request, asked)

            site.private = Failing(site.private.plan, site.private.actions)
        if ends:
            with pytest.raises(TooFewAnswers, match=r"a sum over 2 of 4 parties has less noise than the account says"):
                run.go()
        else:
            assert run.go().privacy["epsilon"] == pytest.approx(8.0)


# ---- every method: what its ledger has, the account has, or the method is refused


def private_run(name, rounds, level=None):
    kind = Method.named(name)
    parties = small_parties(level or kind.levels[0])
    task = {"task": "graph-clustering"} if kind.unsupervised else {}
    return isthmus.run(name, parties, rounds=rounds, privacy={"epsilon": 8.0}, model=kind.encoder, **task).runs[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", Method.known())
def test_every_release_in_the_ledger_is_in_the_account(name):
    refused = ""
    try:
        run = private_run(name, 3)
    except IsthmusError as error:
        refused = str(error)
    if refused:
        assert f"method '{name}' with privacy.unit = 'party': " in refused
        return
    told = run.privacy.get("releases", [])
    released = [entry for entry in run.ledger.entries if entry.fields or entry.action.endswith(DELIVERY)]
    assert {entry.eyes for entry in released} <= {"server sees the sum"}
    assert all(part.startswith("update/") for entry in released for part in entry.fields.split(", "))
    asked = Counter(party for entry in released for party in entry.parties)
    most = max(asked.values(), default=0)
    assert most == sum(each["times"] for each in told if each["what"] == "sums of updates")
    assert run.chosen_round == run.rounds


REFUSED = {
    "centralized": "it trains on the data of all parties in one place",
    "fedproto": "no noise covers what 'train' releases to the server",
    "fedcog": "no noise covers what 'propagate' releases to other parties",
    "fedgcn": "no noise covers what 'known' releases to the server",
    "fedsage-plus": "no noise covers what 'scale' releases to the server",
    "majority": "no noise covers what 'count' releases to the server",
    "gcfl": "no noise covers what",
    "fedgta": "no noise covers what 'train' releases to the server",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_with_another_release_is_refused_by_its_name(name):
    kind = Method.named(name)
    method = adapted(kind(), PartyPrivacy(epsilon=1.0))
    parties = small_parties(kind.levels[0])
    module = module_for(Encoder.named(kind.encoder)(hidden=8), parties, task_for(parties), 0)
    with pytest.raises(IsthmusError, match=f"method '{name}' with privacy.unit = 'party': {REFUSED[name]}"):
        private_answers(PartyPrivacy(epsilon=1.0), method, extended(method, module, 0), task_for(parties), len(parties))


def study(**tables):
    return Study.of({"privacy": {"epsilon": 4.0}, "training": {"rounds": 2}, **tables})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weighting": "train"}, "how many items a party has is a release: set"),
        ({"select": "validation"}, "validation counts of the parties are a release: set"),
        ({"patience": 3}, "validation counts of the parties are a release: set"),
    ],
)
def test_options_that_read_data_are_refused(options, why):
    with pytest.raises(IsthmusError, match=why):
        study(methods=[{"name": "fedavg", **options}])


def test_a_study_records_its_privacy_and_what_it_set_for_it():
    told = study().resolved()
    assert told["privacy"] == {"unit": "party", "epsilon": 4.0, "delta": 1e-5, "clip": 1.0, "dropouts": 1}
    assert {key: told["methods"][0][key] for key in ("weighting", "select")} == {"weighting": "even", "select": "last"}
    assert Study.of(told).resolved() == told
    assert "privacy" not in Study.of({}).resolved()
    with pytest.raises(IsthmusError, match="unknown unit of privacy 'patient'"):
        study(privacy={"unit": "patient", "epsilon": 1})
    with pytest.raises(IsthmusError, match="privacy: unknown option 'dropout': did you mean 'dropouts'"):
        study(privacy={"epsilon": 1, "dropout": 1})


def test_evaluations_stay_at_the_parties_and_a_study_measures_them():
    run = private_run("fedavg", 2)
    (row, *_) = [row for row in run.ledger.rows() if row["action"] == "evaluate"]
    assert (row["verb"], row["fields"]) == ("ask", "")
    assert "test_accuracy" in run.metrics
    assert set(run.parties) == {f"party-{at}" for at in range(4)}


def test_pairs_are_refused_where_parties_would_send_each_other_outputs():
    with pytest.raises(IsthmusError, match="parties send each other outputs of nodes"):
        private_run("fedavg", 1, level="pair")


def test_noise_on_edges_and_on_updates_are_both_in_the_account():
    run = private_run("fgcl", 2)
    assert run.privacy["of"] == "party"
    (edges,) = run.privacy["others"]
    assert edges["unit"] == "one edge of a party's graph"
    assert edges["basic"]["epsilon"] == 2.0


def test_a_sampled_party_is_charged_for_the_rounds_that_it_was_asked_in():
    (run,) = isthmus.run("fedavg", small_parties("node"), rounds=6, fraction=0.5, privacy={"epsilon": 8.0}).runs
    asked = [row["party"] for row in run.ledger.rows() if row["action"] == "train"]
    (release,) = run.privacy["releases"]
    assert release["times"] == max(asked.count(party) for party in asked) < 6
    assert run.privacy["epsilon"] < 8.0


def test_more_privacy_is_more_noise():
    spread = []
    for epsilon in (100.0, 10.0, 1.0):
        given = subject(FedAvg(rounds=1, local=LOCAL), epsilon=epsilon)
        exact = subject(FedAvg(rounds=1, local=LOCAL), epsilon=NOISELESS, dropouts=0)
        (noisy,), (plain,) = states(given.run()), states(exact.run())
        spread.append(sum(float((noisy[name] - plain[name]).square().sum()) for name in plain))
    assert all(less < more for less, more in pairwise(spread))


def test_a_party_refuses_what_the_account_does_not_have():
    given = subject(FedAvg(rounds=1, local=LOCAL))
    site = given.run().transport.sites[0]
    assert isinstance(given.run().transport, LocalTransport)
    reply = site.attempt("train", {"weights": dict(site.model.initial)}, ["party-0"])[0]
    assert "does not say among how many parties the noise is shared" in reply.failures["party-0"]


def test_a_search_is_refused_as_it_trains_on_the_same_data_for_every_setting(tmp_path):
    table = {"methods": [{"name": "fedavg"}], "privacy": {"epsilon": 8.0}}
    grid = {"local.lr": [0.01, 0.1]}
    for search in (
        lambda: Study.of({**table, "grid": {"local": {"lr": [0.01, 0.1]}}}),
        lambda: isthmus.run("fedavg", privacy={"epsilon": 8.0}, grid=grid),
        lambda: tune(Study.of(table), tmp_path / "tuned", trials=1),
    ):
        with pytest.raises(IsthmusError, match="choosing one is a release that no account covers"):
            search()


def test_a_delta_that_lets_one_party_show_is_refused():
    given = subject(FedAvg(rounds=1))
    module = module_for(given.encoder, given.parties, given.task, 0)
    for parties, fits in ((99, True), (100, False)):
        with nullcontext() if fits else pytest.raises(IsthmusError, match="one in the 100 parties"):
            private_answers(PartyPrivacy(epsilon=1.0, delta=0.01), FedAvg(), module, given.task, parties)
