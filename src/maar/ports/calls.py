"""One record per call between processes: what is asked, of which port, and what answers it.

A request is declared once, beside the port that answers it. Clients and servers are generic: they
know requests, not methods. Requests are idempotent: each carries its own ids, so that a client
which does not know the outcome may send it again.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

P_contra = TypeVar("P_contra", contravariant=True)  # the port that answers
P_co = TypeVar("P_co", covariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)  # the reply


class Call(msgspec.Struct, Generic[P_contra, R_co], frozen=True):
    """A request. Its class parameters are the port that answers it and the type of the reply."""

    wire_service: ClassVar[str]  # that it belongs to on the wire
    deadline_s: ClassVar[float] = 10.0  # for the reply, unless the client sets another
    any_replica: ClassVar[bool] = False  # may answer it; else the leader alone
    rows: ClassVar[str | None] = None  # field of the reply that may be large; '': it is only rows

    def answer(self, port: P_contra, /) -> Awaitable[R_co]:
        """Have the port answer it."""
        raise NotImplementedError

    @classmethod
    def path(cls) -> str:
        return f"/{cls.wire_service}/{cls.__name__}"

    @classmethod
    def reply_type(cls) -> Any:
        """As the class declares it, for whoever decodes the reply."""
        (base,) = cls.__orig_bases__  # type: ignore[attr-defined]
        return base.__args__[-1]


class Caller(Protocol[P_co]):
    """A port that is asked by requests, in this process or in another."""

    async def call(self, request: Call[P_co, R], /) -> R: ...


class LocalPort:
    """Whoever has the methods of a port answers its requests with them, in this process."""

    async def call(self, request: Call[Self, R], /) -> R:
        return await request.answer(self)
