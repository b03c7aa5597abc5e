"""Writers, letters, a floor, merges and deletions in any order: added once, seen once (S4, S20).

Time passes; writers are slow, paused or cut off; the store fails; leaders change; what nobody
registered is swept. Whatever was acknowledged is seen exactly once, and its object is there, until
retention takes it, and never again after. And nothing stays that nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import msgspec
import pytest

from maar.metastore.fold import registration
from maar.metastore.leader.deleting.orphans import Orphans
from maar.metastore.leader.letters.dead_letters import DeadLetters
from maar.metastore.leader.stores import claim
from maar.metastore.records.effects import Registered
from maar.metastore.records.entries import BlocksAdded, BlocksExpired
from maar.metastore.views import reads
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import MaarError, Unavailable
from maar.model.ids import BlockId
from maar.model.time import SECOND_NS
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import put
from support.metastore.dead_letters import LetterLake, letter_key
from support.metastore.fold import DAY_START_NS, SMALL, segment

DEADLINE_NS = 10 * SECOND_NS
LAG_NS = 60 * SECOND_NS  # six deadlines, the least that settings allow
POLICY = msgspec.structs.replace(
    SMALL, registration_floor_lag_ns=LAG_NS, retire_delay_ns=0, retention_ns=1, expired_delay_ns=0
)


def key_of(meta: BlockMeta) -> str:
    return meta.files[0].locations[0].key


def segment_named(block: BlockId) -> BlockMeta:
    return segment(int(block[16:], 16), at=int(block[:16], 16))


@dataclass
class Written:
    meta: BlockMeta
    named_at: int


class Chaos:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lake = LetterLake(POLICY)
        self.lake.pass_time(1000 * SECOND_NS)
        self.flying: list[Written] = []
        self.acknowledged: set[BlockId] = set()
        self.expired: set[BlockId] = set()
        self.times_added: Counter[BlockId] = Counter()
        self.sources: dict[BlockId, frozenset[BlockId]] = {}  # of merged blocks
        self.lettered: set[BlockId] = set()  # with a letter before a sweep began, and a segment
        self.sweeping = False
        self.written: list[BlockMeta] = []
        self.swept = 0
        claim.mark(self.lake.store, self.lake.state.incarnation)
        self.orphans = Orphans(self.lake, self.lake.store, self.lake.clock, self.lake.metrics)
        self._number = 0

    # what writers do

    def name(self) -> None:
        self._number += 1
        ahead = self.random.choice((0, 0, SECOND_NS))  # its reading may be a little before ours
        meta = segment(self._number, at=self.lake.fold.now + ahead)
        put(self.lake.store, meta)
        self.written.append(meta)
        self.flying.append(Written(meta, self.lake.fold.now))

    def land(self) -> None:
        """Announced, or left as a letter, or both; acknowledged if it was in time."""
        if not self.flying:
            return
        written = self.flying.pop(self.random.randrange(len(self.flying)))
        in_time = self.lake.fold.now - written.named_at <= DEADLINE_NS
        how = self.random.choice(
            ("announced", "letter", "letter, then announced", "lost answer", "nothing")
        )
        if how == "nothing":
            return  # the writer died, or gave up: nobody was told that it is stored
        stored = False
        if how in ("announced", "lost answer"):
            stored = self.announce(written.meta)
        if how != "announced":
            self.drop(written.meta)
            stored = True
        if how == "letter, then announced":
            self.announce(written.meta)
        if in_time:
            assert stored, "a registration in time is never refused"
            self.acknowledged.add(written.meta.id)

    def drop(self, meta: BlockMeta) -> None:
        if not self.sweeping and key_of(meta) in self.lake.objects():
            self.lettered.add(meta.id)
        self.lake.drop(meta)

    def hedge(self) -> None:
        """The second of two uploads arrives, when the first is long gone."""
        if self.written:
            meta = self.random.choice(self.written)
            if key_of(meta) not in self.lake.objects():
                put(self.lake.store, meta)

    def announce(self, meta: BlockMeta) -> bool:
        effects = self.lake.fold.put(BlocksAdded((meta,)))
        self.count(effects)
        return all(e.refusal == "" for e in effects if isinstance(e, Registered))

    def count(self, effects: tuple[object, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Registered) and effect.profiles:
                self.times_added[effect.block] += 1

    # what the leader does

    def drain(self) -> None:
        before = self.lake.state.index
        failing = self.random.random()
        if failing < 0.3:
            self.lake.faulty.fault = lambda _operation, _key: (
                Unavailable("away") if self.random.random() < failing else None
            )
        try:
            self.lake.drain()
        except MaarError:
            pass
        self.lake.faulty.heal()
        self.count_since(before)

    def count_since(self, index: int) -> None:
        """By what the log says: the fold that we watch is the one that ran."""
        for item in self.lake.fold.log:
            if item.index > index and isinstance(item.envelope.entry, BlocksAdded):
                for meta in item.envelope.entry.blocks:
                    self.times_added[meta.id] += 1

    def new_leader(self) -> None:
        lake = self.lake
        lake.letters = DeadLetters(
            lake, lake.store, lake.append, lake.metrics, self.random.randbytes
        )

    def merge(self) -> None:
        state = self.lake.state
        free = [b for b in state.queue.places if b not in state.owners]
        metas = [state.blocks.get(block) for block in free]
        segments = [meta for meta in metas if meta.kind is Kind.SEGMENT]
        if len(segments) > 1:
            some = self.random.sample(segments, self.random.randrange(1, len(segments) + 1))
            made = self.lake.merge(some)
            self.sources[made.id] = frozenset(meta.id for meta in some)

    def sweep(self) -> None:
        """Letters come and go beside it: a sweep may see any of it in any order."""
        calls = 0

        def meanwhile(_operation: str, key: str) -> None:
            nonlocal calls
            calls += key.startswith(keys.DEAD_LETTERS)
            if calls == interrupted:
                self.lake.faulty.heal()
                self.random.choice((self.land, self.drain, self.drain_and_keep_house))()

        interrupted = self.random.choice((0, 1, 2))
        self.lake.faulty.fault = meanwhile
        self.sweeping = True
        self.swept += run_virtually(self.orphans.sweep())
        self.sweeping = False
        self.lake.faulty.heal()

    def forget(self) -> None:
        run_virtually(self.lake.cleaner.remove())

    def expire(self) -> None:
        live = [self.lake.state.blocks.get(block) for block in self.lake.fold.live()]
        if live:
            meta = self.random.choice(live)
            self.lake.fold.put(BlocksExpired(DAY_START_NS * 2, (meta.id,)))
            self.expired |= self.sources.get(meta.id, frozenset({meta.id}))

    def drain_and_keep_house(self) -> None:
        self.drain()
        self.lake.pass_time(2 * LAG_NS)
        self.drain()
        self.keep_house()

    def keep_house(self) -> None:
        self.lake.keep_house()

    def wait(self) -> None:
        self.lake.pass_time(self.random.choice((1, 2, 5, 30, 70)) * SECOND_NS)

    def register_one(self) -> None:
        """So that there is something to merge, and the floor moves."""
        self._number += 1
        meta = segment(self._number, at=self.lake.fold.now)
        put(self.lake.store, meta)
        self.announce(meta)

    # what must hold

    def late(self) -> list[BlockId]:
        """Of held letters: they came when their segment was below the floor."""
        names = (keys.letter_place(key)[2] for key in self.lake.held_keys())
        return [block for name in names if (block := keys.letter_block(name)) is not None]

    def strays(self) -> set[str]:
        """Segments below floor and grace that neither index nor letters know."""
        letters = (*self.lake.waiting(), *self.lake.held_keys())
        about = {keys.letter_place(key)[2].removesuffix(".msgpack") for key in letters}
        limit = self.lake.state.registration_floor - LAG_NS
        return {
            key
            for key in self.lake.objects("segments/")
            if (block := BlockId(key.rpartition("/")[2][:32])) not in about
            and int(block[:16], 16) <= limit
            and not registration.is_known(self.lake.state, block)
        }

    def seen(self) -> Counter[BlockId]:
        """Segments whose profiles a question reads: of live blocks, and of letters unseen."""
        state = self.lake.state
        found: Counter[BlockId] = Counter()
        for block in self.lake.fold.live():
            found.update(self.sources.get(block, frozenset({block})))
        names = (keys.letter_place(key)[2] for key in self.lake.waiting())
        letters = [one for name in names if (one := keys.letter_block(name)) is not None]
        found.update(reads.undelivered_blocks(state, letters))
        return found

    def check(self) -> None:
        seen = self.seen()
        assert all(number == 1 for number in seen.values()), "seen twice"
        assert not self.expired & set(seen), "back from the dead"
        assert self.acknowledged - self.expired <= set(seen), "acknowledged and not seen"
        assert all(number == 1 for number in self.times_added.values()), "added twice"
        objects = self.lake.objects()
        for block in self.lake.fold.live():
            assert key_of(self.lake.state.blocks.get(block)) in objects, "live, and gone"
        for key in (*self.lake.waiting(), *self.lake.held_keys()):
            about = keys.letter_block(keys.letter_place(key)[2])
            kept = about in self.lettered | self.acknowledged
            if about and kept and not self.times_added[about]:  # else it may have been merged
                assert key_of(segment_named(about)) in objects, "a letter's segment was swept"
        held = {keys.letter_block(keys.letter_place(key)[2]) for key in self.lake.held_keys()}
        assert not held & (self.acknowledged - self.expired), "acknowledged and held"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_a_letter_is_added_once_or_not_at_all(seed: int) -> None:
    chaos = Chaos(seed)
    acts: list[Callable[[], None]] = [
        *(chaos.name, chaos.name, chaos.land, chaos.land, chaos.land, chaos.drain, chaos.drain),
        *(chaos.keep_house, chaos.keep_house, chaos.merge, chaos.forget, chaos.forget),
        *(chaos.expire, chaos.wait, chaos.wait, chaos.wait, chaos.new_leader),
        *(chaos.sweep, chaos.sweep, chaos.hedge),
    ]
    for _ in range(500):
        chaos.random.choice(acts)()
        chaos.check()
    for _ in range(4):
        chaos.lake.pass_time(3 * LAG_NS)
        chaos.drain()
        chaos.register_one()
        chaos.merge()
        chaos.keep_house()
        chaos.forget()
        chaos.keep_house()
        chaos.sweep()
        chaos.check()
    chaos.lake.drain()
    assert chaos.lake.waiting() == set()
    assert chaos.strays() == set()
    assert chaos.acknowledged
    assert chaos.lake.state.registration_floor > 0


def test_this_test_sees_orphans_swept_and_letters_that_keep_theirs() -> None:
    swept = kept = 0
    for seed in range(8):
        chaos = Chaos(seed)
        for _ in range(6):
            for act in (chaos.name, chaos.name, chaos.register_one, chaos.merge, chaos.forget):
                act()
            for act in (chaos.wait, chaos.drain_and_keep_house, chaos.land, chaos.sweep):
                act()
        objects = chaos.lake.objects()
        swept += chaos.swept
        kept += sum(key_of(segment_named(about)) in objects for about in chaos.late())
    assert swept
    assert kept


def test_this_test_sees_letters_held_and_floors_that_matter() -> None:
    """Over all seeds: late letters were held, and the floor let ids be forgotten."""
    held = forgotten = 0
    for seed in range(12):
        chaos = Chaos(seed)
        for number in range(5):
            chaos.name()
            chaos.lake.pass_time(SECOND_NS)
            meta = chaos.flying[-1].meta
            if number % 2:
                chaos.lake.pass_time(3 * LAG_NS)
                chaos.lake.drain()
                chaos.lake.fold.put(BlocksAdded((segment(900 + number, at=chaos.lake.fold.now),)))
                chaos.merge()
                chaos.forget()
                chaos.keep_house()
            chaos.lake.drop(meta)
            chaos.flying.pop()
            assert letter_key(meta.id) in chaos.lake.waiting()
            chaos.lake.drain()
        held += len(chaos.lake.held_keys())
        forgotten += chaos.lake.state.registration_floor > 0
    assert held
    assert forgotten
