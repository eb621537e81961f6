"""Tests of layers that are written once for one party and for many."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isthmus.nn.side_by_side import Last, OneParty, Rows, Stacks
from isthmus.nn.twins import Bank


def bank_of(**weights: torch.Tensor) -> Bank:
    bank = Bank()
    bank.stacked, bank.layouts = True, ((3, 2),)
    bank.weights = {f"layer.{name}": weight for name, weight in weights.items()}
    return bank


def test_rows_are_counted_by_party() -> None:
    rows = Rows(torch.tensor([0, 2, 2, 4]))
    assert rows.per_party((3, 2)) == (3, 1)
    assert rows.per_party((2, 1, 2)) == (1, 2, 1)
    assert rows.per_party((5,)) == (4,)


def test_stacks_multiply_each_party_with_its_own_slice() -> None:
    weight, bias, heads = torch.rand(2, 4, 6), torch.rand(2, 4), torch.rand(2, 3, 4, 6)
    stacks = Stacks(bank_of(weight=weight, bias=bias, heads=heads), "layer.")
    rows, x, by_head = Rows(torch.tensor([0, 2, 2, 4])), torch.rand(4, 6), torch.rand(4, 3, 6)
    out = stacks.linear(x, stacks["weight"], rows, stacks["bias"])
    every = stacks.heads(by_head, stacks["heads"], rows)
    assert torch.equal(stacks.repeat(stacks["bias"], rows), bias[[0, 0, 0, 1]])
    for at, part in enumerate((slice(0, 3), slice(3, 4))):
        layer = nn.Module()
        layer.weight, layer.bias, layer.heads = (nn.Parameter(each[at]) for each in (weight, bias, heads))
        one = OneParty(layer)
        torch.testing.assert_close(out[part], one.linear(x[part], one["weight"], rows, one["bias"]).detach())
        torch.testing.assert_close(every[part], one.heads(by_head[part], one["heads"], rows).detach())


def test_what_was_made_of_the_last_graphs_is_made_once() -> None:
    made: list[int] = []

    def make(x: torch.Tensor, by: int) -> int:
        made.append(by)
        return len(made)

    last, x = Last(keep=2), torch.ones(1)
    assert [last(make, x, 1), last(make, x, 2), last(make, x, 1)] == [1, 2, 1]
    assert [last(make, x, 3), last(make, x, 1)] == [3, 4]  # the oldest gave way
    assert last(make, torch.ones(1), 1) == 5
    with pytest.raises(TypeError):
        last(make, x)
