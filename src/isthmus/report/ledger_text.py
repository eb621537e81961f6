"""The ledger in plain words: for each action who saw what of which party, how often, and how many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.report import wording

Span = tuple[int, int]
"""The fewest and the most, over calls and seeds."""

_NAMED = 4
"""Parties whose names are in a sentence; of more that say the same the first ones are."""
_SENTENCES = 3
"""Groups of parties that are told one by one; of more the extremes are."""
_KEYS = ("ids", "wants")
"""Fields that say which rows others are of."""
_OPERATOR = "whoever operates the server"


@dataclass(frozen=True)
class Share:
    """What one party had part in of an action: in how many calls of a run, and with how many rows in each."""

    times: Span
    rows: Span = (0, 0)


@dataclass(frozen=True)
class Deed:
    """An action of a method, as the ledger has it over all its runs.

    Attributes:
        fields: names of what was sent.
        answers: of each call how many parties answered.
        shares: by party, of those that answered at all.
    """

    action: str
    eyes: str
    protection: str
    fields: Sequence[str]
    answers: Sequence[int]
    shares: Mapping[str, Share]

    @property
    def delivery(self) -> bool:
        """Whether it brought parties what others had sent."""
        return self.action.endswith(": delivery")

    @property
    def what(self) -> str:
        return wording.listed(wording.nouns(self.fields, self.action))

    @property
    def summed(self) -> str:
        """All but the ids that say which rows it is of."""
        return wording.listed(wording.nouns((name for name in self.fields if name not in _KEYS), self.action))

    @property
    def keyed(self) -> bool:
        return "ids" in self.fields

    @property
    def over(self) -> str:
        """Over how many parties its sums go."""
        known = sorted({count for count in self.answers if count})
        return f"{known[0]} parties" if len(known) == 1 else f"at least {known[0]} and up to {known[-1]} parties"


def in_plain_words(deed: Deed) -> str:
    """Who saw what in this action, and what it rests on where no protection was on."""
    if not any(deed.answers):
        return "No party answered."
    if not deed.fields:
        return f"{_told(deed, 'only said that it was done; no field left it')}."
    say, hidden = _SEEN.get(deed.eyes, (_as_recorded, ""))
    said = f"{say(deed)}."
    alone = list(deed.answers).count(1)
    if deed.eyes == "server sees the sum" and alone and max(deed.answers) > 1:
        said += f" Sums over one party alone, and so its own: {alone}."
    if not hidden:
        return said
    bare = (deed.protection or "none") == "none"
    return f"{said} {hidden}" if bare else f"{said} Protected by {deed.protection}."


def sentence(text: str) -> str:
    """As it stands at the beginning of a line: names of parties keep their first letter.

    >>> sentence("each of 2 parties: once"), sentence("bank-a: once")
    ('Each of 2 parties: once', 'bank-a: once')
    """
    return f"E{text[1:]}" if text.startswith("each of ") else text


def _answers(deed: Deed) -> str:
    return _told(deed, f"the server saw its {deed.what}")


def _sums(deed: Deed) -> str:
    if max(deed.answers) == 1:
        said = f"the server saw its {deed.what}, as no other party answered: a sum over one hides nothing"
        return _told(deed, said)
    if not deed.keyed:
        return _told(deed, f"the server saw only the sum of {deed.summed} over {deed.over}")
    said = (
        f"the server saw its ids, and for each id only the sum of {deed.summed} over those of {deed.over} that have it"
    )
    return f"{_told(deed, said)}. The sum of fewer than the method's least is not opened"


def _sums_for_parties(deed: Deed) -> str:
    if deed.delivery:
        return _told(deed, f"it alone saw its sums of {deed.summed}", rows="summed rows")
    but = " but which ids it has and asks for" if deed.keyed else ""
    said = _told(deed, f"it added {deed.summed} to sums over {deed.over} that only parties see")
    return f"{said}. The server's side of the method saw nothing of it{but}"


def _letters(deed: Deed) -> str:
    if deed.delivery:
        return _told(deed, f"it saw {deed.what} of other parties")
    said = _told(deed, f"only the addressed party saw its {deed.what}")
    return f"{said}. The server's side of the method learned sizes alone"


def _as_recorded(deed: Deed) -> str:
    return _told(deed, f"its {deed.what} was seen by: {deed.eyes or 'not recorded'}")


_SEEN: Mapping[str, tuple[Callable[[Deed], str], str]] = {
    "server sees each answer": (_answers, ""),
    "server sees the sum": (_sums, f"The summands were not hidden from {_OPERATOR}."),
    "parties see the sum": (_sums_for_parties, f"The summands were not hidden from {_OPERATOR}."),
    "the addressed party": (_letters, f"The messages were not sealed against {_OPERATOR}."),
}
"""By eyes what is said, and what is said where nothing protected it."""


# ---- parties, times and rows


def _told(deed: Deed, said: str, rows: str = "rows") -> str:
    """Of each group of parties that had the same part what is said, the first time in full."""
    groups: dict[Share, list[str]] = {}
    for party, share in deed.shares.items():
        groups.setdefault(share, []).append(party)
    if len(groups) > _SENTENCES:
        return f"{_each(deed.shares)}: {said}, {_extremes(deed.shares, rows)}"
    first, *others = groups.items()
    text = f"{_who(first[1], deed.shares)}: {said}, {_counts(first[0], rows)}"
    return "; ".join([text, *(f"{_who(parties, deed.shares)}: {_counts(share, rows)}" for share, parties in others)])


def _who(parties: Sequence[str], of: Mapping[str, Share]) -> str:
    if len(parties) == len(of):
        return _each(of)
    if len(parties) <= _NAMED:
        return wording.listed(parties)
    return f"{', '.join(parties[: _NAMED - 1])} and {len(parties) - _NAMED + 1} more parties"


def _each(of: Mapping[str, Share]) -> str:
    return f"each of {len(of)} parties" if len(of) > 1 else next(iter(of))


def _counts(share: Share, rows: str) -> str:
    count = _range(share.rows)
    return _often(share.times) + (f", {count} {rows}{_at_a_time(share.times)}" if share.rows[1] else "")


def _extremes(of: Mapping[str, Share], rows: str) -> str:
    """Between which counts all parties are, and whose these are."""
    times = _between({party: share.times for party, share in of.items()})
    counts = {party: share.rows for party, share in of.items() if share.rows[1]}
    low, high = min(share.times[0] for share in of.values()), max(share.times[1] for share in of.values())
    at_a_time = _at_a_time((low, high))
    times = _often((low, high)) if low == high else f"{times} times"
    return times + (f", {_between(counts)} {rows}{at_a_time}" if counts else "")


def _between(spans: Mapping[str, Span]) -> str:
    fewest, most = min(spans, key=lambda each: spans[each][0]), max(spans, key=lambda each: spans[each][1])
    low, high = spans[fewest][0], spans[most][1]
    return f"{low:,}" if low == high else f"{low:,} ({fewest}) to {high:,} ({most})"


def _range(span: Span) -> str:
    return f"{span[0]:,}" if span[0] == span[1] else f"{span[0]:,} to {span[1]:,}"


def _often(times: Span) -> str:
    return {(1, 1): "once", (2, 2): "twice"}.get(times, f"{_range(times)} times")


def _at_a_time(times: Span) -> str:
    return "" if times == (1, 1) else " each time"


def spans(pairs: Iterable[tuple[str, Span]]) -> dict[str, Span]:
    """Spans under one name put together.

    >>> spans([("a", (1, 2)), ("a", (0, 1)), ("b", (3, 3))])
    {'a': (0, 2), 'b': (3, 3)}
    """
    found: dict[str, Span] = {}
    for name, (low, high) in pairs:
        before = found.get(name, (low, high))
        found[name] = min(before[0], low), max(before[1], high)
    return found
