"""Feature columns: which values are reported, and what they become."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch

from isthmus.data.folder.columns import MAX_DENSE, Bag, Category, Column, Number, Vector
from isthmus.data.folder.encoding import add_totals
from isthmus.data.ids import PLAIN, KeyedHash
from isthmus.data.rows import is_sparse
from party_folders import lines

NAN, INF = float("nan"), float("inf")
KEYED = KeyedHash(b"k" * 32)

OUTSIDE = (
    "column 'c' has a position outside 0 to 4: correct it, or raise 'width' at all parties before training "
    "(isthmus party new --bag c=WIDTH)"
)
TWICE = "column 'c' has a position twice in a row: give each position once"


def wrong(kind: Column, **columns):
    """Return the problems of a column called `c`."""
    table = pa.table({name.replace("_", "."): values for name, values in columns.items()})
    return [line.removeprefix("f, ").removeprefix("f: ") for line in lines(list(kind.check("c", table, "f")))]


def encoded(kind: Column, hashing=PLAIN, **columns):
    table = pa.table({name.replace("_", "."): values for name, values in columns.items()})
    assert not any(each.severe for each in kind.check("c", table, "f"))
    first = add_totals([kind.first_totals("c", table, hashing)])
    second = add_totals([kind.second_totals("c", table, first)])
    return kind.encode("c", table, {**first, **second}, hashing)


def test_registered_kinds():
    assert list(Column.known()) == ["bag", "category", "date", "number", "vector"]


# ---- numbers


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ([1.0, INF, -INF, 1e39], ["rows 2, 3, 4: column 'c' is infinite or beyond 3.4e38: correct it"]),
        (
            [1, None, 3],
            ["row 2: column 'c' has no value: fill it in, or declare missing = \"mean\" before training"],
        ),
        (
            [1.0, NAN, None],
            ["rows 2, 3: column 'c' has no value: fill it in, or declare missing = \"mean\" before training"],
        ),
        (["1", "2"], ["column 'c' holds values of type string: it must hold numbers"]),
        (
            ["1", "12,5m", None, "x"],
            ["rows 2, 4: column 'c' holds values of type string, such as '12,5m': it must hold numbers"],
        ),
        ([b"1"], ["column 'c' holds values of type binary: it must hold numbers"]),
        ([[1.0]], ["column 'c' holds values of type list<item: double>: it must hold numbers"]),
        (
            [INF, None],
            [
                "row 1: column 'c' is infinite or beyond 3.4e38: correct it",
                "row 2: column 'c' has no value: fill it in, or declare missing = \"mean\" before training",
            ],
        ),
    ],
)
def test_wrong_numbers_are_reported(values, due):
    assert wrong(Number(), c=values) == due


def test_missing_number_may_become_the_mean():
    (note,) = wrong(Number(missing="mean"), c=[1, None, NAN])
    assert note == "note: f, rows 2, 3: column 'c' has no value: the mean over all parties is used"
    assert encoded(Number(missing="mean", scale="none"), c=[1.0, None, 5.0, NAN]).tolist() == [[1], [3], [5], [3]]
    assert encoded(Number(missing="mean"), c=[1.0, None, 5.0]).tolist() == [[-1], [0], [1]]
    assert encoded(Number(missing="mean"), c=pa.nulls(2)).tolist() == [[0], [0]]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 5, 3], pa.uint64()),
        pa.array([Decimal("1"), Decimal("5"), Decimal("3")]),
        pa.array([1, 5, 3], pa.float16()),
        pa.array([1, 5, 3], pa.int8()).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_numbers_of_every_type_are_scaled(values):
    x = encoded(Number(), c=values)
    assert x.dtype == torch.get_default_dtype()
    torch.testing.assert_close(x, torch.tensor([[-1.0], [1.0], [0.0]]) * 1.5**0.5)


def test_booleans_become_numbers():
    assert encoded(Number(scale="none"), c=[True, False]).tolist() == [[1], [0]]


@pytest.mark.parametrize("value", [0.1, 1e15 + 0.3, -7.0, 3e38])
def test_constant_number_becomes_zero(value):
    """Their mean is rounded, and the rounding error must not be scaled up."""
    assert not encoded(Number(), c=[value] * 1003).any()


def test_large_numbers_do_not_overflow():
    x = encoded(Number(), c=[3e38, -3e38, 3e38, -3e38])
    torch.testing.assert_close(x, torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]))


def test_unscaled_numbers_keep_their_bits():
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    assert torch.equal(encoded(Number(scale="none"), c=values).squeeze(1), torch.from_numpy(values))


# ---- categories


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ([1.5], ["column 'c' holds values of type double: it must hold texts or whole numbers"]),
        ([b"a"], ["column 'c' holds values of type binary: it must hold texts or whole numbers"]),
        (
            ["a", "x", None, "", "y"],
            [
                "note: f, rows 3, 4: column 'c' has no value: all its features are 0",
                "rows 2, 5: column 'c' has a value that is not declared: add it to 'values' at all parties",
            ],
        ),
    ],
)  # fmt: skip
def test_wrong_categories_are_reported(values, due):
    assert wrong(Category(values=["a", "b"]), c=values) == due


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (["b", "a"], ["a", "b", None, "", "a"]),
        (["b", "a"], pa.array(["a", "b", None, None, "a"]).dictionary_encode()),
        (["b", "a"], pa.array(["a", "b", None, None, "a"], pa.large_string())),
        ([2, 1], [1, 2, None, None, 1]),
        (["2", "1"], [1, 2, None, None, 1]),
        ([2, 1], ["1", "2", None, "", "1"]),
        ([True, False], [False, True, None, None, False]),
        (["true", "false"], [False, True, None, None, False]),
    ],
)
def test_declared_categories_keep_their_order(declared, values):
    assert encoded(Category(values=declared), c=values).tolist() == [[0, 1], [1, 0], [0, 0], [0, 0], [0, 1]]


def test_undeclared_categories_are_ordered_by_keyed_hash():
    order = [name for _, name in sorted(zip(KEYED.numbers(["a", "b", "c"]).tolist(), "abc", strict=True))]
    x = encoded(Category(), KEYED, c=["c", None, "a", "b", "c"])
    due = torch.zeros(5, 3)
    for row, name in enumerate(["c", None, "a", "b", "c"]):
        if name:
            due[row, order.index(name)] = 1
    assert torch.equal(x, due)


def test_category_without_values_has_no_feature():
    assert encoded(Category(), c=pa.nulls(3)).shape == (3, 0)
    assert encoded(Category(values=["a"]), c=pa.nulls(3)).tolist() == [[0], [0], [0]]


def test_many_categories_give_the_same_features_as_a_sparse_matrix():
    values = [f"v{at * 7 % (MAX_DENSE + 1)}" if at % 5 else None for at in range(300)]
    declared = [f"v{at}" for at in range(MAX_DENSE + 1)]
    sparse = encoded(Category(values=declared), c=values)
    assert is_sparse(sparse)
    due = torch.zeros(300, MAX_DENSE + 1)
    for row, value in enumerate(values):
        if value is not None:
            due[row, declared.index(value)] = 1
    assert torch.equal(sparse.to_dense(), due)
    assert not is_sparse(encoded(Category(values=declared[:MAX_DENSE]), c=["v0"]))
    undeclared = encoded(Category(), c=values).to_dense()
    assert torch.equal(undeclared.sum(0).sort().values, due.sum(0).sort().values)


def test_names_declared_as_categories_are_a_note():
    names = [f"person {at}" for at in range(150)]
    due = ["note: column 'c' has 150 different values, which look like names, not categories"]
    assert [line.replace("note: f: ", "note: ") for line in wrong(Category(), c=names)] == due
    assert not wrong(Category(), c=names[:100])
    assert not wrong(Category(), c=names * 2)
    assert not wrong(Category(values=names), c=names)


# ---- vectors


@pytest.mark.parametrize(
    ("values", "due"),
    [
        (
            [[1.0, 2.0], [1.0], None, [1.0, 2.0, 3.0], []],
            [
                "row 3: column 'c' has no value: fill it in",
                "rows 2, 4, 5: column 'c' does not have 2 numbers, as party.toml declares",
            ],
        ),
        (
            [[1.0, NAN], [1.0, 2.0], [INF, 1.0], [None, 1.0], [1.0, 1e39]],
            ["rows 1, 3, 4, 5: column 'c' has NaN, infinite (in 32 bits) or missing numbers: correct them"],
        ),
        ([["a"]], ["column 'c' holds values of type list<item: string>: it must hold lists of numbers"]),
        ([1.0], ["column 'c' holds values of type double: it must hold lists of numbers"]),
        ([None], ["column 'c' holds values of type null: it must hold lists of numbers"]),
        (
            [[[1.0]]],
            ["column 'c' holds values of type list<item: list<item: double>>: it must hold lists of numbers"],
        ),
    ],
)
def test_wrong_vectors_are_reported(values, due):
    assert wrong(Vector(width=2), c=values) == due


def test_missing_list_of_fixed_width_is_reported():
    values = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2))
    assert wrong(Vector(width=2), c=values) == ["row 2: column 'c' has no value: fill it in"]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.int64(), 2), pa.list_(pa.uint16()),
     pa.list_(pa.decimal128(9, 1)), pa.list_(pa.float16())],
    ids=str,
)  # fmt: skip
def test_vectors_of_every_type(kind):
    values = [[1, 2], [3, 4]] if "decimal" not in str(kind) else [[Decimal(1), Decimal(2)], [Decimal(3), Decimal(4)]]
    x = encoded(Vector(width=2), c=pa.array(values, kind))
    assert x.dtype == torch.get_default_dtype()
    assert x.tolist() == [[1, 2], [3, 4]]


def test_vectors_of_width_zero():
    assert encoded(Vector(width=0), c=pa.array([[], []], pa.list_(pa.float32()))).shape == (2, 0)


def test_slice_of_a_table_is_encoded_alone():
    table = pa.table({"c": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}).slice(1, 2)
    assert not list(Vector(width=2).check("c", table, "f"))
    assert Vector(width=2).encode("c", table, {}, None).tolist() == [[3, 4], [5, 6]]


# ---- bags


@pytest.mark.parametrize(
    ("at", "value", "due"),
    [
        (
            [[0, 1], [0], None, [0], None],
            [[1.0, 2.0], [1.0, 2.0], None, None, [1.0]],
            ["rows 2, 3, 4, 5: 'c.at' and 'c.value' differ in length or are missing: correct them"],
        ),
        (
            [[0, 4], [0, -1], [5], [1, 1], [None], [2, 3]],
            [[1.0, 2.0], [1.0, 2.0], [1.0], [1.0, 2.0], [1.0], [1.0, 2.0]],
            [f"rows 2, 3, 5: {OUTSIDE}; the largest is 5", f"row 4: {TWICE}"],
        ),
        (
            [[0, 1], [0], [0], [0]],
            [[NAN, 2.0], [INF], [None], [0.0]],
            ["rows 1, 2, 3: column 'c.value' has NaN, infinite (in 32 bits) or missing numbers: correct them"],
        ),
        (
            [[0.0]],
            [[1.0]],
            ["column 'c.at' holds values of type list<item: double>: it must hold lists of whole numbers"],
        ),
        ([[0]], [["a"]], ["column 'c.value' holds values of type list<item: string>: it must hold lists of numbers"]),
        ([0], [[1.0]], ["column 'c.at' holds values of type int64: it must hold lists of whole numbers"]),
        (
            [[9], [0]],
            [[NAN], [1.0, 2.0]],
            [
                "row 2: 'c.at' and 'c.value' differ in length or are missing: correct them",
                f"row 1: {OUTSIDE}; the largest is 9",
                "row 1: column 'c.value' has NaN, infinite (in 32 bits) or missing numbers: correct them",
            ],
        ),
    ],
)
def test_wrong_bags_are_reported(at, value, due):
    assert wrong(Bag(width=5), c_at=at, c_value=value) == due


def test_position_too_large_for_a_float_is_outside():
    found = wrong(Bag(width=5), c_at=pa.array([[2**63 - 1]], pa.list_(pa.int64())), c_value=[[1.0]])
    assert found == [f"row 1: {OUTSIDE}; the largest is {2**63 - 1:,}"]


def test_bags_are_sparse_and_keep_stored_zeros():
    x = encoded(Bag(width=4), c_at=pa.array([[0, 3], [], [2]], pa.list_(pa.uint8())), c_value=[[1, 2], [], [0]])
    assert is_sparse(x)
    assert x.values().tolist() == [1, 2, 0]
    assert x.to_dense().tolist() == [[1, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_positions_in_any_order_are_sorted():
    x = encoded(Bag(width=4), c_at=[[3, 0, 1], [2], [1, 0]], c_value=[[3.0, 0.5, 1.0], [2.0], [1.0, 0.5]])
    assert x.col_indices().tolist() == [0, 1, 3, 2, 0, 1]
    assert x.to_dense().tolist() == [[0.5, 1, 0, 3], [0, 0, 2, 0], [0.5, 1, 0, 0]]
