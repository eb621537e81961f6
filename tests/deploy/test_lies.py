"""What one lying party of four tries in a federation: it is named, or what it does is bounded, and the run goes on.

All lies are told through the code of the coordinator and of the parties; only the liar's answer is another one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save
from tests.deploy.federated_studies import add_columns, in_one_process, study_of
from tests.deploy.liars import AnswerLie, ReplyLie, named, named_by_round, run_with_liar
from tests.federation.by_hand import at_folders

from isthmus.deploy.remote import LARGE_MEAN
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.rules import Rules
from isthmus.study.config import Study

LIAR = "party-2"
PROTECTIONS = ("none", "masks")


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of four parties, whose columns need sums and keyed values to be encoded."""
    folder = tmp_path_factory.mktemp("banks")
    at_folders(study_of("fedavg"), folder, parties=4)
    add_columns(folder)
    for party in folder.iterdir():
        with (party / "party.toml").open("a") as file:
            file.write('\n[limits]\nevaluate_by = ["total", "ask"]\n')
    return folder


def study_at(folder: Path, total: str = "none", name: str = "fedavg", **more: Any) -> Study:
    settings = {"protect": {"total": total}, "training": {"rounds": 2, "quorum": 0.5}, **more}
    study = study_of(name, **settings)
    data = {"data": {"name": "folder", "path": str(folder)}, "partition": {}, "parties": None}
    return Study.of({**study.resolved(), "protect": settings["protect"], **data})


# ---- how a lie is told


def weight(value: Any) -> AnswerLie:
    def lie(reply: Reply) -> None:
        reply.weights[""] = [torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value]

    return lie


def field(path: str, change: Callable[[Any], Any]) -> AnswerLie:
    """Change a field, or all fields of a group."""

    def lie(reply: Reply) -> None:
        for name in [each for each in reply.columns if each == path or each.startswith(f"{path}/")]:
            column = reply.columns[name]
            value = column[0] if isinstance(column, list | torch.Tensor) else column.slice(0)  # type: ignore[union-attr]
            reply.columns[name] = [change(value)]

    return lie


def fields(change: Callable[[dict[str, Any]], None]) -> AnswerLie:
    """Change the mapping of all fields."""

    def lie(reply: Reply) -> None:
        change(reply.columns)

    return lie


def without(path: str) -> AnswerLie:
    return fields(lambda columns: [columns.pop(name) for name in list(columns) if name.startswith(path)])  # type: ignore[arg-type,return-value]


def cell(row: int, column: int, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(confusion: torch.Tensor) -> torch.Tensor:
        confusion = confusion.clone()
        confusion[row, column] = value
        return confusion

    return change


def told(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def scaled(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: value * factor


def double(value: float) -> Callable[[Any], torch.Tensor]:
    return told(torch.tensor(value, dtype=torch.float64))


def settings(change: Callable[[dict[str, Any]], Any]) -> AnswerLie:
    """Change the settings that the party introduces."""

    def lie(reply: Reply) -> None:
        found = json.loads(reply.columns["agreed"][0])  # type: ignore[index]
        replaced = change(found)
        reply.columns["agreed"] = [json.dumps(found if replaced is None else replaced)]

    return lie


# ---- lies about training


TRAINING: dict[str, tuple[AnswerLie, str]] = {
    "weight of 1e15": (weight(1e15), "introduced"),
    "weight of 1e5": (weight(1e5), "introduced"),
    "weight of 1e308": (weight(1e308), "introduced"),
    "negative weight": (weight(-30.0), "negative"),
    "weight that cancels the others'": (weight(-1e6), "negative"),
    "weight not a number": (weight(math.nan), "NaN|nan|not finite"),
    "infinite weight": (weight(math.inf), "inf|not finite"),
    "weight as a text": (weight("many"), "neither a number|differs"),
    "weight as a matrix": (weight(torch.ones(2, 2, dtype=torch.float64)), "neither a number|differs"),
    "weight per row": (weight(torch.ones(3, dtype=torch.float64)), "differs|introduced|per row"),
    "no weight": (lambda reply: reply.weights.clear(), "differs"),
    "values not a number": (field("weights", scaled(math.nan)), "NaN"),
    "infinite values": (field("weights", scaled(math.inf)), "NaN or infinite"),
    "values of 1e38": (field("weights", lambda value: torch.full_like(value, 1e38)), "times as large|too large"),
    "ten thousand times as large": (field("weights", scaled(1e4)), "times as large"),
    "other shape": (field("weights", lambda value: value.reshape(-1)[:1].clone()), "differs"),
    "double precision": (field("weights", lambda value: value.double() * 1e300), "differs"),
    "whole numbers": (field("weights", lambda value: value.long()), "differs"),
    "texts": (field("weights", told("text")), "differs"),
    "no fields": (without("weights"), "differs|not in the answers"),
    "another field": (fields(lambda columns: columns.update(more=[torch.ones(2)])), "differs"),
    "renamed field": (fields(lambda columns: columns.update(other=columns.pop(next(iter(columns))))), "differs"),
    "nested deeper": (fields(lambda columns: columns.update({"a/b/c/d": [torch.ones(2)]})), "differs"),
    "too many fields": (fields(lambda columns: columns.update({f"g/{at}": [0] for at in range(5000)})), "fields"),
}  # fmt: skip


def in_turn(lies: Iterable[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Another lie in every call."""
    turns = iter(lies)
    return lambda reply: next(turns)(reply)


def one_run(folder: Path, lies: Sized, total: str = "none", **more: Any) -> Study:
    """A study with a round for each of these lies."""
    return study_at(folder, total, training={"rounds": len(lies), "quorum": 0.5, **more})


def test_a_lie_about_training_is_named(banks: Path, tmp_path: Path) -> None:
    study = one_run(banks, TRAINING, every=len(TRAINING))
    answers = in_turn(tell for tell, _ in TRAINING.values())
    outcome = run_with_liar(study, banks, tmp_path, LIAR, "train", answer=answers)
    for (lie, (_, why)), found in zip(TRAINING.items(), named_by_round(outcome), strict=True):
        assert set(found) == {LIAR}, lie
        assert matches(why, found[LIAR]), lie


FOUND = ("weight of 1e5", "weight that cancels the others'", "ten thousand times as large")
"""Lies that only the sum shows."""
WITHIN = ("negative weight", "no weight")
"""Lies whose sum is one that honest parties may have: a part of another sign or weight, within the bounds of a mean."""


@pytest.mark.slow
def test_a_lie_that_cannot_be_masked_is_named(banks: Path, tmp_path: Path) -> None:
    """The part cannot be made, or has another form than the others'; or else it is within bounds."""
    lies = {lie: tell for lie, (tell, _) in TRAINING.items() if lie not in FOUND}
    study = one_run(banks, lies, "masks", every=len(lies))
    outcome = run_with_liar(study, banks, tmp_path, LIAR, "train", answer=in_turn(lies.values()))
    for lie, found in zip(lies, named_by_round(outcome), strict=True):
        assert set(found) == (set() if lie in WITHIN else {LIAR}), lie
    size = distance(outcome.runs[0].weights, {name: 0 * each for name, each in outcome.runs[0].weights.items()})
    assert size < max(LARGE_MEAN, Rules().norm / 4) * 10  # the bound of a mean, of a model of norm 9 at most


@pytest.mark.parametrize("lie", FOUND)
@pytest.mark.thinned(3)
def test_a_masked_lie_leaves_out_the_half_of_its_party(lie: str, banks: Path, tmp_path: Path) -> None:
    """No sum of hidden parts can name one party: of four, the two of the wrong half are out, and both are named."""
    outcome = run_with_liar(study_at(banks, "masks"), banks, tmp_path, LIAR, "train", answer=TRAINING[lie][0])
    found = named(outcome)
    assert LIAR in found
    assert len(found) == 2
    assert "left out" in found[LIAR]
    assert outcome.runs[0].rounds == 2


# ---- lies within bounds


def distance(one: Any, other: Any) -> float:
    pairs = zip(dict(wire.flatten(one)).values(), dict(wire.flatten(other)).values(), strict=True)
    return math.hypot(*(float((a - b).double().norm()) for a, b in pairs))


@pytest.mark.parametrize("total", PROTECTIONS)
@pytest.mark.parametrize("factor", [-1.0, 10.0])
@pytest.mark.thinned(3)
def test_a_lie_within_bounds_moves_the_model_by_the_liars_share_at_most(
    factor: float, total: str, banks: Path, tmp_path: Path
) -> None:
    """||mean - honest mean|| = s ||lie - honest|| <= s (|factor| + 1) (1 + norm of an honest answer), s its share."""
    study = study_at(banks, total, training={"rounds": 1, "quorum": 0.5, "weighting": "size"})
    honest = honest_run(study, banks, tmp_path / "honest")
    sizes: list[tuple[float, float]] = []

    def lie(reply: Reply) -> None:
        values = [column[0] for column in reply.columns.values()]  # type: ignore[index]
        sizes.append((math.hypot(*(float(each.double().norm()) for each in values)), float(reply.weights[""][0])))  # type: ignore[index,arg-type]
        field("weights", scaled(factor))(reply)

    outcome = run_with_liar(study, banks, tmp_path / "lying", LIAR, "train", answer=lie)
    assert not named(outcome)
    items = sum(len(parquet.read_table(party / "nodes.parquet")) for party in banks.iterdir())
    (size, own), share = sizes[0], sizes[0][1] / items
    assert own <= items
    moved = distance(outcome.runs[0].weights, honest.runs[0].weights)
    assert 0.5 * share * abs(factor - 1) * size < moved <= 1.01 * share * abs(factor - 1) * size


def honest_run(study: Study, folder: Path, base: Path) -> Any:
    return run_with_liar(study, folder, base, LIAR, "nothing")


@pytest.mark.parametrize("total", PROTECTIONS)
@pytest.mark.thinned(2)
def test_with_clipped_means_a_boosted_update_is_no_larger_than_any(total: str, banks: Path, tmp_path: Path) -> None:
    clipped = {"name": "clipped-mean", "bound": 0.05}
    study = study_at(banks, total, training={"rounds": 1, "quorum": 0.5, "aggregate": clipped})
    assert not named(honest_run(study, banks, tmp_path / "honest"))
    boosted = run_with_liar(study, banks, tmp_path, LIAR, "train", answer=field("weights", scaled(10.0)))
    found = named(boosted)
    assert "its update has the norm" in found[LIAR]
    assert len(found) == (1 if total == "none" else 2)


# ---- aggregations

AGGREGATIONS: dict[str, dict[str, Any]] = {
    "clipped-mean": {"name": "clipped-mean", "bound": 0.05},
    "median": {"name": "median"},
    "trimmed-mean": {"name": "trimmed-mean", "share": 0.25},
    "krum": {"name": "krum", "liars": 0},
}


def study_with(folder: Path, rule: dict[str, Any], total: str = "none") -> Study:
    return study_at(folder, total, training={"rounds": 1, "quorum": 0.5, "aggregate": rule})


@pytest.mark.parametrize("rule", AGGREGATIONS)
@pytest.mark.thinned(3)
def test_an_aggregation_gives_a_federation_the_model_of_one_process(rule: str, banks: Path, tmp_path: Path) -> None:
    study = study_with(banks, AGGREGATIONS[rule])
    found = honest_run(study, banks, tmp_path).runs[0]
    here = in_one_process(study)
    assert distance(found.weights, here.weights) == 0
    assert found.history == here.history


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
@pytest.mark.thinned(3)
def test_an_aggregation_that_compares_holds_against_a_boosted_answer(rule: str, banks: Path, tmp_path: Path) -> None:
    """Within `federation.norm` nobody is named; the model moves a tenth of what it does under a plain mean, at most."""
    moved = {}
    for name, options in (("mean", {"name": "mean"}), (rule, AGGREGATIONS[rule])):
        study = study_with(banks, options)
        honest = honest_run(study, banks, tmp_path / name / "honest").runs[0]
        lying = run_with_liar(
            study, banks, tmp_path / name / "lying", LIAR, "train", answer=field("weights", scaled(-30.0))
        )
        assert not named(lying)
        moved[name] = distance(lying.runs[0].weights, honest.weights)
    assert moved[rule] < moved["mean"] / 10


def test_an_aggregation_that_compares_is_refused_under_masks(banks: Path, tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="aggregate = 'median' compares the answers of single parties"):
        honest_run(study_with(banks, AGGREGATIONS["median"], "masks"), banks, tmp_path)


# ---- lies about evaluation


COUNTS: dict[str, tuple[AnswerLie, str]] = {
    "negative counts": (field("val/confusion", cell(0, 1, -50)), "negative"),
    "accuracy of 2": (field("val/confusion", lambda value: torch.diag(value.sum(1) * 2)), "introduced"),
    "more than it has": (field("test/confusion", cell(0, 0, 10**6)), "introduced"),
    "more than a sum can hold": (field("val/confusion", cell(0, 0, 2**62)), "introduced|too large"),
    "counts in halves": (field("val/confusion", lambda value: value / 2), "not whole|differs"),
    "other classes": (field("val/confusion", told(torch.ones(3, 3, dtype=torch.long))), "not whole|differs"),
    "loss not a number": (field("val/loss", double(math.nan)), "NaN"),
    "infinite loss": (field("test/loss", double(math.inf)), "infinite"),
    "negative loss": (field("val/loss", double(-1.0)), "negative"),
    "loss of 1e308": (field("val/loss", double(1.7e308)), "too large"),
    "loss as a text": (field("val/loss", told("low")), "text|differs"),
    "without test items": (without("test"), "differs|not of val, test"),
    "more splits": (fields(lambda columns: columns.update({"train/loss": [torch.zeros(())]})), "differs"),
}  # fmt: skip


@pytest.mark.parametrize("by", ["total", "ask"])
@pytest.mark.thinned(2)
def test_a_lie_about_counts_is_named_and_changes_no_metric(by: str, banks: Path, tmp_path: Path) -> None:
    answers = in_turn(tell for tell, _ in COUNTS.values())
    outcome = run_with_liar(one_run(banks, COUNTS, evaluate_by=by), banks, tmp_path, LIAR, "evaluate", answer=answers)
    for (lie, (_, why)), found in zip(COUNTS.items(), named_by_round(outcome), strict=True):
        assert set(found) == {LIAR}, lie
        assert by == "ask" or matches(why, found[LIAR]), lie
    assert {at for at, _, _ in outcome.runs[0].history} == set(range(1, len(COUNTS) + 1))
    assert all(0 <= value <= 1 for _, name, value in outcome.runs[0].history if "loss" not in name)


MASKED_COUNTS = ("negative counts", "accuracy of 2", "more than it has", "negative loss")


@pytest.mark.parametrize("lie", MASKED_COUNTS)
@pytest.mark.thinned(3)
def test_a_masked_sum_of_counts_is_checked(lie: str, banks: Path, tmp_path: Path) -> None:
    """A sum of counts that four parties cannot have is repeated over halves; within bounds it shifts as a share may."""
    outcome = run_with_liar(study_at(banks, "masks"), banks, tmp_path, LIAR, "evaluate", answer=COUNTS[lie][0])
    metrics = outcome.runs[0].metrics
    assert all(0 <= value <= 1 for name, value in metrics.items() if "loss" not in name)
    assert all(math.isfinite(value) and value >= 0 for value in metrics.values())
    assert LIAR in named(outcome) or lie in ("accuracy of 2", "negative loss")


# ---- lies in counts of methods

CONDENSING: dict[str, Any] = {
    "name": "fedgc", "hops": 0, "teaching": 1, "passes": 1, "bottleneck": False, "finetune": False, "rounds": 1,
    "every": 1, "target": {"epochs": 2},
}  # fmt: skip
METHOD_COUNTS: dict[str, tuple[str, AnswerLie, str]] = {
    "10^15 nodes": ("size", field("nodes", double(1e15)), "introduced"),
    "negative nodes": ("size", field("nodes", double(-5.0)), "negative"),
    "nodes in fractions": ("size", field("nodes", double(2.5)), "fractions"),
    "nodes as a text": ("size", field("nodes", told("many")), "text|differs"),
    "no nodes": ("size", without("nodes"), "no numbers|differs"),
    "more condensed nodes than it has": ("size", field("items", scaled(1e3)), "introduced"),
    "negative squares of features": ("size", field("square", scaled(-1.0)), "negative"),
    "10^6 nodes of each class": ("count", field("items", lambda value: value + 1e6), "introduced"),
    "negative nodes of a class": ("count", field("items", lambda value: value - 50), "negative"),
    "10^6 right answers": ("validate", field("right", told(torch.tensor(10**6))), "introduced"),
    "a negative number of right answers": ("validate", field("right", told(torch.tensor(-3))), "negative"),
}  # fmt: skip


@pytest.mark.parametrize("lie", METHOD_COUNTS)
@pytest.mark.thinned(15)
def test_a_lie_in_the_counts_of_a_method_is_named(lie: str, banks: Path, tmp_path: Path) -> None:
    """They are of the set-up, which needs everybody: the run ends, and its one line says who lied."""
    action, tell, why = METHOD_COUNTS[lie]
    study = study_at(banks, methods=[CONDENSING])
    with pytest.raises(IsthmusError) as raised:
        run_with_liar(study, banks, tmp_path, LIAR, action, answer=tell)
    assert matches(why, str(raised.value))
    assert LIAR in str(raised.value)
    assert "party-0" not in str(raised.value)


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        ("10^15 nodes", "cannot be found without showing others' parts"),  # contributors were counted over all
        ("10^6 nodes of each class", "cannot be found without showing others' parts"),
        ("10^6 right answers", LIAR),
    ],
)
@pytest.mark.thinned(3)
def test_a_masked_lie_in_the_counts_of_a_method_ends_the_run(lie: str, found: str, banks: Path, tmp_path: Path) -> None:
    action, tell, why = METHOD_COUNTS[lie]
    study = study_at(banks, "masks", methods=[CONDENSING])
    with pytest.raises(IsthmusError) as raised:
        run_with_liar(study, banks, tmp_path, LIAR, action, answer=tell)
    assert found in str(raised.value)
    assert matches(why, str(raised.value))


def test_the_run_goes_on_without_who_lies_in_a_count(banks: Path, tmp_path: Path) -> None:
    lie = field("known", lambda value: value + 1e6)
    outcome = run_with_liar(study_at(banks, methods=[{"name": "majority"}]), banks, tmp_path, LIAR, "count", answer=lie)
    assert set(named(outcome)) == {LIAR}
    assert "items were introduced" in named(outcome)[LIAR]


# ---- lies in messages between parties, and in fields that the server never sent


def letters(change: Callable[[dict[str, Any]], dict[str, Any]]) -> AnswerLie:
    def lie(reply: Reply) -> None:
        reply.letters = [{to: change(dict(letter)) for to, letter in own.items()} for own in reply.letters]

    return lie


def sparse(column: int, width: int = 16) -> AnswerLie:
    def change(letter: dict[str, Any]) -> dict[str, Any]:
        rows = len(letter["ids"])
        ones = torch.ones(rows, dtype=torch.int32)
        return {"ids": letter["ids"], "counts": ones, "columns": ones * column, "values": ones.float(), "width": width}

    return letters(change)


LETTERS: dict[str, AnswerLie] = {
    "a column out of range": sparse(5000),
    "a width of 2^40": sparse(1, 2**40),
    "no ids": letters(lambda letter: {name: each for name, each in letter.items() if name != "ids"}),
    "rows of another shape": letters(lambda letter: {"ids": letter["ids"], "rows": torch.zeros(3, 2)}),
    "rows of 3e38": letters(lambda letter: {"ids": letter["ids"], "rows": torch.full((len(letter["ids"]), 16), 3e38)}),
}


@pytest.mark.parametrize("lie", LETTERS)
def test_who_sends_a_wrong_message_is_named_and_no_addressee_is(lie: str, banks: Path, tmp_path: Path) -> None:
    study = study_at(banks, name="fedcog")
    with pytest.raises(IsthmusError) as raised:
        run_with_liar(study, banks, tmp_path, LIAR, "propagate", answer=LETTERS[lie])
    assert f"Missing: {LIAR} (its message was refused by" in str(raised.value)


def test_a_field_that_was_not_sent_is_bounded_by_all_that_was(banks: Path, tmp_path: Path) -> None:
    study = study_at(banks, methods=[{"name": "scaffold"}])
    outcome = run_with_liar(study, banks, tmp_path, LIAR, "train", answer=field("change", scaled(1e7)))
    assert set(named(outcome)) == {LIAR}


@pytest.mark.parametrize(
    ("method", "action", "name"), [("fedproto", "train", "prototypes"), ("majority", "count", "labels")]
)
def test_where_nothing_was_sent_answers_are_compared_with_the_median(
    method: str, action: str, name: str, banks: Path, tmp_path: Path
) -> None:
    study = study_at(banks, methods=[{"name": method}], training={"rounds": 1, "quorum": 0.5})
    lie = field(name, lambda value: torch.full_like(value, 1e18))
    assert set(named(run_with_liar(study, banks, tmp_path, LIAR, action, answer=lie))) == {LIAR}


def test_a_party_lists_no_more_ids_than_there_are_nodes(banks: Path, tmp_path: Path) -> None:
    study = study_at(banks, "masks", name="fedgcn")
    with pytest.raises(IsthmusError, match=f"{LIAR} .*lists 100000 ids"):
        run_with_liar(study, banks, tmp_path, LIAR, "known", answer=field("ids", told(torch.arange(100_000))))


# ---- lies about replies


def bytes_of(data: bytes) -> ReplyLie:
    return lambda reply: {**reply, "answers": [data]}


def many_fields(count: int) -> bytes:
    return save({f"{at}:tensor:f{at}": torch.zeros(1) for at in range(count)})


def replayed() -> ReplyLie:
    """The first reply again, with the right counter."""
    kept: list[Any] = []

    def lie(reply: Any) -> Any:
        kept.append(reply)
        return {**kept[0], "answered": reply["answered"]}

    return lie


REPLIES: dict[str, tuple[ReplyLie, str]] = {
    "garbage": (bytes_of(b"garbage"), "no payload"),
    "nothing": (bytes_of(b""), "no payload"),
    "a header without end": (bytes_of((2**60).to_bytes(8, "little") + b"{}"), "no payload"),
    "100,000 fields": (lambda reply: bytes_of(many_fields(100_000))(reply), "more than 4096 fields"),
    "half of its answer": (lambda reply: {**reply, "answers": [reply["answers"][0][:-40]]}, "no payload"),
    "fields 50 deep": (bytes_of(save({"0:tensor:" + "/".join("a" * 50): torch.ones(1)})), "deep"),
    "a field twice": (bytes_of(save({f"{at}:tensor:a": torch.ones(1) for at in range(2)})), "two fields"),
    "no kinds": (bytes_of(save({"weights": torch.ones(1)})), "no known kind"),
    "bytes that are none": (lambda reply: {**reply, "answers": [17]}, "malformed"),
    "for another party": (lambda reply: {**reply, "parties": ["party-0"]}, "other parties"),
    "for two parties": (
        lambda reply: {**reply, "parties": ["party-0", LIAR], "answers": reply["answers"] * 2}, "malformed"
    ),
    "another's failure": (
        lambda reply: {**reply, "parties": [], "answers": [], "failures": {"party-0": "it lies"}}, "other parties"
    ),
    "a million failures": (
        lambda reply: {**reply, "failures": {f"p{at}": "x" for at in range(10**6)}}, "other parties|malformed"
    ),
    "two answers": (lambda reply: {**reply, "answers": reply["answers"] * 2}, "malformed|other parties"),
    "letters": (lambda reply: {**reply, "letters": [{"party-0": b"letter"}]}, "another verb|malformed"),
    "a list": (lambda reply: [reply], "malformed"),
    "no parties": (lambda reply: {key: reply[key] for key in ("answers", "answered", "nonce")}, "malformed"),
    "numbers for names": (lambda reply: {**reply, "parties": 3}, "malformed"),
    "another counter": (lambda reply: {**reply, "answered": reply["answered"] + 7}, "it was lost"),
    "a counter as a text": (lambda reply: {**reply, "answered": "2"}, "it was lost"),
    "an old answer": (replayed(), "belongs to another request"),
    "another nonce": (lambda reply: {**reply, "nonce": "0" * 32}, "belongs to another request"),
    "an error that colours terminals": (
        lambda reply: {"wrong": "\x1b[2J" + "x" * 10**6, "begun": True, "answered": 1}, r"xxx"
    ),
}  # fmt: skip
OUT_OF_STEP = (
    "a list", "no parties", "numbers for names", "another counter", "a counter as a text", "an old answer",
    "another nonce", "an error that colours terminals",
)  # fmt: skip
"""Replies after which the server counts the party as absent, or the party has an older reply to repeat."""


@pytest.mark.slow
def test_a_reply_that_is_none_is_named(banks: Path, tmp_path: Path) -> None:
    lies = {lie: each for lie, each in REPLIES.items() if lie not in OUT_OF_STEP}
    replies = in_turn(tell for tell, _ in lies.values())
    outcome = run_with_liar(one_run(banks, lies, every=len(lies)), banks, tmp_path, LIAR, "train", reply=replies)
    for (lie, (_, why)), found in zip(lies.items(), named_by_round(outcome), strict=True):
        assert_named(found, why, lie)


@pytest.mark.parametrize("lie", OUT_OF_STEP)
@pytest.mark.thinned(5)
def test_a_reply_that_belongs_to_nothing_is_named(lie: str, banks: Path, tmp_path: Path) -> None:
    tell, why = REPLIES[lie]
    study = study_at(banks, training={"rounds": 3, "quorum": 0.5})
    outcome = run_with_liar(study, banks, tmp_path, LIAR, "train", reply=tell)
    assert_named(named(outcome), why, lie)
    assert outcome.runs[0].rounds == 3


def assert_named(found: Mapping[str, str], why: str, lie: str) -> None:
    assert set(found) == {LIAR}, lie
    assert matches(why, found[LIAR]), lie
    assert len(found[LIAR]) < 500
    assert found[LIAR].isprintable()


def closed(name: str, value: Any) -> ReplyLie:
    return lambda reply: {**reply, name: value} if name in reply else reply


MASKED_REPLIES: dict[str, ReplyLie] = {
    "a floor of 10^9": closed("floor", 10**9),
    "a floor as a text": closed("floor", "many"),
    "a form that is none": closed("form", "[[["),
    "a form 100,000 deep": closed("form", "[" * 100_000),
    "a form of 10^12 numbers": closed("form", json.dumps([["weights/w", "F32", [10**12]]])),
    "a form that is a number": closed("form", 7),
    "a part too short": closed("closed", b"1234"),
    "no part": lambda reply: {key: value for key, value in reply.items() if key != "closed"},
    "fields as a number": closed("fields", 7),
}


@pytest.mark.parametrize("lie", MASKED_REPLIES)
@pytest.mark.thinned(5)
def test_a_masked_reply_that_is_none_is_named(lie: str, banks: Path, tmp_path: Path) -> None:
    study = study_at(banks, "masks")
    outcome = run_with_liar(study, banks, tmp_path, LIAR, "train", reply=MASKED_REPLIES[lie])
    assert set(named(outcome)) <= {LIAR}
    assert lie == "fields as a number" or LIAR in named(outcome)
    assert outcome.runs[0].rounds == 2


# ---- lies in the set-up


def other(key: str, value: Any) -> AnswerLie:
    return settings(lambda found: found.update({key: value}))


SET_UP: dict[str, tuple[str, AnswerLie, str]] = {
    "settings that are none": ("introduce", field("agreed", told("{")), "settings that are no table"),
    "settings 100,000 deep": ("introduce", field("agreed", told("[" * 100_000)), "settings that are no table"),
    "a list of settings": ("introduce", field("agreed", told("[1, 2]")), "settings that are no table"),
    "endless settings": ("introduce", field("agreed", told("x" * 2**21)), "settings that are no table"),
    "settings as numbers": ("introduce", field("agreed", told(torch.ones(3))), "no agreed"),
    "no settings": ("introduce", without("agreed"), "no agreed"),
    "a setting less": ("introduce", settings(lambda found: found.pop("level") and None), "other settings"),
    "a setting more": ("introduce", other("more", 3), "other settings"),
    "another level": ("introduce", other("level", "graph"), "'level' in party.toml differs"),
    "an unknown level": ("introduce", other("level", "planet"), "'level' that is no such setting"),
    "classes as a text": ("introduce", other("classes", "three"), "'classes' that is no such setting"),
    "10^9 classes": ("introduce", other("classes", 10**9), "'classes' in party.toml differs"),
    "columns that are none": ("introduce", other("columns", {"age": 7}), "columns that are no columns"),
    "columns of an unknown kind": ("introduce", other("columns", {"age": ["magic", {}]}), "unknown kind of column"),
    "other columns": ("introduce", other("columns", {}), "'columns' in party.toml differs"),
    "unknown labels": ("introduce", field("kind", told("poetry")), "unknown kind 'poetry'"),
    "other labels": ("introduce", field("kind", told("regression")), "labels of another kind"),
    "labels as a number": ("introduce", field("kind", told(1)), "no kind"),
    "negative items": ("introduce", field("items", told(-3)), "impossible"),
    "10^15 items": ("introduce", field("items", told(10**15)), "impossible"),
    "most of all items": (
        "introduce",
        fields(lambda columns: columns.update(items=[10**7], nodes=[10**7])),
        "more than a share of 0.9",
    ),
    "items as a text": ("introduce", field("items", told("many")), "no items"),
    "items as a float": ("introduce", field("items", told(3.5)), "no items"),
    "rows of edges without tables": ("introduce", field("rows", told(10**6)), "impossible"),
    "more labels than items": ("introduce", field("labels", told(10**6)), "impossible"),
    "features as a text": ("encode", field("features", told("many")), "number of features that is none"),
    "negative features": ("encode", field("features", told(-1)), "number of features that is none"),
    "10^15 features": ("encode", field("features", told(10**15)), "number of features that is none"),
    "other features": ("encode", field("features", told(7)), "encodes another number of features"),
    "no features": ("encode", without("features"), "number of features that is none"),
    "features as a table": (
        "encode", fields(lambda columns: columns.update({"features/a": columns.pop("features")})), "that is none"
    ),
    "values as fractions": ("values", field("ids", lambda ids: ids.double()), "no list of ids"),
    "values as a matrix": ("values", field("ids", lambda ids: ids.view(1, -1)), "no list of ids"),
    "no values": ("values", without("ids"), "no field 'ids'"),
    "10^6 values": ("values", field("ids", told(torch.arange(10**6))), "lists 1000000 ids"),
    "negative count": ("first", field("1/count", told(torch.tensor(-5))), "counts -5 numbers"),
    "count of 10^9": ("first", field("1/count", told(torch.tensor(10**9))), "counts 1000000000 numbers"),
    "sum of 1e308": ("first", field("1/sum", double(1e308)), "too large|cannot add up"),
    "sum not a number": ("first", field("1/sum", double(math.nan)), "NaN"),
    "no sums": ("first", without("1"), "differs|other columns"),
    "sums of more columns": (
        "first", fields(lambda columns: columns.update({"9/count": [torch.tensor(3)]})), "differs|other columns"
    ),
    "negative squares": ("second", field("1/squares", double(-1.0)), "squares are negative"),
    "squares as a text": ("second", field("1/squares", told("few")), "text|differs"),
}  # fmt: skip
PROTECTED = ("sum of 1e308", "count of 10^9", "no sums", "squares as a text")
"""Lies in sums of the set-up that show in the sum, or do not fit it, under masks as well."""


@pytest.mark.parametrize("lie", SET_UP)
@pytest.mark.thinned(5)
def test_a_lie_in_the_set_up_is_named(lie: str, banks: Path, tmp_path: Path) -> None:
    """The set-up needs everybody, so it ends; its one line says who lied, whoever comes first."""
    action, tell, why = SET_UP[lie]
    for liar in ("party-0", LIAR) if "differs" in why else ("party-0",):
        with pytest.raises(IsthmusError) as raised:
            run_with_liar(study_at(banks), banks, tmp_path / liar, liar, action, answer=tell)
        text = str(raised.value)
        assert matches(why, text)
        assert liar in text
        assert "\n" not in text


@pytest.mark.parametrize("lie", PROTECTED)
def test_a_masked_lie_in_the_set_up_ends_it(lie: str, banks: Path, tmp_path: Path) -> None:
    action, tell, _ = SET_UP[lie]
    with pytest.raises(IsthmusError) as raised:
        run_with_liar(study_at(banks, "masks"), banks, tmp_path, LIAR, action, answer=tell)
    assert LIAR in str(raised.value)


def matches(why: str, text: str) -> bool:
    return any(each in text for each in why.split("|"))


def test_the_page_of_attacks_counts_the_lies() -> None:
    counts = (
        ("about training", f"{len(TRAINING)}"),
        ("about evaluation", f"{len(COUNTS)}"),
        ("in the counts of a method", f"{len(METHOD_COUNTS)}"),
        ("in replies", f"{len(REPLIES)} + {len(MASKED_REPLIES)}"),
        ("in the set-up", f"{len(SET_UP)}"),
    )
    page = (Path(__file__).parents[2] / "docs" / "faults-and-attacks.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| ([^:|]+): [^|]+ \| ([0-9 +]+) \|", page, re.MULTILINE))
    assert said == dict(counts)
