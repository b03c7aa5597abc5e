"""Errors across the wire: the client raises the same class that the server raised."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec

from maar.model import errors
from maar.model.errors import MaarError, TooLarge, Unavailable, Unreachable

MESSAGE_BYTES_MAX = 64 << 20
SENTENCE_BYTES_MAX = 2400  # it travels in a header, where a byte takes up to three

HELP = "docs/operating.md#a-process-does-not-answer"

_ROLES = {
    "maar.Metastore": "metastore",
    "maar.MetastoreReplica": "metastore",
    "maar.QueryEngine": "query role",
    "maar.SegmentWriter": "segment writer",
}
_ERROR_HEADER = "maar-error"
_REASON_HEADER = "maar-reason"
_RETRY_HEADER = "maar-retry-after-s"
_LEADER_HEADER = "maar-leader"
_BLOCKS_HEADER = "maar-damaged-blocks"


class WireRefusal(msgspec.Struct, frozen=True):
    """An error on its way: what it says, and in the trailer its class and what else it knows."""

    sentence: str
    trailer: dict[str, str] = {}
    served: bool = True  # False: nobody answers this path here


def refusal_of(error: MaarError) -> WireRefusal:
    # Unreachable refers to a process behind us: our own caller did reach us.
    kind = Unavailable if isinstance(error, Unreachable) else _nearest_known(type(error))
    trailer = {_ERROR_HEADER: kind.__name__}
    if isinstance(error, errors.InvalidInput):
        trailer[_REASON_HEADER] = error.reason
    if isinstance(error, errors.Retryable) and error.retry_after_s is not None:
        trailer[_RETRY_HEADER] = f"{error.retry_after_s:.3f}"
    if isinstance(error, errors.NotLeading) and error.leader:
        trailer[_LEADER_HEADER] = error.leader
    if isinstance(error, errors.Damaged):
        trailer[_BLOCKS_HEADER] = msgspec.json.encode(error.blocks).decode()
    sentence = str(error).encode(errors="replace")[:SENTENCE_BYTES_MAX].decode(errors="ignore")
    return WireRefusal(sentence, trailer)


async def refuse(context: Any, error: MaarError) -> None:
    refusal = refusal_of(error)
    await context.abort(
        _status_code(error), refusal.sentence, trailing_metadata=tuple(refusal.trailer.items())
    )


def _status_code(error: MaarError) -> Any:
    """The nearest code of gRPC, for tools that do not know our header."""
    match error:
        case errors.NotFound():
            return grpc.StatusCode.NOT_FOUND
        case errors.Overloaded() | errors.TooLarge():
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case errors.Rejected():
            return grpc.StatusCode.FAILED_PRECONDITION
        case errors.Retryable():
            return grpc.StatusCode.UNAVAILABLE
        case errors.Corrupt():
            return grpc.StatusCode.DATA_LOSS
        case _:
            return grpc.StatusCode.INTERNAL


_CLASSES: dict[str, type[MaarError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, MaarError)
}


def _nearest_known(kind: type[MaarError]) -> type[MaarError]:
    """The class itself, or its nearest base class that every caller knows."""
    return next(each for each in kind.__mro__ if _CLASSES.get(each.__name__) is each)


def error_of_refusal(refusal: WireRefusal, *, path: str, address: str) -> MaarError:
    """The error that the server raised."""
    if not refusal.served:
        return _not_served(path, address)
    sentence = refusal.sentence or f"{path} at {address} failed"
    return _error_of(refusal.trailer, sentence) or MaarError(sentence)


def _error_of(trailer: dict[str, str], sentence: str) -> MaarError | None:
    kind = _CLASSES.get(trailer.get(_ERROR_HEADER, ""))
    if kind is None:
        return None
    if issubclass(kind, errors.InvalidInput):
        return kind(sentence, reason=trailer.get(_REASON_HEADER, "invalid"))
    if issubclass(kind, errors.Retryable):
        retry_after_s = float(trailer[_RETRY_HEADER]) if _RETRY_HEADER in trailer else None
        if issubclass(kind, errors.NotLeading):
            leader = trailer.get(_LEADER_HEADER, "")
            return kind(sentence, leader=leader, retry_after_s=retry_after_s)
        return kind(sentence, retry_after_s=retry_after_s)
    if issubclass(kind, errors.Damaged):
        return kind(sentence, blocks=_blocks(trailer.get(_BLOCKS_HEADER, "[]")))
    return kind(sentence)


def error_of(error: Any, *, path: str, address: str) -> MaarError:
    """The error that the server raised, or what a network failure means to the caller."""
    sentence = error.details() or ""
    if raised := _error_of(dict(error.trailing_metadata() or ()), sentence):
        return raised
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return late(path, address)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return away(path, address, sentence)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return too_large(path)
        case grpc.StatusCode.UNIMPLEMENTED:
            return _not_served(path, address)
        case _:
            return MaarError(sentence or f"{path} at {address} failed")


def _blocks(text: str) -> tuple[tuple[str, int, int], ...]:
    return msgspec.json.decode(text, type=tuple[tuple[str, int, int], ...])


def too_large(path: str) -> TooLarge:
    return TooLarge(f"a message of {path} is over {MESSAGE_BYTES_MAX >> 20} MiB")


def _not_served(path: str, address: str) -> Unreachable:
    return Unreachable(f"{address} does not serve {path}; is it another version or role?")


def late(path: str, address: str) -> Unreachable:
    return Unreachable(
        f"{_whose(path, address)} at {address} did not answer in time ({path}): it is overloaded "
        f"or hangs (`maar serve` restarts a process that hangs); try again, or see {HELP}"
    )


def away(path: str, address: str, details: str) -> Unreachable:
    why = "starting, or has just ended" if _is_here(address) else "not running there, or cut off"
    cause = details.rpartition("error: ")[2]  # gRPC's text is long: keep the last cause only
    return Unreachable(
        f"{_whose(path, address)} at {address} cannot be reached ({cause}): it is {why}; try "
        f"again, or see {HELP}"
    )


def _whose(path: str, address: str) -> str:
    """The role's name for messages: by what it serves, or else by its socket's name."""
    service = path.split("/")[1]
    if name := _ROLES.get(service):
        return f"the {name}"
    socket = address.rpartition("/")[2].removesuffix(".sock") if _is_here(address) else ""
    return f"the {socket}" if socket else "the role"


def _is_here(address: str) -> bool:
    return address.startswith("unix:")
