"""The membership audit finds members where a model remembers them, and nobody where it does not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from isthmus.audit import membership
from isthmus.audit.membership import Membership, Risk, RoundRisk
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.federation import pieces
from isthmus.methods.base import Method
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedgc import FedGC
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import module_for, task_for
from isthmus.testing import small_parties

AUDIT = Membership(shadows=4, others=40, shadow={"epochs": 30})


def audited(method, parties, audit=AUDIT, encoder="gcn", **options):
    task = task_for(parties)
    module = module_for(Encoder.named(encoder)(**{"hidden": 8, **options}), parties, task, 0)
    return audit.run(parties, task, module, method)


@pytest.fixture(scope="module")
def parties():
    return small_parties("node")


def noisy(level="node"):
    """Labels at random and features of one's own: nothing to learn but who is who."""
    made = []
    for at, party in enumerate(small_parties(level)):
        source = torch.Generator().manual_seed(at)
        graph = party.graph.clone()
        graph.x = torch.randn(graph.num_nodes, 40, generator=source)
        graph.edge_index = torch.empty(2, 0, dtype=torch.long)
        graph.y = torch.randint(2, (party.items,), generator=source)
        made.append(replace(party, graph=graph, border=None, structural=None))
    return made


@pytest.mark.parametrize("level", ["node", pytest.param("graph", marks=pytest.mark.slow)])
def test_what_is_learned_by_heart_is_found_and_what_is_not_learned_is_not(level):
    parties = noisy(level)
    local = {"epochs": 20, "lr": 0.05, "weight_decay": 0.0}
    many = Membership(shadows=8, others=60, shadow={"epochs": 60, "lr": 0.05, "weight_decay": 0})
    encoder = {"encoder": "mlp", "hidden": 64, "dropout": 0.0}
    (by_heart,) = audited(FedAvg(rounds=5, local=local, select="last"), parties, many, **encoder)
    (hardly,) = audited(FedAvg(rounds=1, local={"epochs": 1, "lr": 1e-6}), parties, many, **encoder)
    assert by_heart.last.worst("auc") > (0.75 if level == "node" else 0.6)  # few graphs are left for a shadow
    assert by_heart.last.worst("likelihood") > 0.8
    assert by_heart.last.worst("tpr") > 0.05
    for figure, attack in membership.ATTACKS.items():
        false, true = np.array(by_heart.curves[attack]).T
        assert np.trapezoid(true, false) == pytest.approx(by_heart.last.worst(figure), abs=1e-3)
    few = [true for false, true in by_heart.curves["likelihood"] if false <= membership.FEWER]
    assert max(few) == pytest.approx(by_heart.last.worst("tpr_low"), abs=1e-4)
    (curves,) = (Membership().table([each], 4).curves for each in [by_heart])
    assert set(curves) == {"fedavg, shadow model", "fedavg, likelihood"}
    assert hardly.last.worst("auc") < by_heart.last.worst("auc") - 0.05
    assert hardly.last.worst("likelihood") < by_heart.last.worst("likelihood") - 0.1


def test_what_is_found_does_not_depend_on_the_cohorts(parties, monkeypatch):
    method = FedAvg(rounds=2, local={"epochs": 5, "lr": 0.05})
    (whole,) = audited(method, parties)
    monkeypatch.setattr(membership, "_KEPT", {})
    monkeypatch.setattr(pieces, "PARTIES", 2)
    monkeypatch.setattr(pieces, "SORTED_FROM", 1)
    (split,) = audited(method, parties)
    for query, risk in whole.last.asked.items():
        found = split.last.asked[query]
        assert vars(found) == pytest.approx(vars(risk), abs=1e-3)


def test_every_evaluated_round_is_attacked_in_both_ways_of_asking(parties):
    quick = {"rounds": 4, "every": 2, "teaching": 2, "ratio": 0.1, "transforming": {"epochs": 2}}
    found = audited(FedGC(**quick, target={"epochs": 5}), parties)
    assert [each.protection for each in found] == ["fedgc", "without bottleneck"]
    for each in found:
        assert [seen.round for seen in each.rounds] == [2, 4]
        assert all(seen.asked.keys() == {"features", "transformed"} for seen in each.rounds)
        assert each.last.round == each.chosen
        for seen in each.rounds:
            assert seen.worst("auc") == max(risk.auc for risk in seen.asked.values())


@pytest.mark.parametrize("name", ["fedavg", "fedgcn", "centralized", "fedcog", "scaffold"])
@pytest.mark.thinned(3)
def test_any_method_that_releases_a_model_can_be_attacked(parties, name):
    method = Method.named(name)(rounds=2)
    (found,) = audited(method, parties, encoder="sgc" if name == "fedcog" else "gcn")
    assert (found.members, found.others) == (sum(int(each.train.sum()) for each in parties), 40)
    asked = found.last.asked.keys()
    assert asked == ({"features", "transformed"} if name in ("fedgcn", "fedcog") else {"features"})
    assert all(0 <= getattr(risk, figure) <= 1 for risk in found.last.asked.values() for figure in membership.FIGURES)


def test_members_others_and_shadow_items_are_apart(parties):
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task, 0)
    attacker = membership._Attacker(AUDIT, parties, task, module, 0)
    whole = pool_parties(parties)
    assert bool((attacker.guessed | ~whole.train).all())
    assert not bool((attacker.guessed & ~whole.train & ~whole.test).any())
    own = torch.cat([party.train for party in parties])
    here = attacker.guessed[attacker.rows]
    assert np.array_equal(attacker.member, own[here].numpy())
    y = torch.cat([party.graph.y for party in parties])
    assert torch.equal(attacker.y, y[here])
    hidden = attacker._without(attacker.guessed).graph.edge_index
    assert not bool(attacker.guessed[hidden].any())


def test_the_same_seed_finds_the_same_and_trains_an_attacker_once(parties, monkeypatch):
    monkeypatch.setattr(membership, "_KEPT", {})
    trained, count = membership.alone.trained, []
    monkeypatch.setattr(membership.alone, "trained", lambda *given: count.append(given) or trained(*given))
    first, again = (audited(FedAvg(rounds=2), parties)[0].to_dict() for _ in range(2))
    assert len(count) == 1 + AUDIT.shadows
    assert first == again
    monkeypatch.setattr(membership, "_KEPT", {})
    assert audited(FedAvg(rounds=2), parties)[0].to_dict() == first


def test_an_attacker_that_knows_anything_else_trains_its_own_models(parties, monkeypatch):
    monkeypatch.setattr(membership, "_KEPT", {})
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task, 0)
    last = replace(parties[-1], train=parties[-1].train.roll(1))
    apart = Membership(shadows=2, others=40, shadow={"epochs": 1})
    same = [apart, parties, task, module, 0]
    other = module_for(Encoder.named("gcn")(hidden=8, dropout=0.0), parties, task, 0)
    changes = [(0, apart), (0, apart.model_copy(update={"others": 41})), (1, [*parties[:-1], last]), (3, other), (4, 1)]
    for at, changed in changes:
        membership._Attacker(*same[:at], changed, *same[at + 1 :])
    assert len(membership._KEPT) == len(changes)
    monkeypatch.setattr(membership, "MOST_KEPT", 2)
    membership._Attacker(*same[:4], 2)
    assert len(membership._KEPT) == 2


def test_a_model_that_cannot_be_written_down_is_attacked_all_the_same(parties, monkeypatch):
    monkeypatch.setattr(membership, "_KEPT", {})
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task, 0)
    module.note = lambda: None
    (found,) = Membership(shadows=2, others=40, shadow={"epochs": 1}).run(parties, task, module, FedAvg(rounds=1))
    assert found.last.asked
    assert not membership._KEPT


class Own(torch.nn.Module):
    """A model of the user's own, which a cell of a notebook may define anew."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, x, edge_index):
        return self.layer(x)


def test_a_model_that_is_defined_anew_has_an_attacker_of_its_own(parties, monkeypatch):
    monkeypatch.setattr(membership, "_KEPT", {})
    audit, again = Membership(shadows=2, others=40, shadow={"epochs": 1}), type("Own", (Own,), {"__module__": __name__})
    for kind in (Own, Own, again):
        monkeypatch.setitem(globals(), "Own", kind)
        torch.manual_seed(0)
        membership._Attacker(audit, parties, task_for(parties), kind(), 0)
    assert len(membership._KEPT) == 2
    assert len({digest for digest, *_ in membership._KEPT}) == 1, "names and weights are the same"


def test_the_worse_of_two_ways_counts():
    risks = {"features": Risk(0.5, 0.9, 0.2, 0.0, 0.0), "transformed": Risk(0.7, 0.1, 0.3, 0.1, 0.05)}
    seen = RoundRisk(1, 0.8, risks)
    assert [seen.worst(figure) for figure in membership.FIGURES] == [0.7, 0.9, 0.3, 0.1, 0.05]


def test_what_cannot_be_attacked_is_one_line(parties):
    with pytest.raises(IsthmusError, match="releases no model"):
        audited(Method.named("local")(rounds=2), parties)
    with pytest.raises(IsthmusError, match="needs a task with classes"):
        audited(FedAvg(rounds=2), small_parties("node", labels="multilabel"))
    nothing = [replace(party, test=torch.zeros_like(party.test)) for party in parties]
    with pytest.raises(IsthmusError, match="needs training items and test items"):
        audited(FedAvg(rounds=2), nothing)
