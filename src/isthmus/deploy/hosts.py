"""A study that is too large for one machine: its parties are spread over machines of one owner.

Every host loads the study's data, cuts them with the same seed and keeps its own parties. So only what a method sends
travels, never data.
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
    """The machines that a study's parties are spread over.

    Arguments:
        post: carries messages to the machines.
    """

    def __init__(self, post: Post) -> None:
        self.post = post

    def transport(self, study: Study, method: Method, seed: int, loaded: Loaded) -> HostTransport:
        """Start a run at the hosts and return the transport to its parties."""
        shares = split_evenly(loaded.parties, self.post.sites)
        names = {host: [party.name for party in parties] for host, parties in shares.items()}
        plan = {"study": study.model_dump(mode="json"), "method": method.name, "seed": seed}
        begin: dict[str, Message] = {
            host: {**plan, "parties": names[host], "content": hash_parties(parties)} for host, parties in shares.items()
        }
        return HostTransport(self.post, names, begin, study.federation.seconds)


def split_evenly(parties: Sequence[T], hosts: Sequence[str]) -> dict[str, list[T]]:
    """Return the parties of each host: consecutive ranges of nearly equal size; hosts without any are left out.

    >>> split_evenly([1, 2, 3, 4, 5], ["a", "b"])
    {'a': [1, 2], 'b': [3, 4, 5]}
    """
    ends = [at * len(parties) // len(hosts) for at in range(len(hosts) + 1)]
    shares = {host: list(parties[ends[at] : ends[at + 1]]) for at, host in enumerate(hosts)}
    return {host: share for host, share in shares.items() if share}


@dataclass(frozen=True)
class _Cache:
    """What a host caches of a study between runs with one seed."""

    parties: list[Party]
    content: str
    task: Task


class Host(HostSide):
    """A host's part of one study."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: dict[str, Any] = {}
        self.cache: _Cache | None = None

    def begin(self, plan: Message) -> Site:
        study, seed = Study.of(plan["study"]), int(plan["seed"])
        source = {key: plan[key] for key in ("study", "seed", "parties")}
        if self.cache is None or self.plan != source:
            self.cache = None  # free the memory first
            self.cache, self.plan = _load(study, seed, plan["parties"]), source
        cache = self.cache
        if cache.content != plan["content"]:
            raise IsthmusError(
                "its data differ from the study's data: give every host the same files and the same version of isthmus"
            )
        method = next(each for each in study.method_list() if each.name == plan["method"])
        module = extended(method, module_for(study.encoder(), cache.parties, cache.task, seed), seed)
        return method.site(cache.parties, cache.task, module, seed=seed, device=study.torch_device())


def _load(study: Study, seed: int, names: Sequence[str]) -> _Cache:
    loaded = study.load(seed)
    own = [party for party in loaded.parties if party.name in set(names)]
    return _Cache(own, hash_parties(own), loaded.task)
