"""A push is acknowledged for all its profiles or for none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from maar.distributor.admit import PushedProfile, admit
from maar.distributor.service import INLINE_BYTES_MAX, Distributor
from maar.distributor.settings import Limits, Rate
from maar.model.errors import InvalidInput, Overloaded, TooLarge
from maar.model.ids import TenantId
from maar.model.profile import RawProfile
from maar.model.time import SECOND_NS
from support.http.pushed import MemoryWriter, OneShard, SetClock, gz, pprof, run

ACME = TenantId("acme")
LABELS = (("service_name", "shop"),)


def pushed(name: str = "shop") -> PushedProfile:
    return PushedProfile((("service_name", name),), pprof())


class Setup:
    def __init__(
        self,
        limits: Limits | None = None,
        *,
        rate_of: Callable[[TenantId], Rate] | None = None,
        inline_bytes_max: int = INLINE_BYTES_MAX,
    ) -> None:
        self.writer = MemoryWriter()
        self.clock = SetClock()
        self.registry = CollectorRegistry()
        self.distributor = Distributor(
            *(limits or Limits(), OneShard(self.writer), self.clock, self.registry),
            rate_of=rate_of,
            inline_bytes_max=inline_bytes_max,
        )

    def push(self, *profiles: PushedProfile) -> list[bytes]:
        return list(run(self.distributor.push(ACME, profiles)))

    def refused(self, reason: str) -> float | None:
        return self.registry.get_sample_value("maar_distributor_refused_total", {"reason": reason})


def test_ids_are_answered_in_the_order_of_the_push() -> None:
    setup = Setup()
    names = [f"service-{n}" for n in range(20)]
    ids = setup.push(*map(pushed, names))
    by_id = {profile.id: profile.service for profile in setup.writer.profiles()}
    assert [by_id[one] for one in ids] == names  # type: ignore[index]


def test_one_bad_profile_refuses_the_whole_push() -> None:
    setup = Setup()
    with pytest.raises(InvalidInput):
        setup.push(pushed(), PushedProfile((), pprof()))
    assert setup.writer.stored == []
    assert setup.refused("service_name") == 1


def test_a_push_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no profile"):
        Setup().push()


def test_too_many_profiles_are_refused() -> None:
    setup = Setup(limits=Limits(profiles_max=2))
    with pytest.raises(TooLarge, match="3 profiles"):
        setup.push(pushed("a"), pushed("b"), pushed("c"))
    assert setup.refused("too_large") == 1


def test_too_many_bytes_are_refused() -> None:
    with pytest.raises(TooLarge, match="bytes of profiles"):
        Setup(limits=Limits(push_bytes_max=10)).push(pushed())


def test_profiles_that_together_swell_too_much_are_refused() -> None:
    setup = Setup(limits=Limits(push_raw_bytes_max=3 * len(pprof())))
    setup.push(*[pushed()] * 3)
    with pytest.raises(TooLarge, match="decompressed; send them in several"):
        setup.push(*[pushed()] * 4)


def test_a_writer_that_is_overloaded_is_heard_and_counted() -> None:
    setup = Setup()
    setup.writer.failure = Overloaded("full")
    with pytest.raises(Overloaded):
        setup.push(pushed())
    assert setup.refused("overloaded") == 1


def test_a_tenant_over_its_rate_is_refused_before_anything_is_unpacked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    size = len(pprof())
    setup = Setup(Limits(rate_bytes=size, burst_bytes=2 * size))
    setup.push(pushed(), pushed())
    with pytest.raises(Overloaded, match="tenant acme") as caught:
        setup.push(PushedProfile((), b"x" * size))
    assert caught.value.retry_after_s == pytest.approx(1.0)
    assert setup.refused("overloaded") == 1
    assert setup.registry.get_sample_value("maar_distributor_over_rate_total") == 1
    assert "tenant acme" in caplog.text
    setup.clock.now_ns += SECOND_NS
    setup.push(pushed())


def test_what_is_counted_against_a_rate_is_what_the_profile_is_when_unpacked() -> None:
    raw = pprof(functions=["x" * 10_000])
    small = gz(raw)
    assert len(small) < len(raw) // 4
    setup = Setup(Limits(rate_bytes=len(raw)))
    setup.push(PushedProfile(LABELS, small))
    with pytest.raises(Overloaded) as caught:
        setup.push(PushedProfile(LABELS, small))
    assert caught.value.retry_after_s == pytest.approx(1.0)


def test_text_counts_as_much_as_was_read_of_it() -> None:
    setup = Setup(Limits(rate_bytes=10_000))
    setup.push(PushedProfile(LABELS, pprof(), read_bytes=20_000))
    with pytest.raises(Overloaded) as caught:
        setup.push(PushedProfile(LABELS, pprof(), read_bytes=10_000))
    assert caught.value.retry_after_s == pytest.approx(2.0)


@pytest.mark.parametrize("form", ["two members", "gzip within gzip"])
def test_what_a_gzip_did_not_promise_is_owed_afterwards(form: str) -> None:
    raw = pprof(functions=["main"] * 200)
    body = {
        "two members": gz(raw[:-1]) + gz(raw[-1:]),
        "gzip within gzip": gz(gz(raw)),
    }[form]
    setup = Setup(Limits(rate_bytes=len(raw)))
    setup.push(PushedProfile(LABELS, body))
    with pytest.raises(Overloaded) as caught:
        setup.push(PushedProfile(LABELS, gz(raw)))
    assert caught.value.retry_after_s == pytest.approx(1.0, rel=0.01)


def test_the_log_names_tenants_over_their_rates_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup(Limits(rate_bytes=1))
    setup.push(pushed())
    for _ in range(30):
        with pytest.raises(Overloaded):
            setup.push(pushed())
        setup.clock.now_ns += SECOND_NS // 10
    assert caplog.text.count("push refused") == 3


def test_tenants_may_have_rates_of_their_own() -> None:
    setup = Setup(rate_of=lambda tenant: Rate(1) if tenant == ACME else Rate())
    for _ in range(3):
        run(setup.distributor.push(TenantId("other"), [pushed()]))
    setup.push(pushed())
    with pytest.raises(Overloaded):
        setup.push(pushed())


def admitting_threads(
    monkeypatch: pytest.MonkeyPatch,
    *profiles: PushedProfile,
    started: bool = True,
    inline_bytes_max: int = INLINE_BYTES_MAX,
) -> list[str]:
    """The threads in which a distributor tried to admit profiles, pushed one by one."""
    seen: list[str] = []

    def noted(one: PushedProfile, **how: Any) -> RawProfile:
        seen.append(threading.current_thread().name.partition("_")[0])
        return admit(one, **how)

    monkeypatch.setattr("maar.distributor.admit.admit", noted)

    async def story() -> None:
        setup = Setup(inline_bytes_max=inline_bytes_max)
        if started:
            await setup.distributor.start()
        for profile in profiles:
            await setup.distributor.push(ACME, (profile,))
        setup.distributor.close()

    run(story())
    return seen


def test_small_profiles_are_admitted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert admitting_threads(monkeypatch, pushed()) == ["MainThread"]


def test_compilation_for_the_first_profile_never_blocks_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = admitting_threads(monkeypatch, pushed(), pushed(), started=False)
    assert threads == ["admit", "MainThread"]


def test_large_profiles_are_admitted_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert admitting_threads(monkeypatch, pushed(), inline_bytes_max=10) == ["admit"]


def test_a_small_body_that_swells_is_unpacked_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swelling = pprof(functions=["f" * 60_000 + str(n) for n in range(80)])
    profile = PushedProfile((("service_name", "shop"),), gz(swelling))
    assert len(profile.body) < 1 << 20 < 4 << 20 < len(swelling)
    assert admitting_threads(monkeypatch, profile) == ["MainThread", "admit"]


def test_acknowledged_profiles_are_counted() -> None:
    setup = Setup()
    setup.push(pushed("a"), pushed("b"))
    assert setup.registry.get_sample_value("maar_distributor_profiles_total") == 2
    raw = setup.registry.get_sample_value("maar_distributor_bytes_total", {"form": "raw"})
    assert raw == 2 * len(pprof())
