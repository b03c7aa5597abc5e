"""Limits of single tenants, from a TOML file that is read again when it changes.

    [acme]
    rate_bytes = 8_000_000
    burst_bytes = 32_000_000
    stores = ["eu", "us"]

    [acme.placement]
    dataset_shards_max = 16

What a tenant's table leaves out is as in the settings. A file that became invalid is logged and
changes nothing; one that is invalid at the start is an error.
"""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from maar.app.settings import stores
from maar.app.settings.config import Settings
from maar.background import Loop
from maar.distributor.settings import Rate
from maar.model.errors import InvalidInput
from maar.model.ids import StoreName, TenantId, Zone, tenant_id
from maar.model.stores import StoreSet, StoreSpec, TenantStores
from maar.placement.rules import TenantLimits

log = logging.getLogger("maar.tenants")

LOOK_S = 5.0


class Tenant(msgspec.Struct, frozen=True):
    rate: Rate
    placement: TenantLimits
    stores: tuple[StoreName, ...]  # that hold copies of its blocks beside their home


class Tenants:
    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.tenants.file) if settings.tenants.file else None
        self._specs = tuple(
            StoreSpec(place.name, place.region, tuple(map(Zone, place.zones)))
            for place in settings.store_places().places
        )
        self._default = Tenant(
            settings.limits.rate(),
            settings.placement.tenant,
            tuple(StoreName(name) for name in settings.tenant_defaults.stores),
        )
        self._read_ns = self._mtime_ns()
        self._tenants = self._read()

    def rate(self, tenant: TenantId) -> Rate:
        return self._of(tenant).rate

    def placement(self, tenant: TenantId) -> TenantLimits:
        return self._of(tenant).placement

    def stores(self) -> StoreSet:
        """The stores of the settings, and who has copies where, as the file says it now."""
        differing = (
            TenantStores(name, tenant.stores)
            for name, tenant in sorted(self._tenants.items())
            if tenant.stores != self._default.stores
        )
        return StoreSet(self._specs, self._default.stores, tuple(differing))

    async def follow(self) -> None:
        """For ever."""
        failed = "tenants file not read, the last limits stay in force"
        following = Loop(self._look, failed=failed, log=log, level=logging.ERROR, every_s=LOOK_S)
        await following.run(first_after_s=LOOK_S)

    async def _look(self) -> None:
        changed_ns = self._mtime_ns()
        if changed_ns != self._read_ns:
            self._tenants = self._read()
            self._read_ns = changed_ns  # only now: what could not be read is tried again
            log.info("tenants file reloaded file=%s tenants=%d", self._path, len(self._tenants))

    def _of(self, tenant: TenantId) -> Tenant:
        return self._tenants.get(tenant, self._default)

    def _mtime_ns(self) -> int:
        try:
            return self._path.stat().st_mtime_ns if self._path is not None else 0
        except OSError:
            return -1

    def _read(self) -> dict[TenantId, Tenant]:
        if self._path is None:
            return {}
        try:
            tree = tomllib.loads(self._path.read_text())
        except OSError as error:
            raise _wrong(f"cannot read tenants.file = {self._path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise _wrong(f"tenants.file = {self._path} is not valid TOML: {error}") from error
        return {tenant_id(name): self._tenant(name, given) for name, given in tree.items()}

    def _tenant(self, name: str, given: Any) -> Tenant:
        if not isinstance(given, dict):
            raise _wrong(f"{name} in {self._path} must be a table, like [{name}]")
        placement = given.pop("placement", {})
        wanted = self._stores(given.pop("stores", self._default.stores), name)
        return Tenant(
            self._over(self._default.rate, given, name),
            self._over(self._default.placement, placement, f"{name}.placement"),
            wanted,
        )

    def _stores(self, given: Any, name: str) -> tuple[StoreName, ...]:
        where = f"stores of [{name}] in {self._path}"
        try:
            wanted = msgspec.convert(given, tuple[StoreName, ...])
        except msgspec.ValidationError as error:
            raise _wrong(f'{where} must be a list like ["eu", "us"]: {error}') from error
        stores.check_names(wanted, [spec.name for spec in self._specs], where=where)
        return wanted

    def _over(self, default: Any, given: Any, where: str) -> Any:
        """The default with what is given instead, checked."""
        known = msgspec.structs.asdict(default)
        if not isinstance(given, dict) or not given.keys() <= known.keys():
            more = "" if "." in where else ", stores, placement"
            raise _wrong(
                f"[{where}] in {self._path} knows {', '.join(known)}{more} and nothing else"
            )
        try:
            return msgspec.convert(known | given, type(default))
        except msgspec.ValidationError as error:
            raise _wrong(f"[{where}] in {self._path} is not allowed: {error}") from error


def _wrong(sentence: str) -> InvalidInput:
    return InvalidInput(sentence, reason="settings")
