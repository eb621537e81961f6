"""Options that protect totals and messages in a federation: the table `[protect]` of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from isthmus.options import Options, Registered

if TYPE_CHECKING:  # they need an extra
    from isthmus.protect.base import Guard, PartyLinks, ProtectedSums, SumCheck
    from isthmus.protect.sealing import Channel


class Protection(Registered):
    """A way to protect totals from the server."""

    kind: ClassVar[str] = "protection of totals"
    built_in_module: ClassVar[str] = "isthmus.protect.options"

    def sums(self, links: PartyLinks, check: SumCheck, tries: int) -> ProtectedSums | None:
        """Return the server's side; None if the server adds up readable summands."""
        return None

    def guard(self, channel: Channel, min_parties: int) -> Guard | None:
        """Return a party's side, for sums over at least `min_parties` parties."""
        return None


class Plain(Protection):
    """The server adds up what parties send it, and can read it."""

    name: ClassVar[str] = "none"


class Masks(Protection):
    """Masks that cancel in the sum (Bonawitz et al. 2017); parties may drop out during a sum."""

    name: ClassVar[str] = "masks"

    bits: int = Field(32, ge=8, le=52)
    """Bits after the point of single-precision numbers: a sum is exact to 2^-bits for every two parties."""
    threshold: float = Field(0.5, ge=0.5, lt=1)
    """A sum is opened if more than this share of its parties remain. The larger, the more parties may help a server
    that tries to open a single part (see the page on masked sums), and the fewer may drop out."""

    def sums(self, links: PartyLinks, check: SumCheck, tries: int) -> ProtectedSums:
        from isthmus.protect.masks import MaskedSums

        return MaskedSums(self.bits, self.threshold, links, check, tries)

    def guard(self, channel: Channel, min_parties: int) -> Guard:
        from isthmus.protect.masks import MaskingGuard

        return MaskingGuard(self.bits, self.threshold, channel, min_parties)


class Ckks(Protection):
    """Encrypted parts that can be added (CKKS, by TenSEAL); only the parties have the key. For a server that is trusted
    to follow the protocol: it could have a party open a part that it made look like a sum."""

    name: ClassVar[str] = "ckks"

    def sums(self, links: PartyLinks, check: SumCheck, tries: int) -> ProtectedSums:
        from isthmus.protect.ckks import EncryptedSums

        return EncryptedSums(links, check, tries)

    def guard(self, channel: Channel, min_parties: int) -> Guard:
        from isthmus.protect.ckks import EncryptingGuard

        return EncryptingGuard(channel, min_parties)


class Protect(Options):
    """What a federation hides from its server, and how.

    >>> Protect.read({"total": "masks"}, "protect").protection()
    Masks(bits=32, threshold=0.5)
    """

    total: dict[str, Any] = Field(default={"name": "masks"})
    """Protection of totals: masks, ckks (only from a server that follows the protocol) or none; or a table with a name
    and options."""
    exchange: Literal["sealed", "none"] = "sealed"
    """Whether messages between parties are sealed."""
    matching: Literal["hashes", "oblivious"] = "hashes"
    """How parties find the ids that they share. `hashes`: by hashes, keyed if parties give a key; whoever has the key
    can test an id. `oblivious`: by pseudonyms that all parties make together, which nobody can compute alone; they are
    others in every job, and so are splits by id."""
    noise: Literal["own", "study"] = "own"
    """Where a party's noise comes from: a secret of its own, or the study's seed, which the server knows."""

    @field_validator("total", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _lists_are_sealed(self) -> Protect:
        if self.matching == "oblivious" and self.exchange != "sealed":
            raise ValueError("matching = 'oblivious' passes sealed lists: set exchange = 'sealed'")
        return self

    def protection(self) -> Protection:
        """Return the protection of totals, with its options."""
        named = Protection.named(str(self.total.get("name", "masks")))
        return named.read({key: value for key, value in self.total.items() if key != "name"}, "protect.total")
