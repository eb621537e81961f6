"""A study that is larger than one machine: its parties spread over machines of one owner.

Every host loads the study's data and cuts them as the study does, by the same seed, and keeps the parties that fall to
it. So what travels is what a method sends, never data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from isthmus.data.cache import hash_parties
from isthmus.data.party import Party
from isthmus.deploy.hosted import HostSide, HostTransport
from isthmus.deploy.remote import Message, Post
from isthmus.errors import IsthmusError
from isthmus.federation.site import Site
from isthmus.methods.base import Method
from isthmus.study.config import Loaded, Study
from isthmus.study.setup import extended, module_for
from isthmus.tasks.base import Task

T = TypeVar("T")


class Hosts:
    """The machines that a study's parties are spread over, as who runs the study sees them.

    Arguments:
        post: carries messages to them.
    """

    def __init__(self, post: Post) -> None:
        self.post = post

    def transport(self, study: Study, method: Method, seed: int, loaded: Loaded) -> HostTransport:
        """All parties of one run, begun at the hosts."""
        held = spread(loaded.parties, self.post.sites)
        plan = {"study": study.model_dump(mode="json"), "method": method.name, "seed": seed}
        begin: dict[str, Message] = {
            host: {**plan, "parties": [party.name for party in parties], "content": hash_parties(parties)}
            for host, parties in held.items()
        }
        names = {host: [party.name for party in parties] for host, parties in held.items()}
        return HostTransport(self.post, names, begin, study.federation.seconds)


def spread(parties: Sequence[T], hosts: Sequence[str]) -> dict[str, list[T]]:
    """By host its parties: ranges in their order, as even as can be; a host without any is left out.

    >>> spread([1, 2, 3, 4, 5], ["a", "b"])
    {'a': [1, 2], 'b': [3, 4, 5]}
    """
    ends = [at * len(parties) // len(hosts) for at in range(len(hosts) + 1)]
    shares = {host: list(parties[ends[at] : ends[at + 1]]) for at, host in enumerate(hosts)}
    return {host: share for host, share in shares.items() if share}


@dataclass(frozen=True)
class _Held:
    """What a host keeps of a study between the runs with one seed."""

    parties: list[Party]
    content: str
    task: Task


class Host(HostSide):
    """A host's part of one study."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: dict[str, Any] = {}
        self.held: _Held | None = None

    def begin(self, plan: Message) -> Site:
        study, seed = Study.of(plan["study"]), int(plan["seed"])
        of = {key: plan[key] for key in ("study", "seed", "parties")}
        if self.held is None or self.plan != of:
            self.held = None
            self.held, self.plan = _load(study, seed, plan["parties"]), of
        held = self.held
        if held.content != plan["content"]:
            raise IsthmusError(
                "its data are not those of the study: give every host the same files and the same version of isthmus"
            )
        method = next(each for each in study.method_list() if each.name == plan["method"])
        module = extended(method, module_for(study.encoder(), held.parties, held.task, seed), seed)
        return method.site(held.parties, held.task, module, seed=seed, device=study.torch_device())


def _load(study: Study, seed: int, names: Sequence[str]) -> _Held:
    loaded = study.load(seed)
    own = [party for party in loaded.parties if party.name in set(names)]
    return _Held(own, hash_parties(own), loaded.task)
