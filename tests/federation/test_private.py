"""Both sides of a private sum: what a party sends in place of its answer, and the mean that the server makes of it."""

import pytest
import torch

from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation.answers import Answer, Total
from isthmus.federation.ledger import Entry, Ledger
from isthmus.federation.private import Asked, PrivateSums
from isthmus.federation.transport import Each
from isthmus.privacy.options import PartyPrivacy
from isthmus.privacy.random_bits import NoiseKey
from isthmus.privacy.updates import PartyPlan

SENT = {"weights": {"a": torch.zeros(3), "b": torch.ones(2, 2)}}


def sums(**options):
    plan = PartyPlan.of(PartyPrivacy(**{"epsilon": 1e8, "dropouts": 0, **options}), 2)
    return PrivateSums(plan, ("train",))


def asked(secret=0, answered=1):
    return Asked(("north", "south"), (answered, answered), NoiseKey(secret))


def trained():
    a, b = torch.tensor([[0.3, 0.0, 0.0], [0.0, -0.1, 0.0]]), torch.ones(2, 2, 2)
    return Answer(
        {"weights": {"a": a, "b": b}, "change": torch.tensor([[0.2], [0.1]])}, weight=torch.tensor([3.0, 9.0])
    )


def test_the_server_reads_means_of_what_came_back_and_sums_of_the_rest():
    private = sums()
    request = private.request("train", SENT, ["north", "south"])
    answer = private.answer("train", trained(), request, asked())
    assert answer.weight is None  # a count is a release
    fields = {
        **{f"update/weights/{name}": value.sum(0) for name, value in answer.fields["update"]["weights"].items()},
        "update/change": answer.fields["update"]["change"].sum(0),
    }
    assert all(value.dtype == torch.int64 for value in fields.values())
    total = private.opened("train", Total(fields, dict.fromkeys(fields, 2.0), 2, {}), request, ["north", "south"])
    mean = total.mean("weights")
    assert torch.allclose(mean["a"], torch.tensor([0.15, -0.05, 0.0]), atol=1e-3)
    assert torch.allclose(mean["b"], torch.ones(2, 2), atol=1e-3)
    assert mean["a"].dtype == torch.float32
    assert torch.allclose(total.sum("change"), torch.tensor([0.3]), atol=1e-3)


def test_a_secret_key_gives_other_noise_to_other_values_and_the_same_to_the_same():
    private, secret = sums(epsilon=1.0), bytes(range(32))
    request = private.request("train", SENT, ["north", "south"])

    def noisy(answer, key=secret, answered=1):
        return private.answer("train", answer, request, asked(key, answered)).fields["update"]["weights"]["a"]

    one, again = noisy(trained()), noisy(trained())
    assert torch.equal(one, again)
    other = trained()
    other.fields["weights"]["a"][0, 0] += 1e-3
    assert (noisy(other) - one).abs().max() > 10_000
    assert not torch.equal(noisy(trained(), bytes(32)), one)
    assert not torch.equal(noisy(trained(), answered=2), one)
    assert not torch.equal(one[0] - one[1], one[1] - one[0])


def test_a_sum_without_enough_noise_is_not_read():
    private = sums(dropouts=1)
    parties = ["north", "south", "west"]
    total = Total({"update/weights/a": torch.zeros(3, dtype=torch.long)}, {"update/weights/a": 1.0}, 1, {})
    with pytest.raises(
        TooFewAnswers, match="a sum over 1 of 3 parties has less noise than the account says, at least 2"
    ):
        private.opened("train", total, SENT, parties)
    assert private.least("train", {"shares": 5}) == 4  # whatever the server says, parties open no sum over fewer
    assert private.least("evaluate", {}) == 1
    with pytest.raises(IsthmusError, match="does not say among how many parties"):
        private.least("train", {"shares": 0})
    with pytest.raises(IsthmusError, match="asks parties for different things"):
        private.request("train", Each({"north": {}, "south": {}}), parties)


def test_what_no_noise_covers_is_refused():
    private = sums()
    assert private.answer("begin", Answer({}), {}, asked()).fields == {}
    with pytest.raises(IsthmusError, match=r"refused: privacy does not cover what it answers \(items\)"):
        private.answer("count", Answer({"items": torch.tensor([3, 4])}), {}, asked())
    with pytest.raises(IsthmusError, match="refused: 'items' is no real number that noise could cover"):
        private.answer("train", Answer({"items": torch.tensor([3, 4])}), {"shares": 2}, asked())


def test_the_account_is_of_the_party_that_was_asked_most_often_whether_or_not_it_answered():
    ledger = Ledger()
    for at, parties in enumerate((("north", "south"), ("south",), ("south", "west"))):
        sizes = (0,) * len(parties)
        ledger.add(
            Entry(at, at, "total", "train", "server sees the sum", "", "none", parties, sizes, sizes, {"south": "x"})
        )
    ledger.add(Entry(4, 4, "ask", "evaluate", "server sees each answer", "", "none", ("south",), (0,), (0,)))
    (release,) = sums().account(ledger).releases
    assert release.times == 3
