"""Wherever a log is lost, and from whichever snapshot it is restored, no profile is lost with it.

Segments come and are merged, attempts fail and are repeated, replaced blocks are deleted. Then the
log ends, and begins again from a snapshot, perhaps an old one, perhaps twice in a row, or without
any. When the store was looked through, every profile that was acknowledged is shown, every object
that a reader opens is there, and until then nothing was deleted. In the end nothing is left of
attempts that the log has forgotten.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from maar.metastore.records.entries import AttemptFenced, BlocksAdded, RegistrationFloor
from maar.metastore.state import audit
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.ids import FencingToken, Incarnation, PlanId, block_time_ns
from maar.model.policy import MINUTE_NS
from maar.model.time import LeaseTime
from support.lake.lost_log import Lives
from support.metastore.fold import SMALL

LAG_NS = 20 * MINUTE_NS
POLICY = msgspec.structs.replace(
    SMALL,
    leftovers_ns=10 * MINUTE_NS,
    retire_delay_ns=5 * MINUTE_NS,
    registration_floor_lag_ns=LAG_NS,
)


class LostLog(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lake = Lives(POLICY)
        self.number = 0
        self.acknowledged: set[int] = set()
        self.unannounced: list[tuple[int, BlockMeta, set[int]]] = []  # until when, what
        self.attempts: list[tuple[PlanId, FencingToken, BlockMeta]] = []
        self.saved: list[tuple[Incarnation, bytes]] = []
        self.untouchable: set[str] = set()
        self.strays = 0

    @initialize()
    def begin(self) -> None:
        self.save()
        for _ in range(3):
            self.push(1)
        self.merge(saves=True)

    @rule(profiles=st.integers(1, 2))
    def push(self, profiles: int) -> None:
        self.upload(profiles)
        self.announce()

    @rule(profiles=st.integers(1, 2))
    def upload(self, profiles: int) -> None:
        """A writer is slow to announce its segment, or never does."""
        numbers = set(range(self.number, self.number + profiles))
        self.number += profiles
        until = self.lake.fold.now + MINUTE_NS
        self.unannounced.append((until, self.lake.upload(numbers), numbers))

    @precondition(lambda self: self.unannounced)
    @rule()
    def announce(self) -> None:
        until, meta, numbers = self.unannounced.pop()
        self.lake.fold.put(BlocksAdded((meta,)))
        if self.lake.fold.now <= until and meta.id in self.lake.state.blocks:
            self.acknowledged |= numbers

    @precondition(lambda self: not self.lake.state.adopting)
    @rule(data=st.data())
    def attempt(self, data: st.DataObject) -> None:
        """Somebody sets to work on blocks of one level, and writes what comes of it."""
        free = [meta for meta in self.lake.live() if meta.id not in self.lake.state.owners]
        levels = sorted({meta.level for meta in free if meta.level < 3})
        if not levels:
            return
        level = data.draw(st.sampled_from(levels))
        inputs = [meta for meta in free if meta.level == level][:3]
        plan = self.lake.schedule(inputs)
        token = self.lake.lease(plan)
        self.attempts.append((plan, token, self.lake.write(plan, token)))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def attempt_again(self, data: st.DataObject) -> None:
        plan, token, _ = data.draw(st.sampled_from(self.attempts))
        self.lake.pass_time(2 * MINUTE_NS)
        found = self.lake.state.plans.get(plan)
        if found is not None and found.lease is not None and found.lease.token == token:
            again = self.lake.lease(plan, replaces=token)
            self.attempts.append((plan, again, self.lake.write(plan, again, "a2")))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        """Also by workers that the log was lost under."""
        attempt = data.draw(st.sampled_from(self.attempts))
        plan, token, made = attempt
        found = self.lake.state.plans.get(plan)
        inputs = self.lake.fold.metas(found.inputs) if found else ()
        came = sum(meta.profiles for meta in inputs)
        self.lake.complete_as(plan, token, made, duplicates=came - made.profiles if came else 0)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), files=st.integers(0, 6))
    def write_late(self, data: st.DataObject, files: int) -> None:
        """A task that the log was lost under goes on, and may even finish its block."""
        _, token, made = data.draw(st.sampled_from(self.attempts))
        if token.incarnation != self.lake.state.incarnation:
            self.strays += 1
            self.lake.write_late(made, f"late{self.strays}", files=files)

    @precondition(lambda self: not self.lake.state.adopting)
    @rule(saves=st.booleans())
    def merge(self, saves: bool) -> None:
        """Without trouble; what it replaced is still there when a snapshot follows at once."""
        free = [meta for meta in self.lake.live() if meta.id not in self.lake.state.owners]
        for level in range(3):
            inputs = [meta for meta in free if meta.level == level][:3]
            if inputs:
                self.lake.merge(inputs)
                break
        if saves:
            self.save()

    @rule()
    def clean(self) -> None:
        self.lake.pass_time(12 * MINUTE_NS)
        self.lake.clean()

    @rule()
    def raise_floor(self) -> None:
        self.lake.fold.put(RegistrationFloor(LeaseTime(self.lake.fold.now - LAG_NS)))

    @precondition(lambda self: self.lake.state.adopting)
    @rule()
    def linger(self) -> None:
        """The store does not answer for an hour, and all but the adoption goes on."""
        self.lake.pass_time(3 * LAG_NS)
        self.raise_floor()
        self.lake.clean()

    @rule()
    def save(self) -> None:
        self.saved.append((self.lake.state.incarnation, self.lake.save()))

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Of a snapshot that an earlier life left, an operator names the lives since then."""
        at = data.draw(st.integers(max(0, len(self.saved) - 3), len(self.saved) - 1))
        life, saved = self.saved[at]
        lives = [Incarnation("0badcafe"), *(Incarnation(f"{n:08x}") for n in range(2, 17))]
        since = [each for each in lives[: self.lake.lives] if each != life]
        if len(since) > 10:
            return
        self.lake.lose(saved, adopts=since)
        self.saved = self.saved[: at + 1]
        self.unannounced.clear()  # who had not announced by now was not acknowledged
        self.untouchable = self.lake.objects()

    @precondition(lambda self: self.lake.lives < 14)
    @rule()
    def lose_all(self) -> None:
        """No snapshot is left either: the log begins again from the keys of objects alone."""
        self.lake.lose_all()
        self.saved.clear()
        self.save()
        self.unannounced.clear()
        self.untouchable = self.lake.objects()
        state = self.lake.state
        for key in self.untouchable:
            if segment := keys.segment_name(key):
                assert block_time_ns(segment.block) <= state.lease_time
            elif output := keys.output_name(key):
                assert max(output.plan.index, output.token.index) < state.index

    @precondition(lambda self: self.lake.state.adopting)
    @rule()
    def adopt(self) -> None:
        self.lake.adopt()
        assert not self.lake.state.adopting
        assert self.lake.adoption.blocked == ()

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.lake.state.adopting:
            assert self.untouchable <= self.lake.objects()
        else:
            assert self.acknowledged <= self.lake.visible_profiles()

    def teardown(self) -> None:
        if self.lake.state.adopting:
            self.lake.adopt()
        for plan in list(self.lake.state.plans.values()):
            if plan.lease:
                self.lake.fold.put(AttemptFenced(plan.id, plan.lease.token, "the end"))
        for _ in range(4):
            self.lake.pass_time(30 * MINUTE_NS)
            self.lake.clean()
        assert self.acknowledged <= self.lake.visible_profiles()
        assert self.lake.orphans.blocked == ()
        assert self.lake.objects(keys.LAKE) <= self.lake.listed_keys(), "orphans are left"
        assert self.lake.objects(keys.ATTEMPTS) == set(), "intents are left"
        audit.check_sums(self.lake.state)
        self.lake.adoption.close()
        self.lake.orphans.close()
        self.lake.cleaner.close()


TestLostLog = LostLog.TestCase
TestLostLog.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
