"""Draws are a hash of the party's key and the position: alone, in a cohort, in any order of drawing."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from isthmus.nn import draws as module
from isthmus.nn.draws import Draws, NotSideBySide, PartyDropout, draws_of, rows_per_party, seed_of
from isthmus.nn.products import Features

SIZES = (30, 0, 50, 7)
DRAWS = Draws.seeded([seed_of("party", at) for at in range(len(SIZES))])


def dropped(x, sizes, given=DRAWS, **options):
    with PartyDropout(given, [sizes]):
        return F.dropout(x, **options)


def test_a_seed_depends_on_every_part_and_on_where_it_ends():
    parts = [(), (0,), (1,), (0, 0), ("0", "a"), ("0a",), ("0", "", "a")]
    assert len({seed_of(*each) for each in parts}) == len(parts)
    assert all(0 <= seed_of(*each) < 2**63 for each in parts)


# ---- the hash


def literal_bits(key, position, width):
    """One element's 32 bits, in Python's whole numbers; `position` is `(row, column)` within the party."""
    low, high = key & 0xFFFFFFFF, key >> 32
    x = ((position[0] * width + position[1]) * 0x9E3779B9 + low) & 0xFFFFFFFF
    x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) ^ high) * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def test_bits_are_the_hash_of_the_key_and_the_position(monkeypatch):
    for chunk in (1 << 16, 7):
        monkeypatch.setattr(module, "CHUNK", chunk)
        found = DRAWS.bits(SIZES, 3)
        due = [
            [literal_bits(int(key), (row, column), 3) for column in range(3)]
            for key, size in zip(DRAWS.keys, SIZES, strict=True)
            for row in range(size)
        ]
        assert (found.long() & 0xFFFFFFFF).tolist() == due


def test_keys_are_those_of_splitmix64():
    assert int(Draws.seeded([0]).keys[0]) == 0xE220A8397B1DCDAF  # its first output for seed 0


@pytest.mark.parametrize(
    "draw",
    [
        lambda draws, sizes: draws.bits(sizes, 5),
        lambda draws, sizes: draws.uniform(sizes, 2, 3),
        lambda draws, sizes: draws.uniform(sizes, dtype=torch.float64),
        lambda draws, sizes: draws.normal(sizes, 3),
        lambda draws, sizes: draws.integers(sizes, 9),
        lambda draws, sizes: (
            draws.order(sizes)
            - (torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)).repeat_interleave(torch.tensor(sizes))
        ),
    ],
    ids=["bits", "uniform", "double", "normal", "integers", "order"],
)
def test_a_party_draws_the_same_alone_and_in_a_cohort(draw):
    together = draw(DRAWS.of("x").of_counts([4, 5, 6, 7]), SIZES).split(SIZES)
    for at, size in enumerate(SIZES):
        assert torch.equal(together[at], draw(DRAWS[at].of("x").of_counts([4 + at]), (size,)))


def test_other_purposes_and_counts_give_other_draws():
    several = [
        DRAWS,
        DRAWS.of("a"),
        DRAWS.of("b"),
        DRAWS.of("a", 1),
        DRAWS.of_counts([1] * 4),
        DRAWS.of_counts([2] * 4),
    ]
    assert len({tuple(each.bits((8,) * 4)[0].tolist()) for each in several}) == len(several)
    assert torch.equal(DRAWS.of("a").bits(SIZES), DRAWS.of("a").bits(SIZES))


def test_draws_are_distributed_as_they_say():
    many = Draws.seeded(range(200))
    uniform = many.uniform((1000,) * 200, 2)
    assert 0 <= float(uniform.min()) <= float(uniform.max()) < 1
    counts = torch.histc(uniform, 100, 0, 1)
    assert float(((counts - 4000) ** 2 / 4000).sum()) == pytest.approx(99, abs=60)  # chi-square: sd 14
    series = uniform[:, 0].view(200, 1000)
    noise = 1000**-0.5
    neighbours = torch.stack([series[:, :-1].flatten(), series[:, 1:].flatten()])
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 5 * noise / 200**0.5
    between = torch.corrcoef(series)[~torch.eye(200, dtype=torch.bool)]  # parties do not follow each other
    assert float(between.std()) == pytest.approx(noise, rel=0.05)
    normal = many.normal((1000,) * 200, 3)
    assert float(normal.mean()) == pytest.approx(0, abs=0.01)
    assert float(normal.std()) == pytest.approx(1, abs=0.01)
    assert float((normal.abs() < 1.959964).float().mean()) == pytest.approx(0.95, abs=0.002)
    drawn = many.integers((1000,) * 200, 7)
    assert torch.bincount(drawn, minlength=7).float().div(200_000 / 7).sub(1).abs().max() < 0.03


def test_consecutive_keys_and_steps_flip_half_of_the_bits():
    steps = torch.cat([DRAWS[0].of("step", at).bits((1,), 4) for at in range(400)])
    flips = np.unpackbits((steps[1:] ^ steps[:-1]).numpy().view(np.uint8)).mean()
    assert flips == pytest.approx(0.5, abs=0.01)


def test_every_order_is_as_likely():
    orders = Draws.seeded(range(6000)).order((3,) * 6000).view(6000, 3) % 3
    counts = torch.unique(orders, dim=0, return_counts=True)[1]
    assert counts.numel() == 6
    assert float(((counts - 1000.0) ** 2 / 1000).sum()) < 20.5  # chi-square with 5 degrees: 0.1%


def test_some_are_drawn_in_ascending_order_each_once():
    assert draws_of(0).some(3, 5).tolist() == [0, 1, 2]
    chosen = draws_of(0).some(1000, 50)
    assert chosen.unique().tolist() == chosen.tolist()
    assert len(chosen) == 50


# ---- dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_party_drops_the_same_alone_and_side_by_side(p):
    x = torch.ones(sum(SIZES), 6)
    together = dropped(x, SIZES, p=p).split(SIZES)
    for at, size in enumerate(SIZES):
        alone = dropped(torch.ones(size, 6), (size,), DRAWS[at], p=p)
        assert torch.equal(together[at], alone)


def test_every_call_of_one_pass_draws_anew():
    with PartyDropout(DRAWS, [SIZES]):
        first, second = (F.dropout(torch.ones(sum(SIZES), 6)) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_dropout_keeps_the_expectation(p):
    out = dropped(torch.ones(sum(SIZES), 200), SIZES, p=p)
    assert set(out.unique().tolist()) == {0.0, out.max().item()}
    assert out.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)  # p is right to 1/65536
    assert out.mean().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 0.5, "training": False}])
def test_nothing_is_dropped_nor_drawn_without_need(options):
    x = torch.ones(sum(SIZES), 6)
    with PartyDropout(DRAWS, [SIZES]) as mode:
        assert torch.equal(F.dropout(x, **options), x)
    assert mode.calls == 0


def test_everything_is_dropped_at_one():
    assert not dropped(torch.ones(sum(SIZES), 6), SIZES, p=1.0).any()


def test_a_dropout_module_draws_per_party_too():
    with PartyDropout(DRAWS, [SIZES]):
        out = nn.Dropout(0.5)(torch.ones(sum(SIZES), 6))
    assert torch.equal(out, dropped(torch.ones(sum(SIZES), 6), SIZES))


def test_gradients_pass_through_what_was_kept():
    x = torch.ones(sum(SIZES), 6, requires_grad=True)
    out = dropped(x, SIZES)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_the_entries_of_sparse_features_drop_the_same_alone_and_side_by_side():
    x = draws_of("x").uniform((sum(SIZES),), 6).sub(0.5).relu()
    together = dropped(Features(x.to_sparse_csr()), SIZES).values
    at = 0
    for position, part in enumerate(x.split(SIZES)):
        alone = dropped(Features(part.to_sparse_csr()), (part.size(0),), DRAWS[position]).values
        assert torch.equal(together[at : at + alone.numel()], alone)
        at += alone.numel()
    assert at == together.numel()
    assert set((together / x[x > 0]).unique().tolist()) == {0.0, 2.0}


def test_rows_are_divided_by_the_layout_that_adds_up():
    layouts = [(3, 4), (1, 2)]
    assert rows_per_party(7, layouts) == (3, 4)
    assert rows_per_party(3, layouts) == (1, 2)
    with pytest.raises(NotSideBySide):
        rows_per_party(5, layouts)


def test_any_rows_are_those_of_the_only_party():
    assert rows_per_party(5, [(3,), (1,)]) == (5,)
