"""Data that come as parties are loaded by the workers that hold them, with the numbers of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.federated_studies import study_of
from tests.deploy.ray_here import Actor, RayHere, stand_in
from tests.deploy.test_cluster import assert_same, files, killing

from helpers import assert_same_history, rounds_rows_alike
from isthmus.data.datasets import folder as folders
from isthmus.data.datasets.shops import Shops
from isthmus.data.folder.table import NODES
from isthmus.deploy import cluster as module
from isthmus.deploy.cluster import Cluster
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from isthmus.study.run import run_study
from party_folders import Draft, collection_draft, graph_draft, two_drafts

SHOPS = {"name": "shops", "parties": 5, "nodes": 300, "classes": 4, "features": 6, "degree": 6}
SETS = {
    "name": "several",
    "sets": [
        {"name": "motifs", "graphs": 16},
        {"name": "motifs", "graphs": 12, "features": 4},
        {"name": "motifs", "graphs": 12},
    ],
}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RayHere:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    return stand_in(monkeypatch, cores=2)


def five_folders(root: Path) -> Path:
    """Five parties whose ages add up to other bits in another order."""
    for at in range(5):
        draft = graph_draft(f"bank-{at}", partner=None, first=1000 * at)
        draft.tables[NODES]["age"] = [0.1 * (at + 1) + number / 3 for number in range(8)]
        draft.write(root / draft.settings["name"])
    return root


def write(root: Path, *drafts: Draft) -> Path:
    for draft in drafts:
        draft.write(root / draft.settings["name"])
    return root


def folder_study(path: Path, **more: Any) -> Study:
    return study_of("fedavg", data={"name": "folder", "path": str(path)}, **more)


METHODS = [{"name": name} for name in ("fedavg", "centralized", "fedcog-gcn")]


@pytest.mark.parametrize("kind", ["folders", "folders that overlap", "graphs", "shops", "several"])
@pytest.mark.thinned(6)
def test_results_are_those_of_one_process(here: RayHere, kind: str, tmp_path: Path) -> None:
    data: dict[str, Any] = {"shops": SHOPS, "several": SETS}.get(kind, {"name": "folder", "path": str(tmp_path / "in")})
    methods = METHODS[:2]
    if kind == "folders":
        write(tmp_path / "in", *two_drafts())
        methods = METHODS
    elif kind == "folders that overlap":
        drafts = [graph_draft(f"bank-{at}", partner=None, first=4 * at) for at in range(3)]
        for draft in drafts:
            del draft.tables[NODES]["split"]
        write(tmp_path / "in", *drafts)
    elif kind == "graphs":
        write(tmp_path / "in", *(collection_draft(f"lab-{at}", first=10 * at) for at in range(3)))
    study = study_of("fedavg", data=data, methods=methods, seeds=[0, 1])
    with Cluster() as cluster:
        run_study(study, tmp_path / "there", cluster=cluster)
    run_study(study, tmp_path / "here")
    there, own = files(tmp_path / "there"), files(tmp_path / "here")
    if not rounds_rows_alike():  # of figures all but the last digits are equal
        for each in (there, own):
            each["history.parquet"] = each["results.json"] = b""
    assert there == own


def test_every_folder_is_read_once_and_only_outlines_come_back(
    here: RayHere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read: list[str] = []
    check = folders.check_folder
    monkeypatch.setattr(folders, "check_folder", lambda path, key: (read.append(path.name), check(path, key))[1])
    study = folder_study(five_folders(tmp_path))
    with Cluster() as cluster:
        loaded = cluster.load(study, 0)
        run = cluster.transport(study, study.method_list()[0], 0, loaded)
        assert {len(actor.of.parties) for actor in here.actors} == {2, 3}
    assert sorted(read) == [f"bank-{at}" for at in range(5)]
    assert run.parties == tuple(read)
    due = study.load(0).parties
    for outline, party in zip(loaded.parties, due, strict=True):
        assert outline.graph.x.stride() == (0, 0)
        assert outline.graph.edge_index.untyped_storage().nbytes() == 16
        assert outline.both_ways == party.both_ways
        assert (outline.edges, outline.features, outline.items) == (party.edges, party.features, party.items)
        assert torch.equal(outline.train, party.train)


def test_an_encoding_has_the_same_bits_in_a_study_a_cluster_and_a_federation(here: RayHere, tmp_path: Path) -> None:
    study = folder_study(five_folders(tmp_path / "data"))
    (due,) = run_study(study).runs
    with Cluster() as cluster:
        assert_same(run_study(study, cluster=cluster).runs[0], due)
    from tests.federation.by_hand import ByHand, members_of

    from isthmus.deploy.coordinator import coordinate

    post = ByHand(members_of(tmp_path / "data", tmp_path / "parties", study), None)
    found = coordinate(study, post, "s", tmp_path / "server", save_every=0).runs[0]
    assert_same_history(found.history, [each for each in due.history if not each[1].startswith("pooled_")])


@pytest.mark.parametrize("at", [2, 7])
def test_a_lost_worker_s_parties_are_loaded_again(here: RayHere, at: int, tmp_path: Path) -> None:
    here.before_call = killing(here, 1, "handle", at)
    study = folder_study(five_folders(tmp_path))
    with Cluster() as cluster:
        found = run_study(study, cluster=cluster, save_every=0.0).runs[0]
        assert len(here.actors) == 4
    assert_same(found, run_study(study).runs[0])


def test_what_is_cut_is_loaded_by_the_driver(here: RayHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another partition puts all parties together first, and so do links that are held out."""
    whole = Shops.load
    loads: list[int] = []
    monkeypatch.setattr(Shops, "load", lambda self, seed: (loads.append(seed), whole(self, seed))[1])
    for changes in (
        {"partition": {"name": "random"}, "parties": 4, "data": {key: SHOPS[key] for key in SHOPS if key != "parties"}},
        {"task": {"name": "link-prediction"}},
    ):
        study = study_of("fedavg", rounds=1, **{"data": SHOPS, **changes})
        with Cluster() as cluster:
            found = run_study(study, cluster=cluster).runs[0]
        assert_same(found, run_study(study).runs[0], to_the_bit="task" not in changes)
    assert len(loads) == 4


def test_problems_of_folders_are_those_of_one_process(here: RayHere, tmp_path: Path) -> None:
    def error(path: Path, **more: Any) -> str:
        study = folder_study(path, **more)
        with pytest.raises(IsthmusError) as alone:
            run_study(study)
        with Cluster() as cluster, pytest.raises(IsthmusError) as spread:
            run_study(study, cluster=cluster)
        assert str(alone.value) == str(spread.value)
        return str(alone.value)

    assert "is not a folder" in error(tmp_path / "nowhere")
    five_folders(tmp_path / "in")
    assert "5 owners and 3 parties" in error(tmp_path / "in", parties=3)
    (tmp_path / "in" / "bank-3" / "edges.parquet").write_bytes(b"no table")
    assert "bank-3 has 1 problem" in error(tmp_path / "in")
    write(tmp_path / "twice", graph_draft("a", None), graph_draft("b", None, first=50)).joinpath("c").mkdir()
    graph_draft("a", None, first=100).write(tmp_path / "twice" / "c")
    assert "name 'a' is also used" in error(tmp_path / "twice")


def test_another_machine_that_lacks_the_files_is_named(
    here: RayHere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = folder_study(five_folders(tmp_path / "in"))
    names = iter(["driver", *["elsewhere"] * 9])
    monkeypatch.setattr(module.socket, "gethostname", lambda: next(names))

    def before(actor: Actor, name: str, arguments: tuple[Any, ...]) -> None:
        if (tmp_path / "in").exists() and name == "open":
            (tmp_path / "in").rename(tmp_path / "gone")

    here.before_call = before
    due = r"on machine elsewhere: .* is not a folder.*every machine"
    with Cluster() as cluster, pytest.raises(IsthmusError, match=due):
        cluster.load(study, 0)


def test_jobs_ask_the_driver_for_the_parties(here: RayHere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once for each seed, whatever the method."""
    cuts: list[int] = []
    cut = Study.cut_here
    monkeypatch.setattr(Study, "cut_here", lambda self, seed: (cuts.append(seed), cut(self, seed))[1])
    study = study_of("fedavg", parties=3, seeds=[0, 1], methods=[{"name": name} for name in ("fedavg", "local")])
    with Cluster() as cluster:
        found = run_study(study, cluster=cluster, jobs=2)
    assert sorted(cuts) == [0, 0, 1]  # the driver checks the first before it starts
    for one, other in zip(found.runs, run_study(study).runs, strict=True):
        assert_same(one, other)
