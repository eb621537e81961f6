"""A server that deviates from the protocol of docs/masks.md, alone or with parties: what is refused, what it can learn.

`ActiveServer` keeps all that it has seen. `determines` says whether a single part follows from it: closed parts are
linear equations in parts and masks, and a mask is known if its seed was told, or enough shares of a secret were.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from tests.protect.closed import NAMES, Table, for_party, rows_of, weights_of

from helpers import slow_but
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.protect import masks
from isthmus.protect.base import Message
from isthmus.protect.masks import MaskingGuard, openers
from isthmus.protect.sealing import public_key
from isthmus.protect.shamir import SHARE

Sum = tuple[str, int]
"""An agreement, and which of its sums."""


class ActiveServer:
    """Drives parties step by step, and may send any of them anything.

    Arguments:
        colluders: parties that tell it all they know, and confirm whatever it wants.
        least: parties that a sum needs, as each party has it.
    """

    def __init__(self, parties: int, colluders: str = "", threshold: float = 0.5, least: int = 1) -> None:
        self.table = Table("masks", weights_of(parties), threshold=threshold, min_parties=least)
        self.parties, self.colluders, self.threshold = NAMES[:parties], colluders, threshold
        self.of: dict[str, tuple[str, ...]] = {}
        self.keys: dict[str, dict[str, bytes]] = {}
        self.closed: set[tuple[str, Sum]] = set()
        self.told: set[tuple[str, Sum]] = set()
        self.shares: dict[tuple[str, Sum, bool], set[str]] = {}
        self.sets: dict[tuple[str, Sum], tuple[str, ...]] = {}

    def guard(self, party: str) -> MaskingGuard:
        found = self.table.guards[party]
        assert isinstance(found, MaskingGuard)
        return found

    def step(self, party: str, step: str, agreement: str, **more: Any) -> Message:
        message = {"do": "shield", "step": step, "agreement": agreement, **more}
        return self.table.answer(party, message)

    def draw_keys(self, name: str, of: Sequence[str], count: int = 1) -> None:
        self.of[name] = tuple(of)
        self.keys[name] = {p: self.step(p, "keys", name, of=list(of), count=count)["keys"] for p in of}

    def agree(self, of: Sequence[str], name: str = "one", count: int = 1) -> str:
        self.draw_keys(name, of, count)
        sent = {party: self.step(party, "shares", name, keys=self.keys[name])["shares"] for party in of}
        for party in of:
            self.step(party, "take", name, shares={other: sent[other][party] for other in of if other != party})
            if party in self.colluders:
                for other, at, seed in itertools.product(of, range(count), (False, True)):
                    self.shares.setdefault((other, (name, at), seed), set()).add(party)
        return name

    def close(self, party: str, name: str, at: int = 0, again: bool = False, **more: Any) -> Message:
        call = {key: more.pop(key) for key in ("action", "request") if key in more}
        shield = {"agreement": name, "at": at, "what": "sums", "to": "server", "least": 1, **more}
        message: Message = {"do": "call", "shield": shield, **call}
        if again:
            message = {"do": "shield", "step": "again", "shield": shield}
        reply = self.table.answer(party, message)
        self.closed.add((party, (name, at)))
        return reply

    def confirm(self, party: str, name: str, of: Sequence[str], at: int = 0) -> dict[str, bytes]:
        """A colluder makes the envelopes for any set, as often as the server likes."""
        if party in self.colluders:
            agreement = self.guard(party)._agreement
            assert agreement is not None
            about = masks._about_parties(agreement, at, of)
            return {other: self.guard(party).channel.seal(other, b"", about) for other in of if other != party}
        said: dict[str, bytes] = self.step(party, "confirm", name, at=at, **{"in": list(of)})["confirmed"]
        self.sets[party, (name, at)] = tuple(of)
        return said

    def open(self, party: str, name: str, said: Mapping[str, Message], at: int = 0) -> None:
        if party in self.colluders:
            return
        reply = self.step(party, "open", name, at=at, confirmed=for_party(party, said))
        assert len(reply["held"]) == SHARE * (len(self.of[name]) - 1)
        self.told.add((party, (name, at)))
        for other in self.of[name]:
            seed = other in self.sets[party, (name, at)]
            if other != party:
                self.shares.setdefault((other, (name, at), seed), set()).add(party)

    def open_as(self, name: str, sets: Mapping[str, Sequence[str]], at: int = 0) -> list[str]:
        """Tell each party a set, and have all that will open; return what was refused."""
        said: dict[tuple[str, ...], dict[str, Message]] = {tuple(of): {} for of in sets.values()}
        refused = []
        for party, of in sets.items():
            try:
                said[tuple(of)][party] = self.confirm(party, name, of, at)
            except IsthmusError as error:
                refused.append(str(error))
        for of, envelopes in said.items():
            for party in self.colluders:
                if party in of:
                    envelopes[party] = self.confirm(party, name, of, at)
        for party, of in sets.items():
            try:
                self.open(party, name, said[tuple(of)], at)
            except IsthmusError as error:
                refused.append(str(error))
        return refused

    # ---- what it can compute

    def knows(self, party: str, of: Sum, seed: bool) -> bool:
        """Whether it has a party's seed b, or its key s, of one sum."""
        told = seed and (party, of) in self.told
        enough = len(self.shares.get((party, of, seed), ())) >= openers(len(self.of[of[0]]), self.threshold)
        return told or enough or party in self.colluders

    def determines(self, victim: str) -> bool:
        """Whether the part of one party follows from what it has: is it a combination of the equations?"""
        rows: list[dict[Any, float]] = [{party: 1.0} for party in self.colluders]
        for party, of in self.closed:
            row: dict[Any, float] = {party: 1.0}
            if not self.knows(party, of, seed=True):
                row[party, of] = 1.0
            for other in self.of[of[0]]:
                if other != party and not self.knows(party, of, seed=False) and not self.knows(other, of, seed=False):
                    row[frozenset((party, other)), of] = 1.0 if other > party else -1.0
            rows.append(row)
        unknowns = sorted({key for row in rows for key in row} | {victim}, key=str)
        matrix = np.array([[row.get(key, 0.0) for key in unknowns] for row in rows]).reshape(-1, len(unknowns))
        unit = np.array([[float(key == victim) for key in unknowns]])
        return bool(np.linalg.matrix_rank(np.vstack([matrix, unit])) == np.linalg.matrix_rank(matrix))

    def learns(self) -> list[str]:
        """The honest parties whose part it can compute."""
        return [party for party in self.parties if party not in self.colluders and self.determines(party)]


def closed_by_all(parties: int = 5, colluders: str = "", **options: Any) -> ActiveServer:
    server = ActiveServer(parties, colluders, **options)
    server.agree(server.parties)
    for party in server.parties:
        server.close(party, "one")
    return server


def test_the_harness_finds_what_is_known() -> None:
    """An honest sum shows no part; with the seed and the key of one party told, it is found."""
    server = closed_by_all()
    assert not server.open_as("one", dict.fromkeys(server.parties, server.parties))
    assert not server.learns()
    for party in "abc":
        server.shares.setdefault(("e", ("one", 0), False), set()).add(party)
    assert server.learns() == ["e"]
    alone = closed_by_all(3, colluders="ab")
    alone.open_as("one", dict.fromkeys("abc", "abc"))
    assert alone.learns() == ["c"]  # n - 1 colluders have it from the sum


# ---- every cell of "it refuses"


def other_keys(server: ActiveServer, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> Callable[[], object]:
    server.draw_keys("one", server.parties)
    return lambda: server.step("a", "shares", "one", keys=change(dict(server.keys["one"])))


def keys_for(**told: Any) -> Callable[[ActiveServer], Callable[[], object]]:
    return lambda server: lambda: server.step("a", "keys", "one", **{"of": list(server.parties), "count": 1, **told})


def shares_twice(server: ActiveServer) -> Callable[[], object]:
    server.agree(server.parties)
    return lambda: server.step("a", "shares", "one", keys=server.keys["one"])


def sender_knows_other(server: ActiveServer, change: Callable[[str], None]) -> Callable[[], object]:
    """b gets the shares of an agreement that differs at their sender a; then b is called."""
    change("a")
    of = server.parties
    server.of["one"] = of
    shown = {party: server.guard(party)._agreement for party in of}
    assert all(shown.values())
    sent = {party: server.step(party, "shares", "one", keys=server.keys[party])["shares"] for party in of}
    bad = server.step("b", "take", "one", shares={other: sent[other]["b"] for other in of if other != "b"})["bad"]
    assert "a" in bad
    return lambda: server.close("b", "one")


def another_public_key(server: ActiveServer) -> Callable[[], object]:
    def change(sender: str) -> None:
        server.draw_keys("one", server.parties)
        honest = server.keys["one"]
        forged = {**honest, "c": public_key(bytes(range(32)))}
        server.keys |= {party: forged if party == sender else honest for party in server.parties}

    return sender_knows_other(server, change)


def another_threshold(server: ActiveServer) -> Callable[[], object]:
    def change(sender: str) -> None:
        server.guard(sender).threshold = 0.9
        server.draw_keys("one", server.parties)
        server.keys |= dict.fromkeys(server.parties, server.keys["one"])

    return sender_knows_other(server, change)


def other_parties(server: ActiveServer) -> Callable[[], object]:
    """a is told a sum over four of the five; its envelope does not open at b, which knows five."""
    server.draw_keys("one", server.parties)
    honest = dict(server.keys["one"])
    honest["a"] = server.step("a", "keys", "one", of=list("abcd"), count=1)["keys"]
    sent = {
        party: server.step(party, "shares", "one", keys={p: honest[p] for p in ("abcd" if party == "a" else "abcde")})
        for party in server.parties
    }
    shares = {other: sent[other]["shares"]["b"] for other in "acde"}
    assert server.step("b", "take", "one", shares=shares)["bad"] == ["a"]
    return lambda: server.close("b", "one")


def call_before_shares(server: ActiveServer) -> Callable[[], object]:
    server.draw_keys("one", server.parties)
    return lambda: server.close("a", "one")


def masks_twice(server: ActiveServer) -> Callable[[], object]:
    server.agree(server.parties)
    server.close("a", "one")
    return lambda: server.close("a", "one")


def sum_of(*of: str) -> Callable[[ActiveServer], Callable[[], object]]:
    """All close their parts; then a is to confirm the last of these sets, after the others."""

    def deviate(server: ActiveServer) -> Callable[[], object]:
        server.agree(server.parties)
        for party in server.parties:
            server.close(party, "one")
        for each in of[:-1]:
            server.confirm("a", "one", each)
        return lambda: server.confirm("a", "one", of[-1])

    return deviate


def again_over(of: str) -> Callable[[ActiveServer], Callable[[], object]]:
    """A sum over all is opened; then the same answers are summed over others."""

    def deviate(server: ActiveServer) -> Callable[[], object]:
        sum_of("abcde")(server)
        server.open_as("one", dict.fromkeys(server.parties, server.parties))
        server.agree(of, "two")
        for party in of:
            server.close(party, "two", again=True)
        return lambda: server.confirm("a", "two", of)

    return deviate


def opened_with(which: str) -> Callable[[ActiveServer], Callable[[], object]]:
    def deviate(server: ActiveServer) -> Callable[[], object]:
        everybody = server.parties
        server.agree(everybody, count=2)
        for party in everybody:
            server.close(party, "one")
        said = {party: server.confirm(party, "one", everybody) for party in "abc"}
        for party in "de":
            said[party] = server.confirm(party, "one", "abde")
        if which == "nobody's":
            return lambda: server.open("d", "one", {})
        if which == "of another set":
            return lambda: server.open("d", "one", {p: said["a"] | {"d": said["a"]["d"]} for p in "abc"} | {"e": {}})
        if which == "twice":
            server.open("a", "one", said)
            return lambda: server.open("a", "one", said)
        if which == "before its own":
            server.close("a", "one", at=1, again=True)
            return lambda: server.open("a", "one", said, at=1)
        for party in everybody:  # "of another sum": they came for the first one
            server.close(party, "one", at=1, again=True)
        server.confirm("a", "one", everybody, at=1)
        return lambda: server.open("a", "one", said, at=1)

    return deviate


def again_by_some(server: ActiveServer) -> Callable[[], object]:
    """The first sum is opened by a, b and c. d and e did not see it, and are told of another set."""
    everybody = server.parties
    server.agree(everybody)
    for party in everybody:
        server.close(party, "one")
    server.open_as("one", dict.fromkeys("abc", everybody))
    server.agree("bcde", "two")
    for party in "bcde":
        server.close(party, "two", again=True)
    said = {party: server.confirm(party, "two", "bcde") for party in "de"}
    for party in "bc":
        with pytest.raises(IsthmusError, match="would show the part of a alone"):
            server.confirm(party, "two", "bcde")
    return lambda: server.open("d", "two", said)


REFUSED: dict[str, tuple[Callable[[ActiveServer], Callable[[], object]], str]] = {
    "keys: without itself": (keys_for(of=list("bcde")), "keys for 1 sums"),
    "keys: a party twice": (keys_for(of=list("aabcd")), "keys for 1 sums"),
    "keys: fewer than min_contributors": (keys_for(of=list("ab")), "keys for 1 sums"),
    "keys: a party of no kit": (keys_for(of=list("abcx")), "keys for 1 sums"),
    "keys: too many sums": (keys_for(count=10**6), "keys for 1000000 sums"),
    "shares: a key too few": (lambda s: other_keys(s, lambda k: {p: k[p] for p in "abcd"}), "not those of the parties"),
    "shares: a party more": (lambda s: other_keys(s, lambda k: {**k, "x": k["a"]}), "not those of the parties"),
    "shares: another key of its own": (lambda s: other_keys(s, lambda k: {**k, "a": k["b"]}), "other keys of this"),
    "shares: twice": (shares_twice, "keys were shared before"),
    "take: another public key": (another_public_key, "not agreed on with"),
    "take: another threshold": (another_threshold, "not agreed on with"),
    "take: other parties": (other_parties, "not agreed on with"),
    "call: without the shares of all": (call_before_shares, "not agreed on with"),
    "call: masks twice": (masks_twice, "masks are used up"),
    "confirm: fewer than t": (sum_of("ab"), "too few"),
    "confirm: fewer than min_contributors": (sum_of("abc"), "a sum over 3 is not opened, it needs 4"),
    "confirm: itself not among them": (sum_of("bcde"), "a sum over 4 is not opened"),
    "confirm: another set": (sum_of("abcde", "abcd"), "were confirmed before"),
    "confirm: another order": (sum_of("edcba"), "not parties of this sum, in their order"),
    "confirm: a party of no sum": (sum_of("abcdx"), "not parties of this sum, in their order"),
    "confirm: one fewer than before": (again_over("abcd"), "would show the part of e alone"),
    "open: nobody's confirmation": (opened_with("nobody's"), "1 of 5 say"),
    "open: confirmations of another set": (opened_with("of another set"), "1 of 5 say"),
    "open: confirmations of another sum": (opened_with("of another sum"), "1 of 5 say"),
    "open: before its own": (opened_with("before its own"), "nobody has confirmed"),
    "open: twice": (opened_with("twice"), "was opened before"),
    "open: a repeated sum that some confirm": (again_by_some, "2 of 4 say the same parties are in the sum, 4 must"),
}


@pytest.mark.parametrize("deviation", REFUSED)
def test_a_party_refuses_and_the_server_learns_no_part(deviation: str) -> None:
    least = {"keys: fewer than min_contributors": 3, "confirm: fewer than min_contributors": 4}.get(deviation, 1)
    server = ActiveServer(5, least=least)
    deviate, why = REFUSED[deviation]
    request = deviate(server)
    with pytest.raises(IsthmusError, match=why):
        request()
    assert not server.learns()
    for name in server.of:  # it goes on as well as it can
        with suppress(IsthmusError):
            server.open_as(name, dict.fromkeys(server.of[name], server.of[name]))
    assert not server.learns()


# ---- one sum of which parties are told different things


def told_apart(server: ActiveServer, victim: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """All close a part; the victim e is told something else. Return what is refused."""
    server.agree(server.parties)
    for party in server.parties:
        server.close(party, "one", **(victim if party == "e" else others))
    return server.open_as("one", dict.fromkeys(server.parties, server.parties))


def rows_named(ids: Sequence[int]) -> bytes:
    return wire.encode({"ids": torch.tensor(ids)})


APART: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "request": ({"request": b"one"}, {"request": b"another"}),
    "a request for each": ({"request": {"e": b"one"}}, {"request": b"one"}),
    "action": ({"action": "train"}, {"action": "evaluate"}),
    "minimum": ({"least": 1}, {"least": 2}),
    "counts or sums": ({"what": "counts"}, {"what": "sums"}),
    "rows": ({"ids": rows_named([3, 5, 8, 11])}, {"ids": rows_named([3, 5, 8, 11, 12])}),
}


@pytest.mark.parametrize("what", APART)
def test_a_sum_of_which_parties_were_told_different_things_is_noise(what: str) -> None:
    """Their masks do not cancel, so neither e's part nor the sum of the others follows, whoever opens it."""
    server = ActiveServer(5)
    if what == "rows":
        server.table.replies = rows_of(5)
    refused = told_apart(server, *APART[what])
    assert len(refused) == 1
    assert "1 of 5 say" in refused[0]
    abouts = {party: server.guard(party)._agreement.masked[0].about for party in server.parties}  # type: ignore[union-attr]
    assert len({abouts[party] for party in "abcd"}) == 1
    assert abouts["e"] != abouts["a"]
    one, other = (masks._common(bytes(range(32)), public_key(bytes(32)), abouts[each]) for each in "ae")
    assert one != other


def test_rows_opened_for_one_party_alone_show_nothing() -> None:
    """The others are told to add zeros."""
    server = ActiveServer(5)
    server.table.replies = rows_of(5)
    server.agree(server.parties, count=2)
    closed: dict[str, bytes] = {}
    for party in server.parties:
        server.close(party, "one", ids=rows_named([3, 5, 8, 11]))
        opened = wire.encode({"rows": torch.full((4,), party == "e")})
        closed[party] = server.close(party, "one", at=1, again=True, opened=opened)["closed"]
    assert len(server.open_as("one", dict.fromkeys(server.parties, server.parties), at=1)) == 5
    words = sum(np.frombuffer(each, dtype=np.uint64) for each in closed.values())
    for party in server.parties:
        agreement = server.guard(party)._agreement
        assert agreement is not None
        if agreement.seeds[1]:
            words = words - masks.stream(agreement.seeds[1], len(words))
    assert np.abs(words.view(np.int64).astype(float)).mean() > 2.0**60  # not e's part, which is small


@pytest.mark.parametrize("more", [{"what": "x"}, {"opened": wire.encode({"rows": torch.ones(1, dtype=torch.bool)})}])
def test_a_sum_of_anything_else_is_refused(more: Mapping[str, Any]) -> None:
    server = ActiveServer(5)
    server.agree(server.parties)
    with pytest.raises(IsthmusError, match="a sum is of counts or sums, and of rows that the call named"):
        server.close("a", "one", **more)


def test_a_sum_is_looked_up_by_what_was_closed_for_it() -> None:
    """Another call between closing and confirming changes nothing."""
    server = ActiveServer(5)
    server.agree(server.parties, count=2)
    for party in server.parties:
        server.close(party, "one")
    server.open_as("one", dict.fromkeys(server.parties, server.parties))
    server.agree("abcd", "two", count=2)
    for party in "abcd":
        server.close(party, "two", again=True)
        server.close(party, "two", at=1)
    with pytest.raises(IsthmusError, match="would show the part of e alone"):
        server.confirm("a", "two", "abcd")


# ---- contributors


def counted(server: ActiveServer) -> bytes:
    """All close their counts of contributors, and open them; return the counts and their proof."""
    server.agree(server.parties, count=2)
    ids = rows_named([3, 5, 8, 11])
    closed = [server.close(party, "one", what="counts", ids=ids)["closed"] for party in server.parties]
    words = sum(np.frombuffer(each, dtype=np.uint64) for each in closed)
    for party in server.parties:
        agreement = server.guard(party)._agreement
        assert agreement is not None
        words = words - masks.stream(agreement.seeds[0], len(words))
    assert not server.open_as("one", dict.fromkeys(server.parties, server.parties))
    return words.tobytes()


@pytest.mark.parametrize("forged", ["none", "one more", "a multiple", "nothing"])
def test_a_row_with_too_few_contributors_is_not_summed_whatever_the_server_says(forged: str) -> None:
    server = ActiveServer(5)
    server.table.contributors = 3
    server.table.replies = rows_of(5)
    words = np.frombuffer(counted(server), dtype=np.uint64).copy()
    size = len(words) // 2
    alone = words[:size].reshape(-1, 4).min(0) < 3
    assert alone.any()
    if forged == "one more":
        words[:size] += np.uint64(1)
    if forged == "a multiple":
        words *= np.uint64(2)
    told = b"" if forged == "nothing" else words.tobytes()
    opened = wire.encode({"rows": torch.from_numpy(alone)})
    with pytest.raises(IsthmusError, match=r"were not counted|not those that the parties sent|fewer than 3 parties"):
        server.close("a", "one", at=1, again=True, opened=opened, counted=told)
    with pytest.raises(IsthmusError, match=r"were not counted|not those that the parties sent|fewer than 3 parties"):
        server.close("a", "one", at=1, again=True, counted=told)


def test_rows_are_summed_over_the_parties_that_were_counted() -> None:
    server = ActiveServer(5)
    server.table.contributors = 2
    server.table.replies = rows_of(5)
    told = counted(server)
    words = np.frombuffer(told, dtype=np.uint64)
    enough = words[: len(words) // 2].reshape(-1, 4).min(0) >= 2
    for party in server.parties:
        opened = wire.encode({"rows": torch.from_numpy(enough)})
        server.close(party, "one", at=1, again=True, opened=opened, counted=told)
    with pytest.raises(IsthmusError, match="contributors were counted over a, b, c, d, e, not a, b, c, d"):
        server.confirm("a", "one", "abcd", at=1)
    assert not server.open_as("one", dict.fromkeys(server.parties, server.parties), at=1)


# ---- with parties that help


def may_help(parties: int, threshold: float) -> int:
    """How many parties may help a dishonest server in a sum, by docs/masks.md."""
    return min(2 * openers(parties, threshold) - parties, parties - 1) - 1


CASES = [(parties, threshold) for parties in (3, 4, 5, 6, 7) for threshold in (0.5, 0.67)]
FEW = [each for each in CASES if each[0] <= 5]


def two_views(parties: int, threshold: float, colluders: str) -> bool:
    """Some are told that the last party is in the sum, the others that it is not: does any choice show its part?"""
    victim = NAMES[parties - 1]
    honest = [party for party in NAMES[: parties - 1] if party not in colluders]
    for size in range(len(honest) + 1):
        server = closed_by_all(parties, colluders, threshold=threshold)
        without = server.parties[:-1]
        sets = {party: (without if at < size else server.parties) for at, party in enumerate(honest)}
        server.open_as("one", {**sets, victim: server.parties})
        if server.determines(victim):
            return True
    return False


@pytest.mark.parametrize(("parties", "threshold"), CASES)
@pytest.mark.thinned(3)
def test_two_views_of_one_sum_show_a_part_from_the_bound_on(parties: int, threshold: float) -> None:
    bound = may_help(parties, threshold) + 1
    for count in range(parties):
        assert two_views(parties, threshold, "".join(NAMES[:count])) == (count >= bound), count


def one_fewer(parties: int, threshold: float, colluders: str, seen: Collection[str]) -> bool:
    """A sum over all is opened by those who see it; then one over the same answers, without the last party."""
    server = closed_by_all(parties, colluders, threshold=threshold)
    server.open_as("one", {party: server.parties for party in server.parties if party in seen})
    rest = server.parties[:-1]
    server.agree(rest, "two")
    for party in rest:
        server.close(party, "two", again=True)
    server.open_as("two", dict.fromkeys(rest, rest))
    return server.determines(server.parties[-1])


@pytest.mark.parametrize(("parties", "threshold"), slow_but(FEW, CASES))
@pytest.mark.thinned(3)
def test_a_sum_over_one_party_fewer_shows_no_part_below_the_bound(parties: int, threshold: float) -> None:
    """Whoever saw the first sum refuses the second one, and whoever did not see it wants all to confirm."""
    for count in range(may_help(parties, threshold) + 1):
        honest = NAMES[count:parties]
        for size in range(len(honest) + 1):
            for seen in itertools.combinations(honest, size):
                assert not one_fewer(parties, threshold, "".join(NAMES[:count]), seen)


@pytest.mark.parametrize("colluders", [1, 2, 3])
def test_a_server_that_chooses_a_small_sum_is_held_by_min_contributors(colluders: int) -> None:
    """All but one of a sum read the part of that one: `min_contributors` bounds how small the server makes a sum."""
    helpers = NAMES[:colluders]
    of = (*helpers, "g")
    server = ActiveServer(8, "".join(helpers), least=2)
    server.agree(of)
    for party in of:
        server.close(party, "one")
    server.open_as("one", dict.fromkeys(of, of))
    assert server.learns() == ["g"]
    careful = ActiveServer(8, "".join(helpers), least=colluders + 2)
    with pytest.raises(IsthmusError, match="refused: keys for"):
        careful.agree(of)
    assert not careful.learns()
