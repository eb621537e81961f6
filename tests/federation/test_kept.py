"""What a site keeps reads as a stack where it can, belongs to single parties and comes back from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import NAMES, bits

from isthmus.errors import IsthmusError
from isthmus.federation.kept import Kept, join
from isthmus.store import pack, unpack


def values_of(value: Any, count: int) -> list[Any]:
    """One value per party of what `Kept` hands out."""
    if isinstance(value, Mapping):
        parts = {name: values_of(inner, count) for name, inner in value.items()}
        return [{name: part[at] for name, part in parts.items()} for at in range(count)]
    assert len(value) == count
    return list(value)


def value_of(kind: str, count: int, start: int) -> Any:
    """A value to keep for some parties, its numbers unlike any other's."""
    numbers = torch.arange(start, start + count, dtype=torch.float64)
    if kind == "stack":
        return torch.stack([numbers, -numbers], 1)
    if kind == "mapping":
        return {"a": numbers, "b": {"c": torch.stack([numbers, numbers], 1)}}
    if kind == "plain":
        return numbers.tolist()
    return [torch.full((at % 3,), float(start + at)) for at in range(count)]


parties = st.sets(st.integers(0, 3), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
kinds = st.sampled_from(["stack", "mapping", "ragged", "plain"])
writes = st.tuples(st.just("write"), st.sampled_from("xy"), parties, kinds)
reads = st.tuples(
    st.sampled_from(["read", "get", "restart", "copy", "delete"]), st.sampled_from("xy"), parties, st.just("")
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.one_of(writes, reads), max_size=12))
def test_kept_is_a_plain_dictionary_per_party(steps: list[tuple[str, str, tuple[int, ...], str]]) -> None:
    kept, model = Kept(), {name: {} for name in "xy"}
    for turn, (step, name, asked, kind) in enumerate(steps):
        if step == "restart":
            saved = unpack(pack(kept.save(NAMES)))
            kept = Kept()
            kept.restore(NAMES, saved)
            continue
        here = model[name]
        with kept.of(asked):
            assert (name in kept) == all(at in here for at in asked)
            if step == "write":
                value = value_of(kind, len(asked), 10 * turn)
                kept[name] = value
                here |= dict(zip(asked, values_of(value, len(asked)), strict=True))
            elif step == "delete":
                del kept[name]
                for at in asked:
                    here.pop(at, None)
            elif step == "copy":
                twin = kept.copy()
                twin[name] = value_of("plain", len(asked), -1000)
            elif step == "get":
                default = torch.tensor(-1.0)
                found = kept.get(name, default)
                assert bits(values_of(found, len(asked))) == bits([here.get(at, default) for at in asked])
            elif all(at in here for at in asked):
                assert bits(values_of(kept[name], len(asked))) == bits([here[at] for at in asked])
            else:
                with pytest.raises(IsthmusError, match=f"nothing is kept under '{name}' yet"):
                    kept[name]


def test_equal_shapes_are_read_as_a_stack_and_others_as_a_list() -> None:
    kept = Kept()
    with kept.of(range(3)):
        kept["stack"], kept["group"] = torch.eye(3), {"w": torch.arange(3)}
        kept["ragged"] = [torch.ones(1), torch.ones(2), torch.ones(2)]
        kept["mixed"] = [torch.ones(1), torch.ones(1).double(), torch.ones(1).double()]
    with kept.of((1, 2)):
        assert torch.equal(kept["stack"], torch.eye(3)[1:])
        assert torch.equal(kept["group"]["w"], torch.tensor([1, 2]))
        assert torch.equal(kept["ragged"], torch.ones(2, 2))
    with kept.of((0, 1)):
        assert bits(kept["ragged"]) == bits([torch.ones(1), torch.ones(2)])
        assert [value.dtype for value in kept["mixed"]] == [torch.float32, torch.float64]


def test_parties_are_read_in_the_order_in_which_they_are_asked() -> None:
    kept = Kept()
    with kept.of((0, 1, 2)):
        kept["step"] = torch.tensor([5, 6, 7])
    with kept.of((2, 0)):
        assert kept["step"].tolist() == [7, 5]
        assert kept.each("step") == [7, 5]


def test_an_inner_block_gives_the_outer_one_back() -> None:
    kept = Kept()
    with kept.of((0, 1)):
        with pytest.raises(ValueError, match="stop"), kept.of((1,)):
            raise ValueError("stop")
        assert kept.positions == (0, 1)


@pytest.mark.parametrize(
    "use",
    [
        lambda kept: kept["x"],
        lambda kept: kept.__setitem__("x", torch.ones(1)),
        lambda kept: kept.__delitem__("x"),
        lambda kept: kept.get("x", 0),
        lambda kept: kept.each("x"),
        lambda kept: "x" in kept,
    ],
    ids=["read", "write", "delete", "get", "each", "contains"],
)
def test_values_belong_to_parties_so_none_is_read_or_written_without_them(use: Any) -> None:
    with pytest.raises(IsthmusError, match=r"no party is asked now: .*`with site\.asked\(\.\.\.\)`"):
        use(Kept())


def test_writing_to_a_copy_leaves_the_original() -> None:
    kept = Kept()
    with kept.of((0, 1)):
        kept["x"] = torch.tensor([1, 2])
        twin = kept.copy()
    with twin.of((1,)):
        twin["x"] = torch.tensor([9])
    with kept.of((0, 1)), twin.of((0, 1)):
        assert (kept["x"].tolist(), twin["x"].tolist()) == ([1, 2], [1, 9])


def test_a_party_without_a_checkpoint_starts_without_values() -> None:
    kept = Kept()
    kept.restore(("a", "b"), {"a": {"x": torch.tensor(1)}})
    with kept.of((0,)):
        assert kept["x"].tolist() == [1]
    with kept.of((1,)):
        assert "x" not in kept


def test_join_stacks_equal_groups_and_lists_others() -> None:
    assert bits(join([{"w": torch.ones(1)}, {"w": torch.zeros(1)}])) == bits({"w": torch.tensor([[1.0], [0.0]])})
    assert join([{"w": 1}, {"v": 1}]) == [{"w": 1}, {"v": 1}]
    assert join([1, 2]) == [1, 2]


def test_who_has_a_value_is_told_for_each_party():
    kept = Kept()
    with kept.of((0, 2)):
        kept["a"] = torch.tensor([1, 2])
    with kept.of((0, 1, 2)):
        assert kept.having("a") == [True, False, True]
        assert kept.having("b") == [False, False, False]
        kept.get("a", torch.tensor(0))  # from now on one value per party
        assert kept.having("a") == [True, False, True]
        assert "a" not in kept
