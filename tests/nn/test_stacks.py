import pytest
import torch

from helpers import CLASSES, FEATURES, make_parties
from isthmus.data.cohort import Cohort
from isthmus.nn.encoders import Gcn
from isthmus.nn.per_party import PerParty
from isthmus.nn.stacks import FirstLayer, dense, is_stack, length, not_finite, outline, pick, slice_of, slices

TRAINS = (True, False, True, True)


def first_layer(touched=True, hidden=8):
    """A first layer of four parties that differ, as training leaves it."""
    torch.manual_seed(0)
    cohort = Cohort(make_parties("node", sparse=True))
    model = PerParty(Gcn(hidden=hidden).build(FEATURES, CLASSES, "node"), len(cohort))
    for leaf in model.start_training(cohort.block, TRAINS, touched_rows=touched):
        with torch.no_grad():
            leaf.tensor += torch.randn(leaf.tensor.shape)
    model.stop_training()
    layer = model.weights()[model.first_layer]
    assert isinstance(layer, FirstLayer)
    return layer


COLUMNS = {
    "tensor": lambda: torch.randn(4, 3),
    "first layer by touched rows": first_layer,
    "whole first layer": lambda: first_layer(False),
    "first layer with one output": lambda: first_layer(hidden=1),
    "list of tensors": lambda: [torch.randn(at) for at in range(4)],
}
over_columns = pytest.mark.parametrize("kind", COLUMNS)


@over_columns
def test_every_form_of_a_column_gives_the_same_values_in_every_way(kind):
    column = COLUMNS[kind]()
    assert length(column) == 4
    assert is_stack(column) == (kind != "list of tensors")
    whole = dense(column) if is_stack(column) else column
    for at, each in enumerate(slices(column)):
        assert torch.equal(each, whole[at])
        assert torch.equal(slice_of(column, at), whole[at])
        assert outline(column, at).shape == whole[at].shape
        assert outline(column, at).dtype == whole[at].dtype
    for found, at in zip(pick(column, [2, 0]), [2, 0], strict=True):
        assert torch.equal(found, whole[at])


def test_a_slice_carries_no_gradient():
    assert not slice_of(torch.ones(2, 3, requires_grad=True), 1).requires_grad
    assert slice_of([1, "two"], 1) == "two"


@pytest.mark.parametrize("value", [3.0, "text", b"bytes", {"a": 1}, torch.tensor(1.0), None])
def test_what_is_no_column_has_no_length(value):
    assert length(value) is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", [kind for kind in COLUMNS if kind != "list of tensors"])
def test_slices_that_are_not_finite_are_found(kind, bad):
    stack = COLUMNS[kind]()
    assert not_finite(stack) == []
    with torch.no_grad():
        (stack if isinstance(stack, torch.Tensor) else stack.party_rows)[-1, 0] = bad
    assert not_finite(stack) == [3]


@pytest.mark.parametrize(("row", "positions"), [(0, [1]), (1, [0, 2, 3])], ids=["those that rest", "those that train"])
def test_rows_that_parties_share_count_for_each_of_them(row, positions):
    layer = first_layer()
    layer.shared_rows[row, 0, 0] = torch.nan
    assert not_finite(layer) == positions
