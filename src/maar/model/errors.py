"""What went wrong, sorted by what the caller should do about it.

MaarError
├── Rejected           the request will never succeed unchanged                    4xx
│   ├── InvalidInput     it is malformed or out of bounds; the sentence says which
│   │   └── MalformedProfile   the bytes are not a profile that we can read
│   ├── TooLarge         it is over a size limit                                  413
│   ├── NotFound         what it names does not exist                             404
│   ├── AlreadyExists    a create-only key is taken
│   ├── HeadMoved        the log grew since the caller looked
│   ├── TermLost         another replica leads now
│   └── LeaseLost        the plan is no longer the caller's
├── Retryable          it may succeed unchanged, later or elsewhere               503
│   ├── Overloaded       a bound was hit; back off                                429
│   ├── Unavailable      a part that we need does not answer
│   │   ├── Unreachable    it did not answer at all: a dead process, a cut line, silence
│   │   ├── Draining       it is about to end and took nothing; another one may
│   │   └── NotLeading     this replica does not lead; the one that does may be named
│   ├── StoreFull        the object store has no room
│   └── OutcomeUnknown   it may or may not have happened; read before writing again
└── Corrupt            stored bytes are damaged; an operator must look            500
    ├── Damaged          it is known which blocks
    └── Missing          an object that the index lists is not there
"""

from __future__ import annotations


class MaarError(Exception):
    """Base of all our errors; the message is a sentence for operators and users."""


class Rejected(MaarError):
    """The request will never succeed unchanged."""


class InvalidInput(Rejected):
    """The request is malformed or out of bounds."""

    def __init__(self, message: str, *, reason: str = "invalid") -> None:
        super().__init__(message)
        self.reason = reason  # a short word for the metric's label


class MalformedProfile(InvalidInput):
    """The bytes are not a profile that we can read."""

    def __init__(self, message: str, *, reason: str = "malformed_profile") -> None:
        super().__init__(message, reason=reason)


class TooLarge(Rejected):
    """The request is over a size limit."""


class NotFound(Rejected):
    """What the request names does not exist."""


class AlreadyExists(Rejected):
    """A create-only key is taken."""


class HeadMoved(Rejected):
    """The log grew since the caller looked."""


class TermLost(Rejected):
    """Another replica leads now."""


class LeaseLost(Rejected):
    """The plan is no longer the caller's."""


class Retryable(MaarError):
    """The request may succeed unchanged, later or elsewhere."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s  # when to try again, if somebody knows


class Overloaded(Retryable):
    """A bound was hit; back off."""


class Unavailable(Retryable):
    """A part that we need does not answer."""


class Unreachable(Unavailable):
    """A process did not answer at all: it is dead, disconnected, or silent for too long."""


class Draining(Unavailable):
    """A process is about to end and took nothing of the request; another one may."""


class NotLeading(Unavailable):
    """This replica of the metastore does not lead, and only the leader can answer."""

    def __init__(
        self, message: str, *, leader: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.leader = leader  # its address; '' while nobody is known to lead


class StoreFull(Retryable):
    """The object store has no room."""


class OutcomeUnknown(Retryable):
    """It may or may not have happened; read before writing again."""


class Corrupt(MaarError):
    """Stored bytes are not what was written; an operator must look."""


class Missing(Corrupt):
    """An object that the index lists is not there."""


class Damaged(Corrupt):
    """The same, and it is known which blocks it is: what is left can be asked for without them."""

    def __init__(self, message: str, *, blocks: tuple[tuple[str, int, int], ...] = ()) -> None:
        super().__init__(message)
        self.blocks = blocks  # the id of each, and the times of its first and last profile
