"""Every call on the wire: the names and types of its arguments, in order, and of its reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from maar.model.block import BlockMeta
from maar.model.ids import BlockId, NodeId, PlanId, ProfileId, Shard, TenantId, Zone
from maar.model.labels import Labels
from maar.model.plan import Plan
from maar.model.profile import RawProfile
from maar.model.ring import Ring
from maar.model.time import TimeRange
from maar.ports.dead_letters import Letter, LetterRetried, LettersPage
from maar.ports.index_reader import IndexView, ViewRequest
from maar.ports.log_time import Now
from maar.ports.membership import Beat, BeatReply, RingView
from maar.ports.operator import Explanation, Loss, PlanDetail, PlanFilter, Status
from maar.ports.plan_board import PollReply, PollRequest
from maar.ports.query import FlameGraph, Scope, SeriesPoints, Top
from maar.ports.registrar import AddReply
from maar.ports.replica import ReplicaStatus, Vote
from maar.ports.retention import Expiring, RetentionStatus, Undone

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Method(Generic[R]):
    """One call: the names and types of its arguments, in order, and the type of its reply."""

    service: str
    name: str
    arguments: tuple[tuple[str, Any], ...]
    reply: type[R]
    rows: str | None = None  # the field of the reply that may be large; '': it is rows itself

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"

    @property
    def parts_path(self) -> str:
        """Where the reply comes in parts; clients of older programs ask at `path`."""
        return f"{self.path}_in_parts"

    def argument_types(self) -> Any:
        return tuple.__class_getitem__(tuple(kind for _, kind in self.arguments))


def _of(service: str, name: str, reply: type[R], /, **arguments: Any) -> Method[R]:
    return Method(service, name, tuple(arguments.items()), reply)


def _large(method: Method[R], *, rows: str = "") -> Method[R]:
    return replace(method, rows=rows)


_M, _P, _Q = "maar.Metastore", "maar.MetastoreReplica", "maar.QueryEngine"
_R, _W = "maar.Role", "maar.SegmentWriter"

NOW = _of(_M, "now", Now)
ADD_BLOCKS = _of(_M, "add_blocks", AddReply, blocks=tuple[BlockMeta, ...])
POLL = _of(_M, "poll", PollReply, request=PollRequest)
VIEW = _large(_of(_M, "view", IndexView, request=ViewRequest), rows="blocks")
BLOCKS = _large(_of(_M, "blocks", tuple[BlockMeta, ...], level=int, tenant=str, limit=int))
BLOCK = _of(_M, "block", BlockMeta, block=BlockId)
PLANS = _large(_of(_M, "plans", tuple[Plan, ...], wanted=PlanFilter))
PLAN = _of(_M, "plan", PlanDetail, plan=PlanId)
REQUEUE = _of(_M, "requeue", Plan, plan=PlanId)
EXCLUDE = _of(_M, "exclude", Plan, plan=PlanId, note=str)
RAISE_LIMIT = _of(_M, "raise_limit", int, failure_limit=int, for_ns=int)
EXPLAIN = _of(_M, "explain", Explanation, block=BlockId)
LOSS = _of(_M, "loss", Loss, block=BlockId)
LOSE = _of(_M, "lose", Loss, block=BlockId, note=str, force=bool)
RETENTION = _of(_M, "retention", RetentionStatus)
SET_RETENTION = _of(_M, "set_retention", RetentionStatus, tenant=TenantId, period_ns=int | None)
HOLD_RETENTION = _of(_M, "hold_retention", RetentionStatus, why=str)
RELEASE_RETENTION = _of(_M, "release_retention", RetentionStatus)
UNDO_RETENTION = _of(_M, "undo_retention", Undone, tenant=str, why=str)
EXPIRING = _large(_of(_M, "expiring", tuple[Expiring, ...], tenant=str, limit=int))
BEAT = _of(_M, "beat", BeatReply, beat=Beat)
RINGS = _of(_M, "rings", tuple[RingView, ...])
REMOVE_WRITER = _of(_M, "remove_writer", Ring, zone=Zone, node=NodeId)
LETTERS = _of(_M, "letters", LettersPage, limit=int)
LETTER = _of(_M, "letter", Letter, name=str)
RETRY_LETTER = _of(_M, "retry_letter", LetterRetried, name=str)
STATUS = _of(_M, "status", Status)

REPLICA = _of(_P, "replica", ReplicaStatus)
VOTE = _of(_P, "vote", type(None), vote=Vote)
PIN = _of(_P, "pin", int, reader=str)
SNAPSHOT = _of(_P, "snapshot", int)
REBUILD = _of(_P, "rebuild", ReplicaStatus)

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
    EXPLAIN, LOSS, LOSE, RETENTION, SET_RETENTION, HOLD_RETENTION, RELEASE_RETENTION,
    UNDO_RETENTION, EXPIRING, BEAT, RINGS, REMOVE_WRITER, LETTERS,
    LETTER, RETRY_LETTER, STATUS,
)  # fmt: skip
# Answered by any replica; all others by the leader alone.
READS: frozenset[str] = frozenset(
    method.path for method in (VIEW, BLOCKS, BLOCK, PLANS, PLAN, EXPLAIN, RETENTION, EXPIRING)
)
REPLICA_METHODS: tuple[Method[Any], ...] = (REPLICA, VOTE, PIN, SNAPSHOT, REBUILD)
QUERY_METHODS: tuple[Method[Any], ...] = (
    PROFILE_TYPES, LABEL_NAMES, LABEL_VALUES, SERIES, FLAMEGRAPH, TOP, SELECT_SERIES, PROFILE,
)  # fmt: skip
WRITER_METHODS: tuple[Method[Any], ...] = (PUSH,)
ROLE_METHODS: tuple[Method[Any], ...] = (METRICS, READY)
