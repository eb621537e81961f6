"""A method with one model per group of parties: federated averaging within every other party."""

from collections.abc import Iterator
from typing import ClassVar

from isthmus.federation.models import Group, Models
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedavg import FedAvg


class TwoGroups(FedAvg):
    """Every other party is in the other group."""

    name: ClassVar[str] = "two-groups"

    def models(self, state: State) -> Models:
        return Models(groups={name: Group(tuple(state.members[name]), state.own[name]) for name in state.members})

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        members = {"even": list(federation.parties[::2]), "odd": list(federation.parties[1::2])}
        state.start(members=members, own={name: model.weights() for name in members})
        for state.round in state.rounds(self.rounds):
            means = {}
            for name, parties in state.members.items():
                total = federation.total("train", {"weights": state.own[name]}, of=parties)
                means[name] = total.mean("weights", default=state.own[name])
            state.own = means
            yield state
