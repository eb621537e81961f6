"""What the tests of dossiers start from; each test gets copies, and may damage them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from result_folders import Build, write_folder

from isthmus.dossier.writing import write_dossier
from isthmus.study.config import Study
from isthmus.study.run import run_study

DAY = "2026-05-04"


@pytest.fixture(scope="session")
def untouched_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result folder of a small study in one process, with models that all share and personal ones."""
    folder = tmp_path_factory.mktemp("study") / "run"
    methods = [{"name": "fedavg"}, {"name": "fedper"}]
    data = {"name": "banks", "nodes": 120, "parties": 3}
    run_study(Study.of({"data": data, "methods": methods, "training": {"rounds": 1}, "unlabelled": "idle"}), folder)
    return folder


@pytest.fixture
def run(untouched_run: Path, tmp_path: Path) -> Path:
    """A result folder with an unsigned dossier."""
    folder = Path(shutil.copytree(untouched_run, tmp_path / "run"))
    write_dossier(folder, made=DAY)
    return folder


@pytest.fixture(scope="session")
def untouched_federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation's kits, party folders and result folder; they take some seconds."""
    pytest.importorskip("nvflare")
    from tests.dossier.federations import federated_run  # needs an extra

    return federated_run(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def federation(untouched_federation: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(untouched_federation, tmp_path / "federation"))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Writes a result folder as a study does; `change` may alter what is written."""
    return partial(write_folder, tmp_path)


@pytest.fixture(scope="session")
def untouched_kits_of_others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of another federation."""
    from isthmus.deploy.kits import make_kits  # needs an extra

    folder = tmp_path_factory.mktemp("others") / "kits"
    make_kits("fed", ["north", "south"], "localhost", 8002, folder)
    return folder
