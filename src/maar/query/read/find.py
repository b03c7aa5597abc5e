"""One profile by its id, wherever it is now: level 0, a block, or quarantine."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from maar.block.read.restore import profile_from_block, profile_from_segment
from maar.model.block import BlockMeta
from maar.model.ids import ProfileId, TenantId
from maar.query.read.reading import Reading, translate_errors
from maar.query.read.sql import Statement
from maar.query.read.tables import listed_files

_UNPACKED_BYTES = 1 << 20  # at a time
_GZIP = 31  # for zlib: with its header and its checksum


def find(reading: Reading, tenant: TenantId, profile: ProfileId) -> bytes | None:
    """Gzip pprof, or None. The newest are asked first: people fetch what they just pushed."""
    segments = {meta.id: meta for meta, _ in reading.parts.raw}.values()
    return (
        _among_raw(reading, _newest_first(segments), tenant, profile)
        or _among_blocks(reading, profile)
        or _among_raw(reading, _newest_first(reading.parts.quarantined), tenant, profile)
    )


def _newest_first(metas: Iterable[BlockMeta]) -> list[BlockMeta]:
    return sorted(metas, key=lambda meta: (meta.max_time_ns, meta.id), reverse=True)


def _among_raw(
    reading: Reading, metas: list[BlockMeta], tenant: TenantId, profile: ProfileId
) -> bytes | None:
    for meta in metas:
        reading.check()
        with translate_errors():
            masks = reading.parts.masks.get(meta.id, ())
            if found := profile_from_segment(
                reading.stores, meta, profile, tenant=tenant, masks=masks
            ):
                if not _is_whole(found):  # as it was pushed, or damaged since
                    reading.level0.check_bytes(meta)
                return found
    return None


def _is_whole(payload: bytes) -> bool:
    """Whether gzip can unpack it, to the checksum at its end."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        while payload and not unpacker.eof:
            unpacker.decompress(payload, _UNPACKED_BYTES)
            payload = unpacker.unconsumed_tail
    except zlib.error:
        return False
    return unpacker.eof


def _among_blocks(reading: Reading, profile: ProfileId) -> bytes | None:
    """One scan of all ids says which block has it: blocks may be many."""
    blocks = reading.parts.blocks
    if not blocks:
        return None
    statement = Statement()
    ids = listed_files(reading.parts, "profiles", reading.stores)
    table = reading.run(
        f"SELECT min(block) AS block FROM ({ids}) WHERE profile_id = {statement.bind(profile)}",
        statement,
    )
    place = table["block"][0].as_py()
    if place is None:
        return None
    with translate_errors():
        return profile_from_block(reading.stores, blocks[place], profile)
