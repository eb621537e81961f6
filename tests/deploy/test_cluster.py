"""A study that is spread over Ray workers gives what it gives in one process, to the bit; here Ray is one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import exceptions as failures
from tests.deploy.federated_studies import study_of
from tests.deploy.ray_here import Actor, RayHere, Stored, stand_in

from helpers import assert_same_history, slow_but
from isthmus.deploy import cluster as module
from isthmus.deploy.cluster import Cluster, split_evenly
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.methods.fedavg import FedAvg
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.run import Watcher, run_study

EXACT = (
    "fedavg", "fedcog", "fedcog-gcn", "fedgcn", "fedgl", "fgcl", "fedper", "fedrep", "fedbn", "ditto", "fedproto",
    "fedstar", "adafgl", "fedaux", "fedtad", "o-pfgl", "fedpub", "gcfl", "gcfl-plus", "local",
)  # fmt: skip


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> RayHere:
    return stand_in(monkeypatch)


def assert_same(one: RunResult, other: RunResult, *, to_the_bit: bool = True) -> None:
    """The weights and the history, and the ledger row for row."""
    mine, theirs = (dict(wire.flatten(each.models)) for each in (one, other))
    assert mine.keys() == theirs.keys()
    assert one.history
    assert list(one.ledger.rows()) == list(other.ledger.rows())
    if to_the_bit:
        assert all(torch.equal(mine[path], theirs[path]) for path in mine)
        assert_same_history(one.history, other.history)
    else:
        for path in mine:
            torch.testing.assert_close(mine[path], theirs[path], rtol=1e-4, atol=1e-4)


@cache
def in_one_process(name: str, rounds: int) -> tuple[Study, RunResult]:
    """A study of five parties, and what it gives without workers."""
    if name == "links":
        study = study_of("fedavg", rounds, parties=5, task={"name": "link-prediction"})
    elif name == "typed":
        banks = {"name": "ledgers", "parties": 5, "customers": 20, "transfers": 10, "laundering": 0.05}
        study = study_of("fedavg", rounds, data=banks, parties=None, model={"encoder": "hetero-sage"})
    else:
        study = study_of(name, rounds, parties=5)
    return study, run_study(study).runs[0]


ON_WORKERS = [*EXACT, "two-groups", "fclg", "fgssl", "fedgta", "moon", "fedgc by sgd", "links", "typed"]
WORKERS = [*((name, 2) for name in ON_WORKERS), *((name, cores) for name in ("fedavg", "fgssl") for cores in (1, 3, 8))]
FEW = [each for each in WORKERS if each[0] in ("fedavg", "fgssl")]


@pytest.mark.parametrize(("name", "cores"), slow_but(FEW, WORKERS))
@pytest.mark.thinned(3)
def test_any_number_of_workers_gives_the_numbers_of_one_process(here: RayHere, name: str, cores: int) -> None:
    here.cores = cores
    study, due = in_one_process(name, rounds=2)
    with Cluster() as cluster:
        found = run_study(study, cluster=cluster).runs[0]
        assert len(here.actors) == min(cores, 5)
    assert_same(found, due, to_the_bit=name in EXACT)


@pytest.mark.parametrize(
    "changes",
    [
        {"fraction": 0.5, "local": {"batch_size": 8}},
        {"local": {"fan_out": [3, 3], "clip": 0.1}},
        {"patience": 2, "rounds": 30},
        {"evaluate_with": "trained"},
        {"aggregate": "trimmed-mean"},
    ],
    ids=["sampling and batches", "neighbours and clipping", "patience", "trained models", "trimmed mean"],
)
@pytest.mark.parametrize("sent_as_bytes", [False, True], ids=["", "wire"])
@pytest.mark.thinned(6)
def test_options_mean_the_same(here: RayHere, changes: dict[str, Any], sent_as_bytes: bool) -> None:
    study = study_of("fedavg", parties=7, methods=[{"name": "fedavg", **changes}], wire=sent_as_bytes)
    with Cluster() as cluster:
        assert_same(run_study(study, cluster=cluster).runs[0], run_study(study).runs[0])


def files(folder: Path) -> dict[str, bytes]:
    """The files of a result folder; of its results all but the seconds."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    results = json.loads(found.pop("results.json"))
    results.pop("created")
    for run in results["runs"]:
        run.pop("seconds")
    found.pop("report.html", None)
    found.pop("SHA256SUMS")  # which has that of results.json
    return {**found, "results.json": json.dumps(results).encode()}


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.thinned(2)
def test_several_methods_and_seeds_into_the_same_folder(here: RayHere, tmp_path: Path, jobs: int) -> None:
    """One that pools the data runs here: what it trains on is one party."""
    methods = [{"name": name} for name in ("fedavg", "centralized", "local")]
    study = study_of("fedavg", methods=methods, parties=3, seeds=[0, 1])
    told: list[tuple[str, int, int]] = []
    watcher = Watcher()
    watcher.round_done = lambda method, seed, at, metrics: told.append((method.name, seed, at))  # type: ignore[method-assign]
    with Cluster() as cluster:
        run_study(study, tmp_path / "there", cluster=cluster, jobs=jobs, watcher=watcher)
        assert len(here.actors) == (3 if jobs == 1 else 2)  # workers serve all runs; jobs have what cuts, and events
    run_study(study, tmp_path / "here")
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert len(told) == len(set(told)) == sum(run.rounds for run in run_study(study).runs)


def test_what_travels_grows_with_workers_and_not_with_parties(here: RayHere) -> None:
    sent = []
    for parties in (4, 64):
        here.cores, here.bytes_sent = 2, 0
        study = study_of("fedavg", data={"name": "banks", "nodes": 640}, parties=parties, model={"hidden": 256})
        with Cluster() as cluster:
            transport = cluster.transport(study, study.method_list()[0], 0, study.load(0))
            here.bytes_sent = 0
            run_study_of(study, transport)
        sent.append(here.bytes_sent)
    assert sent[1] < 1.3 * sent[0]


def run_study_of(study: Study, transport: Any) -> RunResult:
    from isthmus.study.run import build_run

    return build_run(study, study.method_list()[0], 0, study.load(0), transport=transport).go()


# ---- workers that go away


def killing(ray: RayHere, number: int, method: str, at: int) -> Callable[..., None]:
    """Kills a worker at this call of one of its methods."""
    count = [0]

    def before(actor: Actor, name: str, arguments: tuple[Any, ...]) -> None:
        if actor.number == number and name == method:
            count[0] += 1
            if count[0] == at:
                actor.alive = False

    return before


@pytest.mark.parametrize(
    ("name", "at"),
    [*((name, 4) for name in ("fedavg", "fedgl", "fedper", "local")), *(("fedcog-gcn", at) for at in (1, 4, 8))],
)
@pytest.mark.parametrize("saved", [True, False], ids=["with snapshots", "from the start"])
@pytest.mark.thinned(5)
def test_a_worker_that_dies_starts_again_and_the_numbers_are_the_same(
    here: RayHere, name: str, at: int, saved: bool, tmp_path: Path
) -> None:
    study, due = in_one_process(name, rounds=4)
    here.before_call = killing(here, 1, "handle", at)
    rounds: list[int] = []
    watcher = Watcher()
    watcher.round_done = lambda method, seed, at, metrics: rounds.append(at)  # type: ignore[method-assign]
    with Cluster() as cluster:
        found = run_study(study, cluster=cluster, save_every=0.0 if saved else 1e9, watcher=watcher).runs[0]
        assert len(here.actors) == 6
    assert rounds == sorted(set(rounds))
    assert_same(found, due)


def test_a_machine_that_dies_leaves_its_parties_to_fewer_workers(here: RayHere) -> None:
    study = study_of("fedcog-gcn", rounds=4, parties=5)
    kill = killing(here, 2, "handle", 6)

    def before(actor: Actor, name: str, arguments: tuple[Any, ...]) -> None:
        kill(actor, name, arguments)
        here.cores = 3 if all(each.alive for each in here.actors[:3]) else 2

    here.before_call = before
    with Cluster() as cluster:
        found = run_study(study, cluster=cluster, save_every=0.0).runs[0]
        assert len(here.actors) == 5
    assert_same(found, run_study(study).runs[0])


def test_a_round_that_kills_every_worker_ends_the_run(here: RayHere, tmp_path: Path) -> None:
    def before(actor: Actor, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "handle" and actor.ray.bytes_sent > 0 and arguments[0].action == "train" and len(seen) >= 2:
            actor.alive = False

    seen: list[int] = []
    watcher = Watcher()
    watcher.round_done = lambda method, seed, at, metrics: seen.append(at)  # type: ignore[method-assign]
    here.before_call = before
    study = study_of("fedavg", rounds=4, parties=5)
    with Cluster() as cluster, pytest.raises(IsthmusError, match="a worker is lost"):
        run_study(study, tmp_path / "out", cluster=cluster, save_every=0.0, watcher=watcher)
    here.before_call = lambda actor, name, arguments: None
    for again in (Cluster(), None):  # it goes on anywhere
        if again is not None:
            with again:
                found = run_study(study, tmp_path / "out", cluster=again, resume=True).runs[0]
    assert_same(found, run_study(study).runs[0])


# ---- what cannot be


def test_other_versions_on_a_worker_are_named(here: RayHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Worker, "versions", lambda self: {"isthmus": module.VERSION, "torch": "1.0"})
    with Cluster() as cluster, pytest.raises(IsthmusError, match=r"^a worker has torch 1\.0, this machine has"):
        run_study(study_of("fedavg"), cluster=cluster)
    assert not any(actor.alive for actor in here.actors)


def test_a_cluster_without_cores_is_refused(here: RayHere) -> None:
    here.cores = 0
    with Cluster() as cluster, pytest.raises(IsthmusError, match="the cluster has no core: start Ray with at least"):
        run_study(study_of("fedavg"), cluster=cluster)


def test_what_the_script_itself_defines_is_refused(here: RayHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "__module__", "__main__")
    with Cluster() as cluster, pytest.raises(IsthmusError, match="method 'fedavg' is defined in the script itself"):
        run_study(study_of("fedavg"), cluster=cluster)
    assert not here.actors


def test_an_error_of_a_method_is_that_of_one_process(here: RayHere) -> None:
    study = study_of("fedgc", methods=[{"name": "fedgc", "min_contributors": 9}])
    messages = []
    with Cluster() as cluster:
        for where in (None, cluster):
            with pytest.raises(IsthmusError) as caught:
                run_study(study, cluster=where)
            messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("nodes", "workers", "due"),
    [
        ([1] * 5, 2, [2, 3]),
        ([1] * 3, 8, [1, 1, 1]),
        ([100, 1, 1, 1, 1], 2, [1, 4]),
        ([1, 1, 1, 1, 100], 3, [3, 1, 1]),
        ([20] * 10_000, 3, [3328, 3328, 3344]),
    ],
)
def test_ranges_are_about_even(nodes: list[int], workers: int, due: list[int]) -> None:
    shares = split_evenly(nodes, workers)
    assert [at for share in shares for at in share] == list(range(len(nodes)))
    assert [len(share) for share in shares] == due


@pytest.mark.parametrize("address", ["", "a", "host:port", "host:70000", ":6379", "ray://10.0.0.7:10001", "host:²"])
def test_what_is_no_address_is_refused(here: RayHere, address: str) -> None:
    with pytest.raises(IsthmusError, match="is no address of a cluster: give HOST:PORT, or auto"):
        Cluster(address).__enter__()


@pytest.mark.parametrize("known", ["127.0.0.1:9", None], ids=["one that has ended", "none"])
def test_no_cluster_on_this_machine_is_one_line(
    here: RayHere, known: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(address: str, folder: None) -> str:
        if known is None:
            raise ConnectionError("Could not find any running Ray instance.")
        return known

    monkeypatch.setattr(module, "find_here", find)
    with pytest.raises(IsthmusError, match=r"^no cluster answers at 'auto': is ray start running there"):
        Cluster("auto").__enter__()


LOST = "The actor died. ModuleNotFoundError: No module named 'torch_geometric'"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (failures.RayTaskError("begin", "a traceback", IsthmusError("say this")), "say this"),
        (failures.RuntimeEnvSetupError(LOST), "a worker has no package 'torch_geometric': install the same packages"),
        (failures.GetTimeoutError("time is over"), "did not start 1 workers within 120 s: 3 of 3 cores are free"),
        (failures.ObjectStoreFullError("full"), "Ray's object store is full: use more machines"),
        (failures.OutOfMemoryError("killed"), "a worker was ended because memory ran out: use more machines"),
        (failures.RayTaskError("handle", "", failures.ObjectLostError("ab", None, "")), "a worker is lost: "),
    ],
    ids=["its own error", "package", "cores", "store", "memory", "lost"],
)
def test_what_a_worker_reports_is_one_line(here: RayHere, error: Exception, line: str) -> None:
    with pytest.raises(IsthmusError, match=line) as caught:
        module.get([Stored(error=error)])
    assert "\n" not in str(caught.value)


def test_a_mistake_in_the_code_keeps_its_traceback(here: RayHere) -> None:
    with pytest.raises(failures.RayTaskError, match="a traceback"):
        module.get([Stored(error=failures.RayTaskError("handle", "a traceback", KeyError("x")))])
