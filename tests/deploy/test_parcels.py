"""What is packed is the same when it is opened."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.party import Party
from isthmus.deploy.parcels import Parcel, open_parties, pack_parties
from isthmus.study.config import Study
from isthmus.testing import small_parties
from party_folders import assert_same_parties

TYPES = [torch.float32, torch.float64, torch.int64, torch.bool]
TENSORS = st.builds(
    lambda shape, dtype, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(TYPES),
    st.integers(0, 99),
)
VALUES = st.recursive(
    TENSORS | st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)


def assert_equal(one: object, other: object) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


@given(VALUES)
def test_a_parcel_opens_to_what_was_packed(value):
    parcel = Parcel.of(value)
    assert_equal(parcel.open(), value)
    assert_equal(parcel.open(), value)
    assert len(parcel.data) <= len(TYPES)


@pytest.mark.parametrize(
    "options",
    [
        {"data": {"name": "banks", "nodes": 60}},
        {"data": {"name": "hospitals", "nodes": 60}},
        {"data": {"name": "motifs", "graphs": 20}},
        {"data": {"name": "molecules", "graphs": 20}},
        {"data": {"name": "banks", "nodes": 60}, "task": {"name": "link-prediction"}},
    ],
    ids=lambda options: f"{options['data']['name']}{' links' if 'task' in options else ''}",
)
def test_parties_open_to_those_that_were_packed(options):
    parties: Sequence[Party] = Study.of({"unlabelled": "idle", "parties": 3, **options}).cut_data(0).parties
    found = open_parties(pack_parties(parties))
    assert_same_parties(found, parties)
    assert found[0].graph.x.untyped_storage().data_ptr() == found[1].graph.x.untyped_storage().data_ptr()
    for one, other in zip(found, parties, strict=True):
        assert {key: value for key, value in one.graph.to_dict().items() if not torch.is_tensor(value)} == {
            key: value for key, value in other.graph.to_dict().items() if not torch.is_tensor(value)
        }
        for part in ("border", "pairs"):
            assert (getattr(one, part) is None) == (getattr(other, part) is None)


def test_typed_parties_are_the_same_when_opened():
    parties = small_parties("node", typed=True)
    for one, other in zip(parties, open_parties(pack_parties(parties)), strict=True):
        assert one.schema == other.schema
        assert_equal(dict(sorted(one.graph.to_dict().items())), dict(sorted(other.graph.to_dict().items())))
        assert_equal(one.border.per_edge, other.border.per_edge)
