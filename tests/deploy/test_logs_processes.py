"""A study in real processes leaves few lines for a person to read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from real import Federation, isthmus, parties_in, written

from isthmus.deploy.logs import LOG

LINES = 20
"""Lines that a process may write in a good run."""


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_good_run_writes_few_lines(tmp_path: Path) -> None:
    words = ["--data", "banks", "--parties", "3", "--set", "data.nodes=120"]
    assert isthmus("party", "export", tmp_path / "data", *words).returncode == 0
    study = written(tmp_path / "study.toml", methods=[{"name": "fedavg", "rounds": 3}])
    federation = Federation(tmp_path, study, parties_in(tmp_path / "data"))
    try:
        federation.start()
        done = federation.run(study, tmp_path / "out")
        assert done.returncode == 0, done.stderr
        for name in ("server", *federation.data):
            logs = [each.read_text() for each in (federation.kits / name).rglob(LOG)]
            assert "a study" in "".join(logs), name
            assert all(len(each.splitlines()) < LINES for each in logs), name
    finally:
        federation.close()
