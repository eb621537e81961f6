import pytest
import torch
from torch import nn
from torch.nn import functional as F

from isthmus.nn.draws import Draws, NotSideBySide, generator, rows_per_party, seed_of
from isthmus.nn.products import Features

SIZES = (30, 0, 50, 7)


def sources():
    return [generator("party", at) for at in range(len(SIZES))]


def dropped(x, sizes, given=None, **options):
    with Draws(given or sources(), [sizes]):
        return F.dropout(x, **options)


def test_a_seed_depends_on_every_part_and_on_where_it_ends():
    parts = [(), (0,), (1,), (0, 0), ("0", "a"), ("0a",), ("0", "", "a")]
    assert len({seed_of(*each) for each in parts}) == len(parts)
    assert all(0 <= seed_of(*each) < 2**63 for each in parts)


def test_the_same_parts_give_the_same_draws():
    assert torch.equal(torch.rand(5, generator=generator(1, "a")), torch.rand(5, generator=generator(1, "a")))
    assert not torch.equal(torch.rand(5, generator=generator(1, "a")), torch.rand(5, generator=generator(1, "b")))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_party_drops_the_same_alone_and_side_by_side(p):
    x = torch.ones(sum(SIZES), 6)
    together = dropped(x, SIZES, p=p).split(SIZES)
    for at, size in enumerate(SIZES):
        alone = dropped(torch.ones(size, 6), (size,), [sources()[at]], p=p)
        assert torch.equal(together[at], alone)


def test_every_party_draws_on_from_where_it_stopped():
    given = sources()
    first, second = (dropped(torch.ones(sum(SIZES), 6), SIZES, given) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_dropout_keeps_the_expectation(p):
    out = dropped(torch.ones(sum(SIZES), 200), SIZES, p=p)
    assert set(out.unique().tolist()) == {0.0, out.max().item()}
    assert out.max().item() == pytest.approx(1 / (1 - p))
    assert out.mean().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 0.5, "training": False}])
def test_nothing_is_dropped_nor_drawn_without_need(options):
    given = sources()
    x = torch.ones(sum(SIZES), 6)
    assert torch.equal(dropped(x, SIZES, given, **options), x)
    assert all(torch.equal(used.get_state(), fresh.get_state()) for used, fresh in zip(given, sources(), strict=True))


def test_everything_is_dropped_at_one():
    assert not dropped(torch.ones(sum(SIZES), 6), SIZES, p=1.0).any()


def test_a_dropout_module_draws_per_party_too():
    with Draws(sources(), [SIZES]):
        out = nn.Dropout(0.5)(torch.ones(sum(SIZES), 6))
    assert torch.equal(out, dropped(torch.ones(sum(SIZES), 6), SIZES))


def test_gradients_pass_through_what_was_kept():
    x = torch.ones(sum(SIZES), 6, requires_grad=True)
    out = dropped(x, SIZES)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_the_entries_of_sparse_features_drop_the_same_alone_and_side_by_side():
    x = torch.rand(sum(SIZES), 6, generator=generator("x")).sub(0.5).relu()
    together = dropped(Features(x.to_sparse_csr()), SIZES).values
    at = 0
    for position, part in enumerate(x.split(SIZES)):
        alone = dropped(Features(part.to_sparse_csr()), (part.size(0),), [sources()[position]]).values
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
