"""Result folders as a study writes them, for tests of what reads them; and the page that is made of them."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isthmus.report.report import write_report
from isthmus.result_files import AuditRecord

SEEDS = (0, 1, 2)
ROUNDS = 12
PARTIES = 4
LEVEL = {"fedavg": 0.80, "fedsage": 0.82, "centralized": 0.84, "local": 0.70}
ROLE = {"centralized": "pooled", "local": "alone"}

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
            "rows": 0,
            "sent": sent,
            "received": 2 * sent,
            "protection": "none",
            "status": "answered",
            "note": "",
        }
        for call, (round_, verb, action, eyes, fields, sent) in enumerate(calls)
        for party in range(PARTIES)
    ]


def cut(seeds: tuple[int, ...], parties: int = PARTIES, classes: int = 3, **changes: Any) -> dict[str, Any]:
    """An entry of `cuts`: party p has ten labels of class p, and one of each other class, counted round."""
    held = [
        {
            "name": f"party-{at}", "items": 20 + at, "nodes": 20 + at, "edges": 1000 + at, "cross": 7, "shared": 0,
            "train": 4, "val": 5, "test": 6, "unlabelled": 20 + at - (classes + 9),
            "labels": [10 if label == at % classes else 1 for label in range(classes)],
        }
        for at in range(parties)
    ]  # fmt: skip
    whole = {"level": "node", "kind": "class", "nodes": sum(each["nodes"] for each in held), "edges": 4006, "cross": 28}
    return {"seeds": list(seeds), **whole, "emd": 0.75, "crossing": 0.5, "note": "", "parties": held, **changes}


def write_folder(
    root: Path,
    name: str = "results",
    methods: tuple[str, ...] = ("fedavg", "fedsage", "centralized", "local"),
    seeds: tuple[int, ...] = SEEDS,
    change: Callable[[dict[str, Any]], None] = lambda parts: None,
) -> Path:
    """Makes a result folder; `change` may alter what is written."""
    pairs = [(method, seed) for method in methods for seed in seeds]
    runs = [run(method, seed) for method, seed in pairs]
    parts: dict[str, Any] = {
        "toml": '[data]\nname = "cora"\n',
        "results": {
            "isthmus": "0.1.0",
            "created": "2026-01-02T03:04:05Z",
            "format": 1,
            "versions": {"python": "3.11.9", "torch": "2.13.0"},
            "study": {
                "data": {"name": "cora"},
                "partition": {"name": "louvain", "seed": None},
                "parties": PARTIES,
                "model": {"encoder": "gcn", "hidden": 64},
                "seeds": list(seeds),
                "methods": [{"name": method} for method in methods],
            },
            "methods": {method: {"role": ROLE.get(method, "federated"), "nouns": {}} for method in methods},
            "runs": runs,
            "summary": summary(runs),
            "cuts": [cut(seeds)],
        },
        "history": [
            {"method": method, "seed": seed, "round": round_, "metric": f"{split}_accuracy", "value": value - less}
            for method, seed in pairs
            for round_ in range(1, ROUNDS + 1)
            for value in [curve(method, seed, round_)]
            for split, less in (("val", 0.0), ("test", 0.01))
        ],
        "ledger": [
            row for method, seed in pairs if method not in ("centralized", "local") for row in ledger_rows(method, seed)
        ],
    }
    change(parts)
    folder = root / name
    folder.mkdir()
    (folder / "study.toml").write_text(parts["toml"], encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(parts["results"]), encoding="utf-8")
    for table in ("history", "ledger", "places"):
        if table in parts:
            pq.write_table(pa.Table.from_pylist(parts[table]), folder / f"{table}.parquet")
    return folder


def of_another_task(parts: dict[str, Any], metric: str = "roc_auc", more: tuple[str, ...] = ()) -> None:
    """Makes a folder that of a task which another metric judges, with more metrics beside it."""
    study = parts["results"]["study"]
    study["data"] = {"name": "molecules"}
    for each in parts["results"]["runs"]:
        value = each["metrics"].pop("test_accuracy")
        each["metrics"] = {f"test_{metric}": value, f"val_{metric}": each["metrics"].pop("val_accuracy")}
        each["metrics"] |= dict.fromkeys(more, value)
        each["parties"] = {party: {f"test_{metric}": of["test_accuracy"]} for party, of in each["parties"].items()}
    parts["results"]["summary"] = summary(parts["results"]["runs"])
    for row in parts["history"]:
        row["metric"] = row["metric"].replace("accuracy", metric)


def with_pictures(parts: dict[str, Any]) -> None:
    """FedAvg's items after two rounds, for two seeds, and FedSage's after one."""
    spots = [("fedavg", seed, at) for seed in (1, 0) for at in (10, 1)] + [("fedsage", 0, 1)]
    parts["places"] = [
        {"method": method, "seed": seed, "round": at, "x": float(place), "y": float(-place * place), "class": kind}
        for method, seed, at in spots
        for place, kind in enumerate([0, 1, -1, 1])
    ]


def hostile(value: Any) -> Any:
    """The same data with a script in every text, keys included."""
    evil = "<script>alert('&\"')</script>"
    if isinstance(value, str):
        return value if value.startswith(("test_", "val_")) or value in ("node", "class") else value + evil
    if isinstance(value, dict):
        kept = {
            "format",
            "method",
            "metric",
            "name",
            "runs",
            "summary",
            "metrics",
            "parties",
            "study",
            "versions",
            "value",
        }
        kept |= {"isthmus", "created", "mean", "std", "seeds", "seed", "rounds", "chosen_round", "seconds", "data"}
        kept |= {"format", "cuts", *cut((0,)), *cut((0,))["parties"][0]}
        kept |= {"partition", "model", "methods", "encoder", *ledger_rows("", 0)[0]}
        return {key if key in kept else key + evil: hostile(each) for key, each in value.items()}
    return [hostile(each) for each in value] if isinstance(value, list) else value


def spends(epsilon: float) -> dict[str, Any]:
    """A run's privacy account."""
    return {
        "unit": "one edge of <one> graph",
        "releases": [{"epsilon": epsilon, "delta": 0.0, "times": 1200}],
        "basic": {"epsilon": 1200 * epsilon, "delta": 0.0},
        "advanced": {"epsilon": 700 * epsilon, "delta": 1e-5},
    }


def audit_record(folder: Path, **changes: Any) -> AuditRecord:
    what: dict[str, Any] = {
        "study": (folder / "study.toml").read_text(),
        "audit": {"name": "membership", "shadows": 4},
        "method": "fedavg",
        "seed": 3,
        "corner": "24 members",
        "columns": ["none", "<b>noise"],
        "sections": [[("AUC", ["0.612", "0.501"])], [("rate at 1 %", ["0.083", "0.010"])]],
        "notes": ["chance is 0.5"],
        "protections": [{"auc": 0.612}, {"auc": float("inf")}],
    }
    return AuditRecord.model_validate({**what, **changes})


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

    def chart(self, title: str, which: int = 0) -> ET.Element:
        return [each for each in self.charts if (each.findtext("title") or "").startswith(title)][which]

    def names(self, title: str, which: int = 0) -> list[str]:
        """The series that a chart shows."""
        return list(dict.fromkeys(name for name in map(said_over, self.chart(title, which).iter("g")) if name))


def said_over(element: ET.Element) -> str:
    """What shows where a pointer rests on it."""
    return element.findtext("title") or ""


def page_on(*folders: Path) -> Page:
    """The report on these folders together, which lies beside them."""
    return Page(write_report(folders, folders[0].parent / "page.html"))
