"""How long leadership is certainly held, by this host's clock alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from maar.ports.metastore.log import Term

HELD_NS = 1_500_000_000  # renewed only if the apply loop made progress within this time
RENEWALS = 4  # renewals within the length of a lease


@dataclass(slots=True)
class Tenure:
    """One term: its lease, and until when the last renewal is valid.

    Times are of a clock that counts while the process, or the whole machine, is stopped.
    """

    term: Term
    lease: int
    revision: int  # at which the leader's key was created: unique to this term
    ttl_ns: int
    sent_ns: int  # when the last renewal that was granted had been asked for
    held_ns: int  # when the apply loop last made progress
    over: bool = False

    def note_held(self, now_ns: int) -> None:
        self.held_ns = now_ns

    def note_renewal(self, *, sent_ns: int) -> None:
        self.sent_ns = max(self.sent_ns, sent_ns)

    def is_lost(self, now_ns: int) -> bool:
        """Whether another replica may lead; once true, it stays true."""
        self.over = self.over or now_ns >= self.sent_ns + self.ttl_ns
        return self.over

    def due(self, now_ns: int) -> bool:
        """Whether to ask for a renewal now."""
        alive = now_ns - self.held_ns <= HELD_NS
        return alive and now_ns - self.sent_ns >= self.ttl_ns // RENEWALS
