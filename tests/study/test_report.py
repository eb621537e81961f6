"""The report tells what the result folder holds, safely, in one file."""

from __future__ import annotations

import json
import math
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.errors import IsthmusError
from isthmus.study import charts
from isthmus.study.report import write_report

SEEDS = (0, 1, 2)
ROUNDS = 12
PARTIES = 4
LEVEL = {"fedavg": 0.80, "fedsage": 0.82, "centralized": 0.84, "local": 0.70}

Build = Callable[..., Path]


def curve(method: str, seed: int, round_: int) -> float:
    return LEVEL.get(method, 0.75) * (1 - math.exp(-round_ / 3)) + 0.004 * seed


def run(method: str, seed: int) -> dict[str, Any]:
    score = curve(method, seed, ROUNDS - 2)
    return {
        "method": method,
        "seed": seed,
        "rounds": ROUNDS,
        "chosen_round": ROUNDS - 2,
        "seconds": 1.25,
        "metrics": {"test_accuracy": score - 0.01, "val_accuracy": score, "test_loss": 0.5},
        "parties": {f"party-{each}": {"test_accuracy": score - 0.01 * each} for each in range(PARTIES)},
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = []
    for method in dict.fromkeys(each["method"] for each in runs):
        of = [each["metrics"] for each in runs if each["method"] == method]
        for metric in of[0]:
            values = [each[metric] for each in of]
            mean = sum(values) / len(values)
            std = (sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)) ** 0.5
            lines.append({"method": method, "metric": metric, "mean": mean, "std": std, "seeds": len(values)})
    return lines


def ledger_rows(method: str, seed: int) -> list[dict[str, Any]]:
    """One set-up exchange, then one sum per round and one answer per party at the end."""
    calls = [(0, "exchange", "introduce", "the addressed party", "ids[120]", 960)]
    calls += [
        (
            round_,
            "total",
            "train",
            "server sees the sum",
            "weights/conv1.bias[64], weights/conv1.weight[64, 32], count",
            8000,
        )
        for round_ in range(1, ROUNDS + 1)
    ]
    calls.append((ROUNDS, "ask", "size", "server sees each answer", "nodes", 8))
    return [
        {
            "method": method,
            "seed": seed,
            "round": round_,
            "call": call,
            "verb": verb,
            "action": action,
            "party": f"party-{party}",
            "eyes": eyes,
            "fields": fields,
            "sent": sent,
            "received": 2 * sent,
            "protection": "none",
            "status": "answered",
            "note": "",
        }
        for call, (round_, verb, action, eyes, fields, sent) in enumerate(calls)
        for party in range(PARTIES)
    ]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes a result folder; `change` may alter what is written."""

    def make(
        name: str = "results",
        methods: tuple[str, ...] = ("fedavg", "fedsage", "centralized", "local"),
        seeds: tuple[int, ...] = SEEDS,
        change: Callable[[dict[str, Any]], None] = lambda parts: None,
    ) -> Path:
        pairs = [(method, seed) for method in methods for seed in seeds]
        runs = [run(method, seed) for method, seed in pairs]
        parts: dict[str, Any] = {
            "toml": '[data]\nname = "cora"\n',
            "results": {
                "isthmus": "0.1.0",
                "created": "2026-01-02T03:04:05Z",
                "versions": {"python": "3.11.9", "torch": "2.13.0"},
                "study": {
                    "data": {"name": "cora"},
                    "partition": {"name": "louvain", "seed": None},
                    "parties": PARTIES,
                    "model": {"encoder": "gcn", "hidden": 64},
                    "seeds": list(seeds),
                    "methods": [{"name": method} for method in methods],
                },
                "runs": runs,
                "summary": summary(runs),
            },
            "history": [
                {"method": method, "seed": seed, "round": round_, "metric": f"{split}_accuracy", "value": value - less}
                for method, seed in pairs
                for round_ in range(1, ROUNDS + 1)
                for value in [curve(method, seed, round_)]
                for split, less in (("val", 0.0), ("test", 0.01))
            ],
            "ledger": [
                row
                for method, seed in pairs
                if method not in ("centralized", "local")
                for row in ledger_rows(method, seed)
            ],
        }
        change(parts)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "study.toml").write_text(parts["toml"], encoding="utf-8")
        (folder / "results.json").write_text(json.dumps(parts["results"]), encoding="utf-8")
        for table in ("history", "ledger"):
            pq.write_table(pa.Table.from_pylist(parts[table]), folder / f"{table}.parquet")
        return folder

    return make


class Page(HTMLParser):
    """Visible text, the cells of every table row, the charts, and whether every tag is closed."""

    empty = frozenset({"meta", "br"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.bytes: list[list[int]] = []
        self.heads: list[dict[str, str | None]] = []
        self.feed(self.source)
        self.close()
        self.charts = [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", self.source, re.S)]
        self.text = " ".join(re.sub(r"<[^>]+>", " ", self.source.partition("</style>")[2]).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.empty:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.bytes.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "th":
            self.heads.append(dict(attrs))
        if tag == "data":
            self.bytes[-1].append(int(dict(attrs)["value"] or ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def row(self, *starts: str) -> list[str]:
        """The first row whose cells begin so."""
        return next(row for row in self.rows if [cell.split(" ")[0] for cell in row[: len(starts)]] == list(starts))

    def chart(self, title: str) -> ET.Element:
        return next(each for each in self.charts if (each.findtext("title") or "").startswith(title))

    def names(self, title: str) -> list[str]:
        """The series that a chart shows."""
        return [group.findtext("title") or "" for group in self.chart(title).findall("g")]


def test_headline_names_the_study_and_its_best_method(build: Build) -> None:
    page = Page(write_report([build()]))
    mean = 100 * sum(run("fedsage", seed)["metrics"]["test_accuracy"] for seed in SEEDS) / len(SEEDS)
    assert "cora across 4 parties" in page.text
    assert f"fedsage reached {mean:.1f} ± 0.4 % test accuracy" in page.text
    assert "centralized (all data pooled)" in page.text
    assert "gcn (hidden 64)" in page.text
    assert "over 3 seeds" in page.text


def test_a_lead_within_the_spread_is_called_so(build: Build) -> None:
    def closer(parts: dict[str, Any]) -> None:
        for line in parts["results"]["summary"]:
            line["std"] = 0.05

    assert "is within one standard deviation" in Page(write_report([build(change=closer)])).text
    assert "within one standard deviation" not in Page(write_report([build("clear")])).text


def test_one_seed_shows_no_spread(build: Build) -> None:
    page = Page(write_report([build(seeds=(0,))]))
    assert "One seed" in page.text
    assert "±" not in page.row("fedavg")[1]


def test_the_smaller_loss_leads(build: Build) -> None:
    def losses(parts: dict[str, Any]) -> None:
        parts["results"]["summary"] = [
            {"method": "fedavg", "metric": "test_loss", "mean": 0.9, "std": 0.01, "seeds": 3},
            {"method": "fedsage", "metric": "test_loss", "mean": 0.4, "std": 0.01, "seeds": 3},
        ]

    assert "fedsage reached 0.400 ± 0.010 test loss" in Page(write_report([build(change=losses)])).text


def test_the_table_holds_the_summary(build: Build) -> None:
    folder = build()
    page = Page(write_report([folder]))
    for line in json.loads((folder / "results.json").read_text())["summary"]:
        scale, digits = (100, 1) if line["metric"].endswith("accuracy") else (1, 3)
        figure = f"{scale * line['mean']:.{digits}f} ± {scale * line['std']:.{digits}f}"
        column = ("test_accuracy", "test_loss", "val_accuracy").index(line["metric"])
        assert page.row(line["method"])[1 + column] == figure
    assert page.row("fedavg")[4:] == ["0 to 2", "10 of 12", "1.2 s"]
    assert "chosen on validation data" in page.text


def test_every_method_has_its_curves_and_bars(build: Build) -> None:
    page = Page(write_report([build()]))
    for title in ("Validation accuracy", "Test accuracy"):
        chart = next(c for c in page.charts if c.findtext("title") == title)
        groups = chart.findall("g")
        assert [group.findtext("title") for group in groups] == list(LEVEL)
        for group in groups:
            line = group.find("polyline")
            assert line is not None
            assert len(line.attrib["points"].split()) == ROUNDS
            assert group.find("polygon") is not None
            assert [text.text for text in group.findall("text")] == [group.findtext("title")]
    assert [name.partition(":")[0] for name in page.names("Per round")] == list(LEVEL)
    assert [name.partition(":")[0] for name in page.names("In all")] == list(LEVEL)


def test_a_method_without_history_is_named(build: Build) -> None:
    def drop(parts: dict[str, Any]) -> None:
        parts["history"] = [row for row in parts["history"] if row["method"] != "local"]

    assert "No value per round was recorded for local." in Page(write_report([build(change=drop)])).text


def test_values_that_are_no_number_do_not_break_a_chart(build: Build) -> None:
    def diverge(parts: dict[str, Any]) -> None:
        for row in parts["history"]:
            if row["method"] == "fedavg" and row["round"] > 5:
                row["value"] = math.nan
        parts["results"]["summary"][0]["mean"] = math.nan

    page = Page(write_report([build(change=diverge)]))
    assert "nan" not in page.source.partition("</style>")[2]
    assert page.row("fedavg")[1].startswith("–")


def test_traffic_equals_the_ledger(build: Build) -> None:
    page = Page(write_report([build()]))
    rows = ledger_rows("fedavg", 0)
    setup = sum(row["sent"] for row in rows if row["round"] == 0)
    total = sum(row["sent"] for row in rows)
    rounds = round((total - setup) / ROUNDS)
    expected = [setup, 2 * setup, rounds, round(2 * (total - setup) / ROUNDS), total, 2 * total]
    assert next(each for each in page.bytes if len(each) == 6) == expected
    assert "centralized All data were pooled" in page.text
    assert "local Nothing left any party" in page.text


def test_who_saw_what(build: Build) -> None:
    page = Page(write_report([build()]))
    row = page.row("train", "total")
    assert row[2] == "server sees the sum"
    assert row[3].startswith("weights (2 fields), count")
    assert "weights/conv1.weight[64, 32]" in row[3]
    assert row[4:7] == ["none", str(ROUNDS), str(PARTIES)]
    assert page.bytes[page.rows.index(row)] == [8000 * ROUNDS * PARTIES, 16000 * ROUNDS * PARTIES]
    assert "The server saw only sums of weights (2 fields) and count, each over 4 parties." in page.text
    assert "The server saw each party's nodes." in page.text.replace("&#x27;", "'")
    assert "Only the addressed party saw ids" in page.text
    assert "not hidden from whoever operates the server" in page.text
    assert f"{len(ledger_rows('fedavg', 0)) * 6:,} answers" in page.text


def test_a_sum_over_one_party_is_not_called_a_sum(build: Build) -> None:
    def few(kept: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], None]:
        def change(parts: dict[str, Any]) -> None:
            for row in parts["ledger"]:
                row["status"] = "answered" if kept(row) else "silent"

        return change

    alone = Page(write_report([build("alone", change=few(lambda row: row["party"] == "party-0"))]))
    assert "a sum over one hides nothing" in alone.text
    assert "saw only sums" not in alone.text
    once = few(lambda row: row["party"] == "party-0" or row["round"] != 3)
    text = Page(write_report([build("once", ("fedavg",), (0,), change=once)])).text
    assert "each over 1 to 4 parties. Sums over one party alone, and so its own: 1." in text


def test_a_protection_is_named_instead_of_a_caveat(build: Build) -> None:
    def protect(parts: dict[str, Any]) -> None:
        for row in parts["ledger"]:
            row["protection"] = "pairwise masks"

    page = Page(write_report([build(change=protect)]))
    assert "Protected by pairwise masks." in page.text
    assert "whoever operates the server" not in page.text


def test_failures_are_listed(build: Build) -> None:
    def fail(parts: dict[str, Any]) -> None:
        parts["ledger"][5] |= {"status": "silent", "note": "no answer in 30 s"}

    page = Page(write_report([build(change=fail)]))
    assert page.row("fedavg", "0", "1") == ["fedavg", "0", "1", "train", "party-1", "silent", "no answer in 30 s"]
    assert "Every party answered" not in page.text


def test_a_method_that_only_the_ledger_knows_is_shown(build: Build) -> None:
    def forget(parts: dict[str, Any]) -> None:
        parts["ledger"] += ledger_rows("unfinished", 0)

    page = Page(write_report([build(change=forget)]))
    assert "unfinished" in page.names("In all")[-1]
    assert page.row("unfinished")[1] == "–"


def test_many_failures_are_counted(build: Build) -> None:
    def fail(parts: dict[str, Any]) -> None:
        for row in parts["ledger"]:
            row["status"] = "failed"

    page = Page(write_report([build(change=fail)]))
    assert sum(row[-2:-1] == ["failed"] for row in page.rows) == 100
    assert "The first 100 are listed" in page.text


def test_party_by_party(build: Build) -> None:
    page = Page(write_report([build()]))
    mean = 100 * sum(run("fedavg", seed)["parties"]["party-3"]["test_accuracy"] for seed in SEEDS) / len(SEEDS)
    assert page.row("party-3")[1] == f"{mean:.1f}"


def test_results_without_parties_or_ledger_still_make_a_page(build: Build) -> None:
    def strip(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            del each["parties"]

    page = Page(write_report([build(methods=("fedavg",), change=strip)]))
    assert "Party by party" not in page.text


def test_everything_needed_to_run_it_again_is_there(build: Build) -> None:
    page = Page(write_report([build()]))
    assert page.row("torch") == ["torch", "2.13.0"]
    assert page.row("seeds") == ["seeds", "0, 1, 2"]
    assert 'name = "cora"' in page.text.replace("&quot;", '"')


def hostile(value: Any) -> Any:
    """The same data with a script in every text, keys included."""
    evil = "<script>alert('&\"')</script>"
    if isinstance(value, str):
        return value if value.startswith(("test_", "val_")) else value + evil
    if isinstance(value, dict):
        kept = {"method", "metric", "name", "runs", "summary", "metrics", "parties", "study", "versions", "value"}
        kept |= {"isthmus", "created", "mean", "std", "seeds", "seed", "rounds", "chosen_round", "seconds", "data"}
        kept |= {"partition", "model", "methods", "encoder", *ledger_rows("", 0)[0]}
        return {key if key in kept else key + evil: hostile(each) for key, each in value.items()}
    return [hostile(each) for each in value] if isinstance(value, list) else value


def test_text_from_the_data_is_never_markup(build: Build) -> None:
    def poison(parts: dict[str, Any]) -> None:
        for key, value in parts.items():
            parts[key] = hostile(value)
        parts["ledger"][0]["status"] = "<script>"
        parts["results"]["summary"].append({"method": "m", "metric": "test_<script>", "mean": 0.1})

    page = Page(write_report([build("<script>", change=poison)]))
    assert "<script" not in page.source
    assert "script" not in page.tags
    assert page.open == []
    assert page.source.count("&lt;script&gt;") > 100


def test_the_page_stands_alone(build: Build) -> None:
    page = Page(write_report([build()]))
    assert not re.search(r"https?://", page.source.replace("http://www.w3.org/2000/svg", ""))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"@import|url\(", page.source)


def test_the_page_can_be_read_aloud(build: Build) -> None:
    page = Page(write_report([build()]))
    assert page.open == []
    assert page.heads
    assert all(head.get("scope") for head in page.heads)
    assert page.charts
    for chart in page.charts:
        assert chart.get("role") == "img"
        assert chart.findtext("title")
        assert chart.findtext("desc")


def test_the_same_results_give_the_same_page(build: Build, tmp_path: Path) -> None:
    folder = build()
    first = write_report([folder]).read_bytes()
    assert write_report([folder], tmp_path / "again" / "page.html").read_bytes() == first


def test_where_the_page_goes(build: Build, tmp_path: Path) -> None:
    folder = build()
    assert write_report([folder]) == folder / "report.html"
    assert write_report([folder], tmp_path / "other.html") == tmp_path / "other.html"


def test_folders_with_different_methods_stand_in_one_table(build: Build) -> None:
    first, second = build("a", ("fedavg",)), build("b", ("fedsage",))
    page = Page(write_report([first, second]))
    assert page.names("Validation accuracy") == ["fedavg", "fedsage"]
    assert "fedsage reached" in page.text
    assert "fedavg reached" not in page.text


def test_a_method_in_two_folders_is_told_apart(build: Build) -> None:
    def elsewhere(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["data"]["name"] = "citeseer"

    first, second = build("a", ("fedavg", "local")), build("b", ("fedavg",), change=elsewhere)
    page = Page(write_report([first, second, first]))
    assert page.names("Validation accuracy") == ["fedavg (a)", "local", "fedavg (b)"]
    assert "cora and citeseer" in page.text
    assert "a fedavg reached" in page.text
    assert "b fedavg reached" in page.text
    assert "<td class=n><b>" not in page.source
    assert "a/study.toml" in page.text
    assert "b/study.toml" in page.text


def test_one_method_of_one_setting_in_two_folders(build: Build) -> None:
    text = Page(write_report([build("a", ("fedavg",), (0,)), build("b", ("fedavg",), (1,))])).text
    assert "fedavg (b) reached" in text
    assert "; fedavg (a) " in text


def remove_results(folder: Path) -> None:
    (folder / "results.json").unlink()


def damage_json(folder: Path) -> None:
    (folder / "results.json").write_text('{"runs": [\n', encoding="utf-8")


def damage_shape(folder: Path) -> None:
    (folder / "results.json").write_text('{"study": {}, "runs": 3, "summary": []}', encoding="utf-8")


def damage_runs(folder: Path) -> None:
    (folder / "results.json").write_text('{"study": {}, "runs": [], "summary": []}', encoding="utf-8")


def damage_text(folder: Path) -> None:
    (folder / "study.toml").write_bytes(b"\xff\xfe\xff")


def damage_parquet(folder: Path) -> None:
    (folder / "history.parquet").write_bytes(b"no parquet\n at all")


def damage_column(folder: Path) -> None:
    pq.write_table(pa.table({"method": ["fedavg"]}), folder / "ledger.parquet")


def damage_type(folder: Path) -> None:
    table = pa.Table.from_pylist([row | {"sent": "many"} for row in ledger_rows("fedavg", 0)])
    pq.write_table(table, folder / "ledger.parquet")


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (remove_results, "results.json"),
        (damage_json, "results.json"),
        (damage_shape, "results.json"),
        (damage_runs, "results.json"),
        (damage_text, "study.toml"),
        (damage_parquet, "history.parquet"),
        (damage_column, "ledger.parquet"),
        (damage_type, "ledger.parquet"),
    ],
)
def test_bad_input_is_one_line(build: Build, damage: Callable[[Path], None], file: str) -> None:
    folder = build()
    damage(folder)
    with pytest.raises(IsthmusError, match=re.escape(file)) as caught:
        write_report([folder])
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert not (folder / "report.html").exists()


def test_no_folder_and_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="at least one"):
        write_report([])
    with pytest.raises(IsthmusError, match=r"study\.toml"):
        write_report([tmp_path / "nowhere"])


def test_a_failed_write_leaves_the_old_page(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build()
    before = write_report([folder]).read_bytes()
    held = sorted(folder.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IsthmusError, match="No space left on device") as caught:
        write_report([folder])
    assert "\n" not in str(caught.value)
    assert (folder / "report.html").read_bytes() == before
    assert sorted(folder.iterdir()) == held


def test_a_place_that_cannot_be_written(build: Build, tmp_path: Path) -> None:
    folder = build()
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(IsthmusError, match="cannot write"):
        write_report([folder], taken)
    with pytest.raises(IsthmusError, match="cannot write"):
        write_report([folder], folder / "study.toml" / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "taken"]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.5, 0.5), (0, 0), (-3, 7), (0.8123, 0.8125), (1, 1e7), (-2e-9, 1e-9)]
)
def test_ticks_enclose_the_values(low: float, high: float) -> None:
    ticks = charts.nice_ticks(low, high)
    assert ticks[0] <= low + 1e-12
    assert ticks[-1] >= high - 1e-12
    assert 2 <= len(ticks) <= 8
    assert len(set(ticks)) == len(ticks)


def test_labels_are_moved_apart_in_order() -> None:
    placed = charts.spread([50, 50, 49, 51, 10], 15, 0, 100)
    assert all(after - before >= 15 - 1e-9 for before, after in pairwise(sorted(placed)))
    assert placed[2] < placed[0] < placed[1] < placed[3]
    assert min(placed) >= 0
    assert max(placed) <= 100


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    values = [float(each) for each in range(5000)]
    drawn = charts.line_chart("t", [charts.Curve("m", 0, range(1, 5001), values, values, values)], str)
    line = ET.fromstring(drawn).find(".//polyline")
    assert line is not None
    assert len(line.attrib["points"].split()) <= 401
    assert "m ends at 4999.0 in round 5000" in drawn
