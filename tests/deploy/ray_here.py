"""Ray without processes: workers live in this process, and what goes to them and comes back is pickled all the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ray import exceptions

from isthmus.deploy import cluster as module


def stand_in(patch: Any, **options: Any) -> RayHere:
    """Put Ray in this process in place of Ray."""
    ray = RayHere(**options)
    patch.setattr(module, "ray", ray)
    patch.setattr(module, "gc", SimpleNamespace(unfreeze=lambda: None, collect=lambda: None, freeze=lambda: None))
    return ray


@dataclass(frozen=True, eq=False)
class Stored:
    """What `put` and calls return: a value as bytes, or an error."""

    data: bytes = b""
    error: Exception | None = None


def stored(value: Any) -> Stored:
    return Stored(pickle.dumps(value))


@dataclass(eq=False)
class Actor:
    """An object that is called through `actor.method.remote(...)`, until it is killed."""

    ray: RayHere
    of: Any
    number: int
    alive: bool = True

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Stored:
        self.ray.before_call(self, name, arguments)
        if not self.alive:
            return Stored(error=exceptions.ActorDiedError())
        values = [self.ray.get(each) if isinstance(each, Stored) else each for each in arguments]
        sent = pickle.dumps([value for value in values if not isinstance(value, Actor)])
        self.ray.bytes_sent += len(sent)
        came = iter(pickle.loads(sent))
        try:
            return stored(getattr(self.of, name)(*(each if isinstance(each, Actor) else next(came) for each in values)))
        except Exception as error:
            return Stored(error=exceptions.RayTaskError(name, "a traceback", error))


@dataclass
class RayHere:
    """Stands in for the module `ray`.

    Arguments:
        cores: of the cluster.
        before_call: hears every call; may kill actors.
    """

    cores: int = 3
    before_call: Callable[[Actor, str, tuple[Any, ...]], None] = lambda actor, name, arguments: None
    actors: list[Actor] = field(default_factory=list)
    bytes_sent: int = 0
    util = SimpleNamespace(register_serializer=lambda *_, **__: None)

    def init(self, **_: Any) -> None: ...

    def shutdown(self) -> None:
        self.actors.clear()

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "0f" * 28)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cores)} if self.cores else {}

    available_resources = cluster_resources

    def remote(self, **_: Any) -> Any:
        def start(of: Callable[..., Any]) -> Any:
            def new(*arguments: Any) -> Any:
                if isinstance(of, type):
                    self.actors.append(Actor(self, of(*arguments), len(self.actors)))
                    return self.actors[-1]
                return Actor(self, SimpleNamespace(do=of), -1).do.remote(*arguments)

            return SimpleNamespace(remote=new)

        return start

    def put(self, value: Any) -> Stored:
        return stored(value)

    def get(self, references: Any, timeout: float | None = None) -> Any:
        if isinstance(references, list):
            return [self.get(each) for each in references]
        if references.error is not None:
            raise references.error
        return pickle.loads(references.data)

    def wait(self, references: Sequence[Any], timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        return [references[0]], list(references[1:])

    def cancel(self, task: Any, force: bool = False) -> None: ...

    def kill(self, actor: Actor) -> None:
        actor.alive = False
