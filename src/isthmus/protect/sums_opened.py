"""Which sums a party helped to open: sums of the same answers over other parties would show single parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from isthmus.errors import IsthmusError


def too_few_shown(sets: Sequence[frozenset[str]], least: int) -> str:
    """Say why sums over these sets of parties, of the same answers, must not all be opened; empty if they may.

    Sums and differences of them show parts of parties that are in the same sets, together; these must be so many.

    >>> too_few_shown([frozenset("abcd"), frozenset("ab")], 2)
    ''
    >>> too_few_shown([frozenset("abcd"), frozenset("abc")], 2)
    'refused: with sums opened earlier, this one would show the part of d alone: use another seed, or wait for all'
    """
    together: dict[tuple[bool, ...], list[str]] = {}
    for party in sorted(set().union(*sets)):
        together.setdefault(tuple(party in each for each in sets), []).append(party)
    shown = min(together.values(), key=len)
    if len(shown) >= least:
        return ""
    whose = f"the part of {shown[0]} alone" if len(shown) == 1 else f"only the parts of {', '.join(shown)} together"
    return f"refused: with sums opened earlier, this one would show {whose}: use another seed, or wait for all"


class SumRecord:
    """The sums that a party closed a part of, and helped to open, by the states that it answered from.

    This one lasts as long as the process. A state is a fingerprint; answers from the same state are the same.
    """

    def __init__(self) -> None:
        self._closed: Counter[str] = Counter()
        self._opened: dict[str, list[frozenset[str]]] = {}

    def note_closed(self, states: tuple[str, ...]) -> None:
        """Note that a part of a sum leaves, closed."""
        self._closed.update(states)

    def times_closed(self, states: tuple[str, ...]) -> int:
        """How often a part left that was made from one of these states."""
        return max((self._closed[state] for state in states), default=0)

    def open(self, of: frozenset[str], least: int, states: tuple[str, ...]) -> None:
        """Note that the party helps to open a sum over these parties; refuse it if it shows too few parts."""
        earlier = [each for state in states for each in self._opened.get(state, ())]
        if why := too_few_shown([*earlier, of], least):
            raise IsthmusError(why)
        for state in states:
            self._opened.setdefault(state, []).append(of)
