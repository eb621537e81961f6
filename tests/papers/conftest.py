from pathlib import Path

import pytest
from tests.papers.a_paper import run_in_this_process, written


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_this_process(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)
