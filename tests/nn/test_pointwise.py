"""Functions of single numbers: values, gradients, and the same bits in every place."""

import pytest
import torch
from torch.nn import functional as F

from isthmus.nn.pointwise import gelu, sigmoid


@pytest.mark.parametrize(("ours", "torchs"), [(sigmoid, torch.sigmoid), (gelu, F.gelu)])
def test_values_and_gradients_are_torchs(ours, torchs):
    x = torch.linspace(-30, 30, 601, dtype=torch.double, requires_grad=True)
    assert torch.allclose(ours(x), torchs(x), rtol=0, atol=1e-14)
    (own,), (due,) = (torch.autograd.grad(each(x).sum(), x) for each in (ours, torchs))
    assert torch.allclose(own, due, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("ours", [sigmoid, gelu])
def test_a_number_has_the_same_bits_and_the_same_slope_in_every_place(ours, dtype):
    x = torch.randn(257, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) * 3

    def both(part):
        part = part.clone().requires_grad_()
        out = ours(part)
        return out.detach(), torch.autograd.grad(out.sum(), part)[0]

    whole = both(x)
    for start, stop in [(start, start + size) for size in range(1, 24) for start in range(0, 200, 17)]:
        assert all(torch.equal(own, of_all[start:stop]) for own, of_all in zip(both(x[start:stop]), whole, strict=True))
