"""The ledger in plain words: for each action who saw what of which party, how often, and how many rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
class ActionSummary:
    """An action of a method, as the ledger has it over all its runs.

    Attributes:
        fields: names of what was sent.
        answers: of each call how many parties answered.
        shares: by party, of those that answered at all.
        nouns: what the method's own fields are.
    """

    action: str
    eyes: str
    protection: str
    fields: Sequence[str]
    answers: Sequence[int]
    shares: Mapping[str, Share]
    nouns: Mapping[str, str] = field(default_factory=dict)

    @property
    def delivery(self) -> bool:
        """Whether it brought parties what others had sent."""
        return self.action.endswith(": delivery")

    @property
    def what(self) -> str:
        return wording.join_words(wording.nouns(self.fields, self.action, self.nouns))

    @property
    def summed(self) -> str:
        """All but the ids that say which rows it is of."""
        return wording.join_words(
            wording.nouns((name for name in self.fields if name not in _KEYS), self.action, self.nouns)
        )

    @property
    def keyed(self) -> bool:
        return "ids" in self.fields

    @property
    def over(self) -> str:
        """Over how many parties its sums go."""
        known = sorted({count for count in self.answers if count})
        return f"{known[0]} parties" if len(known) == 1 else f"at least {known[0]} and up to {known[-1]} parties"


def describe_action(action: ActionSummary) -> str:
    """Who saw what in this action, and what that rests on if no protection was on."""
    text = _text(action)
    return f"E{text[1:]}" if text.startswith("each of ") else text  # a party's name keeps its first letter


def _text(action: ActionSummary) -> str:
    if not any(action.answers):
        return "No party answered."
    if not action.fields:
        return f"{_told(action, 'only said that it was done; no field left it')}."
    say, hidden = _SEEN.get(action.eyes, (_as_recorded, ""))
    said = f"{say(action)}."
    alone = list(action.answers).count(1)
    if action.eyes == "server sees the sum" and alone and max(action.answers) > 1:
        said += f" Sums over one party alone, and so its own: {alone}."
    if not hidden:
        return said
    bare = (action.protection or "none") == "none"
    return f"{said} {hidden}" if bare else f"{said} Protected by {action.protection}."


def _answers(action: ActionSummary) -> str:
    return _told(action, f"the server saw its {action.what}")


def _sums(action: ActionSummary) -> str:
    if max(action.answers) == 1:
        said = f"the server saw its {action.what}, as no other party answered: a sum over one hides nothing"
        return _told(action, said)
    if not action.keyed:
        return _told(action, f"the server saw only the sum of {action.summed} over {action.over}")
    said = f"the server saw its ids, and for each id only the sum of {action.summed}"
    said += f" over those of {action.over} that have it"
    return f"{_told(action, said)}. A sum over fewer parties than the method's minimum is not opened"


def _sums_for_parties(action: ActionSummary) -> str:
    if action.delivery:
        return _told(action, f"it alone saw its sums of {action.summed}", rows="summed rows")
    but = " but which ids it has and asks for" if action.keyed else ""
    said = _told(action, f"it added {action.summed} to sums over {action.over} that only parties see")
    return f"{said}. The server's side of the method saw nothing of it{but}"


def _letters(action: ActionSummary) -> str:
    if action.delivery:
        return _told(action, f"it saw {action.what} of other parties")
    said = _told(action, f"only the addressed party saw its {action.what}")
    return f"{said}. The server's side of the method learned sizes alone"


def _as_recorded(action: ActionSummary) -> str:
    return _told(action, f"its {action.what} was seen by: {action.eyes or 'not recorded'}")


_SEEN: Mapping[str, tuple[Callable[[ActionSummary], str], str]] = {
    "server sees each answer": (_answers, ""),
    "server sees the sum": (_sums, f"The summands were not hidden from {_OPERATOR}."),
    "parties see the sum": (_sums_for_parties, f"The summands were not hidden from {_OPERATOR}."),
    "the addressed party": (_letters, f"The messages were not sealed against {_OPERATOR}."),
}
"""By eyes what is said, and what is said where nothing protected it."""


# ---- parties, times and rows


def _told(action: ActionSummary, said: str, rows: str = "rows") -> str:
    """Of each group of parties that had the same part what is said, the first time in full."""
    groups: dict[Share, list[str]] = {}
    for party, share in action.shares.items():
        groups.setdefault(share, []).append(party)
    if len(groups) > _SENTENCES:
        return f"{_each(action.shares)}: {said}, {_extremes(action.shares, rows)}"
    first, *others = groups.items()
    text = f"{_who(first[1], action.shares)}: {said}, {_counts(first[0], rows)}"
    return "; ".join([text, *(f"{_who(parties, action.shares)}: {_counts(share, rows)}" for share, parties in others)])


def _who(parties: Sequence[str], of: Mapping[str, Share]) -> str:
    if len(parties) == len(of):
        return _each(of)
    if len(parties) <= _NAMED:
        return wording.join_words(parties)
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


def merge_spans(pairs: Iterable[tuple[str, Span]]) -> dict[str, Span]:
    """Spans under one name put together.

    >>> merge_spans([("a", (1, 2)), ("a", (0, 1)), ("b", (3, 3))])
    {'a': (0, 2), 'b': (3, 3)}
    """
    found: dict[str, Span] = {}
    for name, (low, high) in pairs:
        before = found.get(name, (low, high))
        found[name] = min(before[0], low), max(before[1], high)
    return found


def parse_fields(texts: Iterable[str | None]) -> dict[str, list[str]]:
    """Every field with the shapes it had, from texts such as `weights/conv1.bias[64], count`."""
    fields: dict[str, list[str]] = {}
    for text in texts:
        for part in re.split(r",\s*(?![^\[\]]*\])", text or ""):
            name, bracket, shape = part.strip().partition("[")
            shapes = fields.setdefault(name, []) if name else []
            if bracket + shape not in shapes:
                shapes.append(bracket + shape)
    return fields
