"""How long office is surely held, judged by this host's clock alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from maar.ports.log import Term

HELD_NS = 1_500_000_000  # office is renewed only if the apply loop spoke within this time
RENEWALS = 4  # so many in the life of a lease


@dataclass(slots=True)
class Tenure:
    """One term: its lease, and until when the last renewal is good.

    Times are of a clock that counts while the process, or the whole machine, is stopped.
    """

    term: Term
    lease: int
    revision: int  # at which the leader's key was made: no other office has it
    ttl_ns: int
    sent_ns: int  # when the last renewal that was granted had been asked for
    held_ns: int  # when the apply loop last spoke
    over: bool = False

    def note_held(self, now_ns: int) -> None:
        self.held_ns = now_ns

    def note_renewal(self, *, sent_ns: int) -> None:
        self.sent_ns = max(self.sent_ns, sent_ns)

    def is_lost(self, now_ns: int) -> bool:
        """Somebody else may lead; once so, for good."""
        self.over = self.over or now_ns >= self.sent_ns + self.ttl_ns
        return self.over

    def due(self, now_ns: int) -> bool:
        """Whether to ask for a renewal now."""
        alive = now_ns - self.held_ns <= HELD_NS
        return alive and now_ns - self.sent_ns >= self.ttl_ns // RENEWALS
