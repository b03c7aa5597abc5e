"""Every setting of maar, read once; errors name the setting, its source and the remedy."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from maar.api.settings import ApiSettings
from maar.app.settings import stores
from maar.app.settings.layers import (
    Key,
    build,
    from_environment,
    from_file,
    from_flags,
    merge_layers,
)
from maar.app.settings.log_url import EtcdPlace, FilePlace, place_in
from maar.app.settings.sections import (
    LogSettings,
    MetastoreSettings,
    RingSettings,
    RoleAddresses,
    ServerSettings,
    StoreEntry,
    StoreSection,
    TenantDefaults,
    TenantsSettings,
)
from maar.distributor.settings import Limits, RouterSettings
from maar.model.addresses import addresses_in
from maar.model.errors import InvalidInput
from maar.model.ids import Zone
from maar.model.plan import PlanKind
from maar.model.policy import CompactionSettings, Policy, RetentionSettings, kind_terms, policy_of
from maar.model.schedule_settings import ScheduleEntry, SchedulingSettings
from maar.model.services import ServicesSettings
from maar.model.time import SECOND_NS
from maar.placement.rules import PlacementSettings
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlaces
from maar.query.settings import QuerySettings
from maar.runner.settings import SparkSettings
from maar.segment.settings import DeadLetterSettings, SegmentSettings
from maar.services.kinds import KINDS
from maar.worker.settings import WorkerSettings

CONFIG_VARIABLE = "MAAR_CONFIG"
METASTORE_ADDRESS = "127.0.0.1:4041"
SEGMENT_WRITER_ADDRESS = "127.0.0.1:4044"
ANY_HOST = ("0.0.0.0", "::")  # to listen at, not to be reached by

FLOOR_LAGS_MIN = 6  # a writer's deadline is far shorter than the lag of the floor (S4)


class Settings(Struct, frozen=True, kw_only=True):
    server: ServerSettings = ServerSettings()
    """The server"""
    log: LogSettings = LogSettings()
    """The log"""
    metastore: MetastoreSettings = MetastoreSettings()
    """A replica of the metastore"""
    store: StoreSection = StoreSection()
    """The object store"""
    stores: tuple[StoreEntry, ...] = ()
    """Several stores"""
    tenant_defaults: TenantDefaults = TenantDefaults()
    """All tenants"""
    roles: RoleAddresses = RoleAddresses()
    """Roles that run by themselves"""
    ring: RingSettings = RingSettings()
    """The ring of segment writers"""
    placement: PlacementSettings = PlacementSettings()
    """Placement"""
    routing: RouterSettings = RouterSettings()
    """From the distributor to the segment writers"""
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    """Dead letters"""
    tenants: TenantsSettings = TenantsSettings()
    """Single tenants"""
    api: ApiSettings = ApiSettings()
    """HTTP"""
    limits: Limits = Limits()
    """What one push may hold"""
    segment: SegmentSettings = SegmentSettings()
    """The segment writer"""
    compaction: CompactionSettings = CompactionSettings()
    """Compaction"""
    services: ServicesSettings = ServicesSettings()
    """Plans of all kinds"""
    scheduling: SchedulingSettings = SchedulingSettings()
    """The schedule"""
    schedules: tuple[ScheduleEntry, ...] = ()
    """Rules of the schedule"""
    retention: RetentionSettings = RetentionSettings()
    """Retention"""
    worker: WorkerSettings = WorkerSettings()
    """The worker"""
    spark: SparkSettings = SparkSettings()
    """Spark"""
    query: QuerySettings = QuerySettings()
    """Queries"""

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
        """The metastore's policy; it reaches the state as an entry of the log."""
        return policy_of(
            self.compaction, self.retention, self.services, self.scheduling, self.schedules
        )

    def store_places(self) -> StorePlaces:
        """All stores, as seen from the zone of this process."""
        default_url = (self.data_dir / "store").as_uri()
        zone = Zone(self.ring.zone)
        return stores.places(self.stores, self.store, default_url=default_url, zone=zone)

    def store_settings(self) -> StoreSettings:
        """The home store of this process."""
        return self.store_places().home.settings

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
    layer = merge_layers(
        from_file(path) if path else {}, from_environment(environ), from_flags(flags or {})
    )
    settings = Settings(**build(SECTIONS, layer))
    _check_addresses(settings, roles_here=roles_here)
    _check_bounds(settings)
    stores.check(
        settings.stores,
        settings.store,
        wanted=settings.tenant_defaults.stores,
        zone=Zone(settings.ring.zone),
    )
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
    """Refuse settings that would make a role fail after every restart."""
    lag_s, deadline_s = (
        settings.compaction.registration_floor_lag_s,
        settings.segment.ack_deadline_ms / 1000,
    )
    if lag_s < FLOOR_LAGS_MIN * deadline_s:
        raise InvalidInput(
            f"compaction.registration_floor_lag_s = {lag_s:g} is less than {FLOOR_LAGS_MIN} times "
            f"segment.ack_deadline_ms ({deadline_s:g} s), so that segments could be refused for "
            "their age while they are being written; raise it, or lower the deadline",
            reason="settings",
        )
    fronts, api = settings.server.fronts, settings.api
    if fronts > 1 and (least := api.body_bytes_max + api.request_bytes_max) > (
        api.reading_bytes_max // fronts
    ):
        raise InvalidInput(
            f"api.reading_bytes_max = {api.reading_bytes_max} is divided between "
            f"server.fronts = {fronts}, and a part of it cannot hold the largest request, "
            "compressed and not (api.body_bytes_max and api.request_bytes_max); raise it to "
            f"{fronts * least}, or lower those",
            reason="settings",
        )
    if min(api.connections_max, api.unfinished_max, api.unfinished_per_address_max) < fronts:
        raise InvalidInput(
            "api.connections_max, api.unfinished_max and api.unfinished_per_address_max are "
            f"divided between server.fronts = {fronts}, so that none may be less",
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
    leftovers_s = settings.compaction.leftovers_s
    writing = [each for each in kind_terms(settings.services) if KINDS[PlanKind(each.kind)].writes]
    longest = max(writing, key=lambda terms: terms.limit_ns)
    plan_s = longest.limit_ns / SECOND_NS + settings.worker.cancel_ms / 1000
    if leftovers_s <= plan_s:
        raise InvalidInput(
            f"compaction.leftovers_s = {leftovers_s:g} is not longer than a plan may run and take "
            f"to end (services.{longest.kind}.limit_s and worker.cancel_ms, {plan_s:g} s), so that "
            "an attempt could write after the last search for its leftovers; raise it, or lower "
            "those",
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
