"""A lake of real segments and manifests whose log is lost and restored; which profiles it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from maar.block.format.segment import segment_meta, write_segment
from maar.metastore.leader.deleting.orphans import Orphans
from maar.metastore.leader.stores import claim
from maar.metastore.leader.stores.adoption import Adoption
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
from maar.ports.metastore.log import Head
from maar.ports.stores.object_store import ObjectStore, exists
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
        self.orphans = Orphans(self, self.store, self.clock, self.metrics)
        self.entropy = 0
        self.lives = 1
        self.saved_at = 0  # the last index of any snapshot in the store
        claim.mark(self.store, self.state.incarnation)

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

    def write_late(self, made: BlockMeta, attempt: str, *, files: int = len(TABLES) + 1) -> None:
        """Another task of the attempt that made a block writes the same, as far as it comes."""
        named = keys.output_name(tables(made)[0])
        assert named is not None
        was = keys.intents_of(tables(made)[0]).rpartition("/")[2]  # its attempt, and a dash
        again = msgspec.structs.replace(
            made,
            files=tuple(
                msgspec.structs.replace(
                    file,
                    locations=(Location(MAIN_STORE, _by(file.locations[0].key, was, attempt)),),
                )
                for file in made.files
            ),
        )
        self.contents[tables(again)[0]] = self.profiles_in(made)
        intent = keys.intent(plan=named.plan, token=named.token, attempt=attempt, ordinal=0)
        written = [*tables(again), manifest_key(again)]
        self.store.create(intent, "\n".join(written).encode())
        for key in written[:files]:
            whole = key == manifest_key(again)
            self.store.create(key, msgspec.msgpack.encode(again) if whole else b"x" * SIZE)

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
            restoring.begin_restored(
                origin,
                incarnation=Incarnation(f"{self.lives:08x}"),
                adopts=(*origin.incarnations[1:], *adopts),
                wall=WallTime(self.clock.wall),
                above=self.saved_at,
            )
        )
        self.saved_at = replica.head.index  # a restored log begins with a snapshot of its own
        claim.mark(self.store, replica.state.incarnation)
        for life in replica.state.adopting:
            if not exists(self.store, keys.successor(life)):
                self.store.create(keys.successor(life), replica.state.incarnation.encode())
        self.fold.state = replica.state
        self.fold.now = replica.state.lease_time

    def lose_all(self) -> None:
        """Snapshots too: what is left are the objects."""
        self.saved_at = 0
        found = traces.survey(self.store)
        for info in list(self.store.list(keys.MARKERS)):  # a person made sure that those are gone
            if info.key.removeprefix(keys.MARKERS) not in found.objects:
                self.store.delete(info.key)
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


def _by(key: str, was: str, attempt: str) -> str:
    return f"{key.removesuffix(f'{was[:-1]}.parquet')}{attempt}.parquet"


def tables(meta: BlockMeta) -> list[str]:
    return [file.locations[0].key for file in meta.files]


def manifest_key(meta: BlockMeta) -> str:
    assert meta.kind is Kind.BLOCK
    return keys.manifest_of(tables(meta)[0])
