"""Sums and means are what a literal sum gives, bit for bit, and open only what enough parties hold."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from scripted import NAMES, bits
from torch import Tensor

from helpers import FEATURES, make_node_parties
from isthmus.data.cohort import Cohort
from isthmus.errors import IsthmusError, PayloadError, TooFewAnswers
from isthmus.federation.answers import Answer, Answers, IdUnion, Mail, PartialTotal, PlainTotal, Reply, Total
from isthmus.federation.sums import positions_of
from isthmus.nn.encoders import Gcn
from isthmus.nn.per_party import per_party
from isthmus.nn.stacks import FirstLayer

SPLITS = {
    "one site": [[0, 1, 2, 3]],
    "alone": [[0], [1], [2], [3]],
    "in pairs": [[0, 1], [2, 3]],
    "interleaved": [[0, 2], [1, 3]],
    "turned": [[3, 1], [2, 0]],
}


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of so different sizes that the order of a sum shows in its last bits."""
    source = torch.Generator().manual_seed(3)
    return (torch.randn(shape, generator=source) * 10 ** torch.randint(-4, 5, shape, generator=source)).to(dtype)


def picked(column: Any, here: Sequence[int]) -> Any:
    if isinstance(column, Mapping):
        return {name: picked(inner, here) for name, inner in column.items()}
    return column[list(here)] if isinstance(column, Tensor) else [column[at] for at in here]


def replies(fields: Mapping[str, Any], weight: Any = None, split: Sequence[Sequence[int]] = ((0, 1, 2, 3),)) -> Any:
    def answer(here: Sequence[int]) -> Answer:
        return Answer(picked(fields, here), None if weight is None else picked(weight, here))

    return [Reply.of([NAMES[at] for at in here], answer(here)) for here in split]


def total(fields: Mapping[str, Any], weight: Any = None, *, asked: Sequence[str] = NAMES, **options: Any) -> Total:
    options = {"rows": None, "min_contributors": 1, **options}
    split = options.pop("split", ((0, 1, 2, 3),))
    return PlainTotal(replies(fields, weight, split), positions_of(asked), **options)


# ---- whole sums


def test_a_sum_is_the_literal_tree() -> None:
    stack = drawn(4, 5, 2)
    assert torch.equal(total({"w": stack}).sum("w"), (stack[0] + stack[1]) + (stack[2] + stack[3]))


def test_a_weighted_mean_is_the_literal_one() -> None:
    stack, weight = drawn(4, 5), torch.tensor([1.0, 0.0, 2.5, 3.0], dtype=torch.float64)
    added = (stack[0] * 1.0 + stack[1] * 0.0) + (stack[2] * 2.5 + stack[3] * 3.0)
    found = total({"w": stack}, weight)
    assert torch.equal(found.sum("w"), added)
    assert torch.equal(found.mean("w"), added / 6.5)


def test_without_weights_a_mean_counts_every_party_once() -> None:
    stack = drawn(4, 5)
    assert torch.equal(total({"w": stack}).mean("w"), total({"w": stack}).sum("w") / 4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_the_split_into_sites_does_not_show_in_the_sum(split: Any, weighted: bool) -> None:
    fields = {"w": {"a": drawn(4, 50), "b": drawn(4, 3, 3)}, "n": torch.arange(4)}
    weight = {"w": torch.tensor([0.3, 1.7, 0.1, 2.9])} if weighted else None
    assert bits(total(fields, weight, split=split).payload()) == bits(total(fields, weight).payload())


@pytest.mark.parametrize("weight", [None, {"w": [0.3, 0.0, 0.1, 2.9]}, [0.3, 0.0, 0.1, 2.9]], ids=["no", "w", "all"])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_partial_sums_of_any_parties_give_the_same_total(split: Any, weight: Any) -> None:
    fields = {"w": {"a": drawn(4, 50), "b": list(drawn(4, 3, 3))}, "n": torch.arange(4), "x": [0.1, 0.2, 0.3, 1e9]}
    positions, due = positions_of(NAMES), total(fields, weight)
    partial = []
    for reply in replies(fields, weight, split):
        own = PartialTotal(positions, NAMES)  # interleaved parties: neighbours are elsewhere
        own.add(reply)
        partial.append(pickle.loads(pickle.dumps(own.reply())))
    found = PlainTotal(partial, positions)
    assert bits(found.payload()) == bits(due.payload())
    assert (found.weights, found.contributors) == (due.weights, 4)
    if weight is not None:
        again = [Reply(reply.parties, sums=reply.sums) for reply in partial]
        with pytest.raises(TooFewAnswers, match="a total of 'w/a' of 3 parties"):
            PlainTotal(again, positions, None, 4)


def test_partial_sums_name_the_missing_and_leave_them_out() -> None:
    stack, positions = drawn(4, 9), positions_of(NAMES)
    here, there = PartialTotal(positions, NAMES[:2]), PartialTotal(positions, NAMES[2:])
    here.add(Reply(("party-0",), {"w": stack[:1]}, failures={"party-1": "it rained"}))
    there.add(Reply((), failures={"party-2": "it snowed"}))
    there.add(Reply(("party-3",), {"w": stack[3:]}))
    found = PlainTotal([there.reply(), here.reply()], positions)
    assert torch.equal(found.sum("w"), stack[0] + stack[3])
    assert found.missing == {"party-2": "it snowed", "party-1": "it rained"}
    assert found.contributors == 2


def test_weights_are_added_by_the_law_whichever_fields_parties_have() -> None:
    weight = torch.tensor([1e16, 1.0, 1.0, -1e16], dtype=torch.float64)
    apart = [
        Reply.of([name], Answer({"w": torch.ones(1), **({"v": torch.ones(1)} if at % 2 else {})}, weight[at : at + 1]))
        for at, name in enumerate(NAMES)
    ]
    found = PlainTotal(apart, positions_of(NAMES))
    assert found.weights == {"w": float((weight[0] + weight[1]) + (weight[2] + weight[3])), "v": 1.0 - 1e16}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_the_tree_is_over_the_positions_in_the_federation(split: Any) -> None:
    stack, asked = drawn(4, 50), [NAMES[at] for at in (2, 0, 3, 1)]
    literal = (stack[2] + stack[0]) + (stack[3] + stack[1])
    assert not torch.equal(literal, total({"w": stack}).sum("w"))
    assert torch.equal(total({"w": stack}, asked=asked, split=split).sum("w"), literal)


def test_weights_differ_by_field() -> None:
    fields = {"a": torch.tensor([1.0, 2, 3, 4]), "b": {"c": torch.tensor([1.0, 2, 3, 4])}, "d": torch.ones(4)}
    found = total(fields, {"a": torch.tensor([1.0, 0, 0, 1]), "b": [0.0, 0.0, 1.0, 0.0]})
    assert (found.mean("a"), found.mean("b"), found.mean("d")) == (2.5, {"c": 3.0}, 1.0)


def test_weights_differ_by_row() -> None:
    rows = torch.tensor([[[1.0, 1], [2, 2]], [[3, 3], [4, 4]]])
    found = PlainTotal(
        [Reply.of("ab", Answer({"w": rows}, torch.tensor([[1.0, 0], [3, 0]])))], positions_of("ab"), None, 1
    )
    assert found.mean("w").tolist() == [[2.5, 2.5], [0.0, 0.0]]


@pytest.mark.parametrize("made", [list, lambda stack: stack], ids=["list", "stack"])
def test_a_list_of_weights_counts_as_a_stack_of_them(made: Callable[[Tensor], Any]) -> None:
    weight = torch.tensor([1.0, 2, 3, 4])
    assert torch.equal(total({"w": drawn(4, 3)}, made(weight)).mean("w"), total({"w": drawn(4, 3)}, weight).mean("w"))


@pytest.mark.parametrize(
    ("column", "due"),
    [
        (torch.tensor([200, 200, 0, 1], dtype=torch.uint8), torch.tensor(401)),
        (torch.tensor([True, True, False, True]), torch.tensor(3)),
        (list(torch.tensor([200, 200, 0, 1], dtype=torch.uint8)), torch.tensor(401)),
        (list(torch.tensor([True, True, False, True])), torch.tensor(3)),
        ([True, True, False, True], torch.tensor(3)),
        ([1, 2, 3, 2**40], torch.tensor(2**40 + 6)),
        ([0.1, 0.2, 0.3, 0.4], torch.tensor((0.1 + 0.2) + (0.3 + 0.4), dtype=torch.float64)),
    ],
    ids=["bytes", "bools", "listed bytes", "listed bools", "plain bools", "plain ints", "plain floats"],
)
def test_numbers_are_counted_in_full(column: Any, due: Tensor) -> None:
    found = total({"n": column}).sum("n")
    assert (found.dtype, found.item()) == (due.dtype, due.item())


def test_a_weighted_mean_of_whole_numbers_is_no_whole_number() -> None:
    found = total({"n": torch.tensor([1, 2, 3, 4])}, torch.tensor([0.5, 0.5, 0.0, 0.5]))
    assert found.mean("n").item() == pytest.approx(7 / 3)


def test_a_mean_without_any_weight_is_refused() -> None:
    with pytest.raises(IsthmusError, match="mean of 'w' has no weight"):
        total({"w": drawn(4, 2)}, torch.zeros(4)).mean("w")


def test_a_field_that_nobody_answered_is_named_with_those_that_are_there() -> None:
    with pytest.raises(IsthmusError, match=r"no party answered a field 'v' \(there are: w\)"):
        total({"w": drawn(4, 2)}).sum("v")


def test_parties_that_differ_in_shape_are_not_added() -> None:
    with pytest.raises(PayloadError, match=r"party 'party-2': field 'w' is torch.float32 \[1\], .* \[3\]"):
        total({"w": [torch.ones(3), torch.ones(3), torch.ones(1), torch.ones(3)]})


def test_texts_have_no_sum() -> None:
    with pytest.raises(PayloadError, match="field 't' is a text"):
        total({"t": ["a", "b", "c", "d"]})


@pytest.mark.parametrize("min_contributors", [1, 4, 5])
def test_a_sum_with_too_few_contributors_is_not_opened(min_contributors: int) -> None:
    if min_contributors <= 4:
        assert total({"w": drawn(4, 2)}, min_contributors=min_contributors).contributors == 4
        return
    with pytest.raises(TooFewAnswers, match="a total of 4 parties is not opened: at least 5"):
        total({"w": drawn(4, 2)}, min_contributors=min_contributors)


def test_a_field_of_fewer_parties_than_least_is_not_opened() -> None:
    apart = [Reply.of("a", Answer({"w": torch.ones(1, 2)})), Reply.of("b", Answer({"v": torch.ones(1, 2)}))]
    assert PlainTotal(apart, positions_of("ab"), None, 1).sum("v").tolist() == [1, 1]
    with pytest.raises(TooFewAnswers, match="a total of 'w' of 1 party"):
        PlainTotal(apart, positions_of("ab"), None, 2)


# ---- three ways to hold a column


def first_layers() -> FirstLayer:
    cohort = Cohort(make_node_parties(sparse=True, untrained=(1,)))
    model = per_party(Gcn().build(FEATURES, 3, "node"), 4)
    for leaf in model.start_training(cohort.block, [True, False, True, True], touched_rows=True):
        with torch.no_grad():
            leaf.tensor += drawn(*leaf.tensor.shape)
    model.stop_training()
    layer = model.weights()[model.first_layer or ""]
    assert isinstance(layer, FirstLayer)
    return layer


@pytest.mark.parametrize("weight", [None, torch.tensor([0.3, 1.7, 0.1, 2.9])], ids=["plain", "weighted"])
@pytest.mark.parametrize("form", ["list", "kept rows"])
def test_stack_list_and_kept_rows_give_the_same_bits(form: str, weight: Tensor | None) -> None:
    layer = first_layers()
    stack = layer.stack()
    column = layer if form == "kept rows" else list(stack)
    found = PlainTotal([Reply.of(NAMES, Answer({"w": column}, weight))], positions_of(NAMES), None, 1)
    due = PlainTotal([Reply.of(NAMES, Answer({"w": stack}, weight))], positions_of(NAMES), None, 1)
    assert torch.equal(found.sum("w"), due.sum("w"))
    assert torch.equal(found.mean("w"), due.mean("w"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_stack_and_list_give_the_same_bits_in_every_precision(dtype: torch.dtype, weighted: bool) -> None:
    stack = (drawn(4, 200) / 100).to(dtype)
    weight = torch.tensor([0.3, 1.7, 0.1, 2.9], dtype=torch.float64) if weighted else None
    assert bits(total({"w": stack}, weight).mean("w")) == bits(total({"w": list(stack)}, weight).mean("w"))


def test_kept_rows_have_the_sizes_slices_and_faults_of_their_stack() -> None:
    layer = first_layers()
    reply, plain = Reply.of(NAMES, Answer({"w": layer})), Reply.of(NAMES, Answer({"w": layer.stack()}))
    assert reply.sizes() == plain.sizes()
    assert reply.describe() == plain.describe()
    assert bits(reply.payload(2)) == bits(plain.payload(2))
    assert bits(reply.keep([2, 0]).payload(0)) == bits(plain.payload(2))
    with torch.no_grad():
        layer.party_rows[-1, 0] = torch.nan
    assert reply.unsendable().keys() == {3}


# ---- sums of rows by id

UNION = IdUnion(torch.tensor([2, 5, 7, 9]), torch.tensor([1, 2, 2, 1]))
IDS = [torch.tensor([7, 5]), torch.tensor([2, 5, 7]), torch.tensor([9], dtype=torch.long), torch.tensor([], dtype=int)]


def rows_of(ids: Sequence[Tensor] = IDS) -> list[Tensor]:
    return [torch.stack([i.float(), torch.full(i.shape, 10.0**at)], 1) for at, i in enumerate(ids)]


def by_id(min_contributors: int, *, weight: Any = None, split: Any = ((0, 1, 2, 3),)) -> Total:
    return total({"ids": IDS, "x": rows_of()}, weight, rows=UNION, min_contributors=min_contributors, split=split)


def test_rows_are_added_by_id() -> None:
    found = by_id(1)
    assert found.sum("x").tolist() == [[2, 10], [10, 11], [14, 11], [9, 100]]
    assert found.mean("x").tolist() == [[2, 10], [5, 5.5], [7, 5.5], [9, 100]]
    assert "ids" not in found.payload()


def test_a_row_with_too_few_contributors_is_not_opened() -> None:
    found = by_id(2)
    assert found.opened is not None
    assert found.opened.tolist() == [False, True, True, False]
    assert found.sum("x").tolist() == [[0, 0], [10, 11], [14, 11], [0, 0]]
    assert found.mean("x").tolist() == [[0, 0], [5, 5.5], [7, 5.5], [0, 0]]


def test_a_row_of_a_field_that_too_few_answer_is_not_opened() -> None:
    ids = [torch.tensor([5])]
    replies = [
        Reply.of("a", Answer({"ids": ids, "x": [torch.ones(1, 2)]})),
        Reply.of("b", Answer({"ids": ids})),
        Reply.of("c", Answer({"ids": [torch.tensor([7])], "x": [torch.ones(1, 2)]})),
        Reply.of("d", Answer({"ids": [torch.tensor([7])], "x": [torch.ones(1, 2)]})),
    ]
    found = PlainTotal(replies, positions_of("abcd"), UNION, 2)
    assert found.opened is not None
    assert found.opened.tolist() == [False, False, True, False]
    assert found.sum("x").tolist() == [[0, 0], [0, 0], [2, 2], [0, 0]]


def test_each_row_is_a_tree_over_the_parties_that_have_it() -> None:
    x, ids = drawn(4, 1, 50), [torch.tensor([7])] * 4
    both = [torch.cat([x[at], x[at]]) for at in range(4)]
    named = [torch.tensor([7, 2]), torch.tensor([7, 5]), torch.tensor([2, 7]), torch.tensor([5, 7])]
    found = total({"ids": named, "x": both}, [0.3, 1.7, 0.1, 2.9], rows=UNION).sum("x")
    y = [value * weight for value, weight in zip(x[:, 0], [0.3, 1.7, 0.1, 2.9], strict=True)]
    assert torch.equal(found[2], (y[0] + y[1]) + (y[2] + y[3]))
    assert torch.equal(found[:2], torch.stack([y[0] + y[2], y[1] + y[3]]))
    assert not torch.equal(total({"ids": ids, "x": x}, rows=UNION).sum("x")[2], x.sum(0)[0])


def test_a_row_that_a_party_names_twice_counts_twice_in_the_sum() -> None:
    ids = [torch.tensor([7, 5, 7]), torch.tensor([7])]
    x = [torch.tensor([1.0, 2, 4]), torch.tensor([8.0])]
    weight = [torch.tensor([1.0, 1, 3]), torch.tensor([0.5])]
    found = PlainTotal([Reply.of("ab", Answer({"ids": ids, "x": x}, weight))], positions_of("ab"), UNION, 1)
    assert found.sum("x").tolist() == [0, 2, 17, 0]
    assert found.weights["x"].tolist() == [0, 1, 4.5, 0]


def test_rows_of_parties_that_differ_in_shape_are_not_added() -> None:
    ids = [torch.tensor([7])] * 2
    reply = Reply.of("ab", Answer({"ids": ids, "x": [torch.ones(1, 2), torch.ones(1, 3)]}))
    with pytest.raises(PayloadError, match=r"party 'b': field 'x' is torch.float32 \[3\], .* \[2\]"):
        PlainTotal([reply], positions_of("ab"), UNION, 1)


def test_a_party_that_names_a_row_twice_is_one_contributor() -> None:
    ids = [torch.tensor([7, 7]), torch.tensor([5])]
    found = PlainTotal([Reply.of("ab", Answer({"ids": ids, "x": rows_of(ids)}))], positions_of("ab"), UNION, 2)
    assert found.opened is not None
    assert not found.opened.any()
    assert not found.sum("x").any()


def test_rows_are_weighted_by_party_or_one_by_one() -> None:
    by_party = by_id(1, weight=[1.0, 3.0, 1.0, 1.0])
    by_row = by_id(1, weight=[torch.tensor([1.0, 1]), torch.tensor([3.0, 3, 3]), torch.ones(1), torch.ones(0)])
    assert by_party.mean("x").tolist() == [[2, 10], [5, 7.75], [7, 7.75], [9, 100]]
    assert torch.equal(by_party.sum("x"), by_row.sum("x"))


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_the_split_into_sites_does_not_show_in_rows(split: Any) -> None:
    ids = [torch.tensor([2, 5, 7, 9])] * 4
    fields = {"ids": ids, "x": list(drawn(4, 4, 6))}
    weight = [0.3, 1.7, 0.1, 2.9]
    found = total(fields, weight, rows=UNION, min_contributors=2, split=split)
    assert torch.equal(found.sum("x"), total(fields, weight, rows=UNION, min_contributors=2).sum("x"))
    assert torch.equal(found.sum("x"), total({"x": drawn(4, 4, 6)}, weight).sum("x"))


@pytest.mark.parametrize("wrong", [1, 3, 8, 11])
def test_ids_outside_the_union_are_refused(wrong: int) -> None:
    ids = [torch.tensor([5]), torch.tensor([7, wrong])]
    with pytest.raises(PayloadError, match="party 'b': ids outside the agreed union"):
        PlainTotal([Reply.of("ab", Answer({"ids": ids, "x": rows_of(ids)}))], positions_of("ab"), UNION, 1)


def test_nothing_is_in_an_empty_union() -> None:
    empty = IdUnion(torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long))
    with pytest.raises(PayloadError, match="outside"):
        empty.positions(torch.tensor([1]))
    assert empty.positions(torch.tensor([], dtype=torch.long)).numel() == 0


def test_rows_without_ids_or_of_another_count_are_refused() -> None:
    with pytest.raises(PayloadError, match="party 'a': rows need a field 'ids'"):
        PlainTotal([Reply.of("a", Answer({"x": torch.ones(1, 2)}))], positions_of("a"), UNION, 1)
    with pytest.raises(PayloadError, match=r"party 'a': field 'x' is \[3, 2\], its ids are 1"):
        PlainTotal(
            [Reply.of("a", Answer({"ids": torch.tensor([[5]]), "x": torch.ones(1, 3, 2)}))], positions_of("a"), UNION, 1
        )


# ---- answers and replies


def test_answers_know_who_is_missing_and_why() -> None:
    here, there = Reply.of("ab", Answer({"n": [1, 2]})), Reply((), failures={"c": "it rained"})
    answers = Answers([here, there], ["b", "c", "a"])
    assert list(answers) == ["b", "a"]
    assert answers["b"] == {"n": 2}
    assert answers.missing == {"c": "it rained"}
    with pytest.raises(IsthmusError, match="party 'c' has no answer: it rained"):
        answers["c"]
    with pytest.raises(IsthmusError, match="party 'd' has no answer: it was not asked"):
        answers["d"]


@pytest.mark.parametrize("column", [torch.ones(3), torch.tensor(1.0), 1.0, "ab", [1.0], [{"a": 1}, {"a": 2}]], ids=str)
def test_a_column_that_is_not_one_value_per_party_is_refused(column: Any) -> None:
    with pytest.raises(PayloadError, match="field 'w/a'"):
        Reply.of("ab", Answer({"w": {"a": column}}))


def test_weights_of_no_field_or_of_other_parties_are_refused() -> None:
    with pytest.raises(PayloadError, match="weight for 'weight', which is no field: did you mean 'weights'"):
        Reply.of("ab", Answer({"weights": torch.ones(2)}, {"weight": torch.ones(2)}))
    with pytest.raises(PayloadError, match="weight of 'all' has 3 values"):
        Reply.of("ab", Answer({"weights": torch.ones(2)}, torch.ones(3)))
    with pytest.raises(PayloadError, match="mail has 1 values"):
        Reply.of("ab", Mail([{}]))


@pytest.mark.parametrize(
    ("fields", "weight"),
    [
        ({"w": torch.tensor([[1.0], [torch.inf]])}, None),
        ({"w": [torch.ones(2), torch.tensor([torch.nan])]}, None),
        ({"w": [0.5, -torch.inf]}, None),
        ({"w": [1, None]}, None),
        ({"w": [1, torch.eye(2).to_sparse()]}, None),
        ({"w": torch.ones(2)}, torch.tensor([1.0, torch.nan])),
    ],
    ids=["stack", "list", "plain", "none", "sparse", "weight"],
)
def test_an_answer_that_cannot_travel_is_told_from_the_others(fields: Any, weight: Any) -> None:
    assert Reply.of("ab", Answer(fields, weight)).unsendable().keys() == {1}


def test_large_finite_numbers_are_fit_to_travel() -> None:
    stack = torch.full((2, 3), torch.finfo(torch.float32).max)
    assert Reply.of("ab", Answer({"w": stack, "n": torch.ones(2, dtype=torch.bool)})).unsendable() == {}


def test_who_weighs_nothing_is_no_contributor() -> None:
    fields, weight = {"x": torch.ones(3, 2)}, torch.tensor([2.0, 0.0, 0.0])
    replies = [Reply.of("abc", Answer(fields, weight=weight))]
    with pytest.raises(TooFewAnswers, match="1 party"):
        PlainTotal(replies, positions_of("abc"), None, 2)
    ids = [torch.tensor([5])] * 3
    replies = [Reply.of("abc", Answer({"ids": ids, "x": [torch.ones(1, 2)] * 3}, weight=weight))]
    found = PlainTotal(replies, positions_of("abc"), UNION, 2)
    assert found.opened is not None
    assert not found.opened.any()
