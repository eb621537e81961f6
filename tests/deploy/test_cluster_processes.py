"""Studies on real Ray clusters: on this machine, and on several nodes over loopback. Processes of them are killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.test_cluster import assert_same, files
from tests.deploy.test_cluster_data import five_folders

from isthmus.deploy import cluster as module
from isthmus.deploy.cluster import Cluster
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.run import Watcher, run_study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STUDY = """
parties = 6
unlabelled = "idle"
data = { name = "banks", nodes = 300 }
methods = [{ name = "fedper", rounds = 5 }]
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "study.toml").write_text(STUDY)
    return Study.of(tomllib.loads(STUDY))


@pytest.fixture(params=[2, 3])
def nodes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A cluster of two or three nodes with a core each."""
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(request.param - 1):
        nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


class InRound(Watcher):
    """Does something once in the round after a given one, while all workers are called."""

    def __init__(self, after: int, do: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.after, self.do = after, do
        self.due = self.done = False
        self.get = module.get
        monkeypatch.setattr(module, "get", self.do_and_get)

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self.due = self.due or at == self.after

    def do_and_get(self, references: Sequence[Any], within: float | None = None) -> list[Any]:
        if self.due and not self.done:
            self.done = True
            self.do()
        return self.get(references, within)


def test_a_study_on_this_machine_is_that_of_one_process(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a worker that is killed in a round starts again."""
    run_study(study, tmp_path / "here")
    with Cluster(workers=2) as cluster:
        pids: list[int] = []

        def kill() -> None:
            os.kill(pids[1], signal.SIGKILL)

        watcher = InRound(3, kill, monkeypatch)
        load = cluster.workers_with

        def load_and_list(*arguments: Any) -> Any:
            found = load(*arguments)
            pids[:] = module.ray.get([worker.pid.remote() for worker in cluster.workers])
            return found

        monkeypatch.setattr(cluster, "workers_with", load_and_list)
        run_study(study, tmp_path / "there", cluster=cluster, save_every=0.0, watcher=watcher)
        assert watcher.done
        run_study(study, tmp_path / "side", cluster=cluster, jobs=2)
    assert files(tmp_path / "here") == files(tmp_path / "there") == files(tmp_path / "side")


def test_folders_are_loaded_by_workers_from_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    five_folders(tmp_path / "banks")
    monkeypatch.chdir(tmp_path)
    study = Study.of(
        {"data": {"name": "folder", "path": "banks"}, "methods": [{"name": "fedavg", "rounds": 3}], "seeds": [0, 1]}
    )
    run_study(study, "here")
    with Cluster(workers=2) as cluster:
        run_study(study, "there", cluster=cluster)
        run_study(study, "side", cluster=cluster, jobs=2)
    assert files(tmp_path / "here") == files(tmp_path / "there") == files(tmp_path / "side")


def test_a_node_that_is_killed_leaves_its_parties_to_the_others(
    study: Study, nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(nodes.address) as cluster:
        node, before = next(iter(nodes.worker_nodes)), cluster.cores()

        def kill() -> None:
            nodes.remove_node(node, allow_graceful=False)
            while sum(each["Alive"] for each in module.ray.nodes()) >= before:
                time.sleep(0.1)

        watcher = InRound(3, kill, monkeypatch)
        found = run_study(study, cluster=cluster, save_every=0.0, watcher=watcher)
        assert watcher.done
        assert len(cluster.workers) == before - 1
    for one, other in zip(found.runs, run_study(study).runs, strict=True):
        assert_same(one, other)


def test_a_study_whose_driver_is_killed_goes_on_anywhere(study: Study, tmp_path: Path) -> None:
    text = STUDY.replace("rounds = 5", "rounds = 150")
    (tmp_path / "study.toml").write_text(text)
    words = [sys.executable, "-m", "isthmus", "run", "study.toml", "--out", "out"]
    driver = subprocess.Popen([*words, "--ray"], cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not any((tmp_path / "out" / ".state").glob("*.checkpoint")):
        assert driver.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    whole = Study.of(tomllib.loads(text))
    with Cluster(workers=2) as cluster:
        run_study(whole, tmp_path / "out", cluster=cluster, resume=True)
    run_study(whole, tmp_path / "whole")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    with pytest.raises(IsthmusError, match=r"^no cluster answers at '127.0.0.1:9'"), Cluster("127.0.0.1:9"):
        pass


def test_whoever_has_another_token_is_not_let_in(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours, theirs = ({**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": each * 64} for each in "ab")
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--num-cpus=1", f"--port={port}", "--block"]
    log = (tmp_path / "log").open("w")
    head = subprocess.Popen([*ray, "--include-dashboard=false"], env=ours, stdout=log, stderr=log)
    code = f"from isthmus.deploy.cluster import Cluster\nwith Cluster('127.0.0.1:{port}') as it: print(it.cores())"
    try:
        until = time.monotonic() + 60
        while "Ray runtime started" not in (tmp_path / "log").read_text():
            assert time.monotonic() < until
            time.sleep(0.2)
        said = [
            subprocess.run([sys.executable, "-c", code], env=each, capture_output=True, text=True, check=False)
            for each in (ours, theirs)
        ]
    finally:
        head.terminate()
        head.wait()
    assert (said[0].returncode, said[0].stdout) == (0, "1\n")
    assert said[1].returncode != 0
    assert "does not let us in: copy its token to this machine" in said[1].stderr
