"""The settings as a whole: defaults, addresses, and a reference that tells the truth."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import msgspec
import pytest

from maar.app.settings.config import Settings, load
from maar.app.settings.layers import Key
from maar.app.settings.log_url import FilePlace
from maar.model.errors import InvalidInput
from maar.model.policy import Policy
from maar.model.time import SECOND_NS
from maar.services.kinds import KINDS

ROOT = Path(__file__).parents[2]


def loaded(**variables: str) -> Settings:
    return load(file=None, environ=variables)


def test_the_reference_of_settings_is_what_make_docs_writes() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "settings_reference.py"))["page"]
    reference = (ROOT / "docs" / "settings.md").read_text()
    assert reference == made(reference), "run `make docs`"


def test_settings_travel_to_other_processes_unchanged() -> None:
    settings = loaded(MAAR_COMPACTION__LEVEL_AGES_S="1,2,3", MAAR_LIMITS__PROFILE__SAMPLES="9")
    assert settings.limits.profile.samples == 9
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_the_default_policy_is_the_metastores_own() -> None:
    assert Settings().policy() == Policy()


def test_compaction_is_set_in_seconds_per_level() -> None:
    policy = loaded(
        MAAR_COMPACTION__LEVEL_AGES_S="0.5,2,3", MAAR_COMPACTION__LEVEL_COUNTS="5,4,3"
    ).policy()
    assert [(level.count, level.age_ns) for level in policy.levels] == [
        (5, 500_000_000),
        (4, 2_000_000_000),
        (3, 3_000_000_000),
    ]


def test_levels_must_agree_on_their_number() -> None:
    with pytest.raises(InvalidInput, match="one number per level"):
        loaded(MAAR_COMPACTION__LEVEL_COUNTS="5,4")


def test_the_store_is_in_the_data_directory_unless_named(tmp_path: Path) -> None:
    settings = loaded(MAAR_SERVER__DATA_DIR=str(tmp_path))
    assert settings.store_settings().url == f"file://{tmp_path}/store"
    assert settings.store_settings().options == ()
    assert settings.log_place == FilePlace(tmp_path / "log")


def test_the_stores_options_come_from_the_environment() -> None:
    store = loaded(
        MAAR_STORE__URL="s3://bucket/x",
        MAAR_STORE__ENDPOINT="http://127.0.0.1:9",
        MAAR_STORE__SECRET_ACCESS_KEY="hush",
        MAAR_STORE__ALLOW_HTTP="true",
    ).store_settings()
    assert store.url == "s3://bucket/x"
    assert dict(store.options) == {
        "endpoint": "http://127.0.0.1:9",
        "secret_access_key": "hush",
        "allow_http": "true",
    }


@pytest.mark.parametrize("address", ["0.0.0.0:4040", "192.168.1.2:4040", ":4040", "[::]:80"])
def test_an_address_that_others_reach_needs_the_explicit_flag(address: str) -> None:
    with pytest.raises(InvalidInput, match="--allow-remote"):
        loaded(MAAR_SERVER__LISTEN=address)
    flags = {
        "--listen": (Key("server", "listen"), address),
        "--allow-remote": (Key("server", "allow_remote"), True),
    }
    assert load(file=None, environ={}, flags=flags).server.listen == address


def test_roles_alone_may_not_be_reached_by_others_either() -> None:
    with pytest.raises(InvalidInput, match=r"roles\.metastore.*--allow-remote"):
        loaded(MAAR_ROLES__METASTORE="10.0.0.1:4041")
    assert loaded(MAAR_ROLES__METASTORE="unix:/run/m.sock").roles.metastore == "unix:/run/m.sock"


@pytest.mark.parametrize("address", ["4040", "localhost", "127.0.0.1:http", "127.0.0.1:70000"])
def test_what_is_not_an_address_is_said_to_be_none(address: str) -> None:
    with pytest.raises(InvalidInput, match="is not an address"):
        loaded(MAAR_SERVER__LISTEN=address)


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:4040", "127.1.2.3:1", "[::1]:4040"])
def test_loopback_addresses_need_no_flag(address: str) -> None:
    assert loaded(MAAR_SERVER__LISTEN=address).server.listen == address


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"segment\.flush_interval_ms = '-5' .*>= 0"):
        loaded(MAAR_SEGMENT__FLUSH_INTERVAL_MS="-5")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("worker.plan_most_ms", "services.compact.limit_s"),
        ("worker.plan_timeout_ms", "services.compact.limit_s"),
        ("compaction.lease_s", "services.compact.lease_s"),
        ("worker.retry_least_ms", "worker.retry_min_ms"),
        ("worker.retry_most_ms", "worker.retry_max_ms"),
        ("worker.fault_least_ms", "worker.fault_min_ms"),
        ("worker.fault_most_ms", "worker.fault_max_ms"),
        ("compaction.probe_most_s", "compaction.probe_max_s"),
        ("compaction.spared_max", "compaction.excused_max"),
        ("compaction.litter_s", "compaction.leftovers_s"),
    ],
)
def test_a_name_of_before_is_refused_with_the_one_of_now(before: str, now: str) -> None:
    with pytest.raises(InvalidInput, match=rf"is not a setting; did you mean {now}\?"):
        loaded(**{f"MAAR_{before.replace('.', '__').upper()}": "1"})


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "maar.toml"
    file.write_text("[segment]\nflush_interval_ms = 7\n")
    assert loaded(MAAR_CONFIG=str(file)).segment.flush_interval_ms == 7


@pytest.mark.parametrize(
    "setting",
    [
        "segment.writes_in_flight_max=0",
        "query.concurrency=0",
        "query.answer_bytes_max=0",
        "services.compact.lease_s=0",
        "services.compact.lease_s=inf",
        "compaction.retire_delay_s=1e300",
        "compaction.level_ages_s=inf,1,1",
        "compaction.span_s=0",
        "compaction.probe_s=0",
        "compaction.plans_max=0",
        "compaction.parked_max=0",
        "compaction.excused_max=0",
        "retention.default_days=-1",
        "retention.default_days=inf",
        "retention.default_days=nan",
        "spark.master=local[0]",
        "spark.master=lokal[*]",
    ],
)
def test_what_no_role_could_run_with_is_refused_before_any_is_started(setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(InvalidInput, match=re.escape(name)):
        loaded(**{f"MAAR_{name.replace('.', '__').upper()}": value})


@pytest.mark.parametrize("master", ["local", "local[2]", "local[2, 3]", "spark://host:7077"])
def test_masters_that_spark_knows_are_taken(master: str) -> None:
    assert loaded(MAAR_SPARK__MASTER=master).spark.master == master


def test_a_floor_must_lag_far_behind_a_writers_deadline() -> None:
    with pytest.raises(InvalidInput, match=r"registration_floor_lag_s = 30 .*ack_deadline_ms"):
        loaded(MAAR_COMPACTION__REGISTRATION_FLOOR_LAG_S="30")
    short = {
        "MAAR_COMPACTION__REGISTRATION_FLOOR_LAG_S": "30",
        "MAAR_SEGMENT__ACK_DEADLINE_MS": "5000",
    }
    assert loaded(**short).policy().registration_floor_lag_ns == 30 * SECOND_NS


def test_a_pause_of_the_leader_never_uses_up_a_lease() -> None:
    policy = loaded(MAAR_SERVICES__COMPACT__LEASE_S="6").policy()
    assert policy.stall_ns == 2 * SECOND_NS


@pytest.mark.parametrize("section", ["compaction", "retention"])
def test_every_setting_of_compaction_and_retention_reaches_the_policy(section: str) -> None:
    default = getattr(Settings(), section)
    for name, value in msgspec.structs.asdict(default).items():
        other = tuple(2 * each for each in value) if isinstance(value, tuple) else 2 * value
        changed = msgspec.structs.replace(default, **{name: other})
        assert Settings(**{section: changed}).policy() != Policy(), name


def test_seconds_and_days_become_nanoseconds_in_the_policy() -> None:
    policy = loaded(
        MAAR_COMPACTION__RETRY_S="0.5",
        MAAR_COMPACTION__PROBE_MAX_S="70",
        MAAR_COMPACTION__PLANS_MAX="11",
        MAAR_RETENTION__DEFAULT_DAYS="1.5",
        MAAR_RETENTION__EXPIRED_DELAY_S="7",
    ).policy()
    assert (policy.retry_ns, policy.probe_max_ns) == (SECOND_NS // 2, 70 * SECOND_NS)
    assert policy.plans_max == 11
    assert policy.retention_ns == 36 * 3600 * SECOND_NS
    assert policy.expired_delay_ns == 7 * SECOND_NS


def test_profiles_can_be_kept_for_ever_but_not_for_minutes() -> None:
    assert loaded(MAAR_RETENTION__DEFAULT_DAYS="0").policy().retention_ns == 0
    with pytest.raises(InvalidInput, match=r"default_days = 0\.01 is less than an hour"):
        loaded(MAAR_RETENTION__DEFAULT_DAYS="0.01")


def test_the_longest_pause_of_a_probe_is_not_shorter_than_the_first() -> None:
    with pytest.raises(InvalidInput, match=r"probe_max_s = 30 is less than probe_s = 60"):
        loaded(MAAR_COMPACTION__PROBE_MAX_S="30")


def test_least_shares_leave_something_for_level_0() -> None:
    with pytest.raises(InvalidInput, match=r"least_share = 2 leaves nothing for level 0"):
        loaded(MAAR_COMPACTION__LEAST_SHARE="2")
    assert loaded(MAAR_COMPACTION__LEAST_SHARE="3").policy().least_share == 3


def test_remains_are_looked_for_longer_than_an_attempt_can_write() -> None:
    with pytest.raises(InvalidInput, match=r"leftovers_s = 1800 .*services\.\w+\.limit_s"):
        loaded(MAAR_COMPACTION__LEFTOVERS_S="1800")
    limits = {f"MAAR_SERVICES__{kind.upper()}__LIMIT_S": "10" for kind in KINDS}
    short = {"MAAR_COMPACTION__LEFTOVERS_S": "20", **limits}
    assert loaded(**short).policy().leftovers_ns == 20 * SECOND_NS
