"""Error classes. An error is one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable


class IsthmusError(Exception):
    """An error that the caller can fix. Its text is one line; the command line prints it and exits with code 2."""


class PayloadError(IsthmusError):
    """A payload has a field that is not allowed, or lacks one that is needed."""


class PartyFailed(IsthmusError):  # noqa: N818 - reads as what happened
    """A party could not answer an action."""

    def __init__(self, party: str, reason: str) -> None:
        super().__init__(f"party '{party}': {reason}")
        self.party = party
        self.reason = reason


class TooFewAnswers(IsthmusError):  # noqa: N818
    """Fewer parties answered than the method needs."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped name: the most similar known name, or all known names.

    >>> did_you_mean("fedavgg", ["fedavg", "local"])
    "did you mean 'fedavg'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    shown = map(repr, names) if any("," in each for each in names) else names
    return f"known: {', '.join(shown)}" if names else "there are none"


def missing_extra(package: str, extra: str, purpose: str) -> IsthmusError:
    """Return the error for an optional dependency that is not installed."""
    return IsthmusError(f"{purpose} needs {package}: install it with pip install 'isthmus[{extra}]'")


def ignore_library_warnings() -> None:
    """Hide the warnings of libraries that a user cannot do anything about."""
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    warnings.filterwarnings("ignore", message=".*torch_geometric.distributed.*")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
