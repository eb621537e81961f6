"""An option does something: another value of it gives other results, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.options import Options, merge
from isthmus.study.loop import RunResult
from isthmus.testing import Subject, small_parties

OF_THE_RUN = {"label", "rounds", "patience", "every", "select", "quorum", "evaluate_by", "select_over"}
"""Options that decide what a run is called, how long it is, which round it reports and what its server may read."""
VALUES: dict[str, list[Any]] = {
    "aggregate": ["median"], "batch_size": [3], "clip": [0.01], "clusters": [2], "fan_out": [[1, 1]],
    "eps1": [0.0], "eps2": [1e9], "largest": [2], "warm_up": [3],
}  # fmt: skip
"""Other values than `others` finds."""
BASES: dict[str, dict[str, Any]] = {
    "adafgl": {"rounds": 4, "personal_rounds": 2},
    "fedgta": {"similar": 0.93},
    "gcfl-plus": {"rounds": 8, "length": 3},
    "o-pfgl": {"steps": 40, "target": {"epochs": 3}, "tuning": {"epochs": 2}},
}
"""Options beside which others have an effect in a short run."""
METHODS = (
    "fedavg", "local", "majority", "centralized", "scaffold", "feddyn", "fedadam", "fedper", "ditto", "fedproto",
    "fedpub", "moon", "fedbn", "fedrep", "fedstar", "gcfl", "gcfl-plus", "fedgta", "fedaux", "fedtad", "adafgl",
    "fgssl", "o-pfgl",
)  # fmt: skip
PARTIES = small_parties("node", parties=3)


@cache
def without_effect_here() -> set[str]:
    """`precision`, on a processor that has no units for products of rounded factors."""
    x, before = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), torch.get_float32_matmul_precision()
    single = x @ x
    torch.set_float32_matmul_precision("medium")
    try:
        return {"precision"} if torch.equal(x @ x, single) else set()
    finally:
        torch.set_float32_matmul_precision(before)


def paths(options: Options, prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Every option with other values than its own."""
    for name in set(options.option_names()) - OF_THE_RUN - without_effect_here():
        value = getattr(options, name)
        if isinstance(value, Options):
            yield from paths(value, f"{prefix}{name}.")
        else:
            known = VALUES.get(name)
            yield prefix + name, known or others(value, type(options).model_fields[name].annotation)


def others(value: Any, kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return [each for each in get_args(kind) if each != value]
    if value is None:  # a rate that the encoder brings
        return [0.02]
    return [not value] if isinstance(value, bool) else [value + 1, 2 * value, value / 2]


def result(method: Method) -> RunResult:
    return Subject(method, PARTIES, Encoder.named(method.encoder)(hidden=4)).run().go()


def same(one: RunResult, other: RunResult) -> bool:
    """Whether two results, and what the parties sent for them, are equal to the bit."""
    sent = one.ledger.sent == other.ledger.sent
    return sent and one.history == other.history and store.pack(one.models) == store.pack(other.models)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_option_has_an_effect_or_is_refused(name: str) -> None:
    kind = Method.named(name)
    base = {"rounds": 2, **kind.soon, **BASES.get(name, {})}
    usual, idle = result(kind.read(base, name)), []
    for path, values in paths(kind.read(base, name)):
        for value in values:
            changes: Any = value
            for key in reversed(path.split(".")):
                changes = {key: changes}
            try:
                if not same(usual, result(kind.read(merge(base, changes), name))):
                    break
            except IsthmusError:
                break
        else:
            idle.append(path)
    assert not idle
