"""What protects totals and messages in a federation: the table `[protect]` of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from isthmus.options import Options, Registered

if TYPE_CHECKING:  # what these need is an extra
    from isthmus.protect.base import Check, ClosedSums, Guard, Lines
    from isthmus.protect.sealing import Channel


class Protection(Registered):
    """How totals are protected from the server."""

    kind: ClassVar[str] = "protection of totals"
    built_in_module: ClassVar[str] = "isthmus.protect.options"

    def sums(self, lines: Lines, wrong: Check, tries: int) -> ClosedSums | None:
        """The server's side; None where it adds up summands that come to it as they are."""
        return None

    def guard(self, channel: Channel, floor: int) -> Guard | None:
        """A party's side.

        Arguments:
            floor: parties that must be in a sum that this one helps to open, at least.
        """
        return None


class Plain(Protection):
    """The server's process adds up what parties send it."""

    name: ClassVar[str] = "none"


class Masks(Protection):
    """Masks that cancel in the sum (Bonawitz et al. 2017); parties may drop out in the middle of one."""

    name: ClassVar[str] = "masks"

    bits: int = Field(32, ge=8, le=52)
    """Bits after the point of numbers in single precision: a sum is right to 2^-bits for every two parties."""
    threshold: float = Field(0.5, ge=0.5, lt=1)
    """More than this share of a sum's parties must stay to open it; so many together could open one part of it."""

    def sums(self, lines: Lines, wrong: Check, tries: int) -> ClosedSums:
        from isthmus.protect.masks import MaskedSums

        return MaskedSums(self.bits, self.threshold, lines, wrong, tries)

    def guard(self, channel: Channel, floor: int) -> Guard:
        from isthmus.protect.masks import MaskingGuard

        return MaskingGuard(self.bits, channel, floor)


class Ckks(Protection):
    """Encrypted parts that can be added (CKKS, by TenSEAL); the parties hold the key, the server never does."""

    name: ClassVar[str] = "ckks"

    def sums(self, lines: Lines, wrong: Check, tries: int) -> ClosedSums:
        from isthmus.protect.ckks import EncryptedSums

        return EncryptedSums(lines, wrong, tries)

    def guard(self, channel: Channel, floor: int) -> Guard:
        from isthmus.protect.ckks import EncryptingGuard

        return EncryptingGuard(channel, floor)


class Protect(Options):
    """What is protected from the server of a federation, and how.

    >>> Protect.read({"total": "masks"}, "protect").protection()
    Masks(bits=32, threshold=0.5)
    """

    total: dict[str, Any] = Field(default={"name": "none"})
    """How totals are protected: none, masks or ckks; or a table with that name and options."""
    exchange: Literal["sealed", "none"] = "sealed"
    """Whether parties' messages to each other are sealed."""
    noise: Literal["own", "study"] = "own"
    """What noise that a party adds is drawn from: a secret of its own, or the study's seed, which the server knows."""

    @field_validator("total", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    def protection(self) -> Protection:
        """The protection of totals, with its options."""
        named = Protection.named(str(self.total.get("name", "none")))
        return named.read({key: value for key, value in self.total.items() if key != "name"}, "protect.total")
