"""What happens around a repair while it runs: the table in docs/repair.md, over the real fold."""

from __future__ import annotations

import msgspec

from maar.metastore.records.effects import Effects, Refused
from maar.metastore.records.entries import (
    BlocksExpired,
    PlanCompleted,
    PlanFailed,
    SubrangeRepaired,
)
from maar.model.block import BlockMeta
from maar.model.ids import StoreName
from maar.model.plan import Account, PlanResult
from maar.model.refusal import Refusal
from maar.model.stores import keys_at, stores_of
from maar.model.time import LeaseTime
from maar.services.repair.rules import REPAIR
from support.clock.virtual_time import run_virtually
from support.lake.several_stores import SeveralStores
from support.metastore.copies import EU, MAIN, want
from support.metastore.fold import DAY_START_NS
from support.stores.memory_store import MemoryStore


class Session(SeveralStores):
    """Two blocks that a session copies to the EU: the first is committed, the second only
    written.
    """

    def __init__(self) -> None:
        super().__init__()
        want(self.fold, EU)
        self.done, self.late = self.block(1), self.block(4)
        self.copy(self.done.id, EU)
        self.written = self.write_copy(self.late.id, EU)

    def keys_in(self, store: StoreName) -> set[str]:
        return {info.key for info in MemoryStore.list(self.named[store], "")}

    def written_keys(self) -> set[str]:
        return {key for made in self.written.copies for _, key in made.files}

    def fail(self) -> None:
        until = LeaseTime(self.fold.now + 1)
        plan, token = self.repair.plan, self.repair.token
        self.fold.put(PlanFailed(plan, token, "the worker was stopped", until, False))

    def end(self) -> None:
        result = PlanResult(REPAIR, (), Account(0, 0, 0))
        self.fold.put(PlanCompleted(self.repair.plan, self.repair.token, result))

    def sweep(self) -> None:
        self.pass_time(self.state.policy.leftovers_ns + 1)
        while run_virtually(self.cleaner.sweep()):
            pass


def refused(effects: Effects) -> list[Refusal]:
    return [effect.why for effect in effects if isinstance(effect, Refused)]


def commit(lake: Session, entry: SubrangeRepaired) -> list[Refusal]:
    return refused(lake.fold.put(entry))


def is_whole_in(lake: Session, store: StoreName, meta: BlockMeta) -> bool:
    return set(keys_at(meta, store)) <= lake.keys_in(store)


def test_a_sweep_takes_what_a_failed_session_did_not_commit_and_nothing_else() -> None:
    lake = Session()
    lake.fail()
    lake.sweep()
    known = lake.now_of(lake.done.id)
    assert stores_of(known) == (EU, MAIN)
    assert is_whole_in(lake, EU, known)
    assert is_whole_in(lake, MAIN, known)
    assert not lake.written_keys() & lake.keys_in(EU)
    assert commit(lake, lake.written) == [Refusal.STALE_TOKEN]
    assert stores_of(lake.now_of(lake.late.id)) == (MAIN,)


def test_a_sweep_while_the_session_runs_takes_nothing() -> None:
    lake = Session()
    lake.sweep()
    assert lake.written_keys() <= lake.keys_in(EU)
    assert commit(lake, lake.written) == []
    assert stores_of(lake.now_of(lake.late.id)) == (EU, MAIN)


def test_what_retention_took_meanwhile_is_refused_and_goes_in_every_store() -> None:
    lake = Session()
    known = lake.now_of(lake.late.id)
    lake.fold.put(BlocksExpired(DAY_START_NS * 2, (known.id,)))
    also = msgspec.structs.replace(lake.written, lost=(known.id,), what=("is missing",))
    assert commit(lake, also) == [Refusal.INPUT_GONE]
    assert not lake.state.repairs.lost
    lake.end()
    lake.pass_time(lake.state.policy.expired_delay_ns)
    lake.clean()
    lake.sweep()
    assert not set(keys_at(known, MAIN)) & lake.keys_in(MAIN)
    assert not lake.written_keys() & lake.keys_in(EU)
    assert not lake.state.tombstones
    assert is_whole_in(lake, EU, lake.now_of(lake.done.id))


def test_a_copy_that_came_into_the_index_just_before_retention_goes_too() -> None:
    lake = Session()
    assert commit(lake, lake.written) == []
    lake.fold.put(BlocksExpired(DAY_START_NS * 2, (lake.late.id,)))
    lake.pass_time(lake.state.policy.expired_delay_ns)
    lake.clean()
    assert not lake.written_keys() & lake.keys_in(EU)


def test_what_a_compaction_replaced_meanwhile_is_refused_and_swept() -> None:
    lake = Session()
    merged = lake.merge((lake.now_of(lake.done.id), lake.now_of(lake.late.id)))
    also = msgspec.structs.replace(lake.written, lost=(lake.late.id,), what=("is missing",))
    assert commit(lake, also) == [Refusal.INPUT_GONE]
    assert not lake.state.repairs.lost
    assert list(lake.state.to_copy(merged.tenant)) == [merged.id]
    lake.end()
    lake.sweep()
    assert not lake.written_keys() & lake.keys_in(EU)
