"""What a federation with parties on machines of their own goes by, and hosts: the table `[federation]` of a study."""

from __future__ import annotations

from pydantic import Field

from isthmus.options import Options


class Rules(Options):
    """What a federation with parties on machines of their own goes by."""

    seconds: float = Field(600.0, gt=0)
    """How long parties, or hosts, have for one action; a party that takes longer is out until it is there again."""
    norm: float = Field(1000.0, gt=1)
    """How many times as large as what was sent an answer may be, such as trained weights; a larger one is dropped."""
    tries: int = Field(5, ge=1)
    """Protected sums that are drawn again, at most, when one is wrong, to find out in whose half of the parties."""
