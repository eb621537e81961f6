"""A party's ledger: what its chain shows of changes, and what it does after a crash."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from isthmus.deploy import party_ledger
from isthmus.deploy.party_ledger import Index, LedgerFault, PartyLedger, check_head, hash_of, read_ledger
from isthmus.errors import IsthmusError

Lines = list[bytes]


def written(folder: Path, count: int = 5) -> Path:
    ledger = PartyLedger(folder / "ledger.jsonl")
    for at in range(count):
        ledger.append("answer", action=f"train {at}", sent=at)
    return ledger.path


def changed(path: Path, change: Callable[[Lines], Lines]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines, note = read_ledger(path)
    assert [line["action"] for line in lines] == [f"train {at}" for at in range(5)]
    assert [line["number"] for line in lines] == [1, 2, 3, 4, 5]
    assert not note
    assert os.stat(path).st_mode & 0o77 == os.stat(path.with_suffix(".head")).st_mode & 0o77 == 0


FORGED: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "a changed line": (lambda all_: [*all_[:2], all_[2].replace(b'"sent": 2', b'"sent": 0'), *all_[3:]],
                       "line 3 was changed"),
    "garbage": (lambda all_: [*all_[:2], b"[1]\n", *all_[3:]], "line 3 was changed"),
    "deep garbage": (lambda all_: [*all_[:2], b"[" * 100_000 + b"\n", *all_[3:]], "line 3 was changed"),
    "a removed line": (lambda all_: all_[:2] + all_[3:], "line 3 has the number 4: lines were removed, added or moved"),
    "the first line removed": (lambda all_: all_[1:], "line 1 has the number 2"),
    "two lines swapped": (lambda all_: [all_[0], all_[2], all_[1], *all_[3:]], "line 2 has the number 3"),
    "a line twice": (lambda all_: [*all_[:2], all_[1], *all_[2:]], "line 3 has the number 2"),
    "the end cut off": (lambda all_: all_[:3], "its end is cut off: 5 lines were written, 3 are left"),
    "the last line torn": (lambda all_: [*all_[:4], all_[4][:-9]], "its end is cut off: 5 lines were written, 4 are"),
    "all removed": (lambda all_: [], "its end is cut off: 5 lines were written, 0 are left"),
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
def test_a_chain_shows_what_was_done_to_it(forged: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    change, why = FORGED[forged]
    changed(path, change)
    before = path.read_bytes()
    with pytest.raises(LedgerFault, match=why):
        read_ledger(path)
    with pytest.raises(LedgerFault, match=why):
        PartyLedger(path).append("answer")
    assert path.read_bytes() == before  # evidence


@pytest.mark.parametrize(
    ("event", "what", "key"),
    [
        ("answer", {"sent": "many"}, "sent"),
        ("answer", {"sent": -1}, "sent"),
        ("answer", {"sent": 10**30}, "sent"),
        ("answer", {"run": ["r"]}, "run"),
        ("answer", {"states": 3}, "states"),
        ("sum", {"parties": {"a": 1}, "states": []}, "parties"),
        ("refusal", {"times": 0.5}, "times"),
        (3, {}, "event"),
    ],
)
def test_lines_of_other_types_are_one_line(event: str, what: dict[str, Any], key: str, tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    PartyLedger(path).append(event, **what)
    for read in (lambda: read_ledger(path), PartyLedger(path, Index().add).load):
        with pytest.raises(LedgerFault, match=f"line 2 is not what isthmus writes: a wrong '{key}': keep both files"):
            read()


def test_a_head_of_a_negative_number_of_lines_is_none(tmp_path: Path) -> None:
    path = written(tmp_path)
    head = json.loads(path.with_suffix(".head").read_text())
    path.with_suffix(".head").write_text(json.dumps({**head, "entries": -1}))
    with pytest.raises(LedgerFault, match="it is not the head of a ledger"):
        read_ledger(path)


def test_a_ledger_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, 3)
    monkeypatch.setattr(party_ledger, "LARGEST", 500)
    with pytest.raises(IsthmusError, match=r"its ledger has more than 500 bytes: move ledger.jsonl and its head"):
        PartyLedger(path).append("answer")
    assert len(read_ledger(path)[0]) == 3


def test_whoever_rewrites_a_line_must_rewrite_the_head_too(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines, _ = read_ledger(path)
    kept = [(line["number"], line["hash"]) for line in lines]
    forged = {**lines[4], "sent": 0}
    forged["hash"] = hash_of(forged)
    changed(path, lambda all_: [*all_[:4], json.dumps(forged).encode() + b"\n"])
    with pytest.raises(LedgerFault, match=r"line 5 (is not the one that|has another hash)"):
        PartyLedger(path).load()
    with pytest.raises(LedgerFault, match="line 5 has another hash than the head: the ledger was rewritten"):
        read_ledger(path)
    head = json.loads(path.with_suffix(".head").read_text())
    path.with_suffix(".head").write_text(json.dumps({**head, "hash": forged["hash"]}))
    found, _ = read_ledger(path)  # nothing on this machine shows it any more
    check_head(found, *kept[3], path)
    with pytest.raises(LedgerFault, match="line 5 has another hash than the head"):
        check_head(found, *kept[4], path)  # a head that somebody else holds does
    with pytest.raises(LedgerFault, match="it has 5 lines, and the head is of 9"):
        check_head(found, 9, "", path)


def test_a_ledger_without_its_head_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.with_suffix(".head").unlink()
    for use in (PartyLedger(path).load, lambda: read_ledger(path)):
        with pytest.raises(LedgerFault, match="the head of the ledger is missing"):
            use()
    path.with_suffix(".head").write_text("{}")
    with pytest.raises(LedgerFault, match="it is not the head of a ledger"):
        PartyLedger(path).load()


def test_a_line_that_a_crash_has_torn_is_repaired_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"number": 6, "time": "2026')
    lines, note = read_ledger(path)
    assert len(lines) == 5
    assert "the last line is torn" in note
    ledger = PartyLedger(path)
    ledger.append("answer", action="next")
    lines, note = read_ledger(path)
    assert [line["event"] for line in lines[5:]] == ["repair", "answer"]
    assert lines[5]["bytes"] == 27
    assert not note
    assert "its last line is torn" in caplog.text


def test_a_line_whose_head_a_crash_has_kept_back_counts(tmp_path: Path) -> None:
    path = written(tmp_path)
    head = path.with_suffix(".head").read_bytes()
    PartyLedger(path).append("answer", action="last")
    path.with_suffix(".head").write_bytes(head)  # as if the machine had stopped between the two
    assert len(read_ledger(path)[0]) == 6
    PartyLedger(path).append("answer")
    assert len(read_ledger(path)[0]) == 7


def test_a_ledger_that_shrinks_under_a_running_party_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path)
    ledger = PartyLedger(path)
    ledger.load()
    changed(path, lambda all_: all_[:-1])
    with pytest.raises(LedgerFault, match="its end is cut off: it had 5 lines"):
        ledger.append("answer")


def test_a_check_says_no_before_anything_is_written(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(IsthmusError, match="not this one"):
        PartyLedger(path).append("sum", check=lambda: "not this one")
    assert len(read_ledger(path)[0]) == 5


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    with pytest.raises(IsthmusError, match=re.escape(f"cannot write {tmp_path / 'state' / 'ledger.jsonl'}: ")):
        PartyLedger(tmp_path / "state" / "ledger.jsonl").append("answer")


def _append(path: Path, name: str) -> None:
    ledger = PartyLedger(path)
    for _ in range(20):
        ledger.append("answer", action=name)


def test_two_processes_append_to_one_chain(tmp_path: Path) -> None:
    path, context = tmp_path / "ledger.jsonl", get_context("fork")
    processes = [context.Process(target=_append, args=(path, name)) for name in ("one", "two")]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    lines, _ = read_ledger(path)
    assert sorted(line["action"] for line in lines) == ["one"] * 20 + ["two"] * 20
