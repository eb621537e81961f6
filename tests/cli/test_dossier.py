"""The commands for dossiers: `isthmus dossier RUN` makes one, and faults end with code 2."""

from __future__ import annotations

from pathlib import Path

from command_line import Isthmus
from isthmus import run


def test_a_dossier_is_made_verified_and_found_changed(isthmus: Isthmus, tmp_path: Path) -> None:
    run("fedavg", rounds=1, out=tmp_path / "run")
    done = isthmus("dossier", tmp_path / "run", "--purpose", "Try it.", "--date", "2026-05-04")
    assert (done.code, done.err) == (0, "")
    assert f"dossier in {tmp_path / 'run' / 'dossier.json'}" in done.out
    done = isthmus("dossier", "verify", tmp_path / "run")
    assert (done.code, done.err) == (0, "")
    assert "page: it is what the JSON gives" in done.out
    for name in ("study.toml", "ledger.parquet"):
        (tmp_path / "run" / name).write_bytes(b"")
    done = isthmus("dossier", "verify", tmp_path / "run")
    assert done.code == 2
    assert [line.startswith("isthmus: ") for line in done.err.splitlines()] == [True, True]
    done = isthmus("dossier", tmp_path / "run" / "weights")
    assert done.code == 2
    assert "no study.toml" in done.err
