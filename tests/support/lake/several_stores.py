"""A lake with three stores in memory: copies that are made as a repair makes them, stores that are
cut off or wiped, and the cleaner over all of them.
"""

from __future__ import annotations

from maar.metastore.leader.deleting.cleaner import BOUNDS, Cleaner, CleanerBounds
from maar.metastore.records.entries import SubrangeRepaired
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import Unavailable
from maar.model.ids import BlockId, StoreName
from maar.model.policy import Policy
from maar.model.stores import keys_at
from maar.model.trouble import Trouble
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import Lake
from support.metastore.copies import EU, MAIN, US, Repairing, want
from support.metastore.dead_letters import FaultyStore
from support.metastore.fold import SMALL
from support.stores.memory_store import MemoryStore


class NamedStore(FaultyStore):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def cut_off(self) -> None:
        self.fault = lambda operation, key: Unavailable(f"{self._name}: no {operation} of {key}")

    def wipe(self) -> None:
        self._objects.clear()


class SeveralStores(Lake):
    def __init__(self, policy: Policy = SMALL, *, bounds: CleanerBounds = BOUNDS) -> None:
        self.named = {name: NamedStore(name) for name in (MAIN, EU, US)}
        super().__init__(policy, self.named[MAIN], bounds=bounds)
        self._bounds = bounds
        self.damage: list[Trouble] = []  # that the leader was told of
        self.restart_with(*self.named)
        want(self.fold)
        self.repair = Repairing(self.fold)
        self._copies = 0

    def restart_with(self, *names: StoreName) -> None:
        """As a server does whose settings name these stores."""
        places = tuple(StorePlace(StoreSettings(name, "memory://")) for name in names)
        self.stores = Stores(StorePlaces(places), self._open)
        self.cleaner = Cleaner(
            *(self, self.stores, self.clock, self.append, self.metrics),
            hear_damage=self.damage.extend,
            bounds=self._bounds,
        )

    def _open(self, settings: StoreSettings, *, make: bool = False) -> ObjectStore:  # noqa: ARG002
        return self.named[StoreName(settings.name)]

    def block(self, first: int) -> BlockMeta:
        """A block of level 1, at home."""
        return self.merge(self.add(first, first + 1, first + 2))

    def copy(self, block: BlockId, *to: StoreName) -> None:
        """Intent, files and manifest in each store, then the entry."""
        entry = self.write_copy(block, *to)
        refused = [effect for effect in self.fold.put(entry) if hasattr(effect, "why")]
        assert not refused, refused

    def write_copy(self, block: BlockId, *to: StoreName) -> SubrangeRepaired:
        """The objects only; the entry that would list them."""
        self._copies += 1
        attempt = f"r{self._copies}"
        meta = self.state.blocks.get(block)
        entry = self.repair.entry(*((block, store) for store in to), attempt=attempt)
        for made in entry.copies:
            plan, token = self.repair.plan, self.repair.token
            intent = keys.intent(plan=plan, token=token, attempt=attempt, ordinal=0)
            store = self.named[made.store]
            files = [key for _, key in made.files]
            manifest = [keys.manifest_of(files[0])] if meta.kind is Kind.BLOCK else []
            store.create(intent, "\n".join([*files, *manifest]).encode())
            for key in (*files, *manifest):
                store.create(key, b"x" * meta.files[0].size)
        return entry

    def holds(self, store: StoreName, meta: BlockMeta) -> bool:
        """Whether all objects of a block are there, as the index knew it."""
        there = {info.key for info in MemoryStore.list(self.named[store], "")}
        found = [key in there for key in keys_at(meta, store)]
        assert len(set(found)) == 1, "a block is in a store with all its files or not at all"
        return found[0]

    def now_of(self, block: BlockId) -> BlockMeta:
        return self.state.blocks.get(block)

    def clean(self) -> None:
        """Until nothing more can be deleted now."""
        self.pass_time(self.state.policy.retire_delay_ns + 1)
        for _ in range(20):
            more = run_virtually(self.cleaner.remove())
            more |= run_virtually(self.cleaner.delete_tombstoned())
            if not more:
                return
        raise AssertionError("cleaning does not come to an end")
