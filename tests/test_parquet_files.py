"""Parquet files are read within bounds, and damage is noticed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from isthmus import parquet_files, store
from isthmus.parquet_files import ANSWER, CHECKSUMS, check_rows, measure_columns, open_parquet


def table(rows: int = 200) -> pa.Table:
    numbers = np.random.default_rng(0)
    return pa.table(
        {
            "id": np.arange(rows),
            "words.at": pa.array([list(range(at % 4)) for at in range(rows)], pa.list_(pa.int64())),
            "value": numbers.normal(size=rows),
            "split": pa.array([("train", "test", None)[at % 3] for at in range(rows)]),
        }
    )


def read(path: Path, **options: object) -> pa.Table:
    with open_parquet(path, **options) as file:
        found = check_rows(file, file.read())
        found.validate(full=True)
        return found


def test_flipped_bytes_are_noticed_or_change_nothing_that_is_read(tmp_path: Path) -> None:
    file, draw = tmp_path / "table.parquet", random.Random(0)
    parquet.write_table(table(), file, **CHECKSUMS)
    data = file.read_bytes()
    noticed = 0
    for at in draw.sample(range(len(data)), 600):
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :])
        try:
            found = read(file)
        except (OSError, ValueError, MemoryError, pa.ArrowException):
            noticed += 1
            continue
        # other names and types are noticed by whoever reads the columns
        same_schema = [(each.name, each.type) for each in found.schema] == [(e.name, e.type) for e in table().schema]
        assert not same_schema or found.equals(table()), f"byte {at} of {len(data)}"
    assert noticed > 300


def test_files_that_need_more_memory_than_is_free_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """Files of some kilobytes, one with four million rows and one with a row of eight million, and a process
    that may use little."""
    rows, values = tmp_path / "rows.parquet", tmp_path / "values.parquet"
    parquet.write_table(pa.table({"id": np.zeros(4_000_000, np.int64)}), rows, compression="zstd")
    lists = pa.ListArray.from_arrays(pa.array([0, 8_000_000], pa.int32()), pa.array(np.zeros(8_000_000, np.int64)))
    parquet.write_table(pa.table({"x": lists}), values, compression="zstd")
    assert max(rows.stat().st_size, values.stat().st_size) < 100_000
    script = (
        "import resource, sys; from pathlib import Path; from pyarrow import parquet\n"
        "from isthmus import parquet_files, store\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000,) * 2)\n"
        "try:\n"
        "    with parquet_files.open_parquet(Path(sys.argv[1])) as file: file.read()\n"
        "except store.TooLarge as error: print(error.strerror)\n"
        "try: parquet_files.measure_columns(Path(sys.argv[2]))\n"
        "except store.UnusableFile as error: print(error.strerror)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, rows, values], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert "are free (correct the file" in first
    assert "memory" in second
    assert "free (correct the file" in second
    assert read(rows).num_rows == 4_000_000


def test_columns_are_measured_in_another_process(tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    parquet.write_table(table(), file, row_group_size=90)
    found = measure_columns(file)
    assert found.keys() == set(table().column_names)
    assert 1600 <= found["value"] < 1800  # where values are missing takes some bytes
    assert measure_columns(file, without=["id", "value"]).keys() == {"words.at", "split"}
    assert measure_columns(file, without=table().column_names) == {}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.abort()", r"it crashes pyarrow \(SIGABRT\): it is damaged"),
        ("import os; input(); os.kill(os.getpid(), 11)", r"it crashes pyarrow \(SIGSEGV\)"),
        ("raise SystemExit(3)", r"it crashes pyarrow \(status 3\)"),
    ],
)
def test_crash_is_one_line_and_the_next_file_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    file = tmp_path / "table.parquet"
    parquet.write_table(table(), file)
    measurer = parquet_files.Measurer()
    monkeypatch.setattr(parquet_files, "MEASURER", measurer)
    with monkeypatch.context() as patch:
        patch.setattr(parquet_files, "ANSWER", code)
        with pytest.raises(store.UnusableFile, match=reason):
            measure_columns(file)
    assert measure_columns(file).keys() == set(table().column_names)
    assert measurer.process is not None
    first = measurer.process.pid
    assert measure_columns(file)
    assert measurer.process.pid == first


def test_process_that_ended_after_a_pause_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "table.parquet"
    parquet.write_table(table(), file)
    measurer = parquet_files.Measurer()
    monkeypatch.setattr(parquet_files, "MEASURER", measurer)
    with monkeypatch.context() as patch:
        patch.setattr(
            parquet_files, "ANSWER", f"from isthmus import parquet_files as p; p.IDLE_SECONDS = 0.0; {ANSWER}"
        )
        measure_columns(file)
    assert measurer.process is not None
    first = measurer.process
    assert first.wait(timeout=30) == 0
    assert measure_columns(file)
    assert measurer.process is not first


def test_columns_that_are_not_read_as_a_whole_need_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "table.parquet"
    parquet.write_table(table(), file, **CHECKSUMS)
    monkeypatch.setattr(store, "free_memory", lambda: 200 * parquet_files.VALUE)
    with pytest.raises(store.TooLarge):
        read(file)
    assert read(file, without=["words.at", "value", "split"]).num_rows == 200
    assert read(file, columns=["value"]).num_rows == 200


def test_too_many_columns_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wide.parquet"
    parquet.write_table(table(), file)
    monkeypatch.setattr(parquet_files, "MAX_COLUMNS", 3)
    with pytest.raises(store.UnusableFile, match="4 columns, more than the 3 that a table may have"):
        read(file)
    monkeypatch.setattr(parquet_files, "FOOTER", 100)
    with pytest.raises(store.UnusableFile, match=r"its description of columns has .* it has too many columns"):
        read(file)


def test_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(store.UnusableFile, match="not a regular file but a pipe"):
        read(tmp_path / "pipe.parquet")
