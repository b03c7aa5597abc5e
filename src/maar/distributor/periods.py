"""How long each tenant's profiles are kept, refreshed from the metastore."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from maar.background import Loop
from maar.model.ids import TenantId
from maar.ports.calls import Caller
from maar.ports.operator.retention import GetRetention, RetentionReader, RetentionStatus

log = logging.getLogger("maar.distributor")

ASK_S = 15.0


class RetentionPeriods:
    """Until the metastore has answered, everybody has the default."""

    def __init__(self, default_ns: int = 0) -> None:
        self._default_ns = default_ns
        self._tenants: Mapping[str, int] = {}

    def of(self, tenant: TenantId) -> int:
        """0: for ever."""
        return self._tenants.get(tenant, self._default_ns)

    def learn(self, status: RetentionStatus) -> None:
        self._default_ns, self._tenants = status.default_ns, status.tenants

    async def follow(self, metastore: Caller[RetentionReader]) -> None:
        """Refresh for ever, so that changes by an operator are soon known here."""

        async def ask() -> None:
            self.learn(await metastore.call(GetRetention()))

        failed = "retention periods not refreshed, the last ones stay in force"
        await Loop(ask, failed=failed, log=log, level=logging.DEBUG, every_s=ASK_S).run()
