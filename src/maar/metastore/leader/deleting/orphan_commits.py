"""Commit objects that nothing needs any more, as a part of the search for orphans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from maar.metastore.decide import orphans
from maar.metastore.leader.deleting.orphan_search import Orphan, OrphanKind, Part, Unit
from maar.metastore.leader.stores import committing
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import Corrupt
from maar.ports.stores.object_store import ObjectInfo, exists


class Named(NamedTuple):
    """A commit object, and what it names."""

    info: ObjectInfo
    objects: frozenset[str]


class Commits(Part):
    """A commit object is needed as long as a block that it names is there under the name that the
    bulk write gave it: in the index, replaced but not deleted yet, or in the store alone, where
    adoption may have left it for an operator to look at.
    """

    name = "commits"
    prefixes = (keys.COMMITS,)

    async def _units(self, infos: Sequence[ObjectInfo]) -> list[Unit]:
        state, now = self._tools.leader.state, self._tools.leader.now()
        ended = [
            info
            for info in infos
            if (name := keys.commit_name(info.key)) is not None
            and orphans.is_unknown_attempt(state, *name, now=now)
        ]
        read = await self._tools.each(self._read, ended)
        state = self._tools.leader.state
        unlisted = [one for one in read if one is not None and not _lists_any(state, one.objects)]
        stored = await self._tools.each(self._is_stored, unlisted)
        return [
            (Orphan(one.info.key, one.info.size, OrphanKind.COMMIT),)
            for one, held in zip(unlisted, stored, strict=True)
            if not held
        ]

    def _read(self, info: ObjectInfo) -> Named | None:
        name = keys.commit_name(info.key)
        assert name is not None
        try:
            found = committing.read(self._tools.store, plan=name.plan, token=name.token)
        except Corrupt as error:
            self._keep(info.key, f"it is not swept: {error}")
            return None
        if not all(keys.is_ingested(key) for key in found):
            self._keep(info.key, "it is not swept: it names objects that no bulk write writes")
            return None
        return Named(info, found) if found else None

    def _is_stored(self, one: Named) -> bool:
        return any(exists(self._tools.store, key) for key in sorted(one.objects))


def _lists_any(state: MetaState, objects_: Iterable[str]) -> bool:
    """Whether the index, or what it has replaced and not deleted, has a block of these."""
    blocks = (name.block for key in objects_ if (name := keys.output_name(key)))
    return any(block in state.blocks or block in state.retired for block in blocks)
