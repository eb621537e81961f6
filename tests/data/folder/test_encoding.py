"""Encodings from totals equal those of pooled rows."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.data.folder.columns import Category, Number, Vector
from isthmus.data.folder.encoding import Encoding, _structural, add_totals, first_totals, second_totals
from isthmus.data.folder.reading import Contents
from isthmus.data.folder.settings import PartyFile
from isthmus.data.folder.table import Table
from isthmus.data.ids import PLAIN, KeyedHash
from isthmus.data.rows import is_sparse, to_dense
from isthmus.errors import IsthmusError
from isthmus.federation.answers import PlainTotal, Reply
from isthmus.federation.sums import positions_of
from party_folders import COLUMNS, graph_draft, read

KEYED = KeyedHash(b"k" * 32)
SCALED = {"a": {"kind": "number"}, "b": {"kind": "number", "missing": "mean"}, "c": {"kind": "category"}}


def fit(parties, hashing=PLAIN):
    """The encoding that these parties agree on."""
    columns, totals = parties[0].settings.feature_columns(), {}
    for name, column in columns.items():
        first = add_totals([first_totals(name, column, party, hashing) for party in parties])
        totals[name] = first | add_totals([second_totals(name, column, party, first) for party in parties])
    return Encoding(columns, totals)


def contents(columns, **values) -> Contents:
    """The parts of a party's contents that the encoding uses: declared columns and rows."""
    said = PartyFile(name="x", classes=2, columns=columns)
    nothing = torch.zeros(0)
    return Contents(said, Table.of(pa.table(values)), nothing, nothing, nothing, None, None)


def encode_pooled(rows, hashing):
    """Encode pooled rows value by value."""
    features = []
    for name in ("a", "b"):
        known = [row[name] for row in rows if row[name] is not None]
        mean = sum(known) / len(known) if known else 0.0
        deviation = (sum((value - mean) ** 2 for value in known) / max(1, len(known))) ** 0.5
        if len(set(known)) < 2:
            deviation = 0.0
        features.append([0.0 if r[name] is None or not deviation else (r[name] - mean) / deviation for r in rows])
    values = sorted({row["c"] for row in rows if row["c"] is not None}, key=lambda value: int(hashing.numbers([value])))
    features += [[float(row["c"] == value) for row in rows] for value in values]
    return torch.tensor(features).t()


def split_rows(rows, owner, parties):
    kinds = {"a": pa.float64(), "b": pa.float64(), "c": pa.string()}
    held = [[row for row, at in zip(rows, owner, strict=True) if at == party] for party in range(parties)]
    return [contents(SCALED, **{n: pa.array([r[n] for r in some], k) for n, k in kinds.items()}) for some in held]


def merge_rows(parts, owner):
    """Return the rows of all parties in their original order."""
    order = np.argsort(np.argsort(np.asarray(owner), kind="stable"), kind="stable")
    return torch.cat([to_dense(part) for part in parts])[torch.from_numpy(order)]


numbers = st.floats(-1e6, 1e6, allow_nan=False, width=32).map(lambda value: round(value, 3))
row = st.fixed_dictionaries({"a": numbers, "b": st.none() | numbers, "c": st.none() | st.sampled_from("xyzäö")})


@given(st.data())
@settings(max_examples=50)
def test_encoding_from_totals_equals_encoding_of_pooled_rows(data):
    rows = data.draw(st.lists(row, min_size=1, max_size=30))
    owner = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    hashing = data.draw(st.sampled_from([PLAIN, KEYED]))
    due = encode_pooled(rows, hashing)
    for who, parties in ((owner, 3), ([0] * len(rows), 1), (list(range(len(rows))), len(rows))):
        held = split_rows(rows, who, parties)
        encoding = fit(held, hashing)
        found = merge_rows([encoding.encode(each, hashing)[0] for each in held], who)
        torch.testing.assert_close(found, due, rtol=1e-6, atol=1e-6)


def test_size_of_totals_does_not_depend_on_the_rows():
    """There are three sums, and a count for each value that occurs, however many rows there are."""
    sizes = set()
    for count in (2, 2_000):
        table = pa.table({"a": np.arange(count) / 7, "c": ["xy"[at % 2] for at in range(count)]})
        first = Number().first_totals("a", table, None)
        second = Number().second_totals("a", table, first)
        values = Category().first_totals("c", table, KEYED)
        sizes.add(tuple((name, tuple(value.shape)) for each in (first, second, values) for name, value in each.items()))
        assert int(values["counts"].sum()) == count
    assert sizes == {(("count", ()), ("sum", ()), ("squares", ()), ("ids", (2,)), ("counts", (2,)))}


def test_totals_hold_only_keyed_hashes_of_categories():
    table = pa.table({"c": ["north street", "south street"]})
    ids = Category().first_totals("c", table, KEYED)["ids"]
    assert sorted(ids.tolist()) == sorted(KEYED.numbers(["north street", "south street"]).tolist())
    assert sorted(ids.tolist()) != sorted(PLAIN.numbers(["north street", "south street"]).tolist())


def test_encoding_has_categories_that_only_one_party_has():
    """A number at one party and the same text at another are one value."""
    one = contents({"c": {"kind": "category"}}, c=["17", "a", None])
    two = contents({"c": {"kind": "category"}}, c=pa.array([4, 17]))
    encoding = fit([one, two], KEYED)
    x, z = encoding.encode(one, KEYED)[0], encoding.encode(two, KEYED)[0]
    assert x.shape == (3, 3)
    assert z.shape == (2, 3)
    assert torch.equal(x[0], z[1])
    assert torch.cat([x, z]).sum(0).sort().values.tolist() == [1, 1, 2]
    assert torch.equal(fit([two, one], KEYED).encode(one, KEYED)[0], x)


def test_another_key_changes_only_the_order_of_categories():
    party = contents({"c": {"kind": "category"}}, c=list("abcdefgh"))
    other = KeyedHash(b"other" * 8)
    one, two = (fit([party], each).encode(party, each)[0] for each in (KEYED, other))
    assert not torch.equal(one, two)
    assert torch.equal(one.sum(0), two.sum(0))


def test_declared_encodings_need_no_totals():
    columns = {"a": {"kind": "number", "scale": "none"}, "c": {"kind": "category", "values": ["x"]}}
    encoding = fit([contents(columns, a=[1.0], c=["x"])])
    assert encoding.totals == {"a": {}, "c": {}}
    assert encoding.encode(contents(columns, a=[5.0], c=[None]))[0].tolist() == [[5.0, 0.0]]


def test_features_have_the_order_of_the_columns(tmp_path):
    party = read(
        graph_draft(partner=None).with_settings(
            columns={name: COLUMNS[name] for name in ("near", "age")}, ignore=["kind", "words.at", "words.value"]
        ),
        tmp_path,
    )
    x = fit([party]).encode(party)[0]
    assert x[:, :2].tolist() == [[at / 2, -1.0 - at] for at in range(8)]
    assert x.shape == (8, 3)


def test_every_feature_has_a_name(tmp_path):
    columns = {
        "age": {"kind": "number"}, "day": {"kind": "date", "features": "cycle"}, "sex": {"kind": "category"},
        "tier": {"kind": "category", "values": ["low", "high"]}, "near": {"kind": "vector", "width": 2},
    }  # fmt: skip
    values = {"age": [1.0, 3.0], "day": ["2024-01-01", "2024-01-04"], "sex": ["f", "m"], "tier": ["high", "low"]}
    party = contents(columns, **values, near=[[1.0, 2.0], [3.0, 4.0]])
    encoding = fit([party])
    assert encoding.feature_names() == [
        "age", "sin(day in week)", "sin(day in day)", "cos(day in week)", "cos(day in day)", "sex[0]", "sex[1]",
        "tier = low", "tier = high", "near[0]", "near[1]",
    ]  # fmt: skip
    x = encoding.encode(party)[0]
    assert x.size(1) == len(encoding.feature_names())
    assert x[:, 7:].tolist() == [[0, 1, 1, 2], [1, 0, 3, 4]]
    words = fit([read(graph_draft(), tmp_path)]).feature_names()
    assert "words[0]" in words


def test_a_sparse_column_makes_all_features_sparse(tmp_path):
    party = read(graph_draft(), tmp_path)
    x = fit([party]).encode(party)[0]
    assert is_sparse(x)
    assert x.shape == (8, 1 + 2 + 2 + 5)
    age = np.array([3 * at % 7 for at in range(8)], dtype=np.float64)
    torch.testing.assert_close(
        x.to_dense()[:, 0].double().numpy(), (age - age.mean()) / age.std(), rtol=1e-6, atol=1e-6
    )
    assert x.to_dense()[:, 3:5].tolist() == [[at / 2, -1.0 - at] for at in range(8)]
    words = torch.zeros(8, 5)
    for at in range(8):
        if at % 2:
            words[at, at % 5] = 0.5
        else:
            words[at, 0], words[at, 1 + at % 4] = 1.0, 2.0
    assert torch.equal(x.to_dense()[:, 5:], words)
    assert x.crow_indices().dtype == x.col_indices().dtype == torch.int64


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_keyed_totals_are_added_by_id(order):
    parts = [
        {"ids": torch.tensor([3, 9]), "counts": torch.tensor([1, 2])},
        {"ids": torch.tensor([], dtype=torch.long), "counts": torch.tensor([], dtype=torch.long)},
        {"ids": torch.tensor([9, 1]), "counts": torch.tensor([5, 4])},
    ]
    found = add_totals(parts[at] for at in order)
    assert found["ids"].tolist() == [1, 3, 9]
    assert found["counts"].tolist() == [4, 1, 7]


@pytest.mark.parametrize("wrong", [[2], [-1], 1, "yes", [True]])
def test_structural_position_out_of_range_is_a_one_line_error(wrong):
    def read_and_used():
        return _structural("x", Vector.read({"width": 2, "structural": wrong}, "column 'x'"), 2)

    with pytest.raises(IsthmusError) as error:
        read_and_used()
    assert "structural" in str(error.value)
    assert "\n" not in str(error.value)


def test_undeclared_category_is_structural_as_a_whole_or_not_at_all():
    assert _structural("x", Category(structural=True), 3).tolist() == [True] * 3
    assert _structural("x", Category(values=["a", "b"], structural=[1]), 2).tolist() == [False, True]
    with pytest.raises(IsthmusError, match="set structural = true or false"):
        _structural("x", Category(structural=[1]), 3)


@pytest.mark.parametrize("parties", [1, 2, 3, 5, 8, 13])
def test_totals_have_the_bits_that_a_federation_gets(parties):
    """Added one after the other, these numbers have others."""
    numbers = [
        torch.tensor(1.0 + 1e16 * (at % 4 == 0) - 1e16 * (at % 4 == 2), dtype=torch.float64) for at in range(parties)
    ]
    replies = [Reply.of_one(str(at), {"sum": number}) for at, number in enumerate(numbers)]
    due = PlainTotal(replies, positions_of([str(at) for at in range(parties)])).sum("sum")
    assert torch.equal(add_totals([{"sum": number} for number in numbers])["sum"], due)
