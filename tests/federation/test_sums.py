"""The law of sums: a total is what a literal tree over positions gives, however it is split and in whatever order."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from scripted import bits
from torch import Tensor

from isthmus.data.rows import to_csr
from isthmus.errors import IsthmusError
from isthmus.federation import sums
from isthmus.federation.sums import RowTrees, Tree, TreeSum, positions_of, tree_over
from isthmus.nn.products import Columns
from isthmus.nn.stacks import FirstLayer

SETS = {
    "one": [0],
    "far": [13],
    "pair": [3, 4],
    "eight": list(range(8)),
    "eleven": list(range(11)),
    "gaps": [0, 2, 3, 7, 8, 9, 12, 15, 31],
    "powers": [1, 2, 4, 8, 16, 32, 64],
    "hundred": list(range(100)),
    "sampled": sorted(random.Random(1).sample(range(1000), 90)),
}
over_sets = pytest.mark.parametrize("at", SETS.values(), ids=SETS.keys())


def literal(leaves: Mapping[int, Any]) -> Any:
    """The root of the tree, level by level, every node by its definition."""
    nodes = {position: leaves.get(position) for position in range(2 ** (max(leaves) + 1).bit_length())}
    while len(nodes) > 1:
        above = {}
        for index in range(len(nodes) // 2):
            left, right = nodes[2 * index], nodes[2 * index + 1]
            above[index] = right if left is None else left if right is None else left + right
        nodes = above
    return nodes[0]


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of so different sizes that the order of a sum shows in its last bits; zeros of both signs among them."""
    source = torch.Generator().manual_seed(3)
    value = torch.randn(shape, generator=source) * 10 ** torch.randint(-3, 4, shape, generator=source)
    return torch.where(torch.rand(shape, generator=source) < 0.1, value.sign() * 0.0, value).to(dtype)


def tree_sum(at: Sequence[int], stack: Tensor, weights: Tensor | None = None) -> Tensor:
    found = TreeSum(Tree(at))
    found.add(at, stack, weights)
    return found.total()


def shuffled(at: Sequence[int]) -> list[int]:
    return random.Random(7).sample(range(len(at)), len(at))


@over_sets
def test_a_stack_is_added_as_the_literal_tree(at: list[int]) -> None:
    stack = drawn(len(at), 3, 5)
    assert bits(tree_sum(at, stack)) == bits(literal(dict(zip(at, stack, strict=True))))
    if len(at) > 50:  # another order gives other bits
        assert bits(tree_sum(at, stack)) != bits(sum(stack))


@over_sets
def test_weights_are_one_multiplication_per_leaf(at: list[int]) -> None:
    stack, weights = drawn(len(at), 40), torch.rand(len(at), dtype=torch.float64)
    weights[len(at) // 2] = 0  # a leaf of zeros
    leaves = {p: value * float(weight) for p, value, weight in zip(at, stack, weights, strict=True)}
    assert bits(tree_sum(at, stack, weights)) == bits(literal(leaves))


@over_sets
def test_the_order_of_arrival_does_not_show(at: list[int]) -> None:
    stack, order = drawn(len(at), 40), shuffled(at)
    due = bits(tree_sum(at, stack))
    assert bits(tree_sum([at[i] for i in order], stack[order])) == due
    alone = TreeSum(Tree(at))
    for i in order:
        alone.add_one(at[i], stack[i])
    assert bits(alone.total()) == due


@over_sets
@pytest.mark.parametrize("block", [1, 4, 32])
def test_aligned_blocks_give_the_same_bits_wherever_they_are_added(at: list[int], block: int) -> None:
    stack, weights = drawn(len(at), 40), torch.rand(len(at))
    blocks = [list(own) for _, own in itertools.groupby(range(len(at)), key=lambda i: at[i] // block)]
    random.Random(2).shuffle(blocks)
    found = TreeSum(tree_over(tuple(at)))
    for own in blocks:
        here = [at[i] for i in own]
        part = TreeSum(tree_over(tuple(here)))
        part.add(here, stack[own], weights[own])
        assert len(part.nodes()) == 1
        found.merge(pickle.loads(pickle.dumps(part.nodes())))
    assert bits(found.total()) == bits(tree_sum(at, stack, weights))


@over_sets
def test_missing_parties_are_skipped(at: list[int]) -> None:
    stack = drawn(len(at), 40)
    gone = set(random.Random(4).sample(range(len(at)), len(at) // 3))
    here = [i for i in range(len(at)) if i not in gone]
    due = bits(literal({at[i]: stack[i] for i in here}))
    told, never_told = TreeSum(Tree(at)), TreeSum(Tree(at))
    told.skip([at[i] for i in gone])
    for found in (told, never_told):
        found.add([at[i] for i in here], stack[here])
        assert bits(found.total()) == due
        assert bits(found.total()) == due  # reading changes nothing
    assert len(told.nodes()) == 1


def test_parties_of_other_blocks_keep_a_node_open() -> None:
    """Of two sites with every second party each, neither can add neighbours."""
    stack, tree = drawn(8, 5), Tree(range(8))
    parts = [TreeSum(tree) for _ in range(2)]
    for start, part in enumerate(parts):
        part.add(range(start, 8, 2), stack[start::2])
        assert len(part.nodes()) == 4
    parts[0].merge(parts[1].nodes())
    assert bits(parts[0].total()) == bits(literal(dict(enumerate(stack))))


def test_a_stream_by_position_keeps_few_partial_sums() -> None:
    found = TreeSum(Tree(range(1000)))
    for at in range(1000):
        found.add_one(at, torch.ones(1)) if at % 9 else found.skip([at])
        assert len(found.nodes()) <= 10
    assert found.total() == 888


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_every_type_is_added_by_the_law(dtype: torch.dtype) -> None:
    stack = (drawn(11, 30).clamp(-99, 99) * 2).to(dtype)
    assert bits(tree_sum(range(11), stack)) == bits(literal(dict(enumerate(stack))))
    if dtype.is_floating_point:
        weights = torch.rand(11, dtype=torch.float64)
        leaves = {at: value * float(weights[at]) for at, value in enumerate(stack)}
        assert bits(tree_sum(range(11), stack, weights)) == bits(literal(leaves))


@pytest.mark.parametrize("at_once", [1, 100, 1000])
def test_the_size_of_a_buffer_does_not_show(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, at = drawn(90, 37), SETS["sampled"]
    due = bits(tree_sum(at, stack))
    monkeypatch.setattr(sums, "AT_ONCE", at_once)
    monkeypatch.setattr(sums, "ROWS", 8)
    assert bits(tree_sum(at, stack)) == due


@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3, 4)], ids=str)
def test_slices_keep_shape_and_memory_layout(shape: tuple[int, ...]) -> None:
    stack = drawn(6, *shape).transpose(1, -1) if shape else drawn(6)
    found = tree_sum(range(6), stack)
    assert bits(found) == bits(literal(dict(enumerate(stack))))
    assert found.stride() == stack[0].stride()


def test_what_is_added_is_not_changed() -> None:
    stack, one = drawn(8, 3), drawn(3)
    before = stack.clone(), one.clone()
    found = TreeSum(Tree(range(9)))
    found.add(range(8), stack)
    found.add_one(8, one)
    found.total()
    assert bits((stack, one)) == bits(before)


@pytest.mark.parametrize("wide", [1, 40])
def test_rows_are_trees_over_the_parties_that_have_them(wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "AT_ONCE_BY_ROW", 100)
    source, at = random.Random(5), [9, 0, 4, 5, 6, 2]
    rows = [torch.tensor(source.sample(range(12), size), dtype=torch.long) for size in (6, 4, 0, 10, 7, 1)]
    values = [drawn(12, wide)[own] * (1 + p) for p, own in enumerate(rows)]
    weights = [torch.rand(own.numel(), dtype=torch.float64) for own in rows]
    found = RowTrees(rows, at, 13).sum(values, weights)
    for row in range(13):
        leaves = {}
        for p, own in enumerate(rows):
            for i, named in enumerate(own.tolist()):
                if named == row:
                    leaves[at[p]] = values[p][i] * float(weights[p][i])
        assert bits(found[row]) == bits(literal(leaves) if leaves else torch.zeros(wide))


def test_rows_without_columns_are_added_to_rows_without_columns() -> None:
    trees = RowTrees([torch.tensor([0, 2]), torch.tensor([2])], [0, 1], 3)
    found = trees.sum([torch.empty(2, 0), torch.empty(1, 0)], [torch.ones(2), torch.ones(1)])
    assert found.shape == (3, 0)


def test_a_position_or_node_outside_the_sum_is_refused() -> None:
    found = TreeSum(Tree([1, 2]))
    with pytest.raises(IsthmusError, match="position 3 is not among the 2 that this sum is over"):
        found.add_one(3, torch.ones(1))
    with pytest.raises(IsthmusError, match=r"node \(1, 2\) is over none of the 2 positions"):
        found.merge({(1, 2): torch.ones(1)})
    with pytest.raises(IsthmusError, match="sum of no party"):
        found.total()


def test_positions_are_indices_among_all_parties() -> None:
    assert positions_of("cab") == {"c": 0, "a": 1, "b": 2}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2]])
@pytest.mark.parametrize("at_once", [1, 40, 2**19])
def test_a_first_layer_is_added_as_its_stack(
    weighted: bool, order: list[int], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "AT_ONCE", at_once)
    sizes = (3, 0, 4, 2, 5)
    x = drawn(sum(sizes), 7).where(torch.rand(sum(sizes), 7, generator=torch.Generator().manual_seed(1)) < 0.4, 0.0)
    columns = Columns(to_csr(x), sizes, touched=True)
    layer = FirstLayer(columns, drawn(columns.index.numel(), 3), drawn(2, 7, 3), (True, False, True, True, True))
    weights = torch.tensor([0.3, 0.0, 1.7, 2.0, 1e-4]).double() if weighted else None
    positions = [2 + each for each in order]  # a tree with several pieces
    found, due = TreeSum(Tree(range(9))), TreeSum(Tree(range(9)))
    found.add_first_layer(positions, layer, weights)
    for place, position in enumerate(positions):
        due.add_one(position, layer.slice(place), None if weights is None else float(weights[place]))
    assert len(found.nodes()) > 1
    assert bits(found.total()) == bits(due.total())
    assert found.total().stride() == due.total().stride()
