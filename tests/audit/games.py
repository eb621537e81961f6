"""Games of each unit on small parties, with noise that is sound and with noise that is broken."""

from __future__ import annotations

from helpers import make_graph_parties, make_node_parties
from isthmus.audit.canary_edges import CanaryEdges
from isthmus.audit.canary_items import CanaryItems
from isthmus.audit.canary_parties import CanaryParties
from isthmus.audit.canary_views import CanaryViews
from isthmus.audit.epsilon import EmpiricalEpsilon, game_of
from isthmus.federation.private import PrivateItems, PrivateSums
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fgcl import FGCL
from isthmus.nn.aggregation import aggregations
from isthmus.nn.encoders import Encoder
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.options import EdgePrivacy, ItemPrivacy, NodePrivacy, PartyPrivacy
from isthmus.privacy.updates import PartyPlan
from isthmus.study.private import private_answers
from isthmus.study.setup import module_for, task_for

CLAIMED = 2.0
AUDIT = EmpiricalEpsilon(canaries=800)


def of_items(**options):
    parties = make_node_parties([150, 150, 150])
    task = task_for(parties)
    module = module_for(Encoder.named("mlp")(hidden=8), parties, task, 0)
    plan = ItemPlan.of(ItemPrivacy(epsilon=CLAIMED, **options), 2, 2)
    return CanaryItems(PrivateItems(plan, ("train",)), parties, task, module, FedAvg())


def of_parties():
    plan = PartyPlan.of(PartyPrivacy(epsilon=CLAIMED, dropouts=2), 1)
    return CanaryParties(PrivateSums(plan, ("train",)), [f"party-{at}" for at in range(52)])


def of_edges():
    parties = make_node_parties([100, 100])
    module = module_for(Encoder.named("gap")(hops=2, width=4), parties, task_for(parties), 0)
    plan = HopPlan.of(EdgePrivacy(epsilon=CLAIMED), aggregations(module)[0].depth)
    return CanaryEdges(plan, plan.account().cost(plan.options.delta), parties, module)


def of_nodes():
    parties = make_node_parties([200, 200])
    task = task_for(parties)
    module = module_for(Encoder.named("gap")(hops=2, width=4), parties, task, 0)
    privacy = NodePrivacy(epsilon=CLAIMED, neighbours=20, share=0.95)
    private = private_answers(privacy, FedAvg(rounds=1, select="last"), module, task, 2)
    return game_of(private, parties, task, module, FedAvg())


def of_views():
    parties = make_graph_parties([30, 30])
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task_for(parties), 0)
    return CanaryViews(parties, task_for(parties), module, FGCL(epsilons=[CLAIMED / 2, CLAIMED / 2]))


def a_tenth(draw):
    """Noise of a tenth."""
    return lambda *arguments: draw(*arguments) // 10


def assert_sound(game) -> None:
    found = AUDIT.shown(game)
    assert abs(found.claimed - CLAIMED) < 1e-3 * CLAIMED
    assert found.kept
    assert found.bound.epsilon > 0.1


def assert_broken(game) -> None:
    found = AUDIT.shown(game)
    assert not found.kept
    assert found.bound.epsilon > 2 * CLAIMED
