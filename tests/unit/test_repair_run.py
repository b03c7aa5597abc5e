"""One task of a repair, over real blocks in small stores: what it finds, writes, leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from maar.adapters.stores.local import LocalStore
from maar.model import keys
from maar.model.block import BlockMeta, Kind, Location
from maar.model.errors import AlreadyExists, Corrupt, LeaseLost, StoreFull, Unavailable
from maar.model.ids import FencingToken, Incarnation, PlanId, StoreName
from maar.model.plan import LeasedPlan, PlanResult
from maar.model.repair import LeasedRepair, RangeResult, RepairPart, RepairType
from maar.model.token_range import TokenRange
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from maar.services.repair.rules import REPAIR, key_of
from maar.services.repair.run import run
from support.lake.block_plans import INCARNATION, TENANT, WALL_NS, Bench, raw_profile
from support.load.pprof_scramble import random_profile
from support.stores.memory_store import MemoryStore

MAIN, EU, US = map(StoreName, ("main", "eu", "us"))
TOKENS = TokenRange(7, 900)
MARKER = keys.marker(INCARNATION)


class World:
    """Three stores, of which any may be away, and a worker that repairs."""

    def __init__(self, scratch: Path, stores: dict[StoreName, ObjectStore]) -> None:
        self.of = stores
        self.away: set[StoreName] = set()
        self.full: set[StoreName] = set()
        self.before: Callable[[StoreName, str], object] = lambda _store, _operation: None
        self._scratch = scratch
        self.attempts = 0
        places = tuple(StorePlace(StoreSettings(name, f"file:///{name}")) for name in stores)
        self.stores = Stores(StorePlaces(places), self._open)
        for name in stores:
            self.mark(name)

    def mark(self, name: StoreName, owner: str | None = None) -> None:
        """As the leader does it."""
        self.of[name].create(MARKER, (name if owner is None else owner).encode())

    def unmark(self, name: StoreName) -> None:
        self.of[name].delete(MARKER)

    def unmount(self, name: StoreName) -> None:
        """What is left is an empty directory."""
        for info in list(self.of[name].list("")):
            self.of[name].delete(info.key)

    def _open(self, settings: StoreSettings, *, make: bool = True) -> ObjectStore:  # noqa: ARG002
        return _Reached(self, StoreName(settings.name))  # type: ignore[return-value]

    def repair(
        self,
        *metas: BlockMeta,
        wanted: tuple[StoreName, ...] = (EU, MAIN),
        type_: RepairType = RepairType.VNODE,
        guard: object = None,
    ) -> RangeResult:
        self.attempts += 1
        part = RepairPart(TOKENS, 0, len(metas))
        plan = LeasedPlan(
            PlanId(70, 0),
            REPAIR,
            FencingToken(INCARNATION, 70 + self.attempts),
            key_of(TENANT, type_),
            metas,
            1 << 30,
            600 * 10**9,
            repair=LeasedRepair(type_, wanted, (part,), (wanted,) * len(metas)),
        )
        more = {"guard": guard} if guard else {}
        result: PlanResult = run(
            plan,
            store=self.stores,
            attempt=f"r{self.attempts}",
            scratch=self._scratch,
            wall_ns=WALL_NS,
            **more,  # type: ignore[arg-type]
        )
        assert result.repaired is not None
        assert not list(self._scratch.iterdir())
        return result.repaired

    def names(self, store: StoreName) -> set[str]:
        """But for the marker."""
        return {info.key for info in self.of[store].list("")} - {MARKER}


class _Reached:
    """A store, unless it is away."""

    def __init__(self, world: World, name: StoreName) -> None:
        self._world, self._name = world, name

    def __getattr__(self, name: str) -> object:
        if self._name in self._world.away:
            raise Unavailable(f"store {self._name} is away")
        if self._name in self._world.full and name.startswith("create"):
            raise StoreFull(f"store {self._name} has no room")
        self._world.before(self._name, name)
        return getattr(self._world.of[self._name], name)


@pytest.fixture(params=["memory", "directory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    (tmp_path / "scratch").mkdir()
    stores: dict[StoreName, ObjectStore] = {}
    for name in (MAIN, EU, US):
        settings = StoreSettings(name, f"file://{tmp_path}/{name}")
        local = LocalStore(tmp_path / name, settings)
        stores[name] = local if request.param == "directory" else MemoryStore(name)
    return World(tmp_path / "scratch", stores)


@pytest.fixture
def bench(world: World, tmp_path: Path) -> Bench:
    scratch = tmp_path / "compacting"
    scratch.mkdir()
    return Bench(world.of[MAIN], scratch)


@pytest.fixture
def block(bench: Bench) -> BlockMeta:
    segment = bench.segment([raw_profile(random_profile(Random(number))) for number in range(3)])
    (made,) = bench.compact([segment]).outputs
    return made


def with_copies(meta: BlockMeta, result: RangeResult) -> BlockMeta:
    """As the index lists it after the fold took the copies."""
    ended = {(each.block, each.store) for each in result.ended}
    files = []
    for file in meta.files:
        kept = [at for at in file.locations if (meta.id, at.store) not in ended]
        new = [
            Location(made.store, dict(made.files)[file.table])
            for made in result.copies
            if made.block == meta.id
        ]
        files.append(msgspec.structs.replace(file, locations=(*kept, *new)))
    return msgspec.structs.replace(meta, files=tuple(files))


def damage(world: World, meta: BlockMeta, store: StoreName, table: str = "stacks") -> str:
    """Flip one bit of one file in one store."""
    key = next(at.key for at in meta.file(table).locations if at.store == store)
    body = bytearray(world.of[store].read(key))
    body[len(body) // 2] ^= 4
    world.of[store].delete(key)
    world.of[store].create(key, bytes(body))
    return key


def drop(world: World, meta: BlockMeta, store: StoreName, table: str = "series") -> str:
    key = next(at.key for at in meta.file(table).locations if at.store == store)
    world.of[store].delete(key)
    return key


def same_bytes(world: World, meta: BlockMeta, one: StoreName, other: StoreName) -> bool:
    for file in meta.files:
        at = {each.store: each.key for each in file.locations}
        if world.of[one].read(at[one]) != world.of[other].read(at[other]):
            return False
    return True


class TestCopies:
    def test_a_missing_copy_is_made_and_found_whole(self, world: World, block: BlockMeta) -> None:
        result = world.repair(block)
        assert [(each.block, each.store) for each in result.copies] == [(block.id, EU)]
        assert (result.ended, result.lost, result.away, result.tokens) == ((), (), (), TOKENS)
        copied = with_copies(block, result)
        assert same_bytes(world, copied, MAIN, EU)
        again = world.repair(copied)
        assert (again.copies, again.ended, again.checked) == ((), (), 2)
        assert again.bytes == 2 * block.size

    def test_intent_and_manifest_lie_in_the_store_that_is_written_to(
        self, world: World, block: BlockMeta
    ) -> None:
        before = world.names(MAIN)
        (made,) = world.repair(block).copies
        assert world.names(MAIN) == before
        assert not world.names(US)
        placed = {key for _, key in made.files}
        manifest = keys.manifest_of(dict(made.files)["samples"])
        (intent,) = [key for key in world.names(EU) if key.startswith("attempts/")]
        assert world.names(EU) == {*placed, manifest, intent}
        named = world.of[EU].read(intent).decode().split("\n")
        assert set(named) == {*placed, manifest}
        assert keys.intent_name(intent) == (PlanId(70, 0), FencingToken(INCARNATION, 71))

    def test_the_manifest_is_enough_for_who_has_only_that_store(
        self, world: World, block: BlockMeta
    ) -> None:
        (made,) = world.repair(block).copies
        body = world.of[EU].read(keys.manifest_of(dict(made.files)["samples"]))
        found = msgspec.msgpack.decode(body, type=BlockMeta)
        assert found.store == EU
        assert {at.store for file in found.files for at in file.locations} == {EU}
        assert msgspec.structs.replace(found, store=MAIN, files=block.files) == block

    def test_the_manifest_tells_how_old_the_block_is_and_not_the_copy(
        self, world: World, block: BlockMeta
    ) -> None:
        """Also where the block was written when blocks did not say it."""
        granted = keys.since(block.files[0].locations[0].key)
        silent = msgspec.structs.replace(block, since=0)
        for one in (silent, msgspec.structs.replace(block, since=granted)):
            (made,) = world.repair(one).copies
            key = dict(made.files)["samples"]
            found = msgspec.msgpack.decode(world.of[EU].read(keys.manifest_of(key)), type=BlockMeta)
            assert found.since == granted
            assert keys.since(key) > granted

    def test_a_quarantine_block_is_copied_too(self, world: World, block: BlockMeta) -> None:
        key = keys.quarantine(tenant=TENANT, stem=f"{block.id}-1_0-x_1-a1")
        samples = block.file("samples")
        world.of[MAIN].create(key, world.of[MAIN].read(samples.locations[0].key))
        file = msgspec.structs.replace(samples, table="segment", locations=(Location(MAIN, key),))
        held = msgspec.structs.replace(block, kind=Kind.QUARANTINE, files=(file,))
        result = world.repair(held)
        assert same_bytes(world, with_copies(held, result), MAIN, EU)
        assert not [name for name in world.names(EU) if name.startswith(keys.MANIFESTS)]


class TestDamage:
    @pytest.mark.parametrize("harm", [damage, drop])
    @pytest.mark.parametrize("where", [MAIN, EU])
    def test_a_bad_copy_is_replaced_from_a_good_one(
        self, world: World, block: BlockMeta, where: StoreName, harm: object
    ) -> None:
        copied = with_copies(block, world.repair(block))
        key = harm(world, copied, where)  # type: ignore[operator]
        before = {name: world.of[where].read(name) for name in world.names(where)}
        result = world.repair(copied)
        assert [(each.block, each.store) for each in result.ended] == [(block.id, where)]
        assert result.ended[0].what.startswith(key)
        assert [(each.block, each.store) for each in result.copies] == [(block.id, where)]
        assert result.lost == ()
        # Nothing was overwritten, and nothing was deleted.
        assert {name: world.of[where].read(name) for name in before} == before
        healed = with_copies(copied, result)
        assert same_bytes(world, healed, MAIN, EU)
        assert world.repair(healed).ended == ()

    def test_other_bytes_of_the_same_size_with_a_good_footer_are_found(
        self, world: World, block: BlockMeta
    ) -> None:
        damage(world, block, MAIN, "samples")
        result = world.repair(block, wanted=(MAIN,))
        assert [each.block for each in result.lost] == [block.id]
        assert "checksum" in result.lost[0].what

    def test_a_truncated_file_is_found_without_reading_it(
        self, world: World, block: BlockMeta
    ) -> None:
        key = block.files[0].locations[0].key
        body = world.of[MAIN].read(key)
        world.of[MAIN].delete(key)
        world.of[MAIN].create(key, body[:-1])
        result = world.repair(block, wanted=(MAIN,))
        assert "bytes" in result.lost[0].what
        assert result.bytes == block.size - len(body)

    def test_a_footer_that_says_other_rows_than_the_index_is_damage(
        self, world: World, block: BlockMeta
    ) -> None:
        files = tuple(msgspec.structs.replace(file, rows=file.rows + 1) for file in block.files)
        result = world.repair(msgspec.structs.replace(block, files=files), wanted=(MAIN,))
        assert "rows" in result.lost[0].what

    def test_all_copies_damaged_is_told_and_nothing_is_touched(
        self, world: World, block: BlockMeta
    ) -> None:
        copied = with_copies(block, world.repair(block))
        damage(world, copied, MAIN, "series")
        drop(world, copied, EU, "series")
        before = {name: world.names(name) for name in (MAIN, EU)}
        result = world.repair(copied)
        assert (result.copies, result.ended) == ((), ())
        assert [each.block for each in result.lost] == [block.id]
        assert "in eu:" in result.lost[0].what
        assert "in main:" in result.lost[0].what
        assert {name: world.names(name) for name in (MAIN, EU)} == before

    def test_two_halves_make_a_whole(self, world: World, block: BlockMeta) -> None:
        """No copy is whole, and yet every file is in one of them."""
        copied = with_copies(block, world.repair(block))
        damage(world, copied, MAIN, "stacks")
        drop(world, copied, EU, "series")
        result = world.repair(copied)
        assert result.lost == ()
        assert sorted(each.store for each in result.ended) == [EU, MAIN]
        healed = with_copies(copied, result)
        assert same_bytes(world, healed, MAIN, EU)
        assert world.repair(healed).ended == ()

    def test_halves_stay_until_a_whole_copy_is_there(self, world: World, block: BlockMeta) -> None:
        """What a store that is away may have does not count."""
        every = (EU, MAIN, US)
        copied = with_copies(block, world.repair(block, wanted=every))
        damage(world, copied, MAIN, "stacks")
        drop(world, copied, EU, "series")
        world.away, world.full = {US}, {EU, MAIN}
        result = world.repair(copied, wanted=every)
        assert (result.copies, result.ended, result.lost) == ((), (), ())
        world.full = {EU}
        result = world.repair(copied, wanted=every)
        assert [each.store for each in result.copies] == [MAIN]
        assert sorted(each.store for each in result.ended) == [EU, MAIN]

    def test_one_store_only_is_a_scrub(self, world: World, block: BlockMeta) -> None:
        result = world.repair(block, wanted=(MAIN,))
        assert (result.checked, result.copies, result.lost) == (1, (), ())
        assert result.bytes == block.size


class TestAway:
    def test_a_store_that_is_away_is_no_damage(self, world: World, block: BlockMeta) -> None:
        copied = with_copies(block, world.repair(block))
        for name in (MAIN, EU):
            world.away = {name}
            result = world.repair(copied)
            assert (result.ended, result.lost, result.away) == ((), (), (name,))
            assert not result.whole

    def test_a_bad_copy_is_not_lost_while_another_may_be_whole(
        self, world: World, block: BlockMeta
    ) -> None:
        copied = with_copies(block, world.repair(block))
        damage(world, copied, MAIN)
        world.away = {EU}
        result = world.repair(copied)
        assert (result.ended, result.lost, result.copies) == ((), (), ())

    def test_other_stores_go_on(self, world: World, block: BlockMeta) -> None:
        world.away = {EU}
        result = world.repair(block, wanted=(EU, MAIN, US))
        assert [each.store for each in result.copies] == [US]
        assert result.away == (EU,)

    def test_a_source_in_a_store_that_is_not_wanted_any_more_serves(
        self, world: World, block: BlockMeta
    ) -> None:
        copied = with_copies(block, world.repair(block))
        damage(world, copied, MAIN)
        result = world.repair(copied, wanted=(MAIN, US))
        assert sorted(each.store for each in result.copies) == [MAIN, US]
        assert [each.store for each in result.ended] == [MAIN]


class TestMarkers:
    """A place without the marker of the log is not the store that it seems to be."""

    def test_nothing_is_written_to_a_place_that_another_log_has_marked(
        self, world: World, block: BlockMeta
    ) -> None:
        world.of[EU].delete(MARKER)
        world.of[EU].create(keys.marker(Incarnation("other")), b"eu")
        result = world.repair(block)
        assert (result.copies, result.ended, result.away) == ((), (), (EU,))
        assert world.names(EU) == {keys.marker(Incarnation("other"))}
        assert not result.whole

    def test_nor_to_one_that_is_marked_by_another_name(
        self, world: World, block: BlockMeta
    ) -> None:
        world.of[EU].delete(MARKER)
        world.mark(EU, owner=US)
        result = world.repair(block)
        assert (result.copies, result.away, world.names(EU)) == ((), (EU,), set())

    def test_an_empty_marker_is_that_of_the_first_store(
        self, world: World, block: BlockMeta
    ) -> None:
        for name in (MAIN, EU):
            world.of[name].delete(MARKER)
            world.mark(name, owner="")
        result = world.repair(block)
        assert (result.checked, result.copies, result.away) == (1, (), (EU,))

    @pytest.mark.parametrize("where", [MAIN, EU])
    def test_what_an_empty_directory_lacks_is_not_missing(
        self, world: World, block: BlockMeta, where: StoreName
    ) -> None:
        copied = with_copies(block, world.repair(block))
        world.unmount(where)
        result = world.repair(copied)
        assert (result.copies, result.ended, result.lost) == ((), (), ())
        assert (result.away, world.names(where)) == ((where,), set())

    def test_nothing_is_lost_when_all_disks_are_away(self, world: World, block: BlockMeta) -> None:
        world.unmount(MAIN)
        assert world.repair(block, wanted=(MAIN,)).lost == ()

    def test_a_disk_that_goes_while_its_copy_is_looked_at_lacks_nothing(
        self, world: World, block: BlockMeta
    ) -> None:
        copied = with_copies(block, world.repair(block))
        world.before = lambda *call: world.unmount(EU) if call == (EU, "size") else None
        result = world.repair(copied)
        assert (result.copies, result.ended, result.away) == ((), (), (EU,))
        assert world.names(EU) == set()  # and nothing was written to the directory in its place

    def test_what_was_seen_and_made_in_a_store_that_is_gone_at_the_end_does_not_count(
        self, world: World, block: BlockMeta
    ) -> None:
        """A copy was written and read back, and then it turns out that the disk is not there."""
        copied = with_copies(block, world.repair(block))
        damage(world, copied, EU)
        drop(world, copied, MAIN, "series")
        world.before = lambda *call: world.unmark(EU) if call == (EU, "create") else None
        result = world.repair(copied, wanted=(EU, MAIN, US))
        # Only together the copies were whole; home has all of it anew, so that the bad one ends.
        assert sorted(each.store for each in result.copies) == [MAIN, US]
        assert [each.store for each in result.ended] == [MAIN]
        assert result.away == (EU,)

    def test_a_bad_copy_stays_when_what_is_whole_is_gone_at_the_end(
        self, world: World, block: BlockMeta
    ) -> None:
        copied = with_copies(block, world.repair(block))
        damage(world, copied, MAIN)
        world.full = {MAIN}
        assert [each.store for each in world.repair(copied).ended] == [MAIN]
        world.before = lambda *call: world.unmark(EU) if call == (EU, "size") else None
        result = world.repair(copied)
        assert (result.copies, result.ended, result.lost) == ((), (), ())
        assert set(result.away) == {EU, MAIN}


class TestIncremental:
    def test_only_a_source_is_read(self, world: World, block: BlockMeta) -> None:
        copied = with_copies(block, world.repair(block))
        every = (EU, MAIN, US)
        result = world.repair(copied, wanted=every, type_=RepairType.INCREMENTAL)
        assert [each.store for each in result.copies] == [US]
        assert result.checked == 1

    def test_what_is_everywhere_meanwhile_is_left_alone(
        self, world: World, block: BlockMeta
    ) -> None:
        copied = with_copies(block, world.repair(block))
        result = world.repair(copied, type_=RepairType.INCREMENTAL)
        assert (result.checked, result.copies) == (0, ())

    def test_a_bad_source_is_passed_over_and_told(self, world: World, block: BlockMeta) -> None:
        copied = with_copies(block, world.repair(block))
        damage(world, copied, EU)  # the first of them
        every = (EU, MAIN, US)
        result = world.repair(copied, wanted=every, type_=RepairType.INCREMENTAL)
        assert sorted(each.store for each in result.copies) == [EU, US]
        assert [each.store for each in result.ended] == [EU]


class TestWrites:
    @pytest.mark.parametrize("copied", [False, True])
    def test_a_source_that_vanishes_meanwhile_costs_no_other_block_its_copy(
        self,
        world: World,
        block: BlockMeta,
        bench: Bench,
        copied: bool,
    ) -> None:
        """It was replaced, and its objects were deleted, after it had been read."""
        segment = bench.segment([raw_profile(random_profile(Random(9)))])
        (other,) = bench.compact([segment]).outputs
        if copied:
            block = with_copies(block, world.repair(block, wanted=(MAIN, US)))
        looks = 0

        def delete_when_checked(*call: str) -> None:
            nonlocal looks
            looks += call == (MAIN, "local_path")
            if looks == len(block.files) + 1:  # each file was checked, and now it is to be copied
                drop(world, block, MAIN)

        world.before = delete_when_checked
        wanted = (EU, MAIN, US) if copied else (EU, MAIN)
        result = world.repair(block, other, wanted=wanted)
        made = {(each.block, each.store) for each in result.copies}
        assert (other.id, EU) in made
        assert [each.block for each in result.lost] == ([] if copied else [block.id])
        if copied:
            assert made >= {(block.id, EU), (block.id, MAIN)}
            assert [each.store for each in result.ended if each.block == block.id] == [MAIN]

    def test_a_lost_lease_stops_it_before_the_next_write(
        self, world: World, block: BlockMeta
    ) -> None:
        asked: Iterator[int] = iter(range(100))

        def guard() -> None:
            if next(asked) >= 3:
                raise LeaseLost("somebody else has it")

        with pytest.raises(LeaseLost):
            world.repair(block, guard=guard)
        parquet = [key for key in world.names(EU) if key.endswith(".parquet")]
        assert len(parquet) == 1
        assert not [key for key in world.names(EU) if key.startswith(keys.MANIFESTS)]

    def test_keys_are_created_once(self, world: World, block: BlockMeta) -> None:
        world.repair(block)
        world.attempts = 0
        with pytest.raises(AlreadyExists):
            world.repair(block)

    def test_a_copy_that_does_not_read_back_does_not_count(
        self, world: World, block: BlockMeta, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that drops bits while it writes."""
        target = world.of[EU]

        def create_from_file(key: str, path: Path) -> None:
            body = bytearray(path.read_bytes())
            body[5] ^= 1
            target.create(key, bytes(body))

        monkeypatch.setattr(target, "create_from_file", create_from_file)
        with pytest.raises(Corrupt, match="just written"):
            world.repair(block)
        assert not [key for key in world.names(EU) if key.startswith(keys.MANIFESTS)]
