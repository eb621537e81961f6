import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.data.folder.columns import Category, Number, Vector
from isthmus.data.folder.encoding import Encoding, _structural, add_totals
from isthmus.data.folder.reading import Contents
from isthmus.data.folder.settings import PartyFile
from isthmus.data.ids import hash_ids
from isthmus.data.rows import is_sparse, to_dense
from isthmus.errors import IsthmusError
from party_folders import COLUMNS, graph_draft, read

KEY = b"k" * 32
SCALED = {"a": {"kind": "number"}, "b": {"kind": "number", "missing": "mean"}, "c": {"kind": "category"}}


def contents(columns, **values) -> Contents:
    """What the encoding looks at of a party: its declared columns and its rows."""
    said = PartyFile(name="x", classes=2, columns=columns)
    nothing = torch.zeros(0)
    return Contents(said, pa.table(values), nothing, nothing, nothing, None, None)


def literally(rows, key):
    """The encoding of pooled rows, one value after another."""
    features = []
    for name in ("a", "b"):
        known = [row[name] for row in rows if row[name] is not None]
        mean = sum(known) / len(known) if known else 0.0
        deviation = (sum((value - mean) ** 2 for value in known) / max(1, len(known))) ** 0.5
        if len(set(known)) < 2:
            deviation = 0.0
        features.append([0.0 if r[name] is None or not deviation else (r[name] - mean) / deviation for r in rows])
    values = sorted({row["c"] for row in rows if row["c"] is not None}, key=lambda value: int(hash_ids([value], key)))
    features += [[float(row["c"] == value) for row in rows] for value in values]
    return torch.tensor(features).t()


def spread(rows, owner, parties):
    kinds = {"a": pa.float64(), "b": pa.float64(), "c": pa.string()}
    held = [[row for row, at in zip(rows, owner, strict=True) if at == party] for party in range(parties)]
    return [contents(SCALED, **{n: pa.array([r[n] for r in some], k) for n, k in kinds.items()}) for some in held]


def put_together(parts, owner):
    """The rows of all parties in the order in which they stood."""
    order = np.argsort(np.argsort(np.asarray(owner), kind="stable"), kind="stable")
    return torch.cat([to_dense(part) for part in parts])[torch.from_numpy(order)]


numbers = st.floats(-1e6, 1e6, allow_nan=False, width=32).map(lambda value: round(value, 3))
row = st.fixed_dictionaries({"a": numbers, "b": st.none() | numbers, "c": st.none() | st.sampled_from("xyzäö")})


@given(st.data())
@settings(max_examples=50)
def test_totals_give_what_pooled_rows_give_however_they_are_spread(data):
    rows = data.draw(st.lists(row, min_size=1, max_size=30))
    owner = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    key = data.draw(st.sampled_from([None, KEY]))
    due = literally(rows, key)
    for who, parties in ((owner, 3), ([0] * len(rows), 1), (list(range(len(rows))), len(rows))):
        held = spread(rows, who, parties)
        encoding = Encoding.fit(held, key)
        found = put_together([encoding.encode(each, key)[0] for each in held], who)
        torch.testing.assert_close(found, due, rtol=1e-6, atol=1e-6)


def test_totals_say_nothing_of_a_row():
    """However many rows there are, there are as many totals: three sums, and a count for each value that occurs."""
    sizes = set()
    for count in (2, 2_000):
        table = pa.table({"a": np.arange(count) / 7, "c": ["xy"[at % 2] for at in range(count)]})
        first = Number().first_totals("a", table, None)
        second = Number().second_totals("a", table, first)
        values = Category().first_totals("c", table, KEY)
        sizes.add(tuple((name, tuple(value.shape)) for each in (first, second, values) for name, value in each.items()))
        assert int(values["counts"].sum()) == count
    assert sizes == {(("count", ()), ("sum", ()), ("squares", ()), ("ids", (2,)), ("counts", (2,)))}


def test_values_of_a_category_are_known_by_their_keyed_hashes_alone():
    table = pa.table({"c": ["north street", "south street"]})
    ids = Category().first_totals("c", table, KEY)["ids"]
    assert sorted(ids.tolist()) == sorted(hash_ids(["north street", "south street"], KEY).tolist())
    assert sorted(ids.tolist()) != sorted(hash_ids(["north street", "south street"], None).tolist())


def test_parties_agree_on_categories_that_only_one_of_them_has():
    """Numbers at one party and texts at another are one value."""
    one = contents({"c": {"kind": "category"}}, c=["17", "a", None])
    two = contents({"c": {"kind": "category"}}, c=pa.array([4, 17]))
    encoding = Encoding.fit([one, two], KEY)
    x, z = encoding.encode(one, KEY)[0], encoding.encode(two, KEY)[0]
    assert x.shape == (3, 3)
    assert z.shape == (2, 3)
    assert torch.equal(x[0], z[1])
    assert torch.cat([x, z]).sum(0).sort().values.tolist() == [1, 1, 2]
    assert torch.equal(Encoding.fit([two, one], KEY).encode(one, KEY)[0], x)


def test_with_another_key_only_the_order_of_categories_changes():
    party = contents({"c": {"kind": "category"}}, c=list("abcdefgh"))
    one = Encoding.fit([party], KEY).encode(party, KEY)[0]
    two = Encoding.fit([party], b"other" * 8).encode(party, b"other" * 8)[0]
    assert not torch.equal(one, two)
    assert torch.equal(one.sum(0), two.sum(0))


def test_declared_encodings_need_no_totals():
    columns = {"a": {"kind": "number", "scale": "none"}, "c": {"kind": "category", "values": ["x"]}}
    encoding = Encoding.fit([contents(columns, a=[1.0], c=["x"])])
    assert encoding.totals == {"a": {}, "c": {}}
    assert encoding.encode(contents(columns, a=[5.0], c=[None]))[0].tolist() == [[5.0, 0.0]]


def test_features_stand_in_the_order_of_the_columns(tmp_path):
    party = read(
        graph_draft(partner=None).said(
            columns={name: COLUMNS[name] for name in ("near", "age")}, ignore=["kind", "words.at", "words.value"]
        ),
        tmp_path,
    )
    x = Encoding.fit([party]).encode(party)[0]
    assert x[:, :2].tolist() == [[at / 2, -1.0 - at] for at in range(8)]
    assert x.shape == (8, 3)


def test_a_sparse_column_makes_all_features_sparse(tmp_path):
    party = read(graph_draft(), tmp_path)
    x = Encoding.fit([party]).encode(party)[0]
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
def test_totals_with_ids_add_up_by_id(order):
    parts = [
        {"ids": torch.tensor([3, 9]), "counts": torch.tensor([1, 2])},
        {"ids": torch.tensor([], dtype=torch.long), "counts": torch.tensor([], dtype=torch.long)},
        {"ids": torch.tensor([9, 1]), "counts": torch.tensor([5, 4])},
    ]
    found = add_totals(parts[at] for at in order)
    assert found["ids"].tolist() == [1, 3, 9]
    assert found["counts"].tolist() == [4, 1, 7]


@pytest.mark.parametrize("wrong", [[2], [-1], 1, "yes", [True]])
def test_structural_features_that_are_not_there_are_an_error_of_one_line(wrong):
    def read_and_used():
        return _structural("x", Vector.read({"width": 2, "structural": wrong}, "column 'x'"), 2)

    with pytest.raises(IsthmusError) as error:
        read_and_used()
    assert "structural" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_category_whose_order_is_drawn_is_structural_as_a_whole():
    assert _structural("x", Category(structural=True), 3).tolist() == [True] * 3
    assert _structural("x", Category(values=["a", "b"], structural=[1]), 2).tolist() == [False, True]
    with pytest.raises(IsthmusError, match="set structural = true or false"):
        _structural("x", Category(structural=[1]), 3)
