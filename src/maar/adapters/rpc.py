"""The roles' ports over gRPC: the class of an error that goes in at the server comes out again.

Payloads are msgpack: the arguments as one array, the reply as one value. Every call is idempotent
and has a deadline; nothing is retried here, since only the caller knows what a repeat is worth.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import grpc
import grpc.aio
import msgspec

from maar.model import errors
from maar.model.block import BlockMeta
from maar.model.errors import MaarError, TooLarge, Unavailable, Unreachable
from maar.model.ids import BlockId, NodeId, PlanId, ProfileId, Shard, TenantId, Zone
from maar.model.labels import Labels
from maar.model.plan import Plan
from maar.model.profile import RawProfile
from maar.model.ring import Ring
from maar.model.time import LeaseTime, TimeRange
from maar.ports.metastore import (
    AddReply,
    Beat,
    BeatReply,
    Expiring,
    Explanation,
    IndexView,
    Letter,
    LetterRetried,
    Letters,
    Metastore,
    Now,
    PlanDetail,
    PlanFilter,
    PollReply,
    PollRequest,
    RetentionStatus,
    RingView,
    Status,
    ViewRequest,
)
from maar.ports.query import FlameGraph, QueryEngine, Scope, SeriesPoints, Top
from maar.ports.segment_writer import SegmentWriter

log = logging.getLogger("maar.rpc")

MESSAGE_BYTES_MAX = 64 << 20
SENTENCE_BYTES_MAX = 2400  # it travels in a header, where a byte takes up to three
METASTORE_DEADLINE_S = 10.0
QUERY_DEADLINE_S = 60.0
ROLE_DEADLINE_S = 2.0

_ERROR_HEADER = "maar-error"
_REASON_HEADER = "maar-reason"
_RETRY_HEADER = "maar-retry-after-s"
_LIMITS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)
_ONE_SERVER = ("grpc.so_reuseport", 0)  # else a second one on the port gets half of the calls
_CLIENT_OPTIONS = (
    *_LIMITS,
    # A role that was restarted is found again at once, not after gRPC's usual minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

R = TypeVar("R")


class Role(Protocol):
    """What every role process tells about itself."""

    async def metrics(self) -> str:
        """Its metrics in the text form of Prometheus."""
        ...

    async def ready(self) -> str:
        """'' when it can do its work, else why not."""
        ...


@dataclass(frozen=True, slots=True)
class Method(Generic[R]):
    """One call: the names and types of its arguments, in order, and the type of its reply."""

    service: str
    name: str
    arguments: tuple[tuple[str, Any], ...]
    reply: type[R]

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"

    def argument_types(self) -> Any:
        return tuple.__class_getitem__(tuple(kind for _, kind in self.arguments))


def _of(service: str, name: str, reply: type[R], /, **arguments: Any) -> Method[R]:
    return Method(service, name, tuple(arguments.items()), reply)


_M, _Q, _R, _W = "maar.Metastore", "maar.QueryEngine", "maar.Role", "maar.SegmentWriter"

NOW = _of(_M, "now", Now)
ADD_BLOCKS = _of(_M, "add_blocks", AddReply, blocks=tuple[BlockMeta, ...])
POLL = _of(_M, "poll", PollReply, request=PollRequest)
VIEW = _of(_M, "view", IndexView, request=ViewRequest)
BLOCKS = _of(_M, "blocks", tuple[BlockMeta, ...], level=int, tenant=str, limit=int)
BLOCK = _of(_M, "block", BlockMeta, block=BlockId)
PLANS = _of(_M, "plans", tuple[Plan, ...], wanted=PlanFilter)
PLAN = _of(_M, "plan", PlanDetail, plan=PlanId)
REQUEUE = _of(_M, "requeue", Plan, plan=PlanId)
EXCLUDE = _of(_M, "exclude", Plan, plan=PlanId, note=str)
RAISE_LIMIT = _of(_M, "raise_limit", int, failure_limit=int, for_ns=int)
EXPLAIN = _of(_M, "explain", Explanation, block=BlockId)
RETENTION = _of(_M, "retention", RetentionStatus)
SET_RETENTION = _of(_M, "set_retention", RetentionStatus, tenant=TenantId, period_ns=int | None)
EXPIRING = _of(_M, "expiring", tuple[Expiring, ...], tenant=str, limit=int)
BEAT = _of(_M, "beat", BeatReply, beat=Beat)
RINGS = _of(_M, "rings", tuple[RingView, ...])
REMOVE_WRITER = _of(_M, "remove_writer", Ring, zone=Zone, node=NodeId)
LETTERS = _of(_M, "letters", Letters, limit=int)
LETTER = _of(_M, "letter", Letter, name=str)
RETRY_LETTER = _of(_M, "retry_letter", LetterRetried, name=str)
STATUS = _of(_M, "status", Status)

PROFILE_TYPES = _of(_Q, "profile_types", tuple[str, ...], scope=Scope)
LABEL_NAMES = _of(_Q, "label_names", tuple[str, ...], scope=Scope)
LABEL_VALUES = _of(_Q, "label_values", tuple[str, ...], scope=Scope, name=str)
SERIES = _of(_Q, "series", tuple[Labels, ...], scope=Scope, label_names=tuple[str, ...])
FLAMEGRAPH = _of(_Q, "flamegraph", FlameGraph, scope=Scope, profile_type=str, max_nodes=int)
TOP = _of(_Q, "top", Top, scope=Scope, profile_type=str, limit=int)
SELECT_SERIES = _of(
    _Q,
    "select_series",
    tuple[SeriesPoints, ...],
    scope=Scope,
    profile_type=str,
    group_by=tuple[str, ...],
    step_ns=int,
    aggregation=str,
    limit=int,
)
PROFILE = _of(_Q, "profile", bytes, tenant=TenantId, profile=ProfileId, hint=TimeRange)

PUSH = _of(_W, "push", type(None), shard=Shard, profiles=tuple[RawProfile, ...])

METRICS = _of(_R, "metrics", str)
READY = _of(_R, "ready", str)

METASTORE_METHODS: tuple[Method[Any], ...] = (
    NOW, ADD_BLOCKS, POLL, VIEW, BLOCKS, BLOCK, PLANS, PLAN, REQUEUE, EXCLUDE, RAISE_LIMIT,
    EXPLAIN, RETENTION, SET_RETENTION, EXPIRING, BEAT, RINGS, REMOVE_WRITER, LETTERS,
    LETTER, RETRY_LETTER, STATUS,
)  # fmt: skip
QUERY_METHODS: tuple[Method[Any], ...] = (
    PROFILE_TYPES, LABEL_NAMES, LABEL_VALUES, SERIES, FLAMEGRAPH, TOP, SELECT_SERIES, PROFILE,
)  # fmt: skip
WRITER_METHODS: tuple[Method[Any], ...] = (PUSH,)
ROLE_METHODS: tuple[Method[Any], ...] = (METRICS, READY)


class RpcServer:
    """The services of one role process at one address."""

    def __init__(self) -> None:
        self._server = grpc.aio.server(options=(*_LIMITS, _ONE_SERVER))
        self.port = 0  # of a TCP address, once started

    def add(self, methods: tuple[Method[Any], ...], target: object) -> None:
        handlers = {method.name: _handler(method, target) for method in methods}
        service = methods[0].service
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, handlers),)
        )

    async def start(self, address: str) -> None:
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address}; another process may hold it, or its directory "
                "does not exist"
            ) from error
        await self._server.start()

    async def stop(self, grace_s: float = 1.0) -> None:
        await self._server.stop(grace_s)


async def serve_metastore(address: str, metastore: Metastore, role: Role) -> RpcServer:
    return await _serve(address, (METASTORE_METHODS, metastore), (ROLE_METHODS, role))


async def serve_query(address: str, engine: QueryEngine, role: Role) -> RpcServer:
    return await _serve(address, (QUERY_METHODS, engine), (ROLE_METHODS, role))


async def serve_writer(address: str, writer: SegmentWriter, role: Role) -> RpcServer:
    return await _serve(address, (WRITER_METHODS, writer), (ROLE_METHODS, role))


async def serve_role(address: str, role: Role) -> RpcServer:
    return await _serve(address, (ROLE_METHODS, role))


async def _serve(address: str, *services: tuple[tuple[Method[Any], ...], object]) -> RpcServer:
    server = RpcServer()
    for methods, target in services:
        server.add(methods, target)
    await server.start(address)
    return server


def _handler(method: Method[Any], target: object) -> Any:
    call = getattr(target, method.name)
    names = [name for name, _ in method.arguments]
    decoder = msgspec.msgpack.Decoder(method.argument_types())
    encode = msgspec.msgpack.Encoder().encode

    async def answer(body: bytes, context: Any) -> bytes:
        try:
            return encode(await call(**dict(zip(names, decoder.decode(body), strict=True))))
        except MaarError as error:
            await _refuse(context, error)
        except msgspec.ValidationError as error:
            sentence = f"{method.path} was called with arguments of another version: {error}"
            await _refuse(context, errors.InvalidInput(sentence))
        except Exception:  # the edge: a fault in one call must not end the server
            log.exception("call failed method=%s", method.path)
            sentence = f"{method.path} failed by a fault in maar; its log has the details"
            await context.abort(grpc.StatusCode.INTERNAL, sentence)
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(answer)


async def _refuse(context: Any, error: MaarError) -> None:
    # Whom we could not reach is no word about ourselves: our caller has reached us.
    kind = Unavailable if isinstance(error, Unreachable) else _known(type(error))
    trailer = [(_ERROR_HEADER, kind.__name__)]
    if isinstance(error, errors.InvalidInput):
        trailer.append((_REASON_HEADER, error.reason))
    if isinstance(error, errors.Retryable) and error.retry_after_s is not None:
        trailer.append((_RETRY_HEADER, f"{error.retry_after_s:.3f}"))
    sentence = str(error).encode(errors="replace")[:SENTENCE_BYTES_MAX].decode(errors="ignore")
    await context.abort(_status_code(error), sentence, trailing_metadata=tuple(trailer))


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


def _known(kind: type[MaarError]) -> type[MaarError]:
    """The class itself, or of those that it comes from the nearest that every caller knows."""
    return next(each for each in kind.__mro__ if _CLASSES.get(each.__name__) is each)


def _raised(error: Any, *, path: str, address: str) -> MaarError:
    """The error that the server meant, or what the network's own failure means to the caller."""
    trailer = dict(error.trailing_metadata() or ())
    sentence = error.details() or ""
    kind = _CLASSES.get(trailer.get(_ERROR_HEADER, ""))
    if kind is not None:
        if issubclass(kind, errors.InvalidInput):
            return kind(sentence, reason=trailer.get(_REASON_HEADER, "invalid"))
        if issubclass(kind, errors.Retryable) and _RETRY_HEADER in trailer:
            return kind(sentence, retry_after_s=float(trailer[_RETRY_HEADER]))
        return kind(sentence)
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unreachable(f"{path} at {address} did not answer in time; try again")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return Unreachable(f"{path} at {address} cannot be reached ({sentence}); try again")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return TooLarge(f"a message of {path} is over {MESSAGE_BYTES_MAX >> 20} MiB")
        case grpc.StatusCode.UNIMPLEMENTED:
            return Unreachable(f"{address} does not serve {path}; is it another version or role?")
        case _:
            return MaarError(sentence or f"{path} at {address} failed")


class _Client:
    """One channel to one role; it reconnects by itself, quickly."""

    def __init__(self, address: str, *, deadline_s: float) -> None:
        self._address = address
        self._deadline_s = deadline_s
        self._channel = grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS)
        self._calls: dict[str, Any] = {}

    async def _call(self, method: Method[R], *arguments: Any) -> R:
        call = self._calls.get(method.path)
        if call is None:
            call = self._channel.unary_unary(
                method.path,
                request_serializer=msgspec.msgpack.Encoder().encode,
                response_deserializer=msgspec.msgpack.Decoder(method.reply).decode,
            )
            self._calls[method.path] = call
        try:
            reply: R = await call(arguments, timeout=self._deadline_s)
        except grpc.aio.AioRpcError as error:
            raise _raised(error, path=method.path, address=self._address) from None
        except grpc.aio.UsageError as error:
            raise Unreachable(f"the channel to {self._address} is closed") from error
        return reply

    async def close(self) -> None:
        await self._channel.close()


class MetastoreClient(_Client):
    """The metastore of another process."""

    def __init__(self, address: str, *, deadline_s: float = METASTORE_DEADLINE_S) -> None:
        super().__init__(address, deadline_s=deadline_s)

    async def now(self) -> Now:
        return await self._call(NOW)

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
        return await self._call(ADD_BLOCKS, blocks)

    async def poll(self, request: PollRequest) -> PollReply:
        return await self._call(POLL, request)

    async def view(self, request: ViewRequest) -> IndexView:
        return await self._call(VIEW, request)

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        return await self._call(BLOCKS, level, tenant, limit)

    async def block(self, block: BlockId) -> BlockMeta:
        return await self._call(BLOCK, block)

    async def plans(self, wanted: PlanFilter) -> tuple[Plan, ...]:
        return await self._call(PLANS, wanted)

    async def plan(self, plan: PlanId) -> PlanDetail:
        return await self._call(PLAN, plan)

    async def requeue(self, plan: PlanId) -> Plan:
        return await self._call(REQUEUE, plan)

    async def exclude(self, plan: PlanId, *, note: str) -> Plan:
        return await self._call(EXCLUDE, plan, note)

    async def raise_limit(self, failure_limit: int, *, for_ns: int) -> LeaseTime:
        return LeaseTime(await self._call(RAISE_LIMIT, failure_limit, for_ns))

    async def explain(self, block: BlockId) -> Explanation:
        return await self._call(EXPLAIN, block)

    async def retention(self) -> RetentionStatus:
        return await self._call(RETENTION)

    async def set_retention(self, tenant: TenantId, *, period_ns: int | None) -> RetentionStatus:
        return await self._call(SET_RETENTION, tenant, period_ns)

    async def expiring(self, *, tenant: str = "", limit: int = 1000) -> tuple[Expiring, ...]:
        return await self._call(EXPIRING, tenant, limit)

    async def beat(self, beat: Beat) -> BeatReply:
        return await self._call(BEAT, beat)

    async def rings(self) -> tuple[RingView, ...]:
        return await self._call(RINGS)

    async def remove_writer(self, zone: Zone, node: NodeId) -> Ring:
        return await self._call(REMOVE_WRITER, zone, node)

    async def letters(self, *, limit: int = 100) -> Letters:
        return await self._call(LETTERS, limit)

    async def letter(self, name: str) -> Letter:
        return await self._call(LETTER, name)

    async def retry_letter(self, name: str) -> LetterRetried:
        return await self._call(RETRY_LETTER, name)

    async def status(self) -> Status:
        return await self._call(STATUS)


class QueryClient(_Client):
    """The query role of another process."""

    def __init__(self, address: str, *, deadline_s: float = QUERY_DEADLINE_S) -> None:
        super().__init__(address, deadline_s=deadline_s)

    async def profile_types(self, scope: Scope) -> tuple[str, ...]:
        return await self._call(PROFILE_TYPES, scope)

    async def label_names(self, scope: Scope) -> tuple[str, ...]:
        return await self._call(LABEL_NAMES, scope)

    async def label_values(self, scope: Scope, *, name: str) -> tuple[str, ...]:
        return await self._call(LABEL_VALUES, scope, name)

    async def series(self, scope: Scope, *, label_names: tuple[str, ...]) -> tuple[Labels, ...]:
        return await self._call(SERIES, scope, label_names)

    async def flamegraph(self, scope: Scope, *, profile_type: str, max_nodes: int) -> FlameGraph:
        return await self._call(FLAMEGRAPH, scope, profile_type, max_nodes)

    async def top(self, scope: Scope, *, profile_type: str, limit: int) -> Top:
        return await self._call(TOP, scope, profile_type, limit)

    async def select_series(
        self,
        scope: Scope,
        *,
        profile_type: str,
        group_by: tuple[str, ...],
        step_ns: int,
        aggregation: str,
        limit: int,
    ) -> tuple[SeriesPoints, ...]:
        return await self._call(
            SELECT_SERIES, scope, profile_type, group_by, step_ns, aggregation, limit
        )

    async def profile(self, tenant: TenantId, profile: ProfileId, hint: TimeRange) -> bytes:
        return await self._call(PROFILE, tenant, profile, hint)


class SegmentWriterClient(_Client):
    """A segment writer of another process; a push waits there for its segment."""

    def __init__(self, address: str, *, deadline_s: float) -> None:
        super().__init__(address, deadline_s=deadline_s)

    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        await self._call(PUSH, shard, profiles)


class RoleClient(_Client):
    """What another process tells about itself."""

    def __init__(self, address: str, *, deadline_s: float = ROLE_DEADLINE_S) -> None:
        super().__init__(address, deadline_s=deadline_s)

    async def metrics(self) -> str:
        return await self._call(METRICS)

    async def ready(self) -> str:
        return await self._call(READY)
