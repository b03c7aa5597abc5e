"""Limits of single tenants come from a file that may change while the server runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from maar.app.settings.config import Settings, load
from maar.app.settings.tenants import Tenants
from maar.distributor.settings import Rate
from maar.model.errors import InvalidInput
from maar.model.ids import TenantId
from support.clock.virtual_time import run_virtually, until

ACME, OTHER = TenantId("acme"), TenantId("other")


def settings(file: Path) -> Settings:
    return load(
        file=None,
        environ={
            "MAAR_TENANTS__FILE": str(file),
            "MAAR_LIMITS__RATE_BYTES": "1000",
            "MAAR_LIMITS__BURST_BYTES": "5000",
            "MAAR_PLACEMENT__TENANT.UNIT_BYTES": "64",
        },
    )


def test_without_a_file_everybody_has_the_defaults() -> None:
    assert Tenants(Settings()).rate(ACME) == Rate()
    assert Tenants(Settings()).placement(ACME) == Settings().placement.tenant


def test_a_tenant_has_what_it_names_and_the_rest_as_everybody(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("[acme]\nrate_bytes = 7\n[acme.placement]\ndataset_shards_max = 16\n")
    known = Tenants(settings(file))
    assert known.rate(ACME) == Rate(7, 5000)
    assert known.rate(OTHER) == Rate(1000, 5000)
    assert known.placement(ACME).dataset_shards_max == 16
    assert known.placement(ACME).unit_bytes == known.placement(OTHER).unit_bytes == 64
    assert known.placement(OTHER).dataset_shards_max == 1024


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acme = 1\n", r"must be a table, like \[acme\]"),
        ("[acme]\nrate = 1\n", "knows rate_bytes, burst_bytes, stores, placement and nothing else"),
        ("[acme]\nrate_bytes = -1\n", "not allowed"),
        ('[acme]\nplacement = "all"\n', r"\[acme.placement\]"),
        ("[acme.placement]\nunit_bytes = 0\n", "not allowed"),
        ("[acme.placement]\ntenant_shards = -1\n", "not allowed"),
        ("[acme.placement]\ndataset_shards_min = 9223372036854775807\n", "not allowed"),
        ("[acme.placement]\ndecay_window_s = inf\n", "not allowed"),
        ("[acme.placement]\nburst_window_s = nan\n", "not allowed"),
        ("[acme.placement]\ndecay_window_s = -1\n", "not allowed"),
        ("[acme\n", "not valid TOML"),
        ('["a/b"]\n', "tenant 'a/b' is not allowed"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        Tenants(settings(file))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        Tenants(settings(tmp_path / "nowhere.toml"))


def test_a_change_is_taken_over_and_a_mistake_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("[acme]\nrate_bytes = 1\n")
    known = Tenants(settings(file))

    def write(text: str, changed_ns: int) -> None:
        file.write_text(text)
        os.utime(file, ns=(changed_ns, changed_ns))

    async def follow() -> None:
        following = asyncio.create_task(known.follow())
        write("[acme]\nrate_bytes = 2\n", 10**9)
        await until(lambda: known.rate(ACME).rate_bytes == 2)
        write("[acme]\nrate_bytes = two\n", 2 * 10**9)
        await until(lambda: "the last limits stay in force" in caplog.text)
        assert known.rate(ACME).rate_bytes == 2
        write("[acme]\nrate_bytes = 3\n", 3 * 10**9)
        await until(lambda: known.rate(ACME).rate_bytes == 3)
        assert not following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run_virtually(follow())


def test_a_file_that_could_not_be_read_is_read_when_that_passes(tmp_path: Path) -> None:
    """Its time does not change when only its permissions do."""
    file = tmp_path / "tenants.toml"
    file.write_text("[acme]\nrate_bytes = 7\n")
    known = Tenants(settings(file))
    away = tmp_path / "away.toml"
    away.write_text("[acme]\nrate_bytes = 9\n")

    async def follow() -> None:
        following = asyncio.create_task(known.follow())
        file.unlink()
        file.mkdir()  # nobody can read that
        stamp = file.stat().st_mtime_ns
        await asyncio.sleep(60)
        file.rmdir()
        away.rename(file)
        os.utime(file, ns=(stamp, stamp))
        await until(lambda: known.rate(ACME).rate_bytes == 9)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run_virtually(follow())
