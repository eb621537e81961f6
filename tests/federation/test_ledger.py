"""The ledger tells what left whom, and survives a checkpoint."""

from __future__ import annotations

from dataclasses import asdict

from isthmus.federation.ledger import COLUMNS, Entry, Ledger, Turnout
from isthmus.store import pack, unpack


def filled() -> Ledger:
    ledger = Ledger()
    ledger.add(Entry(1, 0, "total", "train", "server sees the sum", "w[2]", "none", ("a", "b"), (80, 0), (72, 72),
                    {"b": "action 'train', it rained"}))  # fmt: skip
    ledger.add(
        Entry(2, 1, "exchange", "send", "the addressed party", "ids[3]", "none", ("b",), (24,), (16,), {}, {"b": 3})
    )
    return ledger


def test_every_call_has_a_row_per_party() -> None:
    rows = list(filled().rows())
    assert [(row["round"], row["call"], row["party"], row["sent"], row["received"]) for row in rows] == [
        (1, 0, "a", 80, 72),
        (1, 0, "b", 0, 72),
        (2, 1, "b", 24, 16),
    ]
    assert all(tuple(row) == COLUMNS for row in rows)
    assert [row["rows"] for row in rows] == [0, 0, 3]


def test_a_row_says_who_failed_and_why() -> None:
    assert [(row["status"], row["note"]) for row in filled().rows()] == [
        ("answered", ""),
        ("failed", "action 'train', it rained"),
        ("answered", ""),
    ]


def test_columns_are_those_of_the_rows() -> None:
    ledger = filled()
    parts = list(ledger.columns())
    assert [list(part) for part in parts] == [list(COLUMNS)] * 2
    assert {name: [value for part in parts for value in part[name]] for name in COLUMNS} == {
        "round": [1, 1, 2],
        "call": [0, 0, 1],
        "verb": ["total", "total", "exchange"],
        "action": ["train", "train", "send"],
        "party": ["a", "b", "b"],
        "eyes": ["server sees the sum", "server sees the sum", "the addressed party"],
        "fields": ["w[2]", "w[2]", "ids[3]"],
        "rows": [0, 0, 3],
        "sent": [80, 0, 24],
        "received": [72, 72, 16],
        "protection": ["none"] * 3,
        "status": ["answered", "failed", "answered"],
        "note": ["", "action 'train', it rained", ""],
    }


def test_totals_are_the_sums_of_the_rows() -> None:
    ledger = filled()
    assert (ledger.sent, ledger.received) == (104, 160)
    assert ledger.sent == sum(row["sent"] for row in ledger.rows())
    assert ledger.received == sum(row["received"] for row in ledger.rows())


def test_a_ledger_comes_back_from_a_checkpoint_as_it_was() -> None:
    ledger, restored = filled(), Ledger()
    assert ledger.dump() == [asdict(entry) for entry in ledger.entries]
    restored.add(ledger.entries[0])
    restored.restore(unpack(pack({"ledger": ledger.dump()}))["ledger"])
    assert restored.entries == ledger.entries
    assert list(restored.rows()) == list(ledger.rows())


def test_rows_by_id_are_counted_where_they_go() -> None:
    from isthmus import run

    rows = list(run("fedgcn", rounds=1).runs[0].ledger.rows())
    counts = {
        action: {row["party"]: row["rows"] for row in rows if row["action"] == action}
        for action in ("known", "sum_up", "sum_up: delivery", "train")
    }
    assert counts["known"] == counts["sum_up"]
    assert min(counts["known"].values()) > 0
    assert min(counts["sum_up: delivery"].values()) > 0
    assert set(counts["train"].values()) == {0}


def test_the_turnout_says_by_spans_of_rounds_who_counted_and_who_did_not() -> None:
    ledger = Ledger()

    def book(at: int, action: str, **notes: str) -> None:
        told = ("server sees the sum", "w", "none", ("a", "b"), (0, 0), (0, 0), notes)
        ledger.add(Entry(at, len(ledger.entries), "total", action, *told))  # type: ignore[arg-type]

    for at in (1, 2):
        book(at, "train")
    book(3, "train", b="it rained")
    book(3, "evaluate", b="it still rained")
    book(4, "train")
    book(4, "evaluate", b="it snowed")
    book(4, "evaluate: delivery")
    book(5, "train")
    assert ledger.turnout() == [
        Turnout(1, 2, ("a", "b"), {}),
        Turnout(3, 4, ("a",), {"b": "it rained"}),
        Turnout(5, 5, ("a", "b"), {}),
    ]
    assert Ledger().turnout() == []
