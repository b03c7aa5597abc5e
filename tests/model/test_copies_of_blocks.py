"""Copies in several stores against a model that knows only which profiles lie where.

The fold, the leader's keeper of stores and the cleaner are the real ones, over stores in memory.
The model knows which profiles each object was written with, which copies were accepted, and which
stores are wanted; whatever else is true follows from that by counting.

Rules of several steps lead to where mistakes show: chance alone would seldom come there. Planted by
hand and seen caught here: ending the last copy, a copy for a store that is not wanted, a replaced
block's copy that goes before its successor is there, a drain that gives up the last readable copy,
a location for a block that is dead, a tombstone of an away store that is forgotten, and ranges that
count as repaired for other stores.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from maar.metastore.records.effects import CopyAdded, CopyEnded, Refused
from maar.metastore.records.entries import PlanCompleted
from maar.metastore.replica.snapshot import decode, encode
from maar.metastore.state import audit
from maar.metastore.state.digest import digest
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Rejected
from maar.model.ids import BlockId, StoreName
from maar.model.plan import Account, PlanResult
from maar.model.repair import RepairOrder, RepairType
from maar.ports.metastore.log import Head
from maar.services.repair.ranges import vnode
from maar.services.repair.rules import REPAIR
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import objects_of
from support.lake.kept_stores import Kept
from support.metastore.copies import EU, MAIN, US, Repairing, stores, want
from support.metastore.fold import TENANT
from support.stores.memory_store import MemoryStore

pytestmark = pytest.mark.timeout(1200)  # on a machine that has much else to do

EVERY = (MAIN, EU, US)
OTHERS = st.sampled_from([EU, US])
ANY = st.integers(0, 1000)
NOTHING = Account(0, 0, 0)


class CopiesOfBlocks(RuleBasedStateMachine):
    """Settings change, stores leave and go away, copies come, go bad and are found bad, in any
    order; blocks are merged all the while.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lake = Kept()
        self.pushed = 0
        self.profiles: dict[BlockId, frozenset[int]] = {}  # of every block that ever was
        self.copies: dict[BlockId, dict[StoreName, tuple[str, ...]]] = {}  # of live ones: objects
        self.written: list[tuple[StoreName, tuple[str, ...], frozenset[int]]] = []
        self.damaged: set[tuple[BlockId, StoreName]] = set()
        self.default: tuple[StoreName, ...] = (EU,)
        self.leaving: set[StoreName] = set()
        self.promised: dict[StoreName, set[int]] = {name: set() for name in EVERY}
        self.repaired: set[tuple[tuple[StoreName, ...], int]] = set()  # ranges, by stores
        self.lake.step()
        for _ in range(3):
            self.push_and_compact()
        self.catch_up()

    # ── what the model says ──

    @property
    def wanted(self) -> set[StoreName]:
        return {MAIN, *self.default} - self.leaving

    def there(self, store: StoreName) -> set[str]:
        return {info.key for info in MemoryStore.list(self.lake.named[store], "")}

    def listed(self, store: StoreName) -> set[int]:
        """Profiles of live blocks with a good copy in a store."""
        some = [
            self.profiles[block]
            for block, held in self.copies.items()
            if store in held and (block, store) not in self.damaged
        ]
        return set().union(*some)

    def wants_change(self, before: set[StoreName]) -> None:
        """What a store holds is promised to stay from the moment on that it is wanted."""
        for name in EVERY:
            if name not in self.wanted:
                self.promised[name].clear()
            elif name not in before:
                self.promised[name] = self.listed(name)

    def pick(self, number: int) -> BlockId | None:
        live = sorted(self.copies)
        return live[number % len(live)] if live else None

    def make(self, meta: BlockMeta, profiles: frozenset[int]) -> None:
        self.profiles[meta.id] = profiles
        self.copies[meta.id] = {MAIN: tuple(objects_of(meta))}
        self.written.append((MAIN, tuple(objects_of(meta)), profiles))
        self.promised[MAIN] |= profiles

    # ── what happens ──

    @rule()
    def push(self) -> None:
        if not self.is_away(MAIN):
            self.push_and_compact()

    def push_and_compact(self) -> None:
        first = self.pushed + 1
        self.pushed += 3
        self.make(self.lake.block(first), frozenset(range(first, first + 3)))

    @rule(one=ANY, other=ANY)
    def merge(self, one: int, other: int) -> None:
        level_one = [b for b in sorted(self.copies) if self.lake.now_of(b).level == 1]
        if len(level_one) < 2 or self.is_away(MAIN):
            return
        chosen = sorted({level_one[one % len(level_one)], level_one[other % len(level_one)]})
        if len(chosen) == 2:
            made = self.lake.merge([self.lake.now_of(block) for block in chosen])
            for block in chosen:
                del self.copies[block]
            self.make(made, frozenset().union(*(self.profiles[block] for block in chosen)))

    @rule(number=ANY, to=st.sampled_from([EU, EU, US, MAIN]))
    def copy(self, number: int, to: StoreName) -> None:
        block = self.pick(number)
        if block is None or self.is_away(to):
            return
        accepted = to in self.wanted and to not in self.copies[block]
        if not accepted:
            effects = self.lake.fold.put(self.lake.repair.entry((block, to), attempt="refused"))
            assert any(isinstance(effect, Refused) and effect.what == block for effect in effects)
            return
        self.copied(block, to)

    @rule()
    def catch_up(self) -> None:
        """What the incremental repair does: all that is missing where a store answers."""
        for block, held in self.copies.items():
            for store in sorted(self.wanted - set(held)):
                if not self.is_away(store):
                    self.copied(block, store)

    def copied(self, block: BlockId, to: StoreName) -> None:
        entry = self.lake.write_copy(block, to)
        assert CopyAdded(block, to) in self.lake.fold.put(entry)
        (made,) = entry.copies
        files = [key for _, key in made.files]
        beside = {key for key in self.there(to) if key.startswith(keys.MANIFESTS)}
        objects = (*files, *(key for key in beside if _stem(key) == _stem(files[0])))
        assert len(objects) == len(files) + 1
        self.copies[block][to] = objects
        self.damaged.discard((block, to))
        self.written.append((to, objects, self.profiles[block]))
        self.promised[to] |= self.profiles[block]

    @rule(number=ANY, at=st.sampled_from(EVERY))
    def go_bad(self, number: int, at: StoreName) -> None:
        """One file of a copy has other bytes from now on; one whole copy is always left."""
        block = self.pick(number)
        if block is None or at not in self.copies[block]:
            return
        whole = [s for s in self.copies[block] if (block, s) not in self.damaged]
        if whole in ([], [at]):
            return
        key = self.copies[block][at][0]
        body = MemoryStore.read(self.lake.named[at], key)
        self.lake.named[at].smuggle(key, bytes(len(body)))
        self.damaged.add((block, at))
        self.promised[at] -= self.profiles[block]

    @rule(number=ANY, at=st.sampled_from(EVERY))
    def find_bad(self, number: int, at: StoreName) -> None:
        """A repair says that a copy is bad, rightly or not; the last one stays all the same."""
        block = self.pick(number)
        if block is None:
            return
        held = self.copies[block]
        others = [s for s in held if s != at and (block, s) not in self.damaged]
        if at in held and len(held) > 1 and not others:
            return  # no repair says so: it has seen a whole one
        effects = self.lake.repair.find_bad(block, at)
        ends = at in held and len(held) > 1
        assert any(isinstance(effect, CopyEnded) for effect in effects) is ends
        if ends:
            del held[at]
            self.damaged.discard((block, at))
            self.promised[at] -= self.profiles[block]

    # ── the ways to where mistakes would show ──

    @rule(one=ANY, other=ANY)
    def merge_and_clean(self, one: int, other: int) -> None:
        """Nobody has copied what was made yet, so what it was made of stays where that is."""
        self.merge(one, other)
        self.clean()

    @rule(one=ANY, other=ANY, store=OTHERS)
    def merge_while_a_store_is_away(self, one: int, other: int, store: StoreName) -> None:
        """What was replaced goes from the others at once, and from that store when it is back."""
        self.catch_up()
        self.go_away(store, away=True)
        self.merge_and_clean(one, other)
        self.catch_up()
        self.clean()

    @rule(one=ANY, other=ANY, to=OTHERS)
    def merge_what_is_being_copied(self, one: int, other: int, to: StoreName) -> None:
        """The commit of a copy comes when its block was replaced."""
        entry = self.lake.repair.entry
        late = {block: entry((block, to), attempt="late") for block in sorted(self.copies)}
        self.merge(one, other)
        for block in sorted(late.keys() - self.copies):
            (refused,) = self.lake.fold.put(late[block])
            assert isinstance(refused, Refused)
            assert block not in self.lake.state.blocks

    @rule(number=ANY, store=OTHERS)
    def drain_beside_a_bad_copy(self, number: int, store: StoreName) -> None:
        """The copy at home is bad when a store is to give up its own."""
        for name in EVERY:
            self.go_away(name, away=False)
        self.leave(store, keeps=False)
        self.catch_up()
        self.go_bad(number, MAIN)
        self.keep_stores(3)

    @rule(number=st.integers(0, 3))
    def repair_a_range(self, number: int) -> None:
        looked_at, tokens = tuple(sorted(self.wanted)), vnode(number)
        fold = self.lake.fold
        session = Repairing(fold, RepairOrder(RepairType.VNODE, looked_at, (tokens,)))
        fold.put(session.entry(subrange=(tokens.start, tokens.end), looked_at=looked_at))
        fold.put(PlanCompleted(session.plan, session.token, PlanResult(REPAIR, (), NOTHING)))
        self.repaired.add((looked_at, number))

    @rule(default=st.sampled_from([(), (EU,), (US,), (EU, US)]))
    def want_other_stores(self, default: tuple[StoreName, ...]) -> None:
        before = self.wanted
        self.default = default
        self.lake.given = stores(*default)
        want(self.lake.fold, *default)
        self.wants_change(before)

    @rule(store=OTHERS, keeps=st.booleans())
    def leave(self, store: StoreName, keeps: bool) -> None:
        before = self.wanted
        try:
            if keeps:
                run_virtually(self.lake.keeper.keep(store))
                self.leaving.discard(store)
            else:
                run_virtually(self.lake.keeper.remove(store, lost=False))
                self.leaving.add(store)
        except Rejected:
            raise AssertionError("the first one always stays") from None
        self.wants_change(before)

    @rule(store=st.sampled_from(EVERY), away=st.sampled_from([True, False, False]))
    def go_away(self, store: StoreName, away: bool) -> None:
        if away:
            self.lake.named[store].cut_off()
        else:
            self.lake.named[store].heal()

    def is_away(self, store: StoreName) -> bool:
        return self.lake.named[store].fault("size", "x") is not None

    @rule(steps=st.integers(1, 3))
    def keep_stores(self, steps: int) -> None:
        """Copies end only where they are not wanted, while all that are wanted are there."""
        self.lake.step(steps)
        for block, held in self.copies.items():
            now = {at.store for at in self.lake.now_of(block).files[0].locations}
            for gone in set(held) - now:
                assert gone not in self.wanted
                assert self.wanted <= set(held)
                assert not {(block, name) for name in self.wanted} & self.damaged
                del held[gone]
                self.damaged.discard((block, gone))

    @rule()
    def clean(self) -> None:
        self.lake.clean()

    @rule()
    def restart(self) -> None:
        """A snapshot and the log behind it give the same state."""
        state = self.lake.state
        again, _ = decode(encode(state, Head(state.index, b"h" * 32)))
        assert digest(again) == digest(state)
        audit.check_derived(state, again)
        self.lake.fold.state = again

    # ── what is always true ──

    @invariant()
    def the_index_lists_the_copies_that_were_accepted(self) -> None:
        for block, held in self.copies.items():
            meta = self.lake.now_of(block)
            for file in meta.files:
                assert {at.store for at in file.locations} == set(held)
                assert all(at.key in held[at.store] for at in file.locations)

    @invariant()
    def every_profile_is_in_one_live_block_and_readable(self) -> None:
        live = [self.profiles[block] for block in self.copies]
        assert sum(map(len, live)) == len(set().union(*live)) == self.pushed
        for block, held in self.copies.items():
            assert block in self.lake.state.blocks
            assert any((block, store) not in self.damaged for store in held)

    @invariant()
    def nothing_that_is_listed_was_deleted(self) -> None:
        there = {store: self.there(store) for store in EVERY}
        for held in self.copies.values():
            for store, objects in held.items():
                assert set(objects) <= there[store]

    @invariant()
    def what_a_wanted_store_once_held_is_still_there(self) -> None:
        """Also when its blocks were merged: compaction leaves no data with fewer copies."""
        for store in self.wanted:
            there = self.there(store)
            found = [p for at, objects, p in self.written if at == store and set(objects) <= there]
            assert self.promised[store] <= set().union(*found)

    @invariant()
    def sums_are_what_counting_gives(self) -> None:
        audit.check_sums(self.lake.state)
        told = self.lake.state.blocks.copies.of_stores()
        for store in EVERY:
            held = [block for block, held in self.copies.items() if store in held]
            lacks = [b for b, held in self.copies.items() if store not in held]
            assert told[store].held.blocks == len(held)
            assert told[store].missing.blocks == (len(lacks) if store in self.wanted else 0)
        lacking = {b for b, held in self.copies.items() if not self.wanted <= set(held)}
        assert {
            b for t in self.lake.state.tenants_with_blocks() for b in self.lake.state.to_copy(t)
        } == lacking

    @invariant()
    def a_range_was_repaired_only_in_the_stores_that_were_looked_at(self) -> None:
        for others in ((), (EU,), (US,), (EU, US)):
            looked_at = tuple(sorted((MAIN, *others)))
            times = self.lake.state.repair_times(TENANT, looked_at, whole_only=True).times
            known = {number for number, at in enumerate(times) if at is not None}
            assert known == {number for stores_, number in self.repaired if stores_ == looked_at}

    @invariant()
    def what_waits_to_be_deleted_is_there_and_is_not_listed(self) -> None:
        listed = {
            (store, key)
            for held in self.copies.values()
            for store, objects in held.items()
            for key in objects
        }
        for buried in self.lake.state.tombstones:
            assert (buried.store, buried.key) not in listed
            assert buried.key in self.there(buried.store)

    def teardown(self) -> None:
        """All stores are back, and what is not copied is: then only what is listed is left."""
        for store in EVERY:
            self.lake.named[store].heal()
        for block, store in sorted(self.damaged):
            if block in self.copies and store in self.copies[block]:
                self.lake.repair.find_bad(block, store)
                del self.copies[block][store]
        for block, held in self.copies.items():
            for store in sorted(self.wanted - set(held)):
                self.lake.copy(block, store)
        self.lake.step(3 + len(self.copies))
        for _ in range(3):
            self.lake.clean()
        live = [self.lake.now_of(block) for block in self.copies]
        for store in EVERY:
            listed = {
                at.key for m in live for f in m.files for at in f.locations if at.store == store
            }
            found = {key for key in self.there(store) if key.endswith(".parquet")}
            assert found == listed
        assert {at.store for m in live for f in m.files for at in f.locations} <= self.wanted
        assert not self.lake.state.tombstones
        self.lake.keeper.close()
        self.lake.cleaner.close()


def _stem(key: str) -> str:
    return key.rpartition("/")[2].rpartition(".")[0]


CopiesOfBlocks.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestCopiesOfBlocks = CopiesOfBlocks.TestCase
