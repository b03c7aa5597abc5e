"""Reads the raw log and works out by itself what may be true at its end; knows nothing of the fold.

What an entry asks for is granted here by the rules alone: a block is added once; a plan owns blocks
that are live and free; a lease replaces none but an expired one; only the newest token completes,
once, and accounts for every profile. What is left must be what the metastore says.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from maar.metastore.records import entries
from maar.metastore.records.entries import (
    AttemptFenced,
    BlocksAdded,
    BlocksExpired,
    BlocksForgotten,
    BlocksOutlined,
    Entry,
    Envelope,
    Grant,
    LeasesRenewed,
    LeftoversSwept,
    PlanBisected,
    PlanCompleted,
    PlanExcluded,
    PlanFailed,
    PlansLeased,
    PlansScheduled,
    PlansStarted,
    RegistrationFloor,
    Stored,
    TermStarted,
)
from maar.model.ids import BlockId, FencingToken, Incarnation, PlanId, block_time_ns
from maar.model.plan import ROLLBACK
from maar.model.time import LeaseTime
from maar.services.clean.rules import CLEAN

NO_LOG = Incarnation("")


@dataclass(slots=True)
class Tail:
    """Copies the log as it grows: what a snapshot makes unnecessary is cut off in time."""

    database: Path
    read_to: int = 0
    bodies: list[bytes] = field(default_factory=list)

    def follow(self) -> None:
        if not self.database.exists():
            return
        uri = f"{self.database.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=30)) as db:
                rows = db.execute(
                    "SELECT idx, body FROM log WHERE idx > ? ORDER BY idx", (self.read_to,)
                ).fetchall()
        except sqlite3.OperationalError:
            return  # it is just being made, or its owner is starting again
        for index, body in rows:
            assert index == self.read_to + 1, f"entry {self.read_to + 1} was cut off unread"
            self.bodies.append(body)
            self.read_to = index

    def envelopes(self) -> Iterable[tuple[int, Envelope]]:
        for number, body in enumerate(self.bodies, 1):
            yield number, entries.decode(body, index=number)


@dataclass(slots=True)
class Life:
    """What the audit knows of a plan."""

    inputs: tuple[BlockId, ...]
    level: int
    token: FencingToken | None = None  # of the lease that holds it
    worker: str = ""  # who has it, or had it last
    until: int = 0  # that lease, by what its grant and renewals said
    grants: int = 0
    completed: int = 0
    divided: bool = False

    def open(self) -> bool:
        return not self.completed and not self.divided


@dataclass(slots=True)
class Audit:
    """The truth by the rules; `faults` is what no rule allows."""

    live: dict[BlockId, int] = field(default_factory=dict)  # profiles of each
    plans: dict[PlanId, Life] = field(default_factory=dict)
    winners: dict[PlanId, FencingToken] = field(default_factory=dict)
    late: Counter[str] = field(default_factory=Counter)  # reports that had to be refused
    ended: set[tuple[PlanId, FencingToken]] = field(default_factory=set)
    swept: set[tuple[PlanId, FencingToken]] = field(default_factory=set)
    upkeep: set[PlanId] = field(default_factory=set)  # rollbacks and cleanings that were completed
    retired: set[BlockId] = field(default_factory=set)
    forgotten: set[BlockId] = field(default_factory=set)
    profiles: int = 0
    duplicates: int = 0
    terms: int = 0
    excluded: int = 0
    faults: list[str] = field(default_factory=list)
    _owner: dict[BlockId, PlanId] = field(default_factory=dict)
    _seen: set[BlockId] = field(default_factory=set)
    _floor: int = 0
    _incarnation: Incarnation = NO_LOG

    @classmethod
    def of(cls, log: Iterable[tuple[int, Envelope]]) -> Audit:
        audit = cls()
        last = 0
        for index, envelope in log:
            if envelope.lease_time < last:
                audit.faults.append(f"lease time runs backwards at entry {index}")
            last = envelope.lease_time
            assert not isinstance(envelope.entry, BlocksOutlined), "an audit reads whole entries"
            audit._take(index, envelope.lease_time, envelope.entry)
        return audit

    def unfinished_plans(self) -> list[PlanId]:
        """A cleaning that leases made due takes no inputs, and owns nothing."""
        lives = self.plans.items()
        return [plan for plan, life in lives if life.open() and plan not in self.upkeep]

    def attempts(self) -> int:
        return sum(life.grants for life in self.plans.values())

    def _take(self, index: int, now: LeaseTime, entry: Entry) -> None:
        match entry:
            case entries.Genesis():
                self._incarnation = entry.incarnation
            case TermStarted():
                self.terms += 1
            case BlocksAdded():
                self._add(entry)
            case RegistrationFloor():
                self._floor = max(self._floor, entry.lease_time)
            case PlansScheduled():
                for ordinal, spec in enumerate(entry.plans):
                    self._schedule(PlanId(index, ordinal), spec.inputs, spec.key.level)
            case PlansLeased():
                for grant in entry.grants:
                    self._grant(index, now, grant)
            case LeasesRenewed():
                for item in entry.extensions:
                    life = self.plans.get(item.plan)
                    if life is not None and life.token == item.token:
                        life.until = max(life.until, item.expires_at)
            case PlanCompleted():
                self._complete(index, entry)
            case PlanFailed() | AttemptFenced():
                if self._holds(entry.plan, entry.token):
                    self._end(entry.plan)
                else:
                    self.late["failure"] += 1
            case entries.RollbacksScheduled():
                for wish in entry.rollbacks:  # a lease that has expired ends with it
                    if wish.presumes and self._is_presumed(now, wish.target, wish.presumes):
                        self._end(wish.target)
            case PlanExcluded():
                if self._is_presumed(now, entry.plan, entry.presumes):
                    self.excluded += 1
                    self._end(entry.plan)
            case PlanBisected():
                if self._is_presumed(now, entry.plan, entry.presumes):
                    self._bisect(index, entry)
            case BlocksForgotten():
                self._forget(index, entry)
            case LeftoversSwept():
                self._sweep(index, entry)
            case BlocksExpired() | Stored():
                self.faults.append(f"entry {index} has no place in a soak: {entry}")
            case PlansStarted():
                pass
            case _:
                pass  # policy, pins, ticks, hashes: nothing that a plan depends on

    def _add(self, entry: BlocksAdded) -> None:
        for meta in entry.blocks:
            if meta.id not in self._seen and block_time_ns(meta.id) > self._floor:
                self._seen.add(meta.id)
                self.live[meta.id] = meta.profiles
                self.profiles += meta.profiles

    def _schedule(self, plan: PlanId, inputs: tuple[BlockId, ...], level: int) -> None:
        if all(block in self.live and block not in self._owner for block in inputs):
            self.plans[plan] = Life(inputs, level)
            self._owner |= dict.fromkeys(inputs, plan)

    def _grant(self, index: int, now: LeaseTime, grant: Grant) -> None:
        life = self.plans.get(grant.plan)
        if life is None or not life.open() or life.token != grant.replaces:
            return
        if life.token is not None:
            if now <= life.until:
                self.faults.append(f"entry {index} takes plan {grant.plan} from a live lease")
                return
            self._end(grant.plan)
        life.token = FencingToken(self._incarnation, index)
        life.until = grant.expires_at
        life.worker = grant.worker
        life.grants += 1

    def _complete(self, index: int, entry: PlanCompleted) -> None:
        if entry.result.kind in (ROLLBACK, CLEAN):  # in the end somebody completes each of them
            self.upkeep.add(entry.plan)
            return
        life = self.plans.get(entry.plan)
        if life is not None and life.completed and self.winners[entry.plan] == entry.token:
            return  # the same again
        if life is None or not life.open() or not self._holds(entry.plan, entry.token):
            self.late["result"] += 1
            return
        came = sum(self.live.get(block, 0) for block in life.inputs)
        went = {meta.id: meta.profiles for meta in entry.result.outputs}
        account = entry.result.account
        if entry.result.adopted:
            self._adopt(index, entry, life.inputs, came)
            return
        if came != account.total() or sum(went.values()) != account.kept + account.quarantined:
            self.faults.append(f"entry {index} does not account for the inputs of {entry.plan}")
        for block in life.inputs:
            if self._owner.pop(block, None) != entry.plan or self.live.pop(block, None) is None:
                self.faults.append(f"entry {index} replaces {block}, which is not its to replace")
        for block, profiles in went.items():
            if block in self._seen:
                self.faults.append(f"entry {index} brings {block} into the index again")
            self._seen.add(block)
            self.live[block] = profiles
        self.retired.update(life.inputs)
        self.duplicates += account.duplicates
        self.winners[entry.plan] = entry.token
        life.completed += 1
        self._end(entry.plan)

    def _adopt(
        self, index: int, entry: PlanCompleted, inputs: tuple[BlockId, ...], came: int
    ) -> None:
        """One block that stays where it is, with all its profiles."""
        account = entry.result.account
        if len(inputs) != 1 or entry.result.outputs or not account.kept == account.total() == came:
            self.faults.append(f"entry {index} adopts what is not one whole block")
        for block in inputs:
            if self._owner.pop(block, None) != entry.plan or block not in self.live:
                self.faults.append(f"entry {index} adopts {block}, which is not its to adopt")
        self.winners[entry.plan] = entry.token
        self.plans[entry.plan].completed += 1
        self._end(entry.plan)

    def _bisect(self, index: int, entry: PlanBisected) -> None:
        life = self.plans[entry.plan]
        self._end(entry.plan)
        life.divided = True
        for block in life.inputs:
            del self._owner[block]
        for ordinal, half in enumerate((life.inputs[: entry.at], life.inputs[entry.at :])):
            self._schedule(PlanId(index, ordinal), half, life.level)

    def _forget(self, index: int, entry: BlocksForgotten) -> None:
        for block in entry.blocks:
            if block not in self.retired:
                self.faults.append(f"entry {index} forgets {block}, which was not retired")
            self.forgotten.add(block)

    def _sweep(self, index: int, entry: LeftoversSwept) -> None:
        for swept in entry.attempts:
            attempt = (swept.plan, swept.token)
            if attempt not in self.ended:
                self.faults.append(f"entry {index} sweeps {attempt}, which has not ended")
            self.swept.add(attempt)

    def _holds(self, plan: PlanId, token: FencingToken) -> bool:
        life = self.plans.get(plan)
        return life is not None and life.open() and life.token == token

    def _is_presumed(self, now: LeaseTime, plan: PlanId, seen: FencingToken | None) -> bool:
        life = self.plans.get(plan)
        if life is None or not life.open() or life.token != seen:
            return False
        return life.token is None or now > life.until

    def _end(self, plan: PlanId) -> None:
        life = self.plans[plan]
        if life.token is not None:
            self.ended.add((plan, life.token))
        life.token = None
