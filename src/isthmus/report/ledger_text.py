"""The ledger in sentences: for each action who saw what of which party, how often, and how many rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from isthmus.report import wording

Span = tuple[int, int]
"""The fewest and the most, over calls and seeds."""

_MAX_NAMES = 4
"""Parties named in a sentence; of a larger group only the first ones are named."""
_MAX_GROUPS = 3
"""Groups of parties in a sentence; instead of more groups it has the extremes."""
_KEYS = ("ids", "wants")
"""Fields with the ids of the rows of other fields."""
_OPERATOR = "whoever operates the server"


@dataclass(frozen=True)
class Share:
    """One party's share of an action: in how many calls of a run, and with how many rows in each."""

    times: Span
    rows: Span = (0, 0)


@dataclass(frozen=True)
class ActionSummary:
    """An action of a method, over all runs in the ledger.

    Attributes:
        fields: names of the fields that were sent.
        answers: for each call the number of parties that answered.
        shares: by party, for those that answered at all.
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
        """Whether it brought parties what other parties had sent."""
        return self.action.endswith(": delivery")

    @property
    def what(self) -> str:
        return wording.join_words(wording.nouns(self.fields, self.action, self.nouns))

    @property
    def summed(self) -> str:
        """The fields without ids."""
        return wording.join_words(
            wording.nouns((name for name in self.fields if name not in _KEYS), self.action, self.nouns)
        )

    @property
    def keyed(self) -> bool:
        return "ids" in self.fields

    @property
    def over(self) -> str:
        """The number of parties in its sums."""
        known = sorted({count for count in self.answers if count})
        return f"{known[0]} parties" if len(known) == 1 else f"at least {known[0]} and up to {known[-1]} parties"


MATCHED = (
    "Ids were matched by pseudonyms that all parties made together: nobody can compute one alone, a party could test "
    "as many guesses as it sent points, and the server learns at most how many ids parties share."
)
"""What the step of the set-up that ends a matching rests on."""


def describe_action(action: ActionSummary) -> str:
    """Who saw what in this action, and what that rests on if no protection was on."""
    text = _sentences(action)
    return f"E{text[1:]}" if text.startswith("each of ") else text  # a party's name keeps its first letter


def _sentences(action: ActionSummary) -> str:
    if not any(action.answers):
        return "No party answered."
    if not action.fields:
        done = f"{_for_parties(action, 'only said that it was done; no field left it')}."
        return f"{done} {MATCHED}" if action.action == "matched" else done
    describe, hidden = _TEXTS.get(action.eyes, (_as_recorded, ""))
    text = f"{describe(action)}."
    alone = list(action.answers).count(1)
    if action.eyes == "server sees the sum" and alone and max(action.answers) > 1:
        text += f" Sums over one party alone, and so its own: {alone}."
    if not hidden:
        return text
    bare = (action.protection or "none") == "none"
    if action.protection == "ckks":
        return f"{text} Protected by ckks from a server that follows the protocol, not from another one."
    return f"{text} {hidden}" if bare else f"{text} Protected by {action.protection}."


def _answers(action: ActionSummary) -> str:
    return _for_parties(action, f"the server saw its {action.what}")


def _sums(action: ActionSummary) -> str:
    if max(action.answers) == 1:
        text = f"the server saw its {action.what}, as no other party answered: a sum over one hides nothing"
        return _for_parties(action, text)
    if not action.keyed:
        return _for_parties(action, f"the server saw only the sum of {action.summed} over {action.over}")
    text = f"the server saw its ids, and for each id only the sum of {action.summed}"
    text += f" over those of {action.over} that have it"
    return f"{_for_parties(action, text)}. A sum over fewer parties than the method's minimum is not opened"


def _sums_for_parties(action: ActionSummary) -> str:
    if action.delivery:
        return _for_parties(action, f"it alone saw its sums of {action.summed}", rows="summed rows")
    but = " but which ids it has and asks for" if action.keyed else ""
    text = _for_parties(action, f"it added {action.summed} to sums over {action.over} that only parties see")
    return f"{text}. The server's side of the method saw nothing of it{but}"


def _letters(action: ActionSummary) -> str:
    if action.delivery:
        return _for_parties(action, f"it saw {action.what} of other parties")
    text = _for_parties(action, f"only the addressed party saw its {action.what}")
    return f"{text}. The server's side of the method learned sizes alone"


def _as_recorded(action: ActionSummary) -> str:
    return _for_parties(action, f"its {action.what} was seen by: {action.eyes or 'not recorded'}")


_TEXTS: Mapping[str, tuple[Callable[[ActionSummary], str], str]] = {
    "server sees each answer": (_answers, ""),
    "server sees the sum": (_sums, f"The summands were not hidden from {_OPERATOR}."),
    "parties see the sum": (_sums_for_parties, f"The summands were not hidden from {_OPERATOR}."),
    "the addressed party": (_letters, f"The messages were not sealed against {_OPERATOR}."),
}
"""By eyes the sentence, and the one that follows it without a protection."""


# ---- parties, times and rows


def _for_parties(action: ActionSummary, text: str, rows: str = "rows") -> str:
    """The text for each group of parties with equal shares; only the first group has it in full."""
    groups: dict[Share, list[str]] = {}
    for party, share in action.shares.items():
        groups.setdefault(share, []).append(party)
    if len(groups) > _MAX_GROUPS:
        return f"{_each(action.shares)}: {text}, {_extremes(action.shares, rows)}"
    first, *others = groups.items()
    full = f"{_who(first[1], action.shares)}: {text}, {_counts(first[0], rows)}"
    return "; ".join([full, *(f"{_who(parties, action.shares)}: {_counts(share, rows)}" for share, parties in others)])


def _who(parties: Sequence[str], of: Mapping[str, Share]) -> str:
    if len(parties) == len(of):
        return _each(of)
    if len(parties) <= _MAX_NAMES:
        return wording.join_words(parties)
    return f"{', '.join(parties[: _MAX_NAMES - 1])} and {len(parties) - _MAX_NAMES + 1} more parties"


def _each(of: Mapping[str, Share]) -> str:
    return f"each of {len(of)} parties" if len(of) > 1 else next(iter(of))


def _counts(share: Share, rows: str) -> str:
    count = _range(share.rows)
    return _often(share.times) + (f", {count} {rows}{_at_a_time(share.times)}" if share.rows[1] else "")


def _extremes(of: Mapping[str, Share], rows: str) -> str:
    """The extremes of all parties' counts, and whose they are."""
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
    """The span of all spans under one name.

    >>> merge_spans([("a", (1, 2)), ("a", (0, 1)), ("b", (3, 3))])
    {'a': (0, 2), 'b': (3, 3)}
    """
    merged: dict[str, Span] = {}
    for name, (low, high) in pairs:
        before = merged.get(name, (low, high))
        merged[name] = min(before[0], low), max(before[1], high)
    return merged


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
