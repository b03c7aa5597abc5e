"""Maps errors to HTTP: a status, a code, and the error's sentence."""

from __future__ import annotations

import math

import msgspec
from starlette.responses import JSONResponse, Response

from maar.model.errors import (
    AlreadyExists,
    InvalidInput,
    MaarError,
    NotFound,
    Overloaded,
    Rejected,
    Retryable,
    TooLarge,
)

RETRY_AFTER_S = 1.0


class Unimplemented(Rejected):
    """A part of the public API that maar does not offer."""


class UnsupportedMedia(Rejected):
    """A content type or encoding that this endpoint does not accept."""


class Forbidden(Rejected):
    """A host name that is not ours, or a page of another site."""


class TooSlow(Rejected):
    """The request's body did not arrive in time."""


class TooLate(Rejected):
    """The time that the client gave a call is over."""


class EndlessBody(TooLarge):
    """A body beyond the limit: only closing the connection ends it."""


class ServerFault(MaarError):
    """An internal error; the details are only in the log."""


FAULT = "the server failed to answer this request; its log says why"


class ErrorReply(msgspec.Struct, frozen=True):
    status: int
    code: str  # Connect's word for it


def answer_to(error: MaarError) -> ErrorReply:
    match error:
        case InvalidInput():
            return ErrorReply(400, "invalid_argument")
        case Forbidden():
            return ErrorReply(403, "permission_denied")
        case NotFound():
            return ErrorReply(404, "not_found")
        case TooSlow():
            return ErrorReply(408, "deadline_exceeded")
        case TooLate():
            return ErrorReply(504, "deadline_exceeded")
        case AlreadyExists():
            return ErrorReply(409, "already_exists")
        case TooLarge():
            return ErrorReply(413, "resource_exhausted")
        case UnsupportedMedia():
            return ErrorReply(415, "invalid_argument")
        case Unimplemented():
            return ErrorReply(501, "unimplemented")
        case Overloaded():
            return ErrorReply(429, "resource_exhausted")
        case Retryable():
            return ErrorReply(503, "unavailable")
        case Rejected():
            return ErrorReply(409, "failed_precondition")
        case _:
            return ErrorReply(500, "internal")


def json_error(error: MaarError) -> Response:
    answer = answer_to(error)
    return JSONResponse(
        {"code": answer.code, "message": str(error)}, answer.status, headers=answer_headers(error)
    )


def text_error(error: MaarError, *, status: int) -> Response:
    return Response(
        f"{error}\n", status, headers=answer_headers(error), media_type="text/plain; charset=utf-8"
    )


def answer_headers(error: MaarError) -> dict[str, str] | None:
    match error:
        case EndlessBody() | TooSlow():
            return {"Connection": "close"}
        case Retryable():
            return {"Retry-After": str(math.ceil(retry_after_s(error)))}
        case _:
            return None


def retry_after_s(error: Retryable) -> float:
    """When to try again, as the error says; its receivers know no fractions below a second."""
    return max(error.retry_after_s or 0.0, RETRY_AFTER_S)
