"""Dead letters for tests: writers that leave them, their leader, a store that fails when told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from maar.block.format import dead_letter
from maar.metastore.decide.prepare import housekeeping
from maar.metastore.leader.letters.dead_letters import ADDED_BYTES_MAX, LISTED_AT_ONCE, DeadLetters
from maar.metastore.records.entries import BlocksForgotten, Entry
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import MaarError
from maar.model.ids import BlockId
from maar.model.policy import Policy
from maar.ports.stores.object_store import ObjectInfo
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import Lake, put
from support.metastore.fold import INCARNATION, SMALL, segment
from support.stores.memory_store import MemoryStore

Fault = Callable[[str, str], MaarError | None]  # of an operation and a key


class FaultyStore(MemoryStore):
    """`fault` says which calls fail, and how; `calls` are those that did not."""

    def __init__(self, name: str = "main") -> None:
        super().__init__(name)
        self.fault: Fault = lambda _operation, _key: None
        self.calls: list[tuple[str, str]] = []

    def create(self, key: str, body: bytes) -> None:
        self._check("create", key)
        super().create(key, body)

    def read(self, key: str) -> bytes:
        self._check("read", key)
        return super().read(key)

    def size(self, key: str) -> int:
        self._check("size", key)
        return len(super().read(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._check("list", prefix)
        return super().list(prefix)

    def delete(self, key: str) -> None:
        self._check("delete", key)
        super().delete(key)

    def heal(self) -> None:
        self.fault = lambda _operation, _key: None

    def _check(self, operation: str, key: str) -> None:
        error = self.fault(operation, key)
        if error is not None:
            raise error
        self.calls.append((operation, key))


class LetterLake(Lake):
    """A lake whose leader also looks after dead letters."""

    def __init__(self, policy: Policy = SMALL) -> None:
        self.faulty = FaultyStore()
        super().__init__(policy, self.faulty)
        self.elect()

    def elect(
        self, listed_at_once: int = LISTED_AT_ONCE, added_bytes_max: int = ADDED_BYTES_MAX
    ) -> None:
        """A new term, which knows nothing of letters yet."""
        self.letters = DeadLetters(
            *(self, self.store, self.append, self.metrics, Random(7).randbytes),
            listed_at_once=listed_at_once,
            added_bytes_max=added_bytes_max,
        )

    def post(self, number: int, *, at: int | None = None, upload: bool = True) -> BlockMeta:
        """A writer's segment, uploaded and not announced: it leaves a letter instead."""
        meta = segment(number, at=self.fold.now if at is None else at)
        if upload:
            put(self.store, meta)
        self.drop(meta)
        return meta

    def drop(self, meta: BlockMeta, *, body: bytes | None = None) -> str:
        key = letter_key(meta.id)
        self.store.create(key, dead_letter.encode(meta) if body is None else body)
        return key

    def drain(self) -> None:
        run_virtually(self.letters.drain())

    def keep_house(self) -> list[Entry]:
        entries = housekeeping(self.state, now=self.now(), floor_max=self.letters.floor_max)
        for entry in entries:
            self.fold.put(entry)
        return entries

    def forget(self, meta: BlockMeta) -> None:
        """Its objects are deleted, and then it is forgotten, as cleaning does it."""
        for file in meta.files:
            self.store.delete(file.locations[0].key)
        self.fold.put(BlocksForgotten((meta.id,)))

    def waiting(self) -> set[str]:
        return self.objects(keys.dead_letters(INCARNATION))

    def held_keys(self) -> set[str]:
        return self.objects(keys.held_letters(INCARNATION))

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"maar_metastore_{name}")


def letter_key(block: BlockId) -> str:
    return keys.dead_letter(incarnation=INCARNATION, block=block)


def held_key(block: BlockId) -> str:
    return keys.held_letter(incarnation=INCARNATION, name=f"{block}.msgpack")
