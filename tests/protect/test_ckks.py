"""Encrypted sums: parties that drop out, and who has the key."""

from __future__ import annotations

import pytest
from tests.protect.closed import (
    UNION,
    Table,
    at_step,
    everything,
    rows_of,
    same,
    weights_of,
)

from isthmus.errors import IsthmusError
from isthmus.protect.ckks import EncryptingGuard


@pytest.mark.parametrize("step", ["make", "take", "call", "open"])
def test_a_party_may_drop_out_at_any_step_of_an_encrypted_sum(step: str) -> None:
    party = "b" if step == "take" else "a"
    table = Table("ckks", weights_of(4), meddle=at_step(party, step))
    left = table.parties if step == "open" else tuple(name for name in table.parties if name != party)
    same(table.total().total.payload(), table.plain(left).payload(), 1e-4)


def test_the_server_never_has_the_key_of_encrypted_sums() -> None:
    table = Table("ckks", rows_of(3, wants=True))
    table.total(rows=UNION)
    table.total(rows=UNION, to="parties")
    seen = everything(table)
    guard = table.guards["a"]
    assert isinstance(guard, EncryptingGuard)
    key = guard._context.secret_key()
    from isthmus.protect.ckks import _serialize

    whole = _serialize(guard._context, secret=True)
    assert whole not in seen
    assert key is not None
    assert table.sums._context.is_public()  # type: ignore[attr-defined]
    public = next(m["public"] for _, _, m in table.seen if "public" in m)
    assert len(public) < len(whole)
    plain = table.replies["a"].columns["x"][0]  # type: ignore[index]
    assert plain.double().numpy().tobytes() not in seen


def test_an_encrypted_sum_of_one_is_not_opened_for_the_server() -> None:
    table = Table("ckks", weights_of(3))
    table.total()
    part = next(m for to, _, m in table.seen if to == "b" and "closed" in m)
    message = {"step": "open", "agreement": table.sums._name, "closed": part["closed"], "form": part["form"]}  # type: ignore[attr-defined]
    with pytest.raises(IsthmusError, match="refused: a sum over 1 is not opened"):
        table.guards["a"].answer_step({**message, "in": ["a", "b", "c"], "what": "counts"})
