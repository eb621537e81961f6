"""A study that is spread over hosts gives what it gives in one process whose sites hold the same parties."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.federated_studies import study_of
from tests.federation.hosts import InBytes

from isthmus.deploy.hosts import Host, Hosts, split_evenly
from isthmus.deploy.remote import Message
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.local import LocalTransport
from isthmus.study.config import Study
from isthmus.study.loop import Run, RunResult
from isthmus.study.run import run_study
from isthmus.study.setup import extended, module_for

THREE = ("a", "b", "c")


def hosts_of(names: tuple[str, ...] = THREE, **post: Any) -> Hosts:
    return Hosts(InBytes(names, Host, **post))


def in_one_process(study: Study, sites: int, seed: int = 0) -> RunResult:
    """With so many sites in this process, whose parties are those of as many hosts."""
    loaded, method = study.load(seed), study.method_list()[0]
    task, module = loaded.task, module_for(study.encoder(), loaded.parties, loaded.task, seed)
    groups = split_evenly(loaded.parties, [str(at) for at in range(sites)]).values()
    own = extended(method, module_for(study.encoder(), loaded.parties, loaded.task, seed), seed)
    here = LocalTransport([method.site(group, task, own, seed=seed) for group in groups])
    return Run(method, loaded.parties, task, module, seed=seed, transport=here).go()


def assert_same(one: RunResult, other: RunResult) -> None:
    """To the bit, and the ledger row for row."""
    mine, theirs = dict(wire.flatten(one.weights)), dict(wire.flatten(other.weights))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[path], theirs[path]) for path in mine)
    assert one.history
    assert one.history == other.history
    assert list(one.ledger.rows()) == list(other.ledger.rows())


@pytest.mark.parametrize("name", ["fedavg", "fedcog", "fedcog-gcn", "fedgl", "fgcl", "fclg", "fedgc", "local", "links"])
def test_hosts_give_the_numbers_of_one_process_bit_for_bit(name: str) -> None:
    if name == "links":
        study = study_of("fedavg", rounds=2, parties=5, task={"name": "link-prediction"})
    else:
        study = study_of(name, rounds=2, parties=5)
    assert_same(run_study(study, hosts=hosts_of()).runs[0], in_one_process(study, 3))


def test_several_methods_and_seeds_into_the_same_folder(tmp_path: Path) -> None:
    """One that pools the data runs here: what it trains on is one party."""
    methods = [{"name": name} for name in ("fedavg", "centralized", "local")]
    study = study_of("fedavg", methods=methods, parties=3, seeds=[0, 1])
    there = run_study(study, tmp_path / "there", hosts=hosts_of())
    here = run_study(study, tmp_path / "here")
    assert [(run.method, run.seed) for run in there.runs] == [(run.method, run.seed) for run in here.runs]
    for run, other in zip(there.runs, here.runs, strict=True):
        assert run.metrics == pytest.approx(other.metrics, abs=1e-5)
        assert list(run.ledger.rows()) == list(other.ledger.rows())
    names = [sorted(str(file.relative_to(tmp_path / each)) for file in (tmp_path / each).rglob("*")) for each in
             ("here", "there")]  # fmt: skip
    assert names[0] == names[1]
    assert (tmp_path / "there" / "study.toml").read_text() == (tmp_path / "here" / "study.toml").read_text()


def lost_at(round_: int) -> Callable[[str, Message], Message | str | None]:
    count = [0]

    def meddle(host: str, message: Message) -> str | None:
        if host == "b" and message.get("action") == "train":
            count[0] += 1
            return "no answer within 600 s" if count[0] == round_ else None
        return None

    return meddle


@pytest.mark.parametrize("again", [THREE, ("x", "y"), ()])
@pytest.mark.parametrize("name", ["fedavg", "fedgl", "local"])
def test_a_run_whose_host_was_lost_goes_on_with_whatever_hosts_there_are(
    name: str, again: tuple[str, ...], tmp_path: Path
) -> None:
    study = study_of(name, rounds=4, parties=5)
    first = hosts_of(meddle=lost_at(3))
    with pytest.raises(IsthmusError, match=r"^host 'b' is lost: no answer within 600 s"):
        run_study(study, tmp_path / "out", hosts=first, save_every=0)
    hosts = hosts_of(again) if again else None
    found = run_study(study, tmp_path / "out", resume=True, hosts=hosts).runs[0]
    whole = in_one_process(study, 3)
    if again == THREE:
        assert_same(found, whole)
    else:
        assert found.metrics == pytest.approx(whole.metrics, abs=1e-5)
    if hosts is not None:
        assert isinstance(hosts.post, InBytes)
        assert [message["do"] for host, message in hosts.post.sent if host == again[0]][:2] == ["begin", "restore"]


def test_a_host_with_other_data_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    study, hosts = study_of("fedavg"), hosts_of()
    load = Study.load

    def other(self: Study, seed: int) -> Any:
        return load(self, seed + (self is not study))

    monkeypatch.setattr(Study, "load", other)
    with pytest.raises(IsthmusError, match=r"^host 'a': its data differ from the study's data: give every host"):
        run_study(study, hosts=hosts)


def test_data_are_loaded_once_for_all_methods_of_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of("fedavg", rounds=1, methods=[{"name": "fedavg"}, {"name": "local"}], seeds=[0, 1])
    loaded: list[int] = []
    load = Study.load
    monkeypatch.setattr(Study, "load", lambda self, seed: loaded.append(seed) or load(self, seed))
    run_study(study, hosts=hosts_of(("a",)))
    assert loaded == [0, 0, 1, 1]  # each by who runs it, and by the host


def test_ranges_are_as_even_as_can_be() -> None:
    assert [len(share) for share in split_evenly(range(20), THREE).values()] == [6, 7, 7]
    assert split_evenly(["p", "q"], THREE) == {"b": ["p"], "c": ["q"]}
