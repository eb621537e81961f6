"""Published protocols: the options with which papers compare methods, as presets that a study starts from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.errors import IsthmusError, did_you_mean

FOLDER = Path(__file__).with_name("protocols")
"""A TOML file per protocol; comments name the source of each value."""


def known_protocols() -> dict[str, str]:
    """The summary of every protocol by name: the first line of its file."""
    files = sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)
    return {path.stem: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in files}


def protocol_text(name: str) -> str:
    """The file of a protocol, with its comments.

    >>> protocol_text("fed-pubb")
    Traceback (most recent call last):
    isthmus.errors.IsthmusError: unknown protocol 'fed-pubb': did you mean 'fed-pub'?
    """
    known = known_protocols()
    if name.lower() not in known:
        raise IsthmusError(f"unknown protocol '{name}': {did_you_mean(name, known)}")
    return (FOLDER / f"{name.lower()}.toml").read_text(encoding="utf-8")


def read_protocol(name: str) -> dict[str, Any]:
    """The options of a protocol, as tables of a study."""
    return tomllib.loads(protocol_text(name))


def preset_for(study: Mapping[str, Any]) -> dict[str, Any]:
    """What the protocol that a study names sets for it, as tables of a study; nothing where it names none.

    Of a data set, partition or encoder that the study names instead of the protocol's, only the options that both have
    are set, and of methods only those that some method of the study has. Parties that are organisations
    (`DataSet.natural`) stay as they are, unless the study names a partition.

    >>> preset = preset_for({"protocol": "fed-pub", "model": {"encoder": "sage"}, "methods": [{"name": "local"}]})
    >>> preset["model"], preset["training"]["rounds"], "weighting" in preset["training"]
    ({'hidden': 128, 'layers': 2, 'dropout': 0.5}, 100, False)
    """
    from isthmus.methods.base import Method  # slow to import, and the lists of the command line need none of these
    from isthmus.study.option_hints import TABLES

    if not isinstance(name := study.get("protocol"), str):
        return {}
    preset = read_protocol(name)
    if kept := keeps_parties(study):
        del preset["parties"]
        study = {**study, "partition": {**study.get("partition", {}), "name": "given"}}
    for table, (key, kind) in TABLES.items():
        given = study.get(table)
        chosen = given.get(key) if isinstance(given, Mapping) and table in preset else None
        if isinstance(chosen, str) and chosen.lower() != preset[table][key]:
            other = kind.known().get(chosen.lower())
            has = other.option_names() if other else ()
            preset[table] = {option: value for option, value in preset[table].items() if option in has}
    listed = study.get("methods") or [{"name": Method.default_name()}]
    kinds = [Method.known().get(str(each.get("name")).lower()) for each in listed if isinstance(each, Mapping)]
    options = {option for kind in kinds if kind for option in kind.option_names()}
    preset["training"] = {option: value for option, value in preset["training"].items() if option in options}
    if kept:
        preset["partition"]["name"] = "given"
    return preset


def keeps_parties(study: Mapping[str, Any]) -> bool:
    """Whether the data of a study are organisations, which its protocol does not pool and cut anew."""
    from isthmus.data.pool import DataSet, with_path

    tables: list[Mapping[str, Any]] = [
        each if isinstance(each, Mapping) else {} for each in (study.get("data"), study.get("partition"))
    ]
    data, partition = tables
    kind = DataSet.known().get(str(with_path(data).get("name")).lower())
    return kind is not None and kind.natural and partition.get("name") in (None, "given")
