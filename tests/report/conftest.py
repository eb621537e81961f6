"""Result folders for tests of the report."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from result_folders import Build, write_folder


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Writes a result folder; `change` may alter what is written."""
    return partial(write_folder, tmp_path)
