"""Words and numbers of the report and the terminal: names of metrics, formats, lists, what parties hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from statistics import fmean, stdev
from typing import Any

from isthmus.data.description import CutDescription, PartyDescription
from isthmus.result_files import Tried
from isthmus.tasks.metrics import metric_of

POOLED = "all data pooled"
ALONE = "every party alone"
REFERENCES = {"pooled": POOLED, "alone": ALONE, "constant": "one answer for all"}
"""By role what the report calls a method that only sets the scale."""

MAX_PARTIES = 50
"""Parties in one table; of more parties it has no single ones, or the first."""
MAX_LABEL_COLUMNS = 8
"""Classes or tasks in a table; more of them share one column."""

SUBSET = "These are not results of all parties in all rounds."
"""Stands above results in which a party is missing, or rounds are."""


_NOUNS = {
    "weights": "model weights",
    "weight of": "how much each counts",
    "ids": "ids",
    "wants": "ids of what it asks for",
    "items": "numbers of training items",
    "nodes": "numbers of nodes",
    "classes": "numbers of classes",
    "features": "numbers of features",
    "output": "embeddings",
    "agreed": "settings of its files",
    "kind": "kind of labels",
    "matched": "the size of its list of ids to match",
    "points": "a list of blinded ids",
    "origin": "whose list it is",
    "step": "the number of the step",
}
"""What fields are, by the first part of their name, up to a slash or a dot. Result folders record a method's own."""
_EVALUATED = {
    "confusion": "counts of right and wrong answers",
    "scores": "counts of scores",
    "loss": "losses",
    "entries": "numbers of labels",
    "labels": "sums of labels",
    "squares": "sums of squared labels",
    "squared": "squared errors",
    "absolute": "absolute errors",
    "areas": "areas under curves",
    "parties": "counts of parties with test items",
    "probed": "counts of probed items",
    "hit": "counts of items that a probe had right",
}
"""What the fields are that evaluation sends, of each split."""


def nouns(fields: Iterable[str], action: str = "", own: Mapping[str, str] | None = None) -> list[str]:
    """What fields of an action are, in plain words; an unknown one by its name in quotes.

    Arguments:
        own: the method's nouns, by `field` or `action/field`.

    >>> nouns(["weights/conv.bias", "weights/conv.weight", "val/loss", "gini", "weight of/all"])
    ['model weights', 'losses', "'gini'", 'how much each counts']
    """
    found = dict.fromkeys(_noun(field, action.partition(":")[0], own or {}) for field in fields)
    last = found.pop(_NOUNS["weight of"], "") is None
    return [*found, *([_NOUNS["weight of"]] * last)]


def _noun(field: str, action: str, own: Mapping[str, str]) -> str:
    first, _, rest = field.partition("/")
    if first in ("val", "test"):
        return _EVALUATED.get(rest, f"'{field}'")
    if first.isdecimal():  # totals of a party folder's columns have the columns' numbers as names
        return "totals of columns"
    known = {**_NOUNS, **own}
    keys = (f"{action}/{first}", first, first.partition(".")[0])
    return next((known[key] for key in keys if key in known), f"'{first}'")


def finite(value: float | None) -> float | None:
    """The value, or `None` if it is no finite number."""
    return value if value is not None and math.isfinite(value) else None


def split(metric: str) -> str:
    """The split of a metric's name, such as `test`."""
    return metric.partition("_")[0]


def without_split(metric: str) -> str:
    kind, _, rest = metric.partition("_")
    return rest if kind in ("train", "val", "test") and rest else metric


def metric_name(metric: str) -> str:
    known = metric_of(metric)
    before = metric.removesuffix(known.name).replace("_", " ")
    return re.sub(r"\bval\b", "validation", before + known.title)


def metric_title(metric: str) -> str:
    name = metric_name(metric)
    return name[:1].upper() + name[1:]


def percent(metric: str) -> bool:
    return metric_of(metric).percent


def unit(metric: str) -> str:
    return " (%)" if percent(metric) else ""


def formatter(metric: str) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.4g} %") if percent(metric) else (lambda value: f"{value:.4g}")


def format_number(value: float | None, metric: str) -> str:
    known = finite(value)
    if known is None:
        return "–"
    if percent(metric):
        return f"{100 * known:.1f}"
    return f"{known:.3f}" if 0.001 <= abs(known) < 1000 or known == 0 else f"{known:.3g}"


def mean_and_std(mean: float | None, std: float | None, metric: str) -> str:
    """A mean and its standard deviation, if there is one, with equally many digits after the point.

    >>> mean_and_std(0.003, 0.000692, "test_loss"), mean_and_std(0.5, None, "test_accuracy")
    ('0.003 ± 0.001', '50.0')
    """
    known, deviation = finite(mean), finite(std)
    text = format_number(known, metric)
    if known is None or deviation is None:
        return text
    if "e" in text:
        return f"{text} ± {format_number(deviation, metric)}"
    scaled, digits = 100 * deviation if percent(metric) else deviation, len(text.partition(".")[2])
    return f"{text} ± {scaled:.{digits}f}"


def mean_and_std_of(values: Sequence[float | None], metric: str) -> str:
    """The mean of the values that are known, and their standard deviation if there are several."""
    known = [value for each in values if (value := finite(each)) is not None]
    return mean_and_std(fmean(known) if known else None, stdev(known) if len(known) > 1 else None, metric)


def validation(metric: str, tried: Tried) -> str:
    """How a setting did on validation data.

    >>> done, pruned = Tried("a", {}, 0.5, 0.01, 3), Tried("a", {}, None, pruned=True)
    >>> validation("val_accuracy", done), validation("val_accuracy", pruned)
    ('50.0 ± 1.0', 'pruned')
    """
    if tried.mean is None:
        return "pruned" if tried.pruned else "diverged" if tried.diverged else "–"
    return mean_and_std(tried.mean, tried.std if tried.seeds > 1 else None, metric)


def setting(values: Mapping[str, Any]) -> str:
    """The options of a setting that vary; numbers that were drawn are rounded.

    >>> setting({"local.lr": 0.012345, "privacy.unit": None}), setting({})
    ('local.lr = 0.0123, privacy.unit = none', 'as in the study')
    """
    return ", ".join(f"{name} = {option(value)}" for name, value in values.items()) or "as in the study"


def option(value: Any) -> str:
    """The value of an option; numbers with three digits."""
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def format_bytes(count: float) -> str:
    """Bytes in decimal units, with three significant digits."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"


def format_time(seconds: float) -> str:
    """A duration for people.

    >>> format_time(45), format_time(600), format_time(9000)
    ('45 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def number_range(numbers: Iterable[int], between: str = ", ") -> str:
    """Numbers by their range.

    >>> number_range([3]), number_range([1, 3]), number_range([1, 3], " or "), number_range([1, 2, 3])
    ('3', '1, 3', '1 or 3', '1 to 3')
    """
    known = sorted(set(numbers))
    if not known:
        return "–"
    if len(known) > 2:
        return f"{known[0]} to {known[-1]}"
    return between.join(map(str, known))


def join_words(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def natural_key(text: str) -> list[tuple[int, str]]:
    """Sort key that puts party-2 before party-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def data_name(data: Any) -> str:
    """The name of the data; party folders have the name of the folder that they are in.

    >>> data_name({"name": "cora"}), data_name({"name": "folder", "path": "/data/fraud"}), data_name({"name": "folder"})
    ('cora', 'fraud', 'party folders')
    """
    if isinstance(data, Mapping) and data.get("name") == "folder":
        return PurePath(str(data.get("path") or "")).name or "party folders"
    return describe(data, brief=True)


def describe(part: Any, brief: bool = False) -> str:
    """A part of the study in words: its name, then its options.

    >>> describe({"encoder": "gcn", "hidden": 64})
    'gcn (hidden 64)'
    """
    if not isinstance(part, Mapping):
        return "not recorded" if part is None else str(part)
    options = {key: value for key, value in part.items() if value is not None}
    named = next((key for key in ("name", "encoder", "given") if options.get(key)), "")
    name = str(options.pop(named, "unnamed"))
    texts = [f"{key.replace('_', ' ')} {describe(value)}" for key, value in options.items()]
    return name if brief or not texts else f"{name} ({', '.join(texts)})"


def describe_audit(audit: Mapping[str, Any]) -> str:
    """What an audit was, below its findings: its name and its options, without tables of options.

    >>> describe_audit({"name": "membership", "colluders": 1, "model": {"hidden": 8}})
    'the audit: membership (colluders 1)'
    """
    return f"the audit: {describe({name: value for name, value in audit.items() if not isinstance(value, dict)})}"


def describe_cut(cuts: Sequence[CutDescription]) -> str:
    """What the parties hold and how much they differ: counts of the first cut, means over the cuts of all seeds."""
    cut = cuts[0]
    held = sum(party.items for party in cut.parties)
    edges = f"{cut.edges + cut.cross:,} edges"
    nodes = f"{cut.nodes:,} nodes"
    joined = "with" if cut.level == "graph" else "of"
    what = nodes if cut.level == "node" else f"{held:,} {_items(cut)} {joined} {nodes}"
    one = len(cut.parties) == 1
    sentences = [f"{'1 party holds' if one else f'{len(cut.parties):,} parties hold'} {what} and {edges}"]
    if cut.level != "graph" and not one:
        share = _mean_text([100 * each.crossing for each in cuts], 1)
        sentences[0] += f"; {share} % of the edges cross between parties" if cut.cross else "; none is known to cross"
    if cut.level == "node" and held > cut.nodes:
        sentences.append(f"Several parties hold the same nodes: counted at each holder, there are {held:,}")
    if cut.structural:
        sentences.append(f"{cut.structural:,} of the {cut.features:,} features of a node follow from the edges")
    unlabelled = sum(party.unlabelled for party in cut.parties)
    if unlabelled:
        sentences.append(f"{unlabelled:,} of the {held:,} {_items(cut)} have no label")
    emd = [each.emd for each in cuts if each.emd is not None]
    if emd and not one:
        over = "" if cut.kind == "class" else ", mean over the tasks,"
        sentences.append(
            f"The earth mover's distance of the parties' labels from the mix of all{over} is {_mean_text(emd, 2)} "
            "(0: all have the same mix; at most 2)"
        )
    return ". ".join(sentences) + "."


def _items(cut: CutDescription) -> str:
    """What the items are called, where edges that models only read are called edges."""
    return "edges to classify" if cut.level == "edge" else f"{cut.level}s"


def count_columns(cut: CutDescription) -> dict[str, list[int]]:
    """By column each party's count. Columns of zeros are left out if that is the usual case."""
    heads = {} if cut.level == "node" else {"items": _items(cut)}
    heads |= {"nodes": "nodes", "edges": "edges", "cross": "cross", "shared": "shared"}
    heads |= {"train": "train", "val": "val", "test": "test", "unlabelled": "unlabelled"}
    counts = {head: [getattr(party, name) for party in cut.parties] for name, head in heads.items()}
    return {
        head: column for head, column in counts.items() if any(column) or head not in ("cross", "shared", "unlabelled")
    }


def label_columns(cut: CutDescription) -> tuple[list[str], list[list[str]]]:
    """Heads and, for each party, the cells about its labels; many classes or tasks share one column."""
    width = max(len(party.labels or party.labelled) for party in cut.parties)
    if not width:
        return [], [[] for _ in cut.parties]
    if width > MAX_LABEL_COLUMNS:
        return ["labels"], [[_labels_text(cut, party)] for party in cut.parties]
    return [cut.label(at) for at in range(width)], [
        [_label_text(cut, party, at) for at in range(width)] for party in cut.parties
    ]


def _label_text(cut: CutDescription, party: PartyDescription, at: int) -> str:
    if cut.kind == "class":
        return f"{party.labels[at]:,}"
    if cut.kind == "yes-no":
        return f"{party.labels[at]:,}/{party.labelled[at]:,}"
    mean = party.means[at]
    return "–" if mean is None else f"{mean:.4g}"


def _labels_text(cut: CutDescription, party: PartyDescription) -> str:
    if cut.kind == "yes-no":
        return f"{sum(party.labels):,} of {sum(party.labelled):,} yes"
    if cut.kind == "value":
        return f"{sum(party.labelled):,} values"
    known = {at: count for at, count in enumerate(party.labels) if count}
    most = sorted(known, key=lambda at: -known[at])[:3]
    texts = [f"{cut.label(at)} {100 * known[at] / sum(party.labels):.0f} %" for at in most]
    return ", ".join([*texts, *([f"{len(known) - 3} others"] if len(known) > 3 else [])]) or "none"


def _mean_text(values: Sequence[float], digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(set(values)) == 1 else f"{mean} ± {stdev(values):.{digits}f}"


def absences(run: str, rounds: int, spans: Iterable[tuple[int, int, Mapping[str, str]]]) -> list[str]:
    """For each party that did not count in all rounds of a run a sentence with the first reason.

    Arguments:
        spans: for the rounds from the first to the last the parties that did not count, each with the reason.

    >>> absences("fedavg, seed 0", 10, [(1, 4, {}), (5, 10, {"north": "no answer within 60 s"})])
    ["fedavg, seed 0: party 'north' did not count in 6 of 10 rounds, first in round 5: no answer within 60 s"]
    """
    missed: dict[str, tuple[int, int, str]] = {}
    for first, last, missing in spans:
        for party, why in missing.items():
            count, since, reason = missed.get(party, (0, first, why))
            missed[party] = count + last - first + 1, since, reason
    return [
        f"{run}: party '{party}' did not count in {count:,} of {max(rounds, count):,} rounds, "
        f"first in round {first}: {why}"
        for party, (count, first, why) in missed.items()
    ]


def describe_privacy(privacy: Mapping[str, Any]) -> str:
    """A run's privacy account, in a sentence.

    >>> describe_privacy({"unit": "one edge", "basic": {"epsilon": 2.0, "delta": 0.0}, "advanced": {"epsilon": 2.0}})
    'noise hides one edge with epsilon = 2: a guess of 50 % becomes 88.1 % at most'
    >>> describe_privacy({"unit": "one edge", "basic": {"epsilon": 1e5, "delta": 0.0}, "advanced": {"epsilon": 1e5}})
    'noise hardly hides one edge, with epsilon = 100000: a guess of 50 % becomes nearly 100 % at most'
    """
    basic, advanced = privacy["basic"], privacy["advanced"]
    delta = f", delta = {basic['delta']:.3g}" if basic["delta"] else ""
    chance = format_chance(privacy)
    hides = f"hardly hides {privacy['unit']}," if chance == _CERTAIN else f"hides {privacy['unit']}"
    text = f"noise {hides} with epsilon = {basic['epsilon']:.6g}{delta}"
    if advanced["epsilon"] < basic["epsilon"]:
        text += f" (by advanced composition epsilon = {advanced['epsilon']:.6g}, delta = {advanced['delta']:.3g})"
    text += f": a guess of 50 % becomes {chance} at most"
    return "; ".join([text, *map(describe_privacy, privacy.get("others", ()))])


def format_chance(privacy: Mapping[str, Any]) -> str:
    """The best chance of an attacker who began with a half; nearly certain is not certain.

    >>> format_chance({"basic": {"epsilon": 1.0}, "advanced": {"epsilon": 40.0}})
    '73.1 %'
    >>> format_chance({"basic": {"epsilon": 8.0}, "advanced": {"epsilon": 8.0}})
    '99.97 %'
    """
    epsilon = min(float(privacy["basic"]["epsilon"]), float(privacy["advanced"]["epsilon"]))
    chance = 100 / (1 + math.exp(-epsilon))
    return f"{chance:.1f} %" if chance < 99.95 else f"{chance:.2f} %" if chance < 99.995 else _CERTAIN


_CERTAIN = "nearly 100 %"
"""A chance so high that noise hides next to nothing."""
