"""A service is deleted while everything else goes on: nobody sees it again, and its bytes go.

The oracle is the list of profiles that were pushed and not deleted: every way to ask must show
exactly those.
"""

from __future__ import annotations

import msgspec
import pytest

from maar.adapters.sqlite.log import SqliteLog
from maar.block.format.segment import open_segment
from maar.metastore.recovery import restoring
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import Kind
from maar.model.errors import InvalidInput, Rejected
from maar.model.ids import Incarnation, TenantId
from maar.model.predicate import EVER_NS, Mask
from maar.model.time import SECOND_NS, WallTime
from maar.ports.operator.deletions import Deletion
from maar.ports.reader.query import GetProfile, ListLabelValues, Scope
from maar.services.compact.rules import COMPACT
from support.lake.deleting import (
    GLOBEX,
    POLICY,
    bytes_of,
    carried_out,
    eventually,
    finish,
    grant_all,
    lake,
    mask,
    never_seen,
    of,
    run,
    work,
)
from support.lake.query_lake import TENANT, Known, known_profile
from support.lake.whole_lake import ALWAYS, NOON_NS, WholeLake, letters_of

__all__ = ["lake"]

pytestmark = pytest.mark.component


@pytest.mark.parametrize("level", [0, 1, 2])
def test_nobody_sees_it_from_the_answer_on_and_what_comes_later_stays(
    lake: WholeLake, level: int
) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone = [of("cart", number) for number in range(4)]
            kept = [of("mail", number) for number in range(3)]
            await lake.push(service, [*gone, *kept])
            for _ in range(level):
                for plan in await grant_all(lake, service, COMPACT):
                    await finish(lake, service, plan)
            await ask.sees([*gone, *kept])
            dry = await service.delete_profiles(mask("cart"), dry_run=True)
            assert (dry.predicate, dry.profiles, dry.blocks, dry.at_most) == (None, 4, 1, False)
            await ask.sees([*gone, *kept])
            made = await service.delete_profiles(mask("cart"), dry_run=False)
            assert (made.profiles, made.blocks) == (4, 1)
            assert made.predicate is not None
            await ask.sees(kept)
            await never_seen(ask, gone)
            values = ListLabelValues(Scope(TENANT, ALWAYS), "service_name")
            assert await ask.engine.call(values) == ("mail",)
            again = [of("cart", 9), gone[0]]  # the very same profile, pushed again
            await lake.push(service, again)
            await ask.sees([*kept, *again])
            await carried_out(lake, service)
            await ask.sees([*kept, *again])
            await never_seen(ask, gone[1:])
            status = await service.status()
            assert (status.deletions, status.profiles_deleted) == (0, 4)

    run(test)
    assert not list(lake.store.list(keys.DELETIONS))


def test_its_bytes_go(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            await work(lake, service, COMPACT)
            assert b"cart_1" in bytes_of(lake)
            await service.delete_profiles(mask("cart"), dry_run=False)
            await carried_out(lake, service)
            held = bytes_of(lake)
            assert b"cart_1" not in held
            assert b"mail_1" in held

    run(test)


def test_a_time_range_is_deleted_and_no_more(lake: WholeLake) -> None:
    """Within one block, and one dataset of it: the index cannot tell how many there are."""

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            every = [
                of("cart", number, time_ns=NOON_NS + number * SECOND_NS) for number in range(6)
            ]
            other = of("mail", 3, time_ns=NOON_NS + 3 * SECOND_NS)
            await lake.push(service, [*every, other])
            range_ = mask("cart", first=NOON_NS + 2 * SECOND_NS, until=NOON_NS + 4 * SECOND_NS)
            made = await service.delete_profiles(range_, dry_run=False)
            assert (made.profiles, made.at_most) == (6, True)
            left = [*every[:2], *every[4:], other]
            await ask.sees(left)  # level 0
            await never_seen(ask, every[2:4])
            await work(lake, service, COMPACT)
            await ask.sees(left)
            second = mask("cart", first=NOON_NS + 5 * SECOND_NS, until=NOON_NS + 6 * SECOND_NS)
            await service.delete_profiles(second, dry_run=False)
            await ask.sees([*every[:2], every[4], other])  # level 2, not rewritten yet
            await never_seen(ask, every[5:])
            await carried_out(lake, service)
            await ask.sees([*every[:2], every[4], other])

    run(test)


def test_all_services_of_a_tenant_and_no_other_tenant(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            ours = [of("cart", 1), of("mail", 1)]
            theirs = known_profile(
                [(("main", "other"), {}, (1, 5))], time_ns=NOON_NS, tenant=GLOBEX, service="cart"
            )
            await lake.push(service, [*ours, theirs])
            await service.delete_profiles(mask(""), dry_run=False)
            await ask.sees([])
            assert await ask.values(tenant=GLOBEX) == {"other": 5}
            await carried_out(lake, service)
            await ask.sees([])
            assert await ask.values(tenant=GLOBEX) == {"other": 5}

    run(test)


def test_quarantine_is_rewritten_too(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            broken = [
                Known(msgspec.structs.replace(each.raw, payload=f"bytes of {name}".encode()), [])
                for name in ("cart", "mail")
                for each in [of(name, 1)]
            ]
            await lake.push(service, broken)
            await work(lake, service, COMPACT)
            (block,) = await service.blocks()
            assert block.kind is Kind.QUARANTINE
            await service.delete_profiles(mask("cart"), dry_run=False)
            await never_seen(ask, broken[:1])
            await carried_out(lake, service)
            (block,) = await service.blocks()
            assert (block.kind, block.profiles) == (Kind.QUARANTINE, 1)
            assert await ask.engine.call(GetProfile(TENANT, broken[1].raw.id, ALWAYS))
            with lake.store.open(block.files[0].locations[0].key) as file:
                causes = open_segment(file).read(columns=["cause"])["cause"].to_pylist()
            assert all(causes)
            assert b"bytes of cart" not in bytes_of(lake)
            assert (await service.status()).profiles_quarantined == 2

    run(test)


def test_a_dead_letter_from_before_it_is_hidden_too(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone, kept, later = of("cart", 1), of("mail", 1), of("cart", 2)
            meta = await lake.write(service, [gone, kept])
            lake.clock.advance(1)
            await service.delete_profiles(mask("cart"), dry_run=False)
            lake.clock.advance(1)
            await lake.push(service, [later])
            await lake.post_letter(service, meta)
            await ask.sees([kept, later])  # whether or not it has been delivered
            await letters_of(service).drain()
            await ask.sees([kept, later])
            await carried_out(lake, service)
            await ask.sees([kept, later])

    run(test)


@pytest.mark.parametrize("merged", [False, True])
def test_it_stays_deleted_in_a_log_that_is_restored_from_before_it(
    lake: WholeLake, merged: bool
) -> None:
    """The snapshot knows nothing of it; the object in the store does."""
    saved: list[str] = []

    async def before() -> None:
        async with lake.running() as service:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            await service.snapshot()
            saved.extend(key for _, key in snapshot.list_snapshots(lake.store))
            await lake.push(service, [of("cart", 2), of("mail", 2)])  # only the store knows
            if merged:
                for plan in await grant_all(lake, service, COMPACT):
                    await finish(lake, service, plan)
            lake.clock.advance(1)
            await service.delete_profiles(mask("cart"), dry_run=False, request_id="gdpr")
            lake.clock.advance(1)
            await lake.push(service, [of("cart", 3)])

    async def restore() -> None:
        (lake.directory / "log").rename(lake.directory / "lost")
        log = SqliteLog.open(lake.directory / "log")
        origin = await restoring.newest(lake.store, saved[0])
        await restoring.restore(
            log, lake.store, origin, incarnation=Incarnation("feedf00d"), wall=WallTime(NOON_NS)
        )
        await log.close()

    async def after() -> None:
        async with lake.running() as service, lake.engine(service) as ask:

            async def adopted() -> bool:
                return not (await service.status()).adopting

            await eventually(adopted)
            left = [of("mail", 1), of("mail", 2), of("cart", 3)]
            await ask.sees(left)
            await never_seen(ask, [of("cart", 1), of("cart", 2)])
            # Lease time begins again at the snapshot's, before that of the deletion.
            again = of("cart", 4)
            await lake.push(service, [again])
            (known,) = await service.deletions()
            asked = await service.delete_profiles(mask("cart"), dry_run=False, request_id="gdpr")
            assert asked.predicate == known.predicate
            await ask.sees([*left, again])
            await carried_out(lake, service)
            await ask.sees([*left, again])

    for step in (before, restore, after):
        run(step)


def test_another_leader_goes_on_with_it(lake: WholeLake) -> None:
    async def before() -> None:
        async with lake.running() as service:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            await work(lake, service, COMPACT)
            await service.delete_profiles(mask("cart"), dry_run=False)
            await service.snapshot()

    async def after() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await ask.sees([of("mail", 1)])
            assert [each.mask.service for each in await service.deletions()] == ["cart"]
            await carried_out(lake, service)
            await ask.sees([of("mail", 1)])

    run(before)
    run(after)


def test_the_same_request_again_is_the_same_deletion_and_takes_nothing_that_came_since(
    lake: WholeLake,
) -> None:
    """While it is carried out, afterwards, and when another leader has read a snapshot."""

    async def asked(service: MetastoreService) -> Deletion:
        return await service.delete_profiles(mask("cart"), dry_run=False, request_id="gdpr-17")

    made: list[Deletion] = []

    async def before() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            made.append(await asked(service))
            await lake.push(service, [of("cart", 2)])
            assert await asked(service) == made[0]
            assert [each.predicate for each in await service.deletions()] == [made[0].predicate]
            with pytest.raises(Rejected, match=r"'gdpr-17' is that of deletion \d+, which is of"):
                await service.delete_profiles(mask("mail"), dry_run=False, request_id="gdpr-17")
            theirs = msgspec.structs.replace(mask("mail"), tenant=TenantId("globex"))
            await service.delete_profiles(theirs, dry_run=False, request_id="gdpr-17")
            with pytest.raises(InvalidInput, match="200 characters"):
                await service.delete_profiles(mask("cart"), dry_run=False, request_id="x" * 201)
            await carried_out(lake, service)
            assert await asked(service) == made[0]
            await ask.sees([of("mail", 1), of("cart", 2)])
            await service.snapshot()

    async def after() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            assert await asked(service) == made[0]
            assert not await service.deletions()
            await ask.sees([of("mail", 1), of("cart", 2)])
            other = await service.delete_profiles(mask("cart"), dry_run=False)
            assert other.predicate != made[0].predicate
            await ask.sees([of("mail", 1)])

    run(before)
    run(after)
    assert (made[0].profiles, made[0].blocks) == (1, 1)


def test_it_ends_in_a_lake_in_which_nothing_else_happens(lake: WholeLake) -> None:
    """Nothing is merged, so that nothing but the deletion needs the registration floor."""

    async def test() -> None:
        async with lake.running() as service:
            await service.delete_profiles(mask("nobody"), dry_run=False)

            async def gone() -> bool:
                lake.clock.advance(10 * SECOND_NS)
                return not await service.deletions()

            await eventually(gone)

    run(test)


def test_what_cannot_be_asked_for(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service:
            for wrong in (
                mask("cart", first=5_000, until=5_000),
                mask("cart", first=-1_000),
                mask("cart", first=1),
                Mask(TenantId("no/such"), "cart", 0, EVER_NS),
            ):
                with pytest.raises(InvalidInput):
                    await service.delete_profiles(wrong, dry_run=False)
            assert not await service.deletions()
            for number in range(POLICY.predicates_max):
                await service.delete_profiles(mask(f"s{number}"), dry_run=False)
            with pytest.raises(Rejected, match="100 deletions"):
                await service.delete_profiles(mask("cart"), dry_run=False)

    run(test)
