"""What is recorded is what the ledger books."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from audited import cut, features, propagating

from isthmus.audit.base import Audit, Recorder
from isthmus.federation import wire
from isthmus.federation.transport import Command
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedcog import FedCog

SOURCE = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("by_wire", [False, True])
def test_letters_are_those_that_the_ledger_books(by_wire):
    parties = cut([(0, 1), (0, 2), (1, 3), (2, 4), (3, 4)], [0, 0, 1, 1, 2], features("words", 5, SOURCE))
    task, module = propagating(parties)
    method = FedCog(rounds=1)
    recorder = Recorder([method.site(parties, task, module)], wire=by_wire)
    federation = Federation(recorder)
    for _ in method.server(federation, Model(module), State()):
        pass
    got = Counter()
    for letter in recorder.letters:
        got[letter.action, letter.addressee] += wire.size(letter.payload)
    booked = Counter()
    for row in federation.ledger.rows():
        if row["action"] == "propagate: delivery":
            booked["propagate", row["party"]] += row["received"]
    assert got == booked
    assert {letter.sender for letter in recorder.letters} == {"party-0", "party-1", "party-2"}


def test_sums_are_no_letters():
    recorder = Recorder([])
    mail = {"party-0": {"weights": {"w": torch.ones(2)}, "ids": torch.ones(2)}}
    recorder.send(Command("deliver", ("party-0",), "total", payload=mail))
    assert not recorder.letters


def test_audits_are_found_by_name():
    assert "reconstruction" in Audit.known()
    assert {option["name"] for option in Audit.named("reconstruction").describe()["options"]} == {
        "colluders", "min_neighbours", "accuracy",
    }  # fmt: skip
