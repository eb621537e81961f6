"""Small runs of methods that condense."""

from isthmus.federation.local import LocalTransport
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for

QUICK = {
    "rounds": 4, "every": 2, "teaching": 2, "ratio": 0.1, "transforming": {"epochs": 3}, "target": {"epochs": 5},
}  # fmt: skip


def run_of(method, parties, seed=0, **ways):
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task, seed)
    return Run(method, parties, task, module, seed=seed, **ways)


def server_of(method, parties):
    """Server side and site, to be driven by hand."""
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task, 0)
    site, state = method.site(parties, task, module), State()
    federation = Federation(LocalTransport([site]), clock=lambda: int(state.round))
    return method.server(federation, Model(module, task.outputs, parties[0].features), state), site, state, federation
