"""Studies on a Ray cluster: the parties are spread over workers, or whole runs are done side by side.

A worker is a Ray actor with one core. It hosts a range of the parties as sites of its own process and answers commands
as `LocalTransport` does. Its parties' answers to a total come back as sums of whole subtrees (`federation.sums`), so a
run has the same bits with any number of workers. Messages between parties go from worker to worker through Ray's object
store. The machines of a cluster have one owner and hide nothing from each other.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import math
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from isthmus.data.datasets.by_party import negotiate, next_messages
from isthmus.data.datasets.public import data_root
from isthmus.data.fingerprint import digest_of
from isthmus.data.party import Party
from isthmus.deploy.parcels import Parcel, open_parties, pack_parties
from isthmus.errors import IsthmusError, ignore_library_warnings, missing_extra
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.checks import check_reply
from isthmus.federation.local import LocalTransport
from isthmus.federation.sums import positions_of
from isthmus.federation.transport import Command, Each, PartiesLost, Transport
from isthmus.methods.base import Method
from isthmus.nn.stacks import Column, dense, is_stack
from isthmus.study import config
from isthmus.study.config import Loaded, Study
from isthmus.study.loop import sites_of
from isthmus.study.private import private_answers
from isthmus.study.processes import PAUSE, ProcessKilled, Send
from isthmus.study.setup import extended, module_for, suited
from isthmus.tasks.base import Task
from isthmus.version import VERSION

os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")  # else Ray tries a quarter of an hour to find one that ended
try:
    import ray
    from ray import exceptions as failures
    from ray._private.services import get_ray_address_from_environment as find_here
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise missing_extra("ray", "ray", "a cluster") from error

J = TypeVar("J")
R = TypeVar("R")

START_SECONDS = 120.0
"""Seconds that a cluster has to start all workers; an autoscaler may need to start machines first."""
EVEN = 16
"""A border between two workers' parties lies at a multiple of a power of two: a range is at most this part of it longer
or shorter than an even one, and consists of few subtrees."""
TOKEN_FILE = Path("~/.ray/auth_token")
"""Where Ray looks for a token that the environment does not name."""
CONNECT_SECONDS = 5.0
"""Seconds that the machine of a cluster has to take a connection."""
CUTS = 4
"""Sets of parties that are kept for jobs: the next job often has the same."""
LARGE = 100_000
"""Bytes from which a payload is put into the object store once, for all workers."""


class Cluster:
    """Ray workers that studies run on, within a `with`.

    Arguments:
        address: of a cluster that runs, HOST:PORT, or "auto" for that of this machine; None starts one here, which ends
            with the `with`.
        workers: most workers of a run; 0: one per core.
    """

    def __init__(self, address: str | None = None, *, workers: int = 0) -> None:
        self.address, self.max_workers = address, workers
        self.workers: list[Any] = []
        self._held: Loaded | None = None
        self._names: list[tuple[str, ...]] = []

    def __enter__(self) -> Self:
        _send_tensors_as_arrays()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report how it is used to its makers
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
        if self.address is None:
            _require_token()
            options |= {"address": "local", "include_dashboard": False, "num_cpus": self.max_workers or None}
        else:
            options["address"] = _check_reachable(self.address)
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises many kinds for a cluster that is not there, or lets nobody in
            raise IsthmusError(_connection_error(self.address, error)) from error
        return self

    def __exit__(self, *reason: object) -> None:
        ray.shutdown()

    def cores(self) -> int:
        """How many workers the cluster has room for."""
        cores = int(ray.cluster_resources().get("CPU", 0))
        if not cores:
            raise IsthmusError("the cluster has no core: start Ray with at least one, as in ray start --num-cpus 4")
        return min(cores, self.max_workers or cores)

    def load(self, study: Study, seed: int) -> Loaded:
        """The parties of a run; of data that come as parties only outlines, as each worker loads its own."""
        if (data := study.party_data()) is None:
            return study.load(seed)
        shares = split_evenly(data.party_sizes(), self.cores())
        self._start(len(shares), on_gpu=_on_gpu(study))
        plan, here, draw = study.model_dump_json(), Surroundings.current(), study.draw_of(seed)
        get([
            worker.open.remote(plan, study.modules(), here, share, draw)
            for worker, share in zip(self.workers, shares, strict=True)
        ])  # fmt: skip

        def send(broadcast: Any) -> list[Any]:
            stored = ray.put(broadcast)
            found = get([worker.load_next.remote(stored) for worker in self.workers])
            return [message for messages in found for message in messages]

        loaded = study.checked(study.loaded_by_workers(negotiate(data.moderator(), send)), seed)
        self._hold([None] * len(shares), loaded, shares)
        digests = get([worker.digests.remote() for worker in self.workers])
        self._held = replace(loaded, digests=tuple(digest for own in digests for digest in own))
        return self._held

    def transport(self, study: Study, method: Method, seed: int, loaded: Loaded) -> ClusterTransport:
        """Start a run on workers and return the transport to its parties."""
        plan = Plan(study.model_dump_json(), study.modules(), method.label, seed, loaded.task)
        return ClusterTransport(self, plan, loaded, partial(self.workers_with, study, seed, loaded))

    def workers_with(self, study: Study, seed: int, loaded: Loaded) -> tuple[list[Any], list[tuple[str, ...]]]:
        """Workers that hold these parties, each a range of them, and the names of each worker's parties.

        They serve one run after another; each worker is sent its parties once for all methods.
        """
        if self._held is not loaded and loaded.by_workers:
            self.load(study, seed)
            self._held = loaded
        elif self._held is not loaded:
            shares = split_evenly([party.nodes for party in loaded.parties], self.cores())
            self._start(len(shares), on_gpu=_on_gpu(study))
            self._hold([pack_parties([loaded.parties[at] for at in share]) for share in shares], loaded, shares)
        return self.workers, self._names

    def _hold(self, parties: Sequence[Parcel | None], loaded: Loaded, shares: Sequence[range]) -> None:
        """Let each worker hold its parties, or those that it has loaded."""
        self._names = [tuple(loaded.parties[at].name for at in share) for share in shares]
        get([worker.hold.remote(own, self._names) for worker, own in zip(self.workers, parties, strict=True)])
        self._held = loaded

    def _start(self, number: int, *, on_gpu: bool) -> None:
        """Start so many workers, unless they are there. They hold nothing that counts any more."""
        self._held = None
        if len(self.workers) == number:
            return
        self.end_workers()
        options = {"num_cpus": 1, "num_gpus": int(on_gpu), "scheduling_strategy": "SPREAD"}
        self.workers = [ray.remote(**options)(Worker).remote() for _ in range(number)]
        try:
            for found in get([worker.versions.remote() for worker in self.workers], within=START_SECONDS):
                _check_versions(found)
        except BaseException:
            self.end_workers()
            raise

    def end_workers(self) -> None:
        """End all workers, with what they hold."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers, self._held = [], None

    def jobs(self, number: int) -> int:
        """How many jobs are done side by side if so many are asked for; 0 asks for one per core."""
        return min(number or self.cores(), self.cores())

    def pool(self, number: int) -> ClusterPool:
        """Does so many jobs side by side; see `jobs`."""
        self.end_workers()  # the jobs need their cores
        return ClusterPool(self.jobs(number))


@dataclass(frozen=True)
class Plan:
    """What a worker must know of a run beside its parties.

    Arguments:
        study: as JSON.
        modules: that define what the study names.
    """

    study: str
    modules: frozenset[str]
    method: str
    seed: int
    task: Task


class ClusterTransport(Transport):
    """Calls the workers of one run.

    Arguments:
        loaded: the parties of the run.
        workers_with: starts workers, or finds those that run, which hold these parties.
    """

    recovers = True

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        loaded: Loaded,
        workers_with: Callable[[], tuple[list[Any], list[tuple[str, ...]]]],
    ) -> None:
        self.cluster, self.plan, self.workers_with = cluster, plan, workers_with
        self.parties = tuple(party.name for party in loaded.parties)
        self._begin()

    def _begin(self) -> None:
        self.workers, self._names = self.workers_with()
        self._parcels: dict[str, list[dict[int, Any]]] = {}
        get([worker.begin.remote(self.plan) for worker in self.workers])

    def restart(self) -> None:
        self.cluster.end_workers()
        self._begin()

    def send(self, command: Command) -> list[Reply]:
        asked = None if len(command.of) == len(self.parties) else set(command.of)
        payload = command.payload
        by_party = command.do in ("deliver", "restore")
        if not by_party and not isinstance(payload, Each) and wire_size(payload) >= LARGE:
            payload = ray.put(payload)
        parcels = self._parcels.pop(command.action, []) if command.do == "deliver" else []
        calls = {}
        for at, (worker, names) in enumerate(zip(self.workers, self._names, strict=True)):
            here = names if asked is None else tuple(party for party in names if party in asked)
            if not here and command.do != "deliver":  # which every worker gets: it replaces the one before
                continue
            own = payload
            if isinstance(payload, Each):
                own = Each({party: payload.payloads[party] for party in here})
            elif by_party:
                own = None if parcels else {party: payload[party] for party in names if party in payload}
            among = () if asked is None else command.of
            lean = replace(command, of=() if len(here) == len(names) else here, payload=None, among=among)
            calls[at] = worker.handle.remote(lean, own, *(each[at] for each in parcels if at in each))
        found = dict(zip(calls, get(list(calls.values())), strict=True))
        if command.verb == "exchange" and command.do == "answer":
            self._parcels[command.action] = [posted for _, posted in found.values()]
        return [reply for replies, _ in found.values() for reply in replies]


class Worker:
    """Hosts some parties of a run, in a process of a Ray cluster."""

    def __init__(self) -> None:
        ignore_library_warnings()
        torch.set_num_threads(1)  # small kernels are fastest so, and Ray counts a worker as one core
        _send_tensors_as_arrays()

    def versions(self) -> dict[str, str]:
        """What must be the same on all machines."""
        return _versions()

    def pid(self) -> int:
        """The number of this process, for whoever wants to look at it, or to end it."""
        return os.getpid()

    def open(
        self, study: str, modules: frozenset[str], surroundings: Surroundings, chosen: Sequence[int], draw: int
    ) -> None:
        """Begin to load the parties at these positions; see `isthmus.data.datasets.by_party`."""
        surroundings.adopt()
        self.study, self.surroundings = _study(study, modules), surroundings
        with surroundings.in_errors():
            data = self.study.party_data()
        assert data is not None
        self.loader = data.loader(chosen, draw)

    def load_next(self, broadcast: Any) -> list[Any]:
        """Send a broadcast to the loader and return its messages: at the end, outlines of its parties."""
        with self.surroundings.in_errors():
            messages = next_messages(self.loader, broadcast)
        if isinstance(messages[0], Party):
            self.parties = self.study.as_cut(messages)
            return [party.outline() for party in self.parties]
        return messages

    def digests(self) -> list[str]:
        """Of what each of its parties holds."""
        return [digest_of(party) for party in self.parties]

    def hold(self, parties: Parcel | None, names: Sequence[Sequence[str]]) -> None:
        """Hold parties for the runs that follow.

        Arguments:
            parties: those that this worker hosts; without them, those that it has loaded.
            names: of the parties of every worker, in the federation's order.
        """
        if parties is not None:
            self.parties = open_parties(parties)
        self.names = tuple(party.name for party in self.parties)
        self.positions = positions_of([party for own in names for party in own])
        self._worker_of = {party: at for at, own in enumerate(names) for party in own}
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # looking for garbage among all these, and among what libraries made, takes a quarter of a second

    def begin(self, plan: Plan) -> None:
        """Begin a run."""
        study = _study(plan.study, plan.modules)
        method = next(each for each in study.method_list() if each.label == plan.method)
        encoder = study.encoder(method)
        method = suited(method, encoder, plan.task.level)
        module = extended(method, module_for(encoder, self.parties, plan.task, plan.seed), plan.seed)
        sites = sites_of(
            method, self.parties, plan.task, module, seed=plan.seed, device=study.torch_device(),
            first=self.positions[self.names[0]],
            private=private_answers(study.named_privacy(), method, module, plan.task, len(self.parties)),
        )  # fmt: skip
        self.transport = LocalTransport(sites, self.names, wire=study.wire, positions=self.positions)
        self._letters: dict[str, dict[str, dict[str, Any]]] = {}

    def handle(self, command: Command, payload: Any, *parcels: Any) -> tuple[list[Reply], dict[int, Any]]:
        """Carry out a command for the parties of this worker; return replies, and mail for other workers by worker.

        Arguments:
            command: without parties if it is for all that are here, and `among` if it is for all that there are.
            payload: of the command.
            parcels: mail that other workers' parties sent to those here.
        """
        among = command.among or tuple(self.positions)
        command = replace(command, of=command.of or self.names, payload=payload, among=among)
        if command.do == "deliver" and payload is None:
            command = replace(command, payload=self._collect(command.action, parcels))
        replies = self.transport.send(command)
        if command.do != "answer":
            return replies, {}
        limit = self.transport.limit
        checked = [check_reply(each, command, limit, self.positions) for each in replies]
        posted = self._post(command.action, checked) if command.verb == "exchange" else {}
        return [replace(each, columns=_dense(each.columns), weights=_dense(each.weights)) for each in checked], posted

    def _post(self, action: str, replies: Sequence[Reply]) -> dict[int, Any]:
        """Keep the letters of replies to parties here, put those to others into the store, and leave only outlines."""
        sent: dict[int, dict[str, dict[str, Any]]] = {}
        for reply in replies:
            outlines = []
            for sender, letters in zip(reply.parties, reply.letters, strict=True):
                for addressee, letter in letters.items():
                    if addressee in self._worker_of:  # else the driver says that nobody has this name
                        sent.setdefault(self._worker_of[addressee], {}).setdefault(addressee, {})[sender] = letter
                outlines.append({name: _outline(letter) for name, letter in letters.items()})
            reply.letters = outlines
        self._letters[action] = sent.pop(self._worker_of[self.names[0]], {})
        return {at: ray.put(Parcel.of(mail)) for at, mail in sent.items()}

    def _collect(self, action: str, parcels: Sequence[Parcel]) -> dict[str, Any]:
        """All letters to parties here, by addressee; of each the senders in the federation's order."""
        found: dict[str, dict[str, Any]] = {}
        for mail in (self._letters.pop(action, {}), *(parcel.open() for parcel in parcels)):
            for addressee, came in mail.items():
                found.setdefault(addressee, {}).update(came)
        return {to: dict(sorted(came.items(), key=lambda each: self.positions[each[0]])) for to, came in found.items()}


@dataclass(frozen=True)
class Surroundings:
    """What a path in a study is relative to.

    Arguments:
        folder: the working folder.
        data: `ISTHMUS_DATA`.
        machine: whose they are.
    """

    folder: str
    data: str
    machine: str

    @classmethod
    def current(cls) -> Surroundings:
        return cls(os.getcwd(), str(data_root()), socket.gethostname())

    def adopt(self) -> None:
        """Use the same folders, as far as this machine has them; its own `ISTHMUS_DATA` comes first."""
        with suppress(OSError):
            os.chdir(self.folder)
        os.environ.setdefault("ISTHMUS_DATA", self.data)

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Name the machine in errors if it is not the driver's."""
        try:
            yield
        except IsthmusError as error:
            if (here := socket.gethostname()) == self.machine:
                raise
            raise IsthmusError(f"on machine {here}: {error}; every machine needs these files at this path") from error


def _study(study: str, modules: frozenset[str]) -> Study:
    """A study from JSON; modules that define what it names are imported first."""
    for name in modules:
        importlib.import_module(name)
    return Study.of(json.loads(study))


def _on_gpu(study: Study) -> bool:
    return study.device.startswith("cuda")


def split_evenly(nodes: Sequence[int], workers: int) -> list[range]:
    """Split parties into consecutive ranges with about equally many nodes; fewer if there are fewer parties.

    >>> split_evenly([1] * 60, 2)
    [range(0, 30), range(30, 60)]
    >>> split_evenly([9, 1, 1, 1], 3)
    [range(0, 1), range(1, 2), range(2, 4)]
    """
    count = len(nodes)
    workers = min(workers, count)
    step = 1 << max(0, (count // (EVEN * workers)).bit_length() - 1)
    before, borders = [0, *accumulate(nodes)], [0]
    for worker in range(1, workers):
        due = before[-1] * worker / workers
        at = min(range(count + 1), key=lambda position: abs(before[position] - due))
        at = round(at / step) * step
        borders.append(min(max(at, borders[-1] + 1), count - (workers - worker)))
    return [range(begin, end) for begin, end in zip(borders, [*borders[1:], count], strict=True)]


def wire_size(payload: Any) -> int:
    """About how many bytes the tensors of a payload have."""
    if isinstance(payload, Tensor):
        return payload.numel() * payload.element_size()
    return sum(map(wire_size, payload.values())) if isinstance(payload, Mapping) else 0


def _outline(letter: Any) -> wire.Sealed:
    """A letter without its data: what the driver needs to know of one that it does not carry."""
    return wire.Sealed(b"", wire.size(letter), wire.describe(letter))


def _dense(columns: Mapping[str, Column]) -> dict[str, Column]:
    return {name: dense(each) if is_stack(each) else each for name, each in columns.items()}


class ClusterPool:
    """Does jobs as Ray tasks of one core each: what `Processes` is on one machine.

    Arguments:
        number: of jobs side by side.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._left: dict[Any, int] = {}
        self._events: Any = None
        self._cutter: Any = None

    def __enter__(self) -> Self:
        self._events = ray.remote(num_cpus=0)(Events).remote()
        at = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._cutter = ray.remote(num_cpus=0, scheduling_strategy=at)(Cutter).remote(Surroundings.current())
        return self

    def __exit__(self, *reason: object) -> None:
        for task in self._left:
            ray.cancel(task, force=True)
        ray.kill(self._events)
        ray.kill(self._cutter)

    def run(
        self, work: Callable[[J, Send], R], jobs: Sequence[J], on_event: Callable[..., None] = lambda *event: None
    ) -> Iterator[tuple[J, Future[R]]]:
        """See `Pool.run`."""
        here = Surroundings.current()
        start: Any = ray.remote(num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")(_do_job)
        waiting = list(enumerate(jobs))[::-1]
        while waiting or self._left:
            while waiting and len(self._left) < self.number:
                at, job = waiting.pop()
                self._left[start.remote(work, at, job, here, self._events, self._cutter)] = at
            done, _ = ray.wait(list(self._left), timeout=PAUSE)
            for at, details in ray.get(self._events.take.remote()):
                on_event(jobs[at], *details)
            for task in done:
                yield jobs[self._left.pop(task)], _finished(task)


class Events:
    """Keeps what jobs send until the driver takes it."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, tuple[Any, ...]]] = []

    def put(self, at: int, details: tuple[Any, ...]) -> None:
        self._kept.append((at, details))

    def take(self) -> list[tuple[int, tuple[Any, ...]]]:
        kept, self._kept = self._kept, []
        return kept


class Cutter:
    """Cuts data for jobs, on the machine of the driver: the others need not have the data.

    Arguments:
        surroundings: of the driver.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        ignore_library_warnings()
        _send_tensors_as_arrays()
        os.environ["ISTHMUS_DATA"] = surroundings.data
        surroundings.adopt()
        self._cuts: dict[tuple[str, int], Any] = {}

    def cut(self, study: str, modules: frozenset[str], seed: int) -> list[Any]:
        """Where the parties of a run are in the store; those of the last few are kept there."""
        plan = _study(study, modules)
        key = plan.model_dump_json(include={"data", "partition", "parties", "task"}), plan.draw_of(seed)
        if key not in self._cuts:
            while len(self._cuts) >= CUTS:
                del self._cuts[next(iter(self._cuts))]
            self._cuts[key] = ray.put(plan.cut_here(seed))
        return [self._cuts[key]]


def _do_job(work: Callable[[J, Send], R], at: int, job: J, surroundings: Surroundings, events: Any, cutter: Any) -> R:
    ignore_library_warnings()
    surroundings.adopt()
    torch.set_num_threads(1)
    _send_tensors_as_arrays()

    def cut(study: Study, seed: int) -> Loaded:
        (where,) = get([cutter.cut.remote(study.model_dump_json(), study.modules(), seed)])
        found: Loaded = get(where)[0]
        return found

    config.cut_elsewhere = cut
    try:
        return work(job, lambda *details: ray.get(events.put.remote(at, details)))
    finally:
        config.cut_elsewhere = None


def _finished(task: Any) -> Future[Any]:
    """What a task returned, or its error."""
    future: Future[Any] = Future()
    try:
        future.set_result(ray.get(task))
    except failures.RayTaskError as error:
        future.set_exception(error.cause)
    except failures.RayError as error:
        future.set_exception(ProcessKilled(_loss_reason(error)))
    return future


# ---- tensors in Ray's store


def _send_tensors_as_arrays() -> None:
    """Let this process send tensors as arrays, whose data Ray writes into the store without a copy of its own."""
    ray.util.register_serializer(Tensor, serializer=_to_array, deserializer=_from_array)


def _to_array(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout == torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values(), tuple(tensor.shape)
    shape = tuple(tensor.shape)
    if tensor.numel() and not any(tensor.stride()):  # one number, repeated
        tensor = tensor[(0,) * tensor.dim()].clone().reshape(1)
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), tensor.dtype, shape


def _from_array(parts: tuple[Any, ...]) -> Tensor:
    """A tensor of its own: what is in the store must not be written to."""
    if len(parts) == 4:
        return torch.sparse_csr_tensor(*parts[:3], size=parts[3])
    data, dtype, shape = parts
    if not data.size:
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(data.copy()).view(dtype)
    return flat.view(shape) if flat.numel() == math.prod(shape) else flat.expand(shape)


# ---- what can go wrong


def get(references: Sequence[Any], within: float | None = None) -> list[Any]:
    """What the workers return, or one line on why not."""
    try:
        found: list[Any] = ray.get(list(references), timeout=within)
    except failures.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, IsthmusError):
            raise cause from None
        if isinstance(cause, failures.RayError):
            raise PartiesLost(_loss_reason(cause)) from error
        raise
    except failures.GetTimeoutError as error:
        raise IsthmusError(
            f"the cluster did not start {len(references)} workers within {START_SECONDS:g} s: "
            f"{_free()}; end other work there, or add machines"
        ) from error
    except failures.ObjectStoreFullError as error:
        raise IsthmusError(
            "Ray's object store is full: use more machines, or start Ray with a larger --object-store-memory"
        ) from error
    except failures.RayError as error:
        if missing := re.search(r"No module named '([^']+)'", str(error)):
            raise IsthmusError(
                f"a worker has no package '{missing[1]}': install the same packages on every machine of the cluster"
            ) from error
        raise PartiesLost(_loss_reason(error)) from error
    return found


def _versions() -> dict[str, str]:
    return {"isthmus": VERSION, "torch": torch.__version__}


def _check_versions(found: Mapping[str, str]) -> None:
    for package, own in _versions().items():
        if found.get(package) != own:
            raise IsthmusError(
                f"a worker has {package} {found.get(package)}, this machine has {own}: "
                "install the same version on every machine of the cluster"
            )


def _require_token() -> None:
    """Let nobody in without a token: whoever reaches a cluster can run code on it. Ray's default is to ask for one.

    If this machine has none, the cluster gets one that only this process and those that it starts know.
    """
    if (mode := os.environ.get("RAY_AUTH_MODE", "token")) != "token":
        raise IsthmusError(f"RAY_AUTH_MODE is '{mode}', so anybody could run code here: unset it")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() and not TOKEN_FILE.expanduser().exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _check_reachable(address: str) -> str:
    """See whether anything listens there, and return the address; Ray itself would try for minutes."""
    found = address
    if address == "auto":
        try:
            found = str(find_here("auto", None))
        except ConnectionError as error:
            raise IsthmusError(_connection_error(address, error)) from error
    host, _, port = found.rpartition(":")
    if not host or "/" in host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise IsthmusError(f"'{address}' is no address of a cluster: give HOST:PORT, or auto for that of this machine")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise IsthmusError(_connection_error(address, error)) from error
    return found


def _connection_error(address: str | None, error: Exception) -> str:
    why = " ".join(str(error).split())[:300]
    if address is None:
        return f"Ray does not start here: {why}"
    if isinstance(error, RuntimeError) and "ersion" in why:  # of Ray, or of Python
        return f"the cluster at '{address}' has other versions: {why}"
    if address == "auto" or (isinstance(error, OSError) and type(error) is not ConnectionError):
        return f"no cluster answers at '{address}': is ray start running there, and is its port open? ({why})"
    return (
        f"the cluster at '{address}' does not let us in: copy its token to this machine, as ~/.ray/auth_token or in "
        f"RAY_AUTH_TOKEN, and use TLS if it does ({why})"
    )


def _loss_reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, failures.OutOfMemoryError) or "low on memory" in text:
        return "a worker was ended because memory ran out: use more machines, or fewer workers on each"
    return f"a worker is lost: {text[:300]}"


def _free() -> str:
    free = ray.available_resources()
    return f"{free.get('CPU', 0):g} of {ray.cluster_resources().get('CPU', 0):g} cores are free"
