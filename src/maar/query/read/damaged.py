"""After a query failed, finds out which objects are damaged, and which copies to read instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from maar.block.read.damage import MISSING, wrong
from maar.model.block import BlockMeta, Damage, Location
from maar.model.errors import Corrupt, Damaged, Missing, Retryable, Unavailable
from maar.model.ids import BlockId, StoreName
from maar.ports.stores.stores import Stores
from maar.query.decide.select import Parts

COMPARED_BYTES_MAX = 512 << 20  # of objects that are read for one error: its query waits
TOLD_MAX = 3  # objects
NAMED_MAX = 20  # blocks

Found = tuple[BlockMeta, list[Damage]]


class Tried:
    """The copies that one query found bad, and the stores that it found away. What others found a
    short time ago may be over: it is tried once more when nothing else is left.
    """

    def __init__(self) -> None:
        self.keys: set[tuple[StoreName, str]] = set()
        self.away: set[StoreName] = set()
        self.blocks: dict[BlockId, BlockMeta] = {}  # of which bad copies were found

    def __contains__(self, at: Location) -> bool:
        return at.store in self.away or (at.store, at.key) in self.keys


def find_bad_copies(stores: Stores, parts: Parts, error: Exception, tried: Tried) -> bool:
    """Whether a copy that was read is bad, or its store away, and there is another one to try.

    Those that the error names are looked at first: a query may be about thousands of files. Each
    call finds a bad copy that none of this query has found before, so that asking again comes to an
    end.
    """
    copied = [meta for meta in _metas(parts) if any(len(f.locations) > 1 for f in meta.files)]
    text = str(error)
    named = [meta for meta in copied if _is_named(meta, text)]
    for metas in filter(None, (named, copied)):
        if any([_note_bad(stores, meta, tried, compare=False) for meta in metas]):
            return True
        if any([_note_bad(stores, meta, tried, compare=True) for meta in _within_bound(metas)]):
            return True
    return False


def _is_named(meta: BlockMeta, text: str) -> bool:
    return any(at.key in text for file in meta.files for at in file.locations)


def _note_bad(stores: Stores, meta: BlockMeta, tried: Tried, *, compare: bool) -> bool:
    """Look at the copies that were read; those of a store that is away are not looked at twice.

    Another query may have found one bad since this one read it, and then it is not the nearest any
    more: it counts as found by this one too.
    """
    found = False
    for file in meta.files:
        at, *others = stores.nearest(file.locations)
        if any([_note_known(stores, meta, each, tried) for each in others]):
            found = True
            continue
        if not others or at in tried:
            continue
        try:
            what = wrong(stores.open(at.store), file, at, compare=compare)
        except Retryable as error:
            stores.note(meta.id, at, error, another=True)
            tried.away.add(at.store)
            found = True
            continue
        if what:
            _add_bad(tried, meta, at)
            damage = Damage(meta.id, at.key, what)
            stores.note(meta.id, at, _error(damage), another=True)
            found = True
    return found


def _note_known(stores: Stores, meta: BlockMeta, at: Location, tried: Tried) -> bool:
    """Whether others know that a copy is bad or its store away, and this query did not yet."""
    if at in tried:
        return False
    if stores.is_bad(at):
        _add_bad(tried, meta, at)
    elif stores.is_away(at):
        tried.away.add(at.store)
    return at in tried


def _add_bad(tried: Tried, meta: BlockMeta, at: Location) -> None:
    tried.keys.add((at.store, at.key))
    tried.blocks[meta.id] = meta


def name_damage(stores: Stores, parts: Parts, error: Exception) -> Corrupt | Unavailable:
    """The error, with the names of the damaged objects; Unavailable when the copy that is left of
    one is in a store that is away.
    """
    metas = _metas(parts)
    try:
        found = list(_by_size(stores, metas)) or list(_by_bytes(stores, metas))
    except Unavailable as away:
        return away
    if not found:
        return Corrupt(str(error))
    told = [str(each) for _, some in found for each in some]
    more = f", and {len(told) - TOLD_MAX} more" if len(told) > TOLD_MAX else ""
    return Damaged(
        f"{'; '.join(told[:TOLD_MAX])}{more}. Restore it from a copy, or see what giving it up "
        f"would cost: maar blocks lose {found[0][0].id} --dry-run (met as: {error})",
        blocks=tuple((m.id, m.min_time_ns, m.max_time_ns) for m, _ in found[:NAMED_MAX]),
    )


def suspects(parts: Parts, error: Exception) -> Sequence[BlockMeta]:
    """The blocks that an error may be about: those that it names, or else all."""
    named = {block for block, _, _ in error.blocks} if isinstance(error, Damaged) else set()
    return [meta for meta in _metas(parts) if not named or meta.id in named]


def _metas(parts: Parts) -> Sequence[BlockMeta]:
    return (*(meta for meta, _ in parts.raw), *parts.blocks, *parts.quarantined)


def _by_size(stores: Stores, metas: Iterable[BlockMeta]) -> Iterator[Found]:
    for meta in metas:
        if damages := list(_damages(stores, meta, compare=False)):
            yield meta, damages


def _by_bytes(stores: Stores, metas: Iterable[BlockMeta]) -> Iterator[Found]:
    for meta in _within_bound(metas):
        if damages := list(_damages(stores, meta, compare=True)):
            yield meta, damages


def _within_bound(metas: Iterable[BlockMeta]) -> Iterator[BlockMeta]:
    left = COMPARED_BYTES_MAX
    for meta in metas:
        left -= meta.size
        if left < 0:
            return
        yield meta


def _damages(stores: Stores, meta: BlockMeta, *, compare: bool) -> Iterator[Damage]:
    """Of the objects of which no copy is whole."""
    for file in meta.files:
        bad, away = [], []
        for at in file.locations:
            try:
                what = wrong(stores.open(at.store), file, at, compare=compare)
            except Retryable as error:
                away.append(str(error))  # whether it is whole is not known
                continue
            if what:
                bad.append(Damage(meta.id, at.key, what))
                stores.note(meta.id, at, _error(bad[-1]), another=False)
        if away and len(bad) + len(away) == len(file.locations):
            raise Unavailable("; ".join([*map(str, bad), *away]))
        if len(bad) == len(file.locations):
            yield from bad


def _error(damage: Damage) -> Corrupt:
    return Missing(str(damage)) if damage.what == MISSING else Corrupt(str(damage))
