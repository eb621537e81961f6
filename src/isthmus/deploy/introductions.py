"""What parties introduce themselves with in the set-up, checked field by field; an error names the party."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.data.folder.columns import Column
from isthmus.data.folder.relations import DatabaseSettings, TableSettings
from isthmus.errors import IsthmusError
from isthmus.federation.bounds import Introduced

KINDS = ("classification", "multilabel", "regression")
"""Kinds of labels; if parties differ, the last of their kinds in this order holds for all."""
LONGEST = 1 << 20
"""Characters of the settings that a party introduces, at most."""
MOST_ITEMS = 1 << 40
"""Items that a party introduces, at most."""


@dataclass(frozen=True)
class Introduction:
    """How a party introduced itself.

    Arguments:
        settings: those that must be equal in every `party.toml`.
        kind: the kind of its labels.
        size: how much it holds.
        matched: points in its list of values to match; 0 if the study matches none.
    """

    settings: Mapping[str, Any]
    kind: str
    size: Introduced
    matched: int = 0


def read_introduction(party: str, answer: Mapping[str, Any]) -> Introduction:
    """Check one party's answer to `introduce`, and return it."""
    where = f"party '{party}' introduced itself with"
    expected = {"agreed": str, "kind": str, "items": int, "labels": int, "nodes": int, "rows": int}
    answer = {"matched": 0, **answer}
    for name, kind in {**expected, "matched": int}.items():
        if type(answer.get(name)) is not kind:
            raise IsthmusError(f"{where} no {name}: use one version of isthmus at server and parties")
    kind, items, labels, nodes, rows = (answer[name] for name in ("kind", "items", "labels", "nodes", "rows"))
    if kind not in KINDS:
        raise IsthmusError(f"{where} labels of an unknown kind {kind[:40]!r}: it must be one of {', '.join(KINDS)}")
    settings = _settings(answer["agreed"], where)
    most = items * max(1, len(settings["tasks"] or ()) or int(settings["classes"] or 0))
    same = nodes == items if items_level(settings) == "node" else nodes >= 0
    few = max(items, nodes, rows) <= MOST_ITEMS and min(items, rows) >= 0
    same &= not rows or "edges" in (table.as_ for table in _tables(settings))
    if not (few and 0 <= labels <= most and same):
        raise IsthmusError(
            f"{where} {items} items, {labels} labels, {nodes} nodes and {rows} rows of edges, which is impossible"
        )
    return Introduction(settings, kind, Introduced(items, labels, nodes, rows=rows), answer["matched"])


def _settings(text: str, where: str) -> dict[str, Any]:
    """Read the settings that must be equal at all parties."""
    try:
        settings = json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise IsthmusError(f"{where} settings that are no table of at most {LONGEST} characters")
    forms: dict[str, Any] = {
        "level": lambda value: value in ("node", "graph"),
        "labels": lambda value: value is None or _are_texts(value),
        "tasks": lambda value: value is None or _are_texts(value),
        "classes": lambda value: value is None or (type(value) is int and 0 < value <= MOST_ITEMS),
        "ids": lambda value: isinstance(value, str),
        "hashed": lambda value: isinstance(value, bool),
        "smiles.features": lambda value: value is None or isinstance(value, str | list | dict),
        "columns": lambda value: isinstance(value, dict),
        "tables": lambda value: value is None or isinstance(value, dict),
    }
    if differ := sorted(settings.keys() ^ forms.keys()):
        raise IsthmusError(f"{where} other settings than this version knows: '{differ[0][:40]}'")
    for name, is_right in forms.items():
        if not is_right(settings[name]):
            raise IsthmusError(f"{where} a setting '{name}' that is no such setting")
    try:
        read_columns(settings)
        read_database(settings)
    except IsthmusError as error:
        raise IsthmusError(f"{where} {error}") from error
    except Exception as error:  # a table from outside may break a reader in any way
        raise IsthmusError(f"{where} columns that are no columns") from error
    return settings


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def read_columns(settings: Mapping[str, Any]) -> dict[str, Column]:
    """Return the feature columns of agreed settings."""
    return {
        column: Column.named(str(kind)).read(options, f"columns.{column}")
        for column, (kind, options) in settings["columns"].items()
    }


def read_database(settings: Mapping[str, Any]) -> DatabaseSettings | None:
    """Return what several tables are, of agreed settings; None if parties hold one graph or many."""
    return None if settings["tables"] is None else DatabaseSettings.read(settings["tables"], "tables")


def _tables(settings: Mapping[str, Any]) -> list[TableSettings]:
    database = read_database(settings)
    return [] if database is None else list(database.tables.values())


def items_level(settings: Mapping[str, Any]) -> str:
    """Return what agreed settings say that is classified: nodes, graphs or edges."""
    database = read_database(settings)
    return "edge" if database is not None and database.labels_edges else str(settings["level"])


def compare_introductions(found: Mapping[str, Introduction]) -> dict[str, Any]:
    """Return the settings of all parties; an error names those that differ from most."""
    for key in next(iter(found.values())).settings:
        values = {party: json.dumps(each.settings[key]) for party, each in found.items()}
        if differ := _differing(values):
            raise IsthmusError(f"{differ[0]}: '{key}' in party.toml differs from that of {differ[1]}")
    whole = {party: str(each.kind == "classification") for party, each in found.items()}
    if differ := _differing(whole):  # all parties have classes, or none has
        raise IsthmusError(f"{differ[0]}: labels of another kind than those of {differ[1]}: check the label columns")
    return dict(next(iter(found.values())).settings)


def shares_values(settings: Mapping[str, Any]) -> bool:
    """Whether ids, or values of categories, mean something to other parties by agreed settings."""
    return settings["ids"] != "own" or any(column.has_keyed_totals for column in read_columns(settings).values())


def check_lists(found: Mapping[str, Introduction], keyed: int) -> None:
    """Raise an error if a party announces a longer list of values to match than it can have.

    Arguments:
        keyed: columns whose values are matched.
    """
    from isthmus.protect.matching import list_size  # needs an extra

    nodes = sum(each.size.nodes + each.size.items for each in found.values())  # a party may know others' nodes
    for party, each in found.items():
        if not 0 < each.matched <= list_size(nodes + keyed * each.size.counted):
            raise IsthmusError(
                f"party '{party}' announces a list of {each.matched:,} values to match, all parties have introduced "
                f"{nodes:,} items and nodes"
            )


def check_shares(found: Mapping[str, Introduction], largest: float) -> None:
    """Raise an error if one of several parties introduced so many items that it would decide alone."""
    total = sum(each.size.items for each in found.values())
    for party, each in found.items():
        if len(found) > 1 and each.size.items > largest * total:
            raise IsthmusError(
                f"party '{party}' introduced {each.size.items} of all {total} items, more than a share of {largest:g}, "
                "so it would decide alone: leave it out, or raise federation.largest_share"
            )


def compare_widths(found: Mapping[str, Any]) -> int:
    """Return the number of features that all parties encode; an error names those that differ from most."""
    for party, width in found.items():
        if type(width) is not int or not 0 < width <= MOST_ITEMS:
            raise IsthmusError(f"party '{party}' encoded a number of features that is none: {str(width)[:40]}")
    if differ := _differing({party: str(width) for party, width in found.items()}):
        widths = sorted(set(found.values()))
        raise IsthmusError(
            f"{differ[0]}: encodes another number of features than {differ[1]} ({widths[0]} and {widths[-1]}): "
            "give all the same columns"
        )
    return int(next(iter(found.values())))


def _differing(values: Mapping[str, str]) -> tuple[str, str] | None:
    """The parties with another value than most, and one of the others; without a commonest value, the first two.

    >>> _differing({"a": "1", "b": "1", "c": "2"}), _differing({"a": "1", "b": "1"})
    (("party 'c'", "'a'"), None)
    """
    counted = Counter(values.values()).most_common()
    if len(counted) < 2:
        return None
    usual = counted[0][0]
    first = next(party for party, value in values.items() if value == usual)
    others = [party for party, value in values.items() if value != usual]
    names = ", ".join(f"'{party}'" for party in others[:3])
    return f"{'party' if len(others) == 1 else 'parties'} {names}", f"'{first}'"
