"""A lake of real segments and manifests whose log is lost and restored; which profiles it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from maar.block.format.segment import segment_meta, write_segment
from maar.metastore.leader.adoption import Adoption
from maar.metastore.leader.orphans import Orphans
from maar.metastore.records.effects import Effects
from maar.metastore.records.entries import BlocksAdded, PlanCompleted, PolicySet
from maar.metastore.recovery import restoring, traces
from maar.metastore.recovery.restoring import Origin
from maar.metastore.replica import snapshot
from maar.model import keys
from maar.model.block import FORMAT_VERSION, TABLES, BlockMeta, File, Kind, Location
from maar.model.ids import HOME, MAIN_STORE, FencingToken, Incarnation, PlanId, Shard, segment_id
from maar.model.plan import Account, PlanResult
from maar.model.policy import Policy
from maar.model.time import WallTime
from maar.ports.log import Head
from maar.ports.object_store import ObjectStore
from maar.services.compact.rules import COMPACT
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import Lake
from support.metastore.fold import SMALL, TENANT
from support.segment.writer_in_memory import raw_profile

ONE = Shard(1)
SIZE = 100  # of every table


class Lives(Lake):
    """Objects remember their profiles by key, so that a test can ask what the index shows."""

    def __init__(self, policy: Policy = SMALL, store: ObjectStore | None = None) -> None:
        super().__init__(policy, store)
        self.contents: dict[str, frozenset[int]] = {}  # of the first file of a block
        self.adoption = Adoption(self, self.store, self.clock, self.append, self.metrics)
        self.orphans = Orphans(self, self.store, self.metrics)
        self.entropy = 0
        self.lives = 1
        self.saved_at = 0  # the last index of any snapshot in the store

    # what happens

    def upload(self, numbers: Iterable[int]) -> BlockMeta:
        """A segment of these profiles, which nobody has announced yet."""
        profiles = [raw_profile(number, tenant=TENANT) for number in numbers]
        written = write_segment(profiles, zone=HOME)
        self.entropy += 1
        block = segment_id(lease_time_ns=self.fold.now, entropy=self.entropy)
        key = keys.segment(shard=ONE, block=block, incarnation=self.state.incarnation)
        self.store.create(key, written.body)
        self.contents[key] = frozenset(int.from_bytes(p.id, "big") for p in profiles)
        return segment_meta(
            written,
            block=block,
            key=key,
            shard=ONE,
            store=MAIN_STORE,
            created_by="writer",
            created_at_ns=self.clock.wall,
        )

    def push(self, *numbers: int) -> BlockMeta:
        meta = self.upload(numbers)
        self.fold.put(BlocksAdded((meta,)))
        return meta

    def make_output(self, plan: PlanId, token: FencingToken, attempt: str = "a1") -> BlockMeta:
        made = super().make_output(plan, token, attempt)
        stem = keys.stem(block=made.id, plan=plan, token=token, attempt=attempt)
        inputs = self.fold.metas(self.state.plans[plan].inputs)
        held = frozenset().union(*map(self.profiles_in, inputs))
        files = tuple(
            File(name, SIZE, b"c" * 16, 10, 1, (Location(MAIN_STORE, key),))
            for name in TABLES
            for key in [keys.table(name=name, tenant=TENANT, day=made.day, stem=stem)]
        )
        self.contents[files[0].locations[0].key] = held
        return msgspec.structs.replace(
            made,
            version=FORMAT_VERSION,
            files=files,
            size=SIZE * len(files),
            profiles=len(held),
            zone=self.state.plans[plan].key.zone,  # a worker says it in the manifest, too
        )

    def write(self, plan: PlanId, token: FencingToken, attempt: str = "a1") -> BlockMeta:
        """The tables, then the manifest, as a task writes them."""
        made = self.make_output(plan, token, attempt)
        intent = keys.intent(plan=plan, token=token, attempt=attempt, ordinal=0)
        manifest = manifest_key(made)
        written = [*tables(made), manifest]
        self.store.create(intent, "\n".join(written).encode())
        for key in tables(made):
            self.store.create(key, b"x" * SIZE)
        self.store.create(manifest, msgspec.msgpack.encode(made))
        return made

    def complete(self, plan: PlanId, token: FencingToken, made: BlockMeta) -> Effects:
        """Profiles that several inputs hold are kept once."""
        came = sum(m.profiles for m in self.fold.metas(self.state.plans[plan].inputs))
        return self.complete_as(plan, token, made, duplicates=came - made.profiles)

    def complete_as(
        self, plan: PlanId, token: FencingToken, made: BlockMeta, *, duplicates: int = 0
    ) -> Effects:
        account = Account(made.profiles, duplicates, 0)
        return self.fold.put(PlanCompleted(plan, token, PlanResult(COMPACT, (made,), account)))

    # how it is lost and found

    def save(self) -> bytes:
        return snapshot.encode(self.state, Head(self.state.index, bytes(32)))

    def lose(self, saved: bytes, *, adopts: Sequence[Incarnation] = ()) -> None:
        """All that the log says after a snapshot is gone; the store is as it is."""
        state, head = snapshot.decode(saved)
        self._live_again(Origin(state, head, "saved"), adopts)

    def _live_again(self, origin: Origin, adopts: Sequence[Incarnation] = ()) -> None:
        self.lives += 1
        replica = run_virtually(
            restoring.reborn(
                origin,
                incarnation=Incarnation(f"{self.lives:08x}"),
                adopts=(*origin.lives[1:], *adopts),
                wall=WallTime(self.clock.wall),
                above=self.saved_at,
            )
        )
        self.saved_at = replica.head.index  # a restored log begins with a snapshot of its own
        self.fold.state = replica.state
        self.fold.now = replica.state.lease_time

    def lose_all(self) -> None:
        """Snapshots too: what is left are the objects."""
        self.saved_at = 0
        found = traces.survey(self.store)
        self._live_again(traces.origin(self.store, tuple(sorted(found.objects))))
        self.fold.put(PolicySet(self.fold.policy))  # as the first leader does

    def adopt(self) -> None:
        run_virtually(self.adoption.adopt())

    def clean(self) -> None:
        """Everything that may go, goes."""

        async def all_of_it() -> None:
            while await self.cleaner.remove():
                pass
            while await self.cleaner.sweep():
                pass
            while await self.orphans.sweep():
                pass

        run_virtually(all_of_it())

    # what is there

    def profiles_in(self, meta: BlockMeta) -> frozenset[int]:
        return self.contents[meta.files[0].locations[0].key]

    def live(self) -> list[BlockMeta]:
        return [self.state.blocks.get(block) for block in self.state.blocks.where]

    def visible_profiles(self) -> set[int]:
        """The profiles that a reader finds; every object that it has to open must be there."""
        found: set[int] = set()
        for meta in self.live():
            for file in meta.files:
                assert self.store.size(file.locations[0].key) == file.size
            found |= self.profiles_in(meta)
        return found


def tables(meta: BlockMeta) -> list[str]:
    return [file.locations[0].key for file in meta.files]


def manifest_key(meta: BlockMeta) -> str:
    assert meta.kind is Kind.BLOCK
    return keys.manifest_of(tables(meta)[0])
