"""The files of a result folder are read whole, or refused in one line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from isthmus import result_files
from isthmus.errors import IsthmusError
from isthmus.result_files import COLUMNS, HISTORY, LEDGER, AuditRecord

ROW = {"method": "fedavg", "seed": 1, "round": 2, "metric": "val_loss", "value": 0.5}


@pytest.mark.parametrize(("head", "found"), [({"format": 2}, "format 2"), ({}, "no format number")])
def test_another_format_is_an_error_that_says_what_to_do(tmp_path: Path, head: dict[str, Any], found: str) -> None:
    (tmp_path / "results.json").write_text(json.dumps({**head, "runs": [1]}))
    with pytest.raises(IsthmusError, match=rf"^cannot read {tmp_path / 'results.json'}: it has {found}, .* --force, "):
        result_files.load_summary(tmp_path)
    assert result_files.load_summary(tmp_path, any_format=True)["runs"] == [1]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"3", b"\xff"])
def test_unreadable_results_are_an_error_that_names_the_folder(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(IsthmusError, match=rf"^no readable results\.json in {tmp_path} \(.*\): "):
        result_files.load_summary(tmp_path)


def test_a_written_table_is_read_back_with_its_columns_alone(tmp_path: Path) -> None:
    result_files.write_table(tmp_path, HISTORY, iter([{name: [value] for name, value in ROW.items()}]))
    table = pq.read_table(tmp_path / HISTORY)
    pq.write_table(table.append_column("more", pa.array([1])), tmp_path / HISTORY)
    read = result_files.read_table(tmp_path, HISTORY)
    assert read.to_pylist() == [ROW]
    assert {field.name: str(field.type) for field in read.schema} == {**COLUMNS[HISTORY], "value": "double"}


@pytest.mark.parametrize(("sizes", "groups"), [((), []), ((2, 0, 1), [3]), ((3, 3), [3, 3]), ((1, 7, 2), [8, 2])])
def test_a_table_is_written_in_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], groups: list[int]
) -> None:
    monkeypatch.setattr(result_files, "GROUP", 3)
    rows = [{**ROW, "round": at, "value": at / 2} for at in range(sum(sizes))]
    left = iter(rows)
    parts = [list(itertools.islice(left, size)) for size in sizes]
    result_files.write_table(tmp_path, HISTORY, ({name: [row[name] for row in part] for name in ROW} for part in parts))
    assert result_files.read_table(tmp_path, HISTORY).to_pylist() == rows
    file = pq.ParquetFile(tmp_path / HISTORY).metadata
    assert [file.row_group(at).num_rows for at in range(file.num_row_groups)] == groups


def test_a_table_in_one_row_group_has_the_bytes_of_its_rows(tmp_path: Path) -> None:
    rows = [{**ROW, "metric": name, "value": None if name == "b" else 1.0} for name in "abca"]
    result_files.write_table(tmp_path, HISTORY, [{name: [row[name] for row in rows] for name in ROW}])
    schema = result_files.read_table(tmp_path, HISTORY).schema
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "literal", write_page_checksum=True)
    assert (tmp_path / HISTORY).read_bytes() == (tmp_path / "literal").read_bytes()


def test_columns_of_different_lengths_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowInvalid, match="length"):
        result_files.write_table(tmp_path, HISTORY, [{name: [value] for name, value in ROW.items()} | {"round": []}])
    assert not list(tmp_path.iterdir())


def test_a_missing_table_is_empty_where_it_is_optional(tmp_path: Path) -> None:
    read = result_files.read_table(tmp_path, LEDGER, optional=True)
    assert (read.num_rows, read.column_names) == (0, list(COLUMNS[LEDGER]))
    with pytest.raises(IsthmusError, match=r"cannot read '.*ledger.parquet'.*: run the study again"):
        result_files.read_table(tmp_path, LEDGER)


@pytest.mark.parametrize(
    ("row", "reason"), [({"method": "fedavg"}, "column 'seed' is missing"), ({**ROW, "value": "high"}, "high")]
)
def test_a_table_with_other_columns_is_an_error_in_one_line(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / HISTORY)
    with pytest.raises(IsthmusError, match=rf"cannot read '.*history.parquet': .*{reason}") as caught:
        result_files.read_table(tmp_path, HISTORY)
    assert "\n" not in str(caught.value)


def record(**changes: Any) -> AuditRecord:
    audit: dict[str, Any] = {"audit": {"name": "membership"}, "method": "fedavg", "study": "seeds = [0]\n", "seed": 0}
    table: dict[str, Any] = {"corner": "", "columns": [], "sections": [], "notes": [], "protections": [{"auc": 0.5}]}
    return AuditRecord.model_validate({**audit, **table, **changes})


def test_an_audit_replaces_an_older_one_of_the_same_method(tmp_path: Path) -> None:
    for each in (record(), record(notes=["again"]), record(method="fedsage"), record(method="x", study="another")):
        result_files.write_audit(tmp_path, each)
    found = result_files.read_audits(tmp_path, "seeds = [0]\n")
    assert found == [record(notes=["again"]), record(method="fedsage")]


def test_an_audit_with_other_options_stands_beside_the_older_one(tmp_path: Path) -> None:
    for colluders in (3, 1, 3, 1):
        audit = {"name": "membership", "colluders": colluders}
        path = result_files.write_audit(tmp_path, record(audit=audit, notes=[f"of {colluders}"]))
    assert path.name == "membership-fedavg-2.json"
    found = result_files.read_audits(tmp_path, "seeds = [0]\n")
    assert [each.audit["colluders"] for each in found] == [1, 3]
    other = record(method="fedavg-2", audit={"name": "membership", "colluders": 1})
    assert result_files.write_audit(tmp_path, other).name == "membership-fedavg-2-2.json", "of another method"
    (tmp_path / "audits" / "membership-fedavg.json").write_text("{}")
    assert result_files.write_audit(tmp_path, record()).name == "membership-fedavg.json", "what cannot be read goes"


def test_a_graph_is_written_and_read_back(tmp_path: Path) -> None:
    graph = {"x": torch.eye(3), "y": torch.tensor([0, 1, 1]), "edge_index": torch.tensor([[0, 2], [1, 0]])}
    folder = result_files.graph_folder(tmp_path, "fedgc", 4)
    result_files.write_graph(folder, {**graph, "edge_weight": torch.tensor([0.5, 2.0])})
    read = result_files.load_graph(tmp_path / "graphs" / "fedgc-4")
    assert all(torch.equal(read[name], value) for name, value in graph.items())
    assert read.edge_weight.tolist() == [0.5, 2.0]


def test_a_broken_graph_is_an_error_that_names_its_folder(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match=rf"no readable graph in {tmp_path} \(.*\): give graphs/METHOD-SEED"):
        result_files.load_graph(tmp_path)


def test_deeply_nested_summary_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("[" * 200_000)
    with pytest.raises(IsthmusError, match="brackets nested too deeply"):
        result_files.load_summary(tmp_path)
