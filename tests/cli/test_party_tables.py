"""Commands for party folders of several tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import Isthmus
from databases import bank_draft


def write_csv(folder: Path) -> Path:
    """Write a bank's three tables as CSV files."""
    folder.mkdir(parents=True)
    for file, columns in bank_draft(accounts=30, transfers=90).tables.items():
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (folder / file.replace("parquet", "csv")).write_text("\n".join(lines) + "\n")
    return folder


def test_new_check_and_run(isthmus: Isthmus, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    made = isthmus("party", "new", "banks/north", "--tables", write_csv(tmp_path / "in"), "--label", "accounts.bad")
    assert made.out == "party folder in banks/north: read the guesses in banks/north/party.toml\n"
    assert made.err == ""
    checked = isthmus("party", "check", "banks")
    assert checked.out == "north: 30 accounts, 16 customers, 90 transfers, 420 edges, 30 labelled\n"
    ran = isthmus("run", "--data", "banks/", "--method", "local", "--encoder", "rgcn", "--rounds", 1)
    assert ran.code == 0, ran.err


def test_flags_of_one_table_do_not_go_with_several(isthmus: Isthmus, tmp_path: Path) -> None:
    done = isthmus("party", "new", "north", "--tables", tmp_path, "--label", "accounts.bad", "--weight", "amount")
    assert done.code == 2
    assert "--tables finds keys and columns itself: leave out --weight, and edit party.toml" in done.err


def test_name_does_not_go_with_patterns(isthmus: Isthmus, tmp_path: Path) -> None:
    done = isthmus("party", "new", "x", "--tables", tmp_path / "*", "--label", "accounts.bad", "--name", "y")
    assert "leave out --name" in done.err


def test_advice_and_description_are_of_rows_with_labels(tmp_path: Path, isthmus: Isthmus) -> None:
    for seed, name in enumerate(("north", "south")):
        bank_draft(name, accounts=30, seed=seed).write(tmp_path / name)
    advice = isthmus("advise", str(tmp_path)).out
    assert advice.startswith("2 parties with 60 rows with labels of several tables, 60 labelled, labels differ by")
    assert re.search(
        "--method local,(.*,)?fedavg --encoder hetero-sage", advice
    )  # other tests have methods of their own
    assert "fedgc" not in advice
    described = isthmus("describe", "--data", f"{tmp_path}/").out
    assert "have no label" not in described
    assert "Nodes are rows of tables (60 accounts; 32 customers; 80 transfers); labels are of accounts." in described
