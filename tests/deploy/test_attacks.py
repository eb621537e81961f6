"""What a dishonest server tries on parties with default limits, and what they answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests.deploy.federated_studies import study_of, with_limits
from tests.federation.by_hand import ByHand, at_folders, members_of

from isthmus.deploy.approval import Approvals, Proposal
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.member import Member
from isthmus.deploy.party_side import Message
from isthmus.study.config import Study

PARTIES = ("party-0", "party-1", "party-2")
MASKS = {"total": "masks"}
Lie = Callable[[Message], Message | None]
"""Makes another message of one that an honest server sends; None: there is nothing to lie about in this one."""


def answers_to(lie: Lie, tmp_path: Path, name: str = "fedavg", **more: Any) -> list[Message]:
    """What parties reply if every message that can be a lie is told as one, before the honest one."""
    study = at_folders(study_of(name, **{"protect": MASKS, **more}), tmp_path / "data", parties=4)
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    replies: list[Message] = []

    def meddle(party: str, message: Message) -> None:
        if (told := lie(message)) is not None:
            replies.append(members[party].handle(told))

    coordinate(study, ByHand(members, meddle), "s", tmp_path / "server")
    assert replies
    return replies


def refused(replies: list[Message], why: str) -> bool:
    return all(
        why in reply.get("wrong", "") and reply.keys() <= {"wrong", "begun", "answered", "nonce"} for reply in replies
    )


@pytest.mark.parametrize("action", ["train", "evaluate"])
@pytest.mark.thinned(2)
def test_ask_instead_of_a_masked_total_is_refused(action: str, tmp_path: Path) -> None:
    def lie(message: Message) -> Message | None:
        if message.get("action") != action or message["do"] != "call":
            return None
        return {**{key: value for key, value in message.items() if key != "shield"}, "verb": "ask"}

    assert refused(answers_to(lie, tmp_path), f"refused: action '{action}' is answered by total, not by ask")


@pytest.mark.parametrize(
    ("name", "action"), [("fedgcn", "sum_up"), ("fedcog by totals", "propagate_total")], ids=["fedgcn", "fedcog"]
)
@pytest.mark.thinned(2)
def test_sums_over_neighbours_are_never_for_the_server(name: str, action: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"methods": [{"name": "fedcog", "through": "totals"}]} if name != "fedgcn" else {}
    name = name.partition(" ")[0]

    def to_the_server(message: Message) -> Message | None:
        if message.get("action") != action or message["do"] != "call":
            return None
        return {**message, "shield": {**message["shield"], "to": "server"}}

    why = f"refused: a total of action '{action}' is for the parties, not for the server"
    assert refused(answers_to(to_the_server, tmp_path / "one", name, **more), why)

    def later(message: Message) -> Message | None:
        if message.get("step") != "again" or message["shield"]["to"] != "parties":
            return None
        return {**message, "shield": {**message["shield"], "to": "server"}}

    why = "refused: this sum is for the parties, not for the server"
    assert refused(answers_to(later, tmp_path / "two", name, **more), why)

    def plain(message: Message) -> Message | None:
        if message.get("action") != action or message["do"] != "call":
            return None
        return {key: value for key, value in message.items() if key != "shield"} | {"to": "parties"}

    why = f"refused: what action '{action}' answers is not for the server: set protect.total = 'masks'"
    assert refused(answers_to(plain, tmp_path / "three", name, **more), why)


# ---- a study is bound to what was approved


def begun(planned: Study, tmp_path: Path, *parties: str, **changes: Any) -> str:
    """What a party that approved another study replies to the beginning of this one."""
    if not (tmp_path / "data").exists():
        at_folders(study_of("fedavg"), tmp_path / "data")
    member = members_of(tmp_path / "data", tmp_path / "parties", study_of("fedavg"))["party-0"]
    proposal = Proposal(planned, parties or PARTIES)
    message = {"do": "begin", "run": "r", "stage": "set-up", "study": proposal.text, "norm": planned.federation.norm,
               "parties": list(proposal.parties)}  # fmt: skip
    reply = member.handle({**message, "protect": planned.protect.model_dump_json(), **changes})
    if "wrong" not in reply:
        assert reply["answered"] == 0
    return str(reply.get("wrong", ""))


def test_only_the_very_study_that_was_approved_begins(tmp_path: Path) -> None:
    """Nothing of the set-up is answered to another one, and the hash is the party's own."""
    study = study_of("fedavg")
    assert begun(study, tmp_path) == ""
    masked = study_of("fedavg", protect={"total": "masks"})
    for other in (
        masked,
        study_of("fedavg", rounds=4),
        study_of("fedavg", seeds=[0, 1]),
        study_of("fedavg", methods=[{"name": "fedavg", "local": {"epochs": 10**9}}]),
        study_of("local"),
        study_of("fedavg", model={"encoder": "gcn", "hidden": 32}),
        study_of("fedavg", unlabelled="error"),
    ):
        why = begun(other, tmp_path)
        assert why.startswith(f"refused: study {Proposal(other, PARTIES).hash} is not approved there: approve it with")
    assert "is not approved" in begun(study, tmp_path, "party-0", "party-1")
    assert "refused: a study over the parties party-1; its kit has" in begun(study, tmp_path, "party-1")
    other = "the server begins with other [protect] or [federation] than the study has"
    assert other in begun(study, tmp_path, protect=masked.protect.model_dump_json())
    assert other in begun(study, tmp_path, norm=1e30)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"parties": 3}', "x" * 2_000_000])
def test_what_is_no_study_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    why = begun(study_of("fedavg"), tmp_path, study=text)
    assert why.startswith("refused: the s")
    assert "\n" not in why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"import": ["mine.py"]}, "refused: the server sent a study with 'import': use one version"),
        ({"data": {"name": "banks"}}, "refused: the server sent a study with 'data': use one version"),
        ({"split": {"train": 0.5, "val": 0.2, "path": "/"}}, "refused: the server sent a study with 'path': use one"),
        ({"model": {"encoder": "mine:run"}}, "study: a federation runs no code from a study: install the package"),
        ({"model": {"encoder": ["mine:run"]}}, "study: a federation runs no code from a study: install the package"),
    ],
    ids=["a file", "data", "a path", "a function", "a list"],
)
def test_a_study_brings_no_code_whoever_approved_it(
    change: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be in the party's own folder, and the module among those that are installed."""
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath('ran').touch()\ndef run(*sizes): return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    study = study_of("fedavg")
    text = json.dumps({**json.loads(Proposal(study, PARTIES).text), **change})
    reply = begun(study, tmp_path, study=text)
    assert reply.startswith(why)
    assert str(tmp_path) not in reply
    assert not (tmp_path / "ran").exists()
    assert not list((tmp_path / "parties" / "party-0" / "studies").glob("*.calls"))
    assert Approvals(tmp_path / "parties" / "party-0" / "studies").waiting() == []


def finished(tmp_path: Path, name: str = "fedavg", limits: str = "", **more: Any) -> tuple[ByHand, dict[str, Member]]:
    """An honest run, after which the parties are still there."""
    study = at_folders(study_of(name, **more), tmp_path / "data")
    if limits:
        with_limits(tmp_path / "data", limits)
    members = members_of(tmp_path / "data", tmp_path / "parties", study)
    post = ByHand(members)
    coordinate(study, post, "s", tmp_path / "server", save_every=0)
    return post, members


def calls_of(post: ByHand, party: str, action: str) -> list[Message]:
    return [message for to, message in post.sent if to == party and message.get("action") == action]


@pytest.mark.parametrize(("repeats", "more"), [(0, 0), (1, 3), (2, 6)])
@pytest.mark.parametrize("action", ["evaluate", "train"])
@pytest.mark.thinned(5)
def test_no_action_is_answered_more_often_than_planned(action: str, repeats: int, more: int, tmp_path: Path) -> None:
    """The study has three rounds; a dishonest server goes on asking, each time something else."""
    post, members = finished(tmp_path, limits=f"repeats = {repeats}")
    last = calls_of(post, "party-1", action)[-1]
    replies = [members["party-1"].handle({**last, "under": 3 + at}) for at in range(30)]
    assert [("wrong" in reply) for reply in replies] == [False] * more + [True] * (30 - more)
    why = f"refused: the study plans 3 calls of '{action}' in method fedavg, seed 0, and {3 + more} were answered"
    assert replies[-1]["wrong"].startswith(f"{why} (limits.repeats): approve it with isthmus federation approve KIT ")


def test_beginning_again_under_other_names_gives_no_further_calls(tmp_path: Path) -> None:
    post, members = finished(tmp_path, limits="repeats = 0")
    (begin,) = [message for to, message in post.sent if to == "party-1" and message.get("stage") == "run"]
    train = calls_of(post, "party-1", "train")
    for name in ("t", "u"):
        restarted = members_of(tmp_path / "data", tmp_path / "parties")["party-1"]  # a new job is a new process
        assert "wrong" not in restarted.handle({**begin, "run": name})
        assert "wrong" not in restarted.handle(train[0])  # exactly what it answered before
        assert "the study plans 3 calls" in restarted.handle(train[2])["wrong"]  # not at this point
    for change in ({"seed": 1}, {"method": "local"}, {"seed": True}):
        assert "refused: the study has no run of" in members["party-1"].handle({**begin, **change})["wrong"]


def test_noise_is_not_drawn_again(tmp_path: Path) -> None:
    """A mean over many draws would show the edges."""
    post, members = finished(tmp_path, "fgcl", limits="repeats = 0")
    (protect,) = calls_of(post, "party-1", "protect")
    for at in range(3):
        assert "plans 1 calls of 'protect'" in members["party-1"].handle({**protect, "under": 2 + 5 * at})["wrong"]


def test_a_call_is_repeated_only_if_nothing_before_it_differs(tmp_path: Path) -> None:
    """One model for this party among others', and other sums before it is asked, are not what was answered before."""
    post, members = finished(tmp_path, "fedcog", limits="repeats = 0", protect={"exchange": "sealed"})
    party, own = members["party-1"], "party-1"
    sent = [message for to, message in post.sent if to == own]
    start = next(at for at, message in enumerate(sent) if message.get("stage") == "run")
    first = next(at for at, message in enumerate(sent) if message.get("action") == "train")
    train = sent[first]

    def replayed(*left_out: str, **changes: Any) -> Message:
        for message in sent[start:first]:
            if message["do"] not in left_out:
                party.handle(message)
        return party.handle({**train, **changes})

    assert "refused: the study plans" in replayed("deliver", nonce=1)["wrong"]
    request = train["request"]
    for others in ({"party-0": b"", own: request}, {"0": request}, {}):
        assert "with requests for other parties than 'party-1'" in replayed(request=others)["wrong"]
    assert "refused: the study plans" in replayed(request={own: request})["wrong"]


@pytest.mark.parametrize(("redraw", "answered"), [("never", 6), ("epoch", 3)])
def test_no_order_of_calls_draws_more_noise_than_epsilon_pays_for(redraw: str, answered: int, tmp_path: Path) -> None:
    """Although `repeats` lets a server call everything four times."""
    more: dict[str, Any] = {"methods": [{"name": "fgcl", "redraw": redraw}], "protect": {"noise": "own"}}
    post, members = finished(tmp_path, "fgcl", limits="repeats = 3", **more)
    party = members["party-1"]
    begin = next(m for to, m in post.sent if to == "party-1" and m.get("stage") == "run")
    (protect,), train = calls_of(post, "party-1", "protect"), calls_of(post, "party-1", "train")[0]
    evaluate = calls_of(post, "party-1", "evaluate")[0]
    views: list[Any] = []
    for before in ([], [evaluate]):
        party.handle(begin)
        for message in (*before, protect):
            assert "wrong" not in party.handle(message)
        assert party.site is not None
        with party.site.asked():
            views.append(party.site.kept.each("prepared")[0]["0"])
    assert torch.equal(*views)
    replies = [party.handle(train) for _ in range(6)]
    trained = [not reply.get("failures") and "wrong" not in reply for reply in replies]
    assert sum(trained) == answered


@pytest.mark.slow
def test_a_study_whose_server_is_killed_again_and_again_ends_as_planned(tmp_path: Path) -> None:
    """What a resumed run repeats was answered before, so no further approval is needed."""
    study = at_folders(study_of("fedavg", rounds=5), tmp_path / "data")
    with_limits(tmp_path / "data", "repeats = 0")
    members_of(tmp_path / "data", tmp_path / "parties", study)

    class Killed(KeyboardInterrupt):
        pass

    for kill in (1, 3, 2, 4):
        trained = [0]

        def killing(to: str, message: Message, last: int = kill, trained: list[int] = trained) -> None:
            trained[0] += to == "party-0" and message.get("action") == "train"
            if trained[0] == last:
                raise Killed

        post, pause = ByHand(members_of(tmp_path / "data", tmp_path / "parties"), killing), 1e9 if kill == 3 else 0
        with pytest.raises(Killed):
            coordinate(study, post, "s", tmp_path / "server", save_every=pause)
    members = members_of(tmp_path / "data", tmp_path / "parties")
    assert coordinate(study, ByHand(members), "s", tmp_path / "server", save_every=0).runs[0].rounds == 5


# ---- messages that are none


def mutated(value: Any, draw: Random) -> Any:
    """A message with one thing in it replaced, left out, or of another kind."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        if draw.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: mutated(value[key], draw)}
    if isinstance(value, bytes) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return value[:at] + bytes([value[at] ^ (1 << draw.randrange(8))]) + value[at + 1 :]
    return draw.choice([None, -1, 10**30, 1.5, True, "", "x" * 300, b"", b"x", [], [[]], {}, {"a": {}}])


def test_no_mutated_message_gets_an_exception(tmp_path: Path) -> None:
    """One line, or an answer, to each; and the party goes on."""
    post, members = finished(tmp_path, protect=MASKS)
    party, draw = members["party-1"], Random(0)
    sent = [message for to, message in post.sent if to == "party-1"]
    kinds = {(message["do"], message.get("step"), message.get("action")): message for message in sent}
    for message in kinds.values():
        for _ in range(12):
            reply = party.handle(mutated(message, draw))
            assert isinstance(reply, dict)
            assert "\n" not in reply.get("wrong", "")
    assert "wrong" not in party.handle({"do": "greet"})
