"""Limits of time and size for parties on machines of their own: the table `[federation]` of a study."""

from __future__ import annotations

from pydantic import Field

from isthmus.options import Options


class Rules(Options):
    """Limits of time and size for parties on machines of their own."""

    seconds: float = Field(600.0, gt=0)
    """Seconds that parties have for one action; a slower party is absent until it answers a greeting."""
    # honest answers are at most 2 times as large (benchmarks/attacks/norms.py); statistics of a normalisation grow more
    norm: float = Field(100.0, gt=1)
    """Largest norm of an answer (trained weights), as a multiple of the request's norm; larger ones are dropped."""
    largest_share: float = Field(0.9, gt=0, le=1)
    """Largest share of all items that one of several parties may introduce; its items bound its weight in a mean."""
    tries: int = Field(5, ge=1)
    """After a wrong protected sum, sums over halves of the parties that are tried, at most, to find the wrong part."""
