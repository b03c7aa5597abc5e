"""Every setting of maar, read once; what is wrong is said with its name, source and remedy."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from maar.adapters.rpc import addresses_in
from maar.api.settings import ApiSettings
from maar.app.settings.layers import Key, build, from_environment, from_file, from_flags, merged
from maar.app.settings.log_url import EtcdPlace, FilePlace, place_in
from maar.distributor.settings import Limits, RouterSettings
from maar.metastore.fold.retention import PERIOD_LEAST_NS
from maar.model.errors import InvalidInput
from maar.model.ids import HOME, MAIN_STORE
from maar.model.policy import Level, Policy, checked
from maar.model.time import DAY_NS, SECOND_NS
from maar.placement.rules import PlacementSettings
from maar.ports.object_store import StoreSettings
from maar.query.settings import QuerySettings
from maar.runner.settings import SparkSettings
from maar.segment.settings import SegmentSettings
from maar.worker.settings import WorkerSettings

CONFIG_VARIABLE = "MAAR_CONFIG"
METASTORE_ADDRESS = "127.0.0.1:4041"
SEGMENT_WRITER_ADDRESS = "127.0.0.1:4044"
ANY_HOST = ("0.0.0.0", "::")  # to listen at, not to be reached by

Seconds = Annotated[float, Meta(gt=0, le=3600)]
HUNG_AFTER_LEAST_S = 5.0
Count = Annotated[int, Meta(ge=1)]
Age = Annotated[float, Meta(ge=0, le=10 * 365 * 86_400)]
Pause = Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)]
Days = Annotated[float, Meta(ge=0, le=100 * 365)]
Lease = Annotated[float, Meta(ge=0.1, le=3600)]

FLOOR_LAGS_MIN = 6  # a writer's deadline is far shorter than the lag of the floor (S4)

_POLICY = Policy()
_NOT_ZERO = {
    "segment": (
        *("segment_bytes_max", "index_bytes_max", "buffered_bytes_max"),
        *("buffered_profiles_max", "writes_in_flight_max", "ack_deadline_ms"),
    ),
    "query": ("memory_bytes_max", "threads", "concurrency", "answer_bytes_max", "timeout_s"),
}


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Where people and agents reach maar, and where it keeps its own things."""

    listen: str = "127.0.0.1:4040"
    allow_remote: bool = False
    allowed_hosts: tuple[str, ...] = ()
    data_dir: str = "./.maar"
    drain_s: Seconds = 10.0
    reserve_bytes: Annotated[int, Meta(ge=0)] = 0
    hung_after_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        if 0 < self.hung_after_s < HUNG_AFTER_LEAST_S:
            raise ValueError(
                f"hung_after_s is under {HUNG_AFTER_LEAST_S:g}, which a busy machine needs for "
                "much less than a hang; 0 means never"
            )


class LogSettings(Struct, frozen=True, kw_only=True):
    """The metastore's log: a SQLite file, or an etcd cluster that several replicas share."""

    url: str = ""
    dir: str = ""
    user: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    election_s: Annotated[float, Meta(ge=2, le=60)] = 5.0
    quota_bytes: Annotated[int, Meta(ge=16 << 20)] = 2 << 30
    allow_network_fs: bool = False

    def __post_init__(self) -> None:
        if self.url and self.dir:
            raise ValueError("url and dir both say where the log is; leave one of them out")
        if self.url:
            place_in(self.url)
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file belong together; give both or neither")
        if self.cert_file and not self.ca_file:
            raise ValueError(
                "cert_file is shown over encrypted connections, which ca_file asks for; add it"
            )
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password belong together; give both or neither")


class MetastoreSettings(Struct, frozen=True, kw_only=True):
    """One replica of the metastore: where it listens, and by which address the others reach it."""

    listen: str = ""
    advertise: str = ""
    name: str = ""
    begin_anew: bool = False


class StoreSection(Struct, frozen=True, kw_only=True):
    """The object store."""

    url: str = ""
    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    allow_http: bool = False


class RoleAddresses(Struct, frozen=True, kw_only=True):
    """Where roles that run by themselves (`maar serve --roles …`) find each other."""

    metastore: str = ""
    query: str = "127.0.0.1:4042"
    worker: str = "127.0.0.1:4043"
    segment_writer: str = ""


class RingSettings(Struct, frozen=True, kw_only=True):
    """Which zone this process is in, and how segment writers and distributors find each other."""

    zone: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,63}$")] = HOME
    node: str = ""
    advertise: str = ""
    shards: Annotated[int, Meta(ge=1, le=64)] = 4
    beat_ms: Annotated[int, Meta(ge=100, le=60_000)] = 2_000
    dead_after_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 10_000
    refresh_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1_000
    leave_on_stop: bool = False

    def __post_init__(self) -> None:
        if self.dead_after_ms < 3 * self.beat_ms:
            raise ValueError(
                f"dead_after_ms = {self.dead_after_ms} is less than three times beat_ms = "
                f"{self.beat_ms}, so that one late heartbeat would make a writer seem dead"
            )


class DeadLetterSettings(Struct, frozen=True, kw_only=True):
    """Whether a segment that the metastore cannot take is acknowledged all the same (S20)."""

    enabled: bool = False
    after_ms: Annotated[int, Meta(ge=100, le=60_000)] = 2_000


class TenantsSettings(Struct, frozen=True, kw_only=True):
    """Limits of single tenants, from a file that is read again when it changes."""

    file: str = ""


class CompactionSettings(Struct, frozen=True, kw_only=True):
    """When blocks are merged and by whom, and how long the remains are kept; levels from 0."""

    level_counts: tuple[Count, ...] = tuple(level.count for level in _POLICY.levels)
    level_bytes: tuple[Count, ...] = tuple(level.bytes for level in _POLICY.levels)
    level_ages_s: tuple[Age, ...] = tuple(level.age_ns / SECOND_NS for level in _POLICY.levels)
    target_block_bytes: Count = _POLICY.target_block_bytes
    span_s: Pause = _POLICY.span_ns / SECOND_NS
    lease_s: Lease = _POLICY.lease_ns / SECOND_NS
    failure_limit: Count = _POLICY.failure_limit
    spared_max: Count = _POLICY.spared_max
    retry_s: Age = _POLICY.retry_ns / SECOND_NS
    probe_s: Pause = _POLICY.probe_ns / SECOND_NS
    probe_most_s: Pause = _POLICY.probe_max_ns / SECOND_NS
    least_share: Count = _POLICY.least_share
    plans_max: Count = _POLICY.plans_max
    parked_max: Count = _POLICY.parked_max
    litter_s: Pause = _POLICY.litter_ns / SECOND_NS
    retire_delay_s: Age = _POLICY.retire_delay_ns / SECOND_NS
    floor_lag_s: Age = _POLICY.floor_lag_ns / SECOND_NS
    snapshot_entries: Count = _POLICY.snapshot_entries
    snapshot_bytes: Count = _POLICY.snapshot_bytes

    def __post_init__(self) -> None:
        if not len(self.level_counts) == len(self.level_bytes) == len(self.level_ages_s):
            raise ValueError(
                "level_counts, level_bytes and level_ages_s must have one number per level each"
            )
        if self.probe_most_s < self.probe_s:
            raise ValueError(
                f"probe_most_s = {self.probe_most_s:g} is less than probe_s = {self.probe_s:g}: "
                "the longest pause before an excluded plan is tried again cannot be shorter than "
                "the first"
            )
        if self.least_share < len(self.level_counts):
            raise ValueError(
                f"least_share = {self.least_share} leaves nothing for level 0: of so many plans "
                f"one goes to each higher level that waits, and there are "
                f"{len(self.level_counts)} levels; make it at least that"
            )

    def policy(self) -> Policy:
        rules = zip(self.level_counts, self.level_bytes, self.level_ages_s, strict=True)
        return checked(
            Policy(
                levels=tuple(Level(count, size, _ns(age_s)) for count, size, age_s in rules),
                target_block_bytes=self.target_block_bytes,
                span_ns=_ns(self.span_s),
                lease_ns=_ns(self.lease_s),
                # A pause of the leader must not end the leases that nobody could renew meanwhile.
                stall_ns=min(_POLICY.stall_ns, _ns(self.lease_s) // 3),
                failure_limit=self.failure_limit,
                spared_max=self.spared_max,
                retry_ns=_ns(self.retry_s),
                probe_ns=_ns(self.probe_s),
                probe_max_ns=_ns(self.probe_most_s),
                least_share=self.least_share,
                plans_max=self.plans_max,
                parked_max=self.parked_max,
                litter_ns=_ns(self.litter_s),
                retire_delay_ns=_ns(self.retire_delay_s),
                floor_lag_ns=_ns(self.floor_lag_s),
                snapshot_entries=self.snapshot_entries,
                snapshot_bytes=self.snapshot_bytes,
            )
        )


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """How long profiles are kept, unless a tenant has a period of its own."""

    default_days: Days = _POLICY.retention_ns / DAY_NS
    expired_delay_s: Age = _POLICY.expired_delay_ns / SECOND_NS

    def __post_init__(self) -> None:
        if 0 < self.default_days * DAY_NS < PERIOD_LEAST_NS:
            raise ValueError(
                f"default_days = {self.default_days:g} is less than an hour; profiles would go "
                "before they are merged. Say 0 to keep them for ever"
            )

    @property
    def default_ns(self) -> int:
        return int(self.default_days * DAY_NS)


def _ns(seconds: float) -> int:
    return int(seconds * SECOND_NS)


class Settings(Struct, frozen=True, kw_only=True):
    server: ServerSettings = ServerSettings()
    log: LogSettings = LogSettings()
    metastore: MetastoreSettings = MetastoreSettings()
    store: StoreSection = StoreSection()
    roles: RoleAddresses = RoleAddresses()
    ring: RingSettings = RingSettings()
    placement: PlacementSettings = PlacementSettings()
    routing: RouterSettings = RouterSettings()
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    tenants: TenantsSettings = TenantsSettings()
    api: ApiSettings = ApiSettings()
    limits: Limits = Limits()
    segment: SegmentSettings = SegmentSettings()
    compaction: CompactionSettings = CompactionSettings()
    retention: RetentionSettings = RetentionSettings()
    worker: WorkerSettings = WorkerSettings()
    spark: SparkSettings = SparkSettings()
    query: QuerySettings = QuerySettings()

    @property
    def data_dir(self) -> Path:
        return Path(self.server.data_dir).absolute()

    @property
    def log_place(self) -> EtcdPlace | FilePlace:
        if self.log.url:
            return place_in(self.log.url)
        return FilePlace(Path(self.log.dir).absolute() if self.log.dir else self.data_dir / "log")

    @property
    def scratch_dir(self) -> Path:
        return self.data_dir / "scratch"

    @property
    def metastore_addresses(self) -> str:
        """Where the replicas are found, as far as that is said."""
        return self.roles.metastore or self.metastore.advertise or self.metastore.listen

    def apart(self) -> Settings:
        """The same for roles that run by themselves: they have addresses in any case."""
        roles = msgspec.structs.replace(
            self.roles,
            metastore=self.metastore_addresses or METASTORE_ADDRESS,
            segment_writer=self.roles.segment_writer or SEGMENT_WRITER_ADDRESS,
        )
        return msgspec.structs.replace(self, roles=roles)

    def policy(self) -> Policy:
        """What the metastore goes by; it reaches the fold as an entry."""
        policy = self.compaction.policy()
        return msgspec.structs.replace(
            policy,
            retention_ns=self.retention.default_ns,
            expired_delay_ns=_ns(self.retention.expired_delay_s),
        )

    def store_settings(self) -> StoreSettings:
        url = self.store.url or (self.data_dir / "store").as_uri()
        given = msgspec.structs.asdict(self.store)
        options = {name: value for name, value in given.items() if name != "url" and value}
        if "allow_http" in options:
            options["allow_http"] = "true"
        return StoreSettings(MAIN_STORE, url, tuple(sorted(options.items())))

    def listen_address(self) -> tuple[str, int]:
        return host_and_port("server.listen", self.server.listen)


SECTIONS: dict[str, type[Any]] = {
    field.name: field.type for field in msgspec.structs.fields(Settings)
}


def load(
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, tuple[Key, Any]] | None = None,
    roles_here: bool = True,  # False: the roles' addresses are called, not served
) -> Settings:
    """Flags win over the environment, which wins over the file, which wins over the defaults."""
    path = file or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    layer = merged(
        from_file(path) if path else {}, from_environment(environ), from_flags(flags or {})
    )
    settings = Settings(**build(SECTIONS, layer))
    _check_addresses(settings, roles_here=roles_here)
    _check_bounds(settings)
    return settings


def load_here(
    *,
    file: Path | None,
    flags: Mapping[str, tuple[Key, Any]] | None = None,
    roles_here: bool = True,
) -> Settings:
    return load(file=file, environ=os.environ, flags=flags, roles_here=roles_here)


def host_and_port(setting: str, text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(
            f"{setting} = {text!r} is not an address; one looks like 127.0.0.1:4040 or [::1]:4040",
            reason="settings",
        )
    return host.strip("[]") or "0.0.0.0", int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_bounds(settings: Settings) -> None:
    """Refuse here what a role could only fail on, again and again."""
    for section, names in _NOT_ZERO.items():
        for name in names:
            if not getattr(getattr(settings, section), name):
                raise InvalidInput(
                    f"{section}.{name} = 0 would let nothing through; it must be more than 0",
                    reason="settings",
                )
    lag_s, deadline_s = settings.compaction.floor_lag_s, settings.segment.ack_deadline_ms / 1000
    if lag_s < FLOOR_LAGS_MIN * deadline_s:
        raise InvalidInput(
            f"compaction.floor_lag_s = {lag_s:g} is less than {FLOOR_LAGS_MIN} times "
            f"segment.ack_deadline_ms ({deadline_s:g} s), so that segments could be refused for "
            "their age while they are being written; raise it, or lower the deadline",
            reason="settings",
        )
    letters = settings.dead_letters
    if letters.enabled and 2 * letters.after_ms > settings.segment.ack_deadline_ms:
        raise InvalidInput(
            f"dead_letters.after_ms = {letters.after_ms} is more than half of "
            f"segment.ack_deadline_ms = {settings.segment.ack_deadline_ms}, so that no time would "
            "be left to write the letter; lower it, or raise the deadline",
            reason="settings",
        )
    litter_s = settings.compaction.litter_s
    plan_s = (settings.worker.plan_most_ms + settings.worker.cancel_ms) / 1000
    if litter_s <= plan_s:
        raise InvalidInput(
            f"compaction.litter_s = {litter_s:g} is not longer than a plan may run and take to "
            f"end (worker.plan_most_ms and worker.cancel_ms, {plan_s:g} s), so that an attempt "
            "could write after its remains were looked for; raise it, or lower those",
            reason="settings",
        )


def _check_addresses(settings: Settings, *, roles_here: bool) -> None:
    roles = msgspec.structs.asdict(settings.roles)
    replicas = addresses_in(roles.pop("metastore"))
    settings.listen_address()  # it may not be left out
    served = {
        "server.listen": settings.server.listen,
        "metastore.listen": settings.metastore.listen,
    }
    called = {"metastore.advertise": settings.metastore.advertise}
    named = {f"roles.{name}": address for name, address in roles.items()}
    (served if roles_here else called).update(named)
    for address in replicas:  # one alone is also where it listens, unless that is said apart
        here = roles_here and len(replicas) == 1 and not settings.metastore.listen
        _check_address("roles.metastore", address, remote=settings.server.allow_remote or not here)
    for setting, address in served.items():
        _check_address(setting, address, remote=settings.server.allow_remote)
    for setting, address in called.items():
        _check_address(setting, address, remote=True)


def _check_address(setting: str, address: str, *, remote: bool) -> None:
    if not address or address.startswith("unix:"):
        return
    host, _ = host_and_port(setting, address)
    if not remote and not is_loopback(host):
        raise InvalidInput(
            f"{setting} = {address!r} can be reached from other machines, and maar has no "
            "access control yet; if the network is trusted, add --allow-remote",
            reason="settings",
        )
