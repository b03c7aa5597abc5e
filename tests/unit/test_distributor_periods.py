"""Nothing is let in that retention would take at once, tenant by tenant."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from maar.app.settings.config import Settings
from maar.distributor.admit import PushedProfile
from maar.distributor.periods import RetentionPeriods
from maar.distributor.service import Distributor
from maar.distributor.settings import Limits
from maar.model.errors import InvalidInput, Unavailable
from maar.model.ids import TenantId
from maar.model.time import DAY_NS, SECOND_NS
from maar.ports.calls import LocalPort
from maar.ports.operator.retention import RetentionStatus
from support.clock.virtual_time import run_virtually, until
from support.http.front import Front
from support.http.pushed import CPU, MemoryWriter, OneShard, SetClock, pprof, run

ACME, GLOBEX, INITECH = TenantId("acme"), TenantId("globex"), TenantId("initech")


def told(default_ns: int, **tenants: int) -> RetentionStatus:
    return RetentionStatus(default_ns, tenants, 0, 0, "")


class Setup:
    def __init__(self, known: RetentionPeriods, limits: Limits | None = None) -> None:
        self.clock = SetClock()
        self.registry = CollectorRegistry()
        self.distributor = Distributor(
            limits or Limits(), OneShard(MemoryWriter()), self.clock, self.registry, known
        )

    def push(self, tenant: TenantId, *, age_ns: int) -> None:
        body = pprof(time_ns=self.clock.wall_ns() - age_ns)
        run(self.distributor.push(tenant, [PushedProfile((("service_name", "shop"),), body)]))


def test_a_profile_older_than_its_tenants_retention_is_refused_with_a_sentence() -> None:
    known = RetentionPeriods(default_ns=10 * DAY_NS)
    setup = Setup(known)
    setup.push(ACME, age_ns=10 * DAY_NS - SECOND_NS)
    with pytest.raises(InvalidInput, match="10 days old and would be deleted at once"):
        setup.push(ACME, age_ns=10 * DAY_NS)
    refused = setup.registry.get_sample_value("maar_distributor_refused_total", {"reason": "time"})
    assert refused == 1
    known.learn(told(10 * DAY_NS, globex=DAY_NS, initech=0))
    with pytest.raises(InvalidInput, match=r"2 days old .* are kept for 24.0 hours"):
        setup.push(GLOBEX, age_ns=2 * DAY_NS)
    setup.push(INITECH, age_ns=30 * DAY_NS)


def test_without_a_word_of_its_own_the_door_is_open_as_long_as_profiles_are_kept() -> None:
    kept_ns = Settings().retention.default_ns
    assert kept_ns == 90 * DAY_NS
    setup = Setup(RetentionPeriods(default_ns=kept_ns))
    setup.push(ACME, age_ns=kept_ns - SECOND_NS)
    with pytest.raises(InvalidInput, match=r"90 days old .* are kept for 90 days"):
        setup.push(ACME, age_ns=kept_ns)


def test_for_ever_takes_any_age_and_the_future_stays_shut() -> None:
    setup = Setup(RetentionPeriods(default_ns=0))
    setup.push(ACME, age_ns=3650 * DAY_NS)
    setup.push(ACME, age_ns=-600 * SECOND_NS)
    with pytest.raises(InvalidInput, match="future"):
        setup.push(ACME, age_ns=-601 * SECOND_NS)


def test_a_limit_of_its_own_can_narrow_what_is_taken_and_never_widen_it() -> None:
    setup = Setup(RetentionPeriods(default_ns=10 * DAY_NS), Limits(retention_ns=2 * DAY_NS))
    setup.push(ACME, age_ns=2 * DAY_NS - SECOND_NS)
    with pytest.raises(InvalidInput, match=r"limits\.retention_ns"):
        setup.push(ACME, age_ns=2 * DAY_NS)
    wide = Setup(RetentionPeriods(default_ns=10 * DAY_NS), Limits(retention_ns=20 * DAY_NS))
    with pytest.raises(InvalidInput, match="would be deleted at once"):
        wide.push(ACME, age_ns=10 * DAY_NS)


def test_the_metastore_is_asked_again_and_its_silence_changes_nothing() -> None:
    known = RetentionPeriods(default_ns=10 * DAY_NS)
    answers: list[RetentionStatus | None] = [None, told(DAY_NS, acme=5), None, told(DAY_NS)]
    seen: list[int] = []

    class Metastore(LocalPort):
        async def retention(self) -> RetentionStatus:
            seen.append(known.of(ACME))
            answer = answers[min(len(seen), len(answers)) - 1]
            if answer is None:
                raise Unavailable("it restarts")
            return answer

    async def test() -> None:
        following = asyncio.create_task(known.follow(Metastore()))
        await until(lambda: len(seen) >= 5)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run_virtually(test())
    assert seen[:5] == [10 * DAY_NS, 10 * DAY_NS, 5, 5, DAY_NS]


def test_a_query_without_times_sees_everything_that_is_kept() -> None:
    """Profiles are kept for longer than the age at which they are let in."""
    front = Front()
    front.post("/ingest?format=pprof&name=shop", content=pprof())
    front.clock.now_ns += 80 * DAY_NS
    reply = front.get("/api/v1/top", params={"profileTypeID": CPU})
    assert reply.status_code == 200
    assert reply.json()["total"] == 1
