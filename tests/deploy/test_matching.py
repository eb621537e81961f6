"""Ids that are matched obliviously in a federation: the same results, and a server that lies gets a line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from pyarrow import parquet
from tests.deploy.federated_studies import add_columns, federated, study_of, with_limits
from tests.federation.by_hand import ByHand, at_folders, members_of

from isthmus.data.ids import PLAIN
from isthmus.deploy.approval import Proposal
from isthmus.deploy.coordinator import Outcome, coordinate
from isthmus.deploy.matching import Match
from isthmus.deploy.party_side import Message
from isthmus.deploy.remote import RemoteTransport
from isthmus.deploy.setup import agree
from isthmus.errors import IsthmusError
from isthmus.federation.verbs import Federation
from isthmus.protect.matching import POINT, SMALLEST, list_size
from isthmus.study.config import Study
from isthmus.study.model_files import load_model
from isthmus.study.new_parties import new_parties

PARTIES = {"party-0", "party-1", "party-2"}
OBLIVIOUS = {"matching": "oblivious"}
Mail = dict[str, bytes]
Lie = Callable[[list[tuple[str, Mail]], str, Mail], Mail | None]
"""Gets the deliveries before, the addressee and its mail; returns other mail."""


def study_at(folder: Path, name: str, protect: dict[str, Any], nodes: int, data: str = "banks") -> Study:
    return at_folders(study_of(name, rounds=1, protect=protect, data={"name": data, "nodes": nodes}), folder)


def set_up(post: ByHand, study: Study, job: str = "s") -> None:
    """Do what comes before a method runs."""
    text = Proposal(study, post.sites).text
    begin: Message = {"do": "begin", "study": text, "run": f"{job}/set-up", "stage": "set-up"}
    agree(Federation(RemoteTransport(post, begin, protect=study.protect)), matching=True)


@pytest.mark.parametrize(("name", "data"), [("fedcog", "banks"), ("fedgl", "hospitals")])
@pytest.mark.thinned(2)
def test_results_are_those_under_hashes(name: str, data: str, tmp_path: Path) -> None:
    """The splits are in the files: drawn ones follow the ids, which differ."""
    kinds = {"hashed": {}, "matched": OBLIVIOUS}
    hashed, matched = (
        federated(study_at(tmp_path / kind / "data", name, protect, 200, data), tmp_path / kind)
        for kind, protect in kinds.items()
    )
    assert matched.runs[0].history == hashed.runs[0].history
    assert matched.runs[0].reconciled["differences"] == []
    steps = [row["action"] for row in matched.ledger.rows() if row["party"] == "party-0"]
    assert steps.count("match") == steps.count("match: delivery") == 3
    assert {row["action"] for row in hashed.ledger.rows()}.isdisjoint(steps[1:-1])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    """Folders of three small parties, with a category whose values are not declared, and a study of them."""
    folder = tmp_path_factory.mktemp("small") / "data"
    study = study_at(folder, "fedavg", OBLIVIOUS, nodes=90)
    add_columns(folder)
    return folder, study


def run(small: tuple[Path, Study], state: Path, meddle: Any = None, name: str = "s") -> tuple[ByHand, Outcome]:
    folder, study = small
    post = ByHand(members_of(folder, state, study), meddle)
    return post, coordinate(study, post, name, state / "server")


LIES: dict[str, Lie] = {
    "alter": lambda before, to, mail: {sender: data[:-1] + bytes([data[-1] ^ 1]) for sender, data in mail.items()},
    "truncate": lambda before, to, mail: {sender: data[:-POINT] for sender, data in mail.items()},
    "replay": lambda before, to, mail: next((each for party, each in before if party == to), None),
    "give it to another party": lambda before, to, mail: dict(zip(mail, before[-1][1].values(), strict=True)),
    "swap senders": lambda before, to, mail: {party: data for data in mail.values() for party in PARTIES - {to, *mail}},
    "skip": lambda before, to, mail: {},
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_lists_that_a_server_tampers_with_are_refused(name: str, small: tuple[Path, Study], tmp_path: Path) -> None:
    before: list[tuple[str, Mail]] = []

    def meddle(party: str, message: Message) -> None:
        if message["do"] == "deliver" and message["action"] == "match":
            if len(before) >= len(PARTIES) and (told := LIES[name](before, party, message["mail"])) is not None:
                assert told != message["mail"]
                message["mail"] = told
            before.append((party, message["mail"]))

    with pytest.raises(IsthmusError) as error:
        run(small, tmp_path, meddle)
    text = str(error.value)
    due = r"refused: no list of 'party-\d' came from 'party-\d', or it did not open|no list is due from 'party-\d'"
    assert re.search(due, text)
    assert "\n" not in text


def test_a_server_that_leaves_out_the_matching_gets_no_ids(
    small: tuple[Path, Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.deploy.coordinator.matches_ids", lambda study, parties: False)
    with pytest.raises(IsthmusError, match="refused: 'values' is due after ids are matched"):
        run(small, tmp_path)


def test_what_the_server_sees(small: tuple[Path, Study], tmp_path: Path) -> None:
    """Sealed lists of coarse sizes, and pseudonyms, but no number that a guess gives."""
    heard: list[Message] = []

    class Listening(ByHand):
        def _one(self, party: str, message: Message) -> Message | str:
            reply = super()._one(party, message)
            heard.append({"party": party, "told": message, "said": reply})
            return reply

    folder, study = small
    post = Listening(members_of(folder, tmp_path, study))
    set_up(post, study)
    transcript = b"".join(_bytes_in(heard))
    for name, member in post.members.items():
        table = parquet.read_table(folder / name / "nodes.parquet")
        texts = PLAIN.numbers([*table["id"].to_pylist(), *table["town"].to_pylist()])
        assert torch.isin(texts, member.pseudonyms.known).all()
        assert not any(_either(number, transcript) for number in texts.tolist())
        towns = member.pseudonyms.numbers(table["town"].to_pylist())
        assert all(_either(number, transcript) for number in towns.tolist())
    lists = [
        each["said"]["letters"] for each in heard if each["told"].get("action") == "match" and "letters" in each["said"]
    ]
    sizes = {len(letter["sealed"]) for letters in lists for each in letters for letter in each.values()}
    due = {list_size(len(member.pseudonyms.known)) for member in post.members.values()}
    assert len(lists) == len(PARTIES) ** 2
    assert {size // POINT * POINT for size in sizes} <= {
        POINT * (points + extra) for points in due for extra in range(40)
    }


def test_the_next_job_has_other_pseudonyms_and_a_resumed_one_the_same(
    small: tuple[Path, Study], tmp_path: Path
) -> None:
    folder, study = small
    members = members_of(folder, tmp_path, study)
    found = []
    for job in ("s", "t", "s"):
        set_up(ByHand(members), study, job)
        found.append([member.pseudonyms for member in members.values()])
        values = torch.cat([each.known for each in found[-1]])
        names = torch.cat([each.pseudonyms for each in found[-1]])
        pairs = torch.stack([values, names]).unique(dim=1)
        assert pairs.size(1) == values.unique().numel() == names.unique().numel() < values.numel()
    first, second, third = (torch.cat([each.pseudonyms for each in of]) for of in found)
    assert torch.equal(first, third)
    assert not torch.isin(first, second).any()


def test_a_party_that_restarts_knows_its_pseudonyms(small: tuple[Path, Study], tmp_path: Path) -> None:
    post, _ = run(small, tmp_path)
    begin = next(message for party, message in post.sent if party == "party-0" and message.get("stage") == "run")
    before, after = post.members["party-0"], members_of(small[0], tmp_path)["party-0"]
    assert "wrong" not in after.handle(begin)
    assert torch.equal(after.contents.ids, before.contents.ids)
    assert torch.equal(after.contents.border.outer, before.contents.border.outer)
    other = {**begin, "run": begin["run"].replace("s/", "other/")}
    assert after.handle(other)["wrong"] == "refused: ids of this study were not matched"


def test_a_party_predicts_new_rows_with_its_own_model(small: tuple[Path, Study], tmp_path: Path) -> None:
    """It knows the pseudonyms of the values that it had; the server's model knows none."""
    folder, _ = small
    run(small, tmp_path)
    own = load_model(tmp_path / "party-0" / "weights")
    trained = own.predict(folder / "party-0")
    assert len(trained) == parquet.read_metadata(folder / "party-0" / "nodes.parquet").num_rows
    columns = own.description["encoding"]
    assert len(columns["pseudonyms"][0]) == 3
    without = {key: value for key, value in columns.items() if key != "pseudonyms"}
    with pytest.raises(IsthmusError, match="if ids were matched, use the party's own model"):
        new_parties(folder / "party-0", without, None, 0, "node")
    (found,) = new_parties(folder / "party-1", columns, None, 0, "node")
    (note,) = (each for each in found.notes if "'town'" in each)
    assert "has a value that did not occur in training: all its features are 0" in note


def test_nothing_is_matched_where_nothing_is_shared(small: tuple[Path, Study], tmp_path: Path) -> None:
    study = study_at(tmp_path / "data", "fedavg", OBLIVIOUS, nodes=90)
    for file in (tmp_path / "data").glob("*/party.toml"):
        text = re.sub(r"partners = .*\n", "", file.read_text())
        file.write_text(text.replace('ids = "shared"', 'ids = "own"'))
        edges = parquet.read_table(file.parent / "edges.parquet")
        parquet.write_table(
            edges.filter(pc.is_null(edges["owner"])).drop_columns("owner"), file.parent / "edges.parquet"
        )
    outcome = federated(study, tmp_path)
    assert {row["action"] for row in outcome.ledger.rows()} == {"introduce", "encode"}


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("matched = 60", "'party-0' matches a list of 64, limits.matched is 60"),
        ('matching = ["hashes"]', "protect.matching is 'oblivious', limits.matching accepts hashes"),
    ],
)
def test_a_party_limits_what_it_helps_to_match(limit: str, why: str, small: tuple[Path, Study], tmp_path: Path) -> None:
    shutil.copytree(small[0], tmp_path / "data")
    with_limits(tmp_path / "data", limit)
    with pytest.raises(IsthmusError, match=re.escape(why)):
        run((tmp_path / "data", small[1]), tmp_path / "state")


def three() -> dict[str, Match]:
    names = ("a", "b", "c")
    return {name: Match(name, names, torch.arange(9), name.encode() * 32, b"context", None) for name in names}


def test_a_party_that_sends_another_list_is_named() -> None:
    matches, sizes = three(), dict.fromkeys("abc", SMALLEST)
    to, letter = matches["a"].letter(0, sizes)
    assert to == "b"
    assert matches["b"].letter_problem("a", letter) == "no list is due from 'a'"  # it has not begun
    matches["b"].letter(0, sizes)
    assert matches["b"].letter_problem("a", letter) == ""
    assert matches["b"].letter_problem("c", letter) == "no list is due from 'c'"
    twice = letter["points"].clone()
    twice[1] = twice[0]
    for other, why in (
        ({"origin": "c"}, "it is not the list of 'a' in step 0 of the matching"),
        ({"step": 1}, "it is not the list of 'a' in step 0 of the matching"),
        ({"more": 1}, "it is not the list of 'a' in step 0 of the matching"),
        ({"points": letter["points"][1:]}, "the list of 'a' is refused: it has 63 points, announced were 64"),
        ({"points": twice}, "the list of 'a' is refused: it has a point twice"),
        ({"points": "none"}, "the list of 'a' is refused: it is no list of points"),
    ):
        assert matches["b"].letter_problem("a", {**letter, **other}) == why


def test_steps_come_in_their_order_and_sizes_are_the_parties_own() -> None:
    match, sizes = three()["a"], dict.fromkeys("abc", SMALLEST)
    for wrong in ({**sizes, "a": 72}, {"a": SMALLEST, "b": SMALLEST}):
        with pytest.raises(IsthmusError, match="refused: the server announces other lists to match"):
            match.letter(0, wrong)
    with pytest.raises(IsthmusError, match="refused: step 1 of the matching, due is step 0"):
        match.letter(1, sizes)
    with pytest.raises(IsthmusError, match="refused: the matching is in step 0 of 3"):
        match.finish()


def _bytes_in(value: Any) -> list[bytes]:
    if isinstance(value, dict):
        return [each for inner in value.values() for each in _bytes_in(inner)]
    if isinstance(value, list | tuple):
        return [each for inner in value for each in _bytes_in(inner)]
    return [value] if isinstance(value, bytes) else [str(value).encode()]


def _either(number: int, transcript: bytes) -> bool:
    return any(number.to_bytes(8, order) in transcript for order in ("big", "little"))
