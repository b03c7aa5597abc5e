"""gRPC and gRPC-Web around a call: five bytes before the message, the status after it.

Whatever HTTP carries it, the call itself is the one that Connect has, with its limits and errors.
"""

from __future__ import annotations

import base64
import re
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from maar.api.errors import Unimplemented, answer_to, retry_after_s
from maar.model.errors import InvalidInput, MaarError, Retryable
from maar.model.messages import messages

PREFIX_BYTES = 5
PIECES_MAX = 1024  # of base64: each becomes an object
SENTENCE_BYTES_MAX = 1200  # it travels twice in the trailer, whose bytes take up to three
CODES = {
    "canceled": 1,
    "unknown": 2,
    "invalid_argument": 3,
    "deadline_exceeded": 4,
    "not_found": 5,
    "already_exists": 6,
    "permission_denied": 7,
    "resource_exhausted": 8,
    "failed_precondition": 9,
    "aborted": 10,
    "out_of_range": 11,
    "unimplemented": 12,
    "internal": 13,
    "unavailable": 14,
    "data_loss": 15,
    "unauthenticated": 16,
}
DETAILS_KEY = b"grpc-status-details-bin"
RETRY_KEY = b"retry-after"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_COMPRESSED, _TRAILER = 0x01, 0x80
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PADDED = re.compile(rb"[^=]+=*")

_message = messages(
    {
        "google.protobuf": {
            "Any": ("1 type_url string", "2 value bytes"),
            "Duration": ("1 seconds int64", "2 nanos int32"),
        },
        "google.rpc": {
            "RetryInfo": ("1 retry_delay .google.protobuf.Duration",),
            "Status": ("1 code int32", "2 message string", "3 details .google.protobuf.Any[]"),
        },
    }
)
RetryInfo = _message("google.rpc.RetryInfo")
RpcStatus = _message("google.rpc.Status")

Headers = list[tuple[bytes, bytes]]


class Framing(NamedTuple):
    """What a content type such as application/grpc-web-text+json says."""

    kind: str  # the content type, given back with the answer
    web: bool
    text: bool
    json: bool


def framing_of(kind: str) -> Framing | None:
    """None for a content type that is not gRPC's."""
    base, _, codec = kind.partition("+")
    if codec not in ("", "proto", "json"):
        return None
    match base:
        case "application/grpc":
            return Framing(kind, web=False, text=False, json=codec == "json")
        case "application/grpc-web":
            return Framing(kind, web=True, text=False, json=codec == "json")
        case "application/grpc-web-text":
            return Framing(kind, web=True, text=True, json=codec == "json")
        case _:
            return None


def message_in(framing: Framing, body: bytes, *, encoding: str) -> bytes:
    """The one message of a request; a gzip one stays so, and is unpacked where all bodies are."""
    if framing.text:
        body = _from_text(body)
    if not body:
        raise InvalidInput("the call has no message", reason="empty")
    if len(body) < PREFIX_BYTES or len(body) - PREFIX_BYTES != int.from_bytes(body[1:5]):
        raise InvalidInput(
            "the call's body is not one message with its length before it", reason="request"
        )
    if body[0] & _COMPRESSED and encoding != "gzip":
        raise Unimplemented(f"grpc-encoding {encoding[:60]!r} is not read here; use gzip")
    return body[PREFIX_BYTES:]


def timeout_s_of(text: str) -> float | None:
    """What grpc-timeout says, or None when there is none."""
    if not text:
        return None
    number, unit = text[:-1], text[-1]
    if not number.isascii() or not number.isdigit() or len(number) > 8 or unit not in _UNITS_S:
        raise InvalidInput(f"grpc-timeout {text[:40]!r} is no time", reason="request")
    return int(number) * _UNITS_S[unit]


class GrpcAnswer:
    """A message, or the error that there is instead of one."""

    def __init__(
        self,
        framing: Framing,
        content: bytes | None,
        headers: dict[str, str] | None = None,
        trailers: Headers | None = None,
    ) -> None:
        self._framing = framing
        self._content = content
        self._headers = [
            (b"content-type", framing.kind.encode()),
            (b"grpc-accept-encoding", b"identity, gzip"),
            *((name.lower().encode(), value.encode()) for name, value in (headers or {}).items()),
        ]
        self._trailers = trailers or [(b"grpc-status", b"0")]

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        if self._framing.web:
            await self._send(send, self._headers, self._web_body())
        elif self._content is None:  # nothing but trailers, which are the only headers then
            await self._send(send, [*self._headers, *self._trailers], b"")
        else:
            start = {"type": "http.response.start", "status": 200, "headers": self._headers}
            await send({**start, "trailers": True})
            await send({"type": "http.response.body", "body": _frame(0, self._content)})
            await send({"type": "http.response.trailers", "headers": self._trailers})

    def _web_body(self) -> bytes:
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in self._trailers)
        message = b"" if self._content is None else _frame(0, self._content)
        body = message + _frame(_TRAILER, lines)
        return base64.b64encode(body) if self._framing.text else body

    @staticmethod
    async def _send(send: Send, headers: Headers, body: bytes) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def grpc_error(framing: Framing, error: MaarError) -> GrpcAnswer:
    """With the sentence, and when to try again, if ever."""
    return GrpcAnswer(framing, None, trailers=trailers_of(error))


def trailers_of(error: MaarError) -> Headers:
    code = CODES[answer_to(error).code]
    sentence = str(error).encode(errors="replace")[:SENTENCE_BYTES_MAX].decode(errors="ignore")
    trailers = [
        (b"grpc-status", b"%d" % code),
        (b"grpc-message", quote(sentence, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode()),
    ]
    if not isinstance(error, Retryable):
        return trailers
    wait_s = retry_after_s(error)
    info = RetryInfo()
    info.retry_delay.seconds = int(wait_s)
    info.retry_delay.nanos = int(wait_s % 1 * 1e9)
    status = RpcStatus(code=code, message=sentence)
    status.details.add(type_url=_RETRY_INFO, value=info.SerializeToString())
    details = base64.b64encode(status.SerializeToString()).rstrip(b"=")
    return [*trailers, (RETRY_KEY, b"%.3f" % wait_s), (DETAILS_KEY, details)]


def _frame(flags: int, message: bytes) -> bytes:
    return bytes((flags,)) + len(message).to_bytes(4) + message


def _from_text(body: bytes) -> bytes:
    """Base64, in several padded pieces: one for each write of the client."""
    pieces = list(islice(_PADDED.finditer(body), PIECES_MAX + 1))
    if len(pieces) > PIECES_MAX:
        raise InvalidInput(
            f"the body is base64 in more than {PIECES_MAX} pieces; encode it as a whole",
            reason="request",
        )
    try:
        return b"".join(base64.b64decode(piece[0], validate=True) for piece in pieces)
    except ValueError as error:
        raise InvalidInput(f"the body is not base64: {error}", reason="request") from error
