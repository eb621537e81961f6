"""Kits that several tests start from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def untouched_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of a federation of two parties, for tests to copy; to make them takes a second."""
    from isthmus.deploy.kits import make_kits  # needs an extra

    folder = tmp_path_factory.mktemp("kits") / "kits"
    make_kits("fed", ["north", "south"], "localhost", 8002, folder)
    return folder


@pytest.fixture
def kits_folder(untouched_kits: Path, tmp_path: Path) -> Path:
    """The kits of a federation of two parties, north and south."""
    return Path(shutil.copytree(untouched_kits, tmp_path / "kits"))
