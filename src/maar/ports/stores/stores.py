"""The stores of a process: opened when they are needed, the nearest first, each fallen back on.

A block's copies are listed in the index (S14). Whoever reads one takes the nearest, and the next
one when that store is away, lacks the object, or has other bytes than were written.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from maar.model.block import Location
from maar.model.errors import Corrupt, Missing, NotFound, Retryable, Unavailable
from maar.model.ids import MAIN_STORE, NO_ZONE, BlockId, StoreName, Zone
from maar.model.trouble import Trouble, Why
from maar.ports.stores.object_store import ObjectStore, StoreSettings

AWAY_S = 10.0  # a store that did not answer is asked last for so long
AVOIDED_S = 600.0  # a copy that was found bad is; repair takes it from the index before
AVOIDED_MAX = 10_000
_WHOLE, _AWAY, _BAD = range(3)  # what is believed of a copy, in the order of asking

T = TypeVar("T")


class OpenStore(Protocol):
    """Opens a store; `make` says whether a directory that is missing may be made."""

    def __call__(self, settings: StoreSettings, *, make: bool = True) -> ObjectStore: ...


class StorePlace(NamedTuple):
    """A store, and where it is."""

    settings: StoreSettings
    region: str = ""
    zones: tuple[str, ...] = ()  # whose home it is

    @property
    def name(self) -> StoreName:
        return StoreName(self.settings.name)


class StorePlaces(NamedTuple):
    """All stores of the settings, in their order, as seen from a zone: plain, picklable data."""

    places: tuple[StorePlace, ...]
    zone: Zone = NO_ZONE

    @property
    def home(self) -> StorePlace:
        """Where this zone writes: the store that names it, or else the first."""
        return next((each for each in self.places if self.zone in each.zones), self.places[0])

    def homes(self) -> tuple[StoreName, ...]:
        """The stores that segment writers of some zone write to."""
        named = tuple(each.name for each in self.places if each.zones)
        return named or (self.places[0].name,)

    def by_distance(self) -> tuple[StoreName, ...]:
        """The home store, those of its region, all others; else in the order of the settings."""
        home = self.home

        def distance(place: StorePlace) -> int:
            if place is home:
                return 0
            return 1 if place.region and place.region == home.region else 2

        return tuple(place.name for place in sorted(self.places, key=distance))


def one_place(settings: StoreSettings) -> StorePlaces:
    return StorePlaces((StorePlace(settings),))


def places_of(settings: StoreSettings | StorePlaces) -> StorePlaces:
    """A single store is the simplest case of several."""
    return settings if isinstance(settings, StorePlaces) else one_place(settings)


def ignore(_trouble: Trouble) -> None:
    """For whoever reads on behalf of one person, who sees the error itself."""


class Stores:
    """May be used by many threads. Opening one that is away fails for whoever needs it, each time
    anew; a process starts without it.
    """

    def __init__(
        self,
        places: StorePlaces,
        open_store: OpenStore,
        *,
        told: Callable[[Trouble], None] = ignore,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.places = places
        self._open = open_store
        self._told = told
        self._now_s = now_s
        self._settings = {place.name: place.settings for place in places.places}
        self._rank = {name: rank for rank, name in enumerate(places.by_distance())}
        self._opened: dict[StoreName, ObjectStore] = {}
        self._away: dict[StoreName, float] = {}  # until when
        self._avoided: OrderedDict[tuple[str, str], float] = OrderedDict()  # until when
        self._lock = threading.Lock()

    @property
    def home(self) -> ObjectStore:
        return self.open(self.places.home.name)

    def names(self) -> tuple[StoreName, ...]:
        """In the order of the settings."""
        return tuple(self._settings)

    def open(self, name: StoreName) -> ObjectStore:
        """Unavailable when it cannot be opened now, or when the settings do not know it."""
        opened = self._opened.get(name)
        if opened is not None:
            return opened
        settings = self._settings.get(name)
        if settings is None:
            raise Unavailable(
                f"the store {name!r} is not among the stores in the settings of this process "
                f"({', '.join(self._settings)}); add it to [[stores]]"
            )
        with self._lock:
            if name not in self._opened:
                # The directory of a disk that is not mounted must not pass for an empty store.
                self._opened[name] = self._open(settings, make=len(self._settings) == 1)
            return self._opened[name]

    def choose(self, block: BlockId, locations: Sequence[Location]) -> Location:
        """The nearest copy whose store can be opened, and is not known to be bad, for whoever reads
        it without `read`; what is left when there is none.
        """
        ordered = self.nearest(locations)
        for at in ordered:
            try:
                self.open(at.store)
                return at
            except Retryable as error:
                self.note(block, at, error, another=len(ordered) > 1)
        return ordered[0]

    def nearest(self, locations: Iterable[Location]) -> list[Location]:
        """All of them: first those that may be whole, the nearest first, then what is worth a try
        only when nothing else is left, first what failed longest ago.
        """
        found = list(locations)
        if len(found) > 1:
            now_s = self._now_s()
            found.sort(key=lambda at: (*self._doubt(at, now_s), self._rank.get(at.store, 1 << 30)))
        return found

    def read(
        self,
        block: BlockId,
        locations: Sequence[Location],
        read: Callable[[ObjectStore, str], T],
    ) -> T:
        """What `read` makes of the first copy that is whole, from a store and a key there.

        It raises Unavailable, NotFound or Corrupt of a copy that is not. When none is: Unavailable
        if one may be when its store is back, else what was wrong with the nearest.
        """
        failures: list[tuple[Location, Exception]] = []
        for at in self.nearest(locations):
            try:
                return read(self.open(at.store), at.key)
            except (Retryable, NotFound, Corrupt) as error:
                self.note(block, at, error, another=len(locations) > 1)
                failures.append((at, error))
        raise _worst(failures)

    def note(self, block: BlockId, at: Location, error: Exception, *, another: bool) -> None:
        """A copy could not be read: ask it last for a while, and tell who keeps count."""
        why = why_of(error)
        with self._lock:
            if why == "away":
                self._away[at.store] = self._now_s() + AWAY_S
            else:
                self._avoided[at.store, at.key] = self._now_s() + AVOIDED_S
                self._avoided.move_to_end((at.store, at.key))
                if len(self._avoided) > AVOIDED_MAX:
                    self._avoided.popitem(last=False)
        self._told(Trouble(block, at.store, at.key, why, str(error), another))

    def is_bad(self, at: Location) -> bool:
        """Whether a copy was found bad a short time ago."""
        return self._doubt(at, self._now_s())[0] == _BAD

    def is_away(self, at: Location) -> bool:
        """Whether its store was away a moment ago."""
        return self._doubt(at, self._now_s())[0] == _AWAY

    def _doubt(self, at: Location, now_s: float) -> tuple[int, float]:
        """Whether it was found bad, or its store away, a short time ago; and until when that
        counts.
        """
        avoided = self._avoided.get((at.store, at.key), now_s)
        if avoided > now_s:
            return _BAD, avoided
        away = self._away.get(at.store, now_s)
        return (_AWAY, away) if away > now_s else (_WHOLE, 0.0)


def why_of(error: Exception) -> Why:
    if isinstance(error, NotFound | Missing):
        return "missing"
    return "damaged" if isinstance(error, Corrupt) else "away"


def _worst(failures: Sequence[tuple[Location, Exception]]) -> Exception:
    """What whoever wanted to read is told, when no copy is whole."""
    if not failures:
        return Corrupt("The index names no copy of an object. This is a bug, please report it.")
    (_, first), *others = failures
    if not others:
        return first
    told = "; ".join(f"in store {at.store}: {error}" for at, error in failures)
    if any(isinstance(error, Retryable) for _, error in failures):
        return Unavailable(f"no copy can be read now: {told}")
    if all(isinstance(error, NotFound) for _, error in failures):
        return NotFound(f"no copy is there: {told}")  # the block may have been replaced meanwhile
    return Corrupt(f"No copy is whole: {told}")


class _Alone(Stores):
    """One store that is open already, and all that there is, by whatever name."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(one_place(StoreSettings(MAIN_STORE, "")), _never)
        self._store = store

    def open(self, name: StoreName) -> ObjectStore:  # noqa: ARG002  (there is no other)
        return self._store


def _never(settings: StoreSettings, *, make: bool = True) -> ObjectStore:
    raise AssertionError(f"{settings.name} is open already, and need not be made ({make})")


def stores_of(store: ObjectStore | Stores) -> Stores:
    """A single store is the simplest case of several."""
    return store if isinstance(store, Stores) else _Alone(store)
