"""The dead letters of one log in a store: found, read, moved aside. Blocking, for threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import xxhash

from maar.block.format import dead_letter
from maar.metastore.decide.dead_letter_rules import FoundLetter
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import AlreadyExists, Corrupt, InvalidInput, NotFound
from maar.model.ids import Incarnation, StoreName
from maar.ports.stores.object_store import ObjectInfo, ObjectStore

SURVEYED_MAX = 100_000  # more are not counted


class Box(NamedTuple):
    """The letters of one log in a store."""

    store: ObjectStore
    incarnation: Incarnation

    def waiting(self) -> Iterator[ObjectInfo]:
        """Oldest first: names begin with the time."""
        return self.store.list(keys.dead_letters(self.incarnation))

    def list_held(self) -> Iterator[ObjectInfo]:
        return self.store.list(keys.held_letters(self.incarnation))

    def read(self, info: ObjectInfo) -> FoundLetter:
        """Read a letter; NotFound when it is gone. Damage is part of the result, not an error."""
        _, _, name = keys.letter_place(info.key)
        try:
            meta = self._open(info, name)
        except Corrupt as error:
            return FoundLetter(info, name, None, str(error))
        return FoundLetter(info, name, meta, absent=dead_letter.absent(self.store, meta))

    def _open(self, info: ObjectInfo, name: str) -> BlockMeta:
        if keys.letter_block(name) is None:
            raise Corrupt(f"{info.key} is not named like a dead letter")
        if info.size > dead_letter.BYTES_MAX:
            raise Corrupt(f"{info.key} has {info.size} bytes, too many for a dead letter")
        return dead_letter.check(
            dead_letter.decode(self.store.read(info.key), key=info.key),
            key=info.key,
            name=name,
            incarnation=self.incarnation,
            store=StoreName(self.store.settings().name),
        )

    def hold(self, letter: FoundLetter) -> bool:
        """Move it aside: first the copy, then the original goes.

        False: it is too large to move, or has a name that no writer and no store of ours gives.
        """
        if letter.info.size > dead_letter.BYTES_MAX:
            return False
        try:
            body = self.store.read(letter.info.key)
            self._create_held(letter.name, body)
        except InvalidInput:
            return False
        self.store.delete(letter.info.key)
        return True

    def _create_held(self, name: str, body: bytes) -> None:
        key = keys.held_letter(incarnation=self.incarnation, name=name)
        try:
            self.store.create(key, body)
        except AlreadyExists:
            if self.store.read(key) != body:  # the same bytes: an earlier move was interrupted
                stem, dot, ending = name.rpartition(".")
                self._create_held(f"{stem}-{xxhash.xxh3_64_hexdigest(body)}{dot}{ending}", body)

    def copy_segment(self, meta: BlockMeta, key: str) -> None:
        """Copy its segment to another key."""
        try:
            self.store.create(key, self.store.read(meta.files[0].locations[0].key))
        except AlreadyExists:
            pass  # from an earlier try: 64 random bits make the name unique to us

    def survey(self) -> tuple[int, int]:
        """How many are held, and how many are of other logs."""
        held = foreign = 0
        for info in islice(self.store.list(keys.DEAD_LETTERS), SURVEYED_MAX):
            incarnation, aside, _ = keys.letter_place(info.key)
            foreign += incarnation != self.incarnation
            held += aside and incarnation == self.incarnation
        return held, foreign

    def list_foreign(self) -> Iterator[ObjectInfo]:
        for info in self.store.list(keys.DEAD_LETTERS):
            if keys.letter_place(info.key)[0] != self.incarnation:
                yield info


def read_ours(box: Box, info: ObjectInfo) -> FoundLetter:
    incarnation, _, name = keys.letter_place(info.key)
    return box.read(info) if incarnation == box.incarnation else FoundLetter(info, name, None)


def find_letter(box: Box, name: str, *, only_held: bool = False) -> FoundLetter:
    """The letter of a block, or any other object under that name."""
    places = (keys.held_letters, keys.dead_letters)[: 1 if only_held else 2]
    for place in places:
        for ending in (".msgpack", ""):
            key = f"{place(box.incarnation)}{name}{ending}"
            try:
                return box.read(ObjectInfo(key, box.store.size(key)))
            except NotFound:
                continue
    which = "held dead letter" if only_held else "dead letter"
    raise NotFound(f"there is no {which} {name[:80]!r}; it may have been delivered")
