"""The section on who saw what follows from the ledger."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from result_folders import PARTIES, ROUNDS, Build, Page, ledger_rows

from isthmus.report.report import write_report
from isthmus.study.config import Study
from isthmus.study.run import run_study


def test_who_saw_what(build: Build) -> None:
    page = Page(write_report([build()]))
    row = page.row("train", "server")
    assert row[:2] == ["train total", "server sees the sum protection: none"]
    assert row[2].startswith("weights (2 fields), count")
    assert "weights/conv1.weight[64, 32]" in row[2]
    assert row[3:5] == [str(ROUNDS), str(PARTIES)]
    assert page.bytes[page.rows.index(row)] == [8000 * ROUNDS * PARTIES, 16000 * ROUNDS * PARTIES]
    text = page.text.replace("&#x27;", "'")
    assert (
        f"Each of 4 parties: the server saw only the sum of model weights and 'count' over 4 parties, {ROUNDS} times."
        in text
    )
    assert "Each of 4 parties: the server saw its numbers of nodes, once." in text
    assert (
        "Each of 4 parties: only the addressed party saw its ids, once. The server's side of the method learned" in text
    )
    assert "not hidden from whoever operates the server" in page.text
    assert f"{len(ledger_rows('fedavg', 0)) * 6:,} answers" in page.text


def test_what_methods_share_is_said_once(build: Build) -> None:
    """Equal counts too; other counts follow method by method, and what differs is with its method alone."""

    def differ(parts: dict[str, Any]) -> None:
        for row in parts["ledger"]:
            row["fields"] = "gini" if (row["method"], row["action"]) == ("fedsage", "size") else row["fields"]
            row["sent"] += 4 * (row["method"] == "fedsage") * (row["action"] == "train")

    page = Page(write_report([build(methods=("fedavg", "fedsage", "scaffold"), change=differ)]))
    ledger = page.source.partition("<h2>Who saw what</h2>")[2]
    heads = [re.sub("<.*?>", " ", head).split() for head in re.findall("<th class=method.*?</th>", ledger)]
    assert heads == [["fedavg", "fedsage", "scaffold"], ["fedavg", "scaffold"], ["fedsage"]]
    assert [row[0] for row in page.rows].count("introduce exchange") == 1
    train = page.rows.index(page.row("train", "server"))
    names = [row[0] for row in page.rows[train + 2 : train + 5]]
    assert names == ["fedavg", "fedsage", "scaffold"], "below the sentence"
    sent = [counts[0] for counts in page.bytes[train + 2 : train + 5]]
    assert sent == [each * ROUNDS * PARTIES for each in (8000, 8004, 8000)]
    assert "And, as above: introduce and train." in page.text


def test_a_sum_over_one_party_is_not_called_a_sum(build: Build) -> None:
    def few(kept: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], None]:
        def change(parts: dict[str, Any]) -> None:
            for row in parts["ledger"]:
                row["status"] = "answered" if kept(row) else "silent"

        return change

    alone = Page(write_report([build("alone", change=few(lambda row: row["party"] == "party-0"))]))
    assert "a sum over one hides nothing" in alone.text
    assert "party-0: the server saw its model weights and 'count', as" in alone.text.replace("&#x27;", "'")
    assert "saw only the sum" not in alone.text
    once = few(lambda row: row["party"] == "party-0" or row["round"] != 3)
    text = Page(write_report([build("once", ("fedavg",), (0,), change=once)])).text
    text = text.replace("&#x27;", "'")
    assert (
        "party-0: the server saw only the sum of model weights and 'count' over at least 1 and up to 4 parties" in text
    )
    assert "12 times; party-1, party-2 and party-3: 11 times. Sums over one party alone, and so its own: 1." in text


def test_a_protection_is_named_instead_of_a_caveat(build: Build) -> None:
    def protect(parts: dict[str, Any]) -> None:
        for row in parts["ledger"]:
            row["protection"] = "pairwise masks"

    page = Page(write_report([build(change=protect)]))
    assert "Protected by pairwise masks." in page.text
    assert "whoever operates the server" not in page.text


def test_the_set_up_comes_before_the_methods(build: Build) -> None:
    folder = build()
    rows = [{**row, "method": "set-up", "seed": -1} for row in ledger_rows("set-up", -1) if row["action"] == "size"]
    rows[0] |= {"status": "failed", "note": "refused: no"}
    schema = pq.read_schema(folder / "ledger.parquet")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "set-up.parquet")
    page = Page(write_report([folder]))
    before, after = page.text.split("Before any method: the set-up", 1)
    assert "Who saw what" in before
    told = after.split("fedavg", 1)[0]
    assert "Each of 3 parties: the server saw its numbers of nodes, once." in told, "one gave no answer"
    assert "to agree on the form of their data" in page.text
    assert "refused: no" in page.text


def test_weights_of_a_mean_are_named_in_words(build: Build) -> None:
    def weigh(parts: dict[str, Any]) -> None:
        for row in parts["ledger"]:
            row["fields"] = f"{row['fields']}, weight of/all[]"

    text = Page(write_report([build(change=weigh)])).text
    assert "sum of model weights, 'count' and how much each counts over 4 parties" in text.replace("&#x27;", "'")


def test_failures_are_listed(build: Build) -> None:
    def fail(parts: dict[str, Any]) -> None:
        parts["ledger"][5] |= {"status": "silent", "note": "no answer in 30 s"}

    page = Page(write_report([build(change=fail)]))
    assert page.row("fedavg", "0", "1") == ["fedavg", "0", "1", "train", "party-1", "silent", "no answer in 30 s"]
    assert "Every party answered" not in page.text


def test_many_failures_are_counted(build: Build) -> None:
    def fail(parts: dict[str, Any]) -> None:
        for row in parts["ledger"]:
            row["status"] = "failed"

    page = Page(write_report([build(change=fail)]))
    assert sum(row[-2:-1] == ["failed"] for row in page.rows) == 100
    assert "The first 100 are listed" in page.text


def test_a_sum_by_ids_is_over_those_that_have_them(build: Build) -> None:
    def keyed(parts: dict[str, Any]) -> None:
        for row in parts["ledger"]:
            if row["action"] == "train":
                row["fields"] = "ids[40], weights/conv1.bias[16], weight of[40]"

    text = Page(write_report([build(methods=("fedavg",), change=keyed)])).text.replace("&#x27;", "'")
    assert "the server saw its ids, and for each id only the sum of model weights and how much each counts" in text
    assert "over those of 4 parties that have it" in text
    assert "counts over 4 parties" not in text


def test_a_sum_for_the_parties_shows_the_server_whose_rows_they_are(build: Build) -> None:
    def summed(parts: dict[str, Any]) -> None:
        parts["results"]["methods"]["fedavg"]["nouns"] = {"sum": "features"}
        for row in parts["ledger"]:
            row |= {"eyes": "parties see the sum", "fields": "ids[40], sum[40, 8], wants[12]"}

    text = Page(write_report([build(methods=("fedavg",), change=summed)])).text.replace("&#x27;", "'")
    assert "it added features to sums over 4 parties that only parties see, 12 times." in text
    assert "The server's side of the method saw nothing of it but which ids it has and asks for." in text


def test_a_party_is_named_with_its_calls_and_rows(build: Build) -> None:
    counts = {"party-0": 1204, "party-1": 30, "party-2": 30, "party-3": 7}

    def delivered(parts: dict[str, Any]) -> None:
        parts["results"]["methods"]["fedavg"]["nouns"] = {"sum": "features", "degree": "numbers of neighbours"}
        parts["ledger"] = [
            row | {"action": "sum_up: delivery", "eyes": "parties see the sum", "rows": counts[row["party"]],
                   "fields": "ids[40], sum[40, 8], degree[40]"}
            for row in parts["ledger"] if row["call"] == 0
        ]  # fmt: skip

    text = Page(write_report([build(methods=("fedavg",), change=delivered)])).text
    assert (
        "party-0: it alone saw its sums of features and numbers of neighbours, once, 1,204 summed rows; "
        "party-1 and party-2: once, 30 summed rows; party-3: once, 7 summed rows."
    ) in text

    def unlike(parts: dict[str, Any]) -> None:
        delivered(parts)
        for at, row in enumerate(parts["ledger"]):
            row["rows"] += at % PARTIES

    text = Page(write_report([build("unlike", methods=("fedavg",), change=unlike)])).text
    assert "Each of 4 parties: it alone saw its sums" in text
    assert "once, 10 (party-3) to 1,204 (party-0) summed rows." in text


def test_every_field_of_the_methods_here_has_a_noun(tmp_path: Path) -> None:
    for at, (encoder, methods) in enumerate(
        {"gcn": ["fedgcn", "fedcog-gcn", "scaffold", "gcond"], "sage": ["fedsage-plus"], "sgc": ["fedcog"]}.items()
    ):
        plan = {"data": {"name": "banks", "nodes": 120}, "model": {"encoder": encoder, "hidden": 8}}
        methods = [{"name": name, "rounds": 1} for name in methods]
        run_study(Study.of({**plan, "unlabelled": "idle", "methods": methods}), tmp_path / str(at))
        source = write_report([tmp_path / str(at)]).read_text(encoding="utf-8")
        told = re.findall("<td class=said colspan=7><span>(.*?)</span>", source)
        assert len(told) > 3
        assert not [each for each in told if "&#x27;" in each.replace("server&#x27;s", "").replace("method&#x27;s", "")]
