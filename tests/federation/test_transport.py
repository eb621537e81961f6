"""Every transport carries the same commands to the same effect, in this process and over messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from at_parties import transport_of
from scripted import NAMES, bits, number, site_of, small_parties
from tests.deploy.federated_studies import study_of
from tests.deploy.ray_here import stand_in

from helpers import CLASSES
from isthmus.data.partition import Partition
from isthmus.deploy import cluster
from isthmus.errors import IsthmusError
from isthmus.federation.answers import Answer, Mail
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.federation.transport import Command, Each, Transport
from isthmus.federation.verbs import Federation
from isthmus.study.config import Loaded

Script = Callable[[Site, Any], Any]


@pytest.fixture(autouse=True)
def ray_here(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, cores=2)


def to_workers(script: Script) -> Transport:
    """Two workers with two parties each, whose sites follow the script instead of the study's method."""
    study = study_of("fedavg")
    loaded = Loaded(list(small_parties()), CLASSES, Partition.named("random")())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "sites_of", lambda method, parties, *_, **__: [site_of(script, parties)])
        return cluster.Cluster().transport(study, study.method_list()[0], 0, loaded)


TRANSPORTS: dict[str, Callable[[Script], Transport]] = {
    "cohort": lambda script: LocalTransport([site_of(script)]),
    "alone": lambda script: LocalTransport([site_of(script, [party]) for party in small_parties()]),
    "bytes": lambda script: LocalTransport([site_of(script)], wire=True),
    "workers": to_workers,
    "parties": lambda script: transport_of(lambda here: site_of(script, here))[0],
}
everywhere = pytest.mark.parametrize("make", TRANSPORTS.values(), ids=TRANSPORTS.keys())


def numbers(site: Site) -> list[float]:
    return [float(number(name)) for name in site.cohort.names]


def counting(site: Site, request: Any) -> Any:
    """Counts calls, answers the sum so far and what has come, or sends the own number on to the next party."""
    if request["what"] == "send":
        names = [*NAMES[1:], NAMES[0]]
        return Mail([{names[int(n)]: {"n": n}} if n in request["from"].tolist() else {} for n in numbers(site)])
    site.kept["calls"] = site.kept.get("calls", torch.tensor(0)) + 1
    came = [sorted(box) for box in site.received("say")]
    return Answer(
        {
            "x": torch.tensor(numbers(site)) + request["add"],
            "calls": site.kept["calls"],
            "came": [", ".join(senders) for senders in came],
        }
    )


def scene(federation: Federation) -> list[Any]:
    """Answers to a few calls, with mail between them and a restart."""

    def ask(request: Any, **of: Any) -> Any:
        return {party: bits(dict(answer)) for party, answer in federation.ask("say", request, **of).items()}

    plain = {"what": "answer", "add": torch.tensor(0.5)}
    found: list[Any] = [
        ask(plain),
        ask(Each({name: {**plain, "add": torch.tensor(float(number(name)))} for name in NAMES})),
    ]
    federation.exchange("say", {"what": "send", "from": torch.tensor([0, 2])})
    found.append(ask(plain))
    saved = federation.save()
    federation.exchange("say", {"what": "send", "from": torch.tensor([3])})
    found.append(ask(plain, of=NAMES[:2]))
    federation.restore(saved)
    found.append(ask(plain))
    federation.exchange("say", {"what": "send", "from": torch.tensor([])}, of=NAMES[1:])
    found.append(ask(plain))
    return found


@everywhere
def test_answers_mail_and_restarts_are_the_same_everywhere(make: Callable[[Script], Transport]) -> None:
    due = scene(Federation(TRANSPORTS["cohort"](counting)))
    assert due[2] != due[3] != due[4] != due[5]
    assert scene(Federation(make(counting))) == due


@everywhere
def test_a_total_is_the_same_to_the_bit_everywhere(make: Callable[[Script], Transport]) -> None:
    def script(site: Site, request: Any) -> Answer:
        return Answer({"w": torch.tensor([[0.1 + n, -n] for n in numbers(site)])}, weight=torch.tensor(numbers(site)))

    sums = [Federation(each(script)).total("say").sum("w") for each in (make, TRANSPORTS["cohort"])]
    assert bits(sums[0]) == bits(sums[1])


@everywhere
def test_an_unknown_command_is_refused(make: Callable[[Script], Transport]) -> None:
    with pytest.raises(IsthmusError, match="unknown command 'dance'"):
        make(counting).send(Command("dance", NAMES))  # type: ignore[arg-type]


def test_a_command_needs_only_what_it_is_for() -> None:
    command = Command("save", NAMES)
    assert (command.action, command.verb, command.payload) == ("", None, None)
