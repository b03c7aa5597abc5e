"""How long each tenant's profiles are kept, as the metastore last said; asked again and again."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from maar.background import Loop
from maar.model.ids import TenantId
from maar.ports.calls import Caller
from maar.ports.retention import GetRetention, RetentionReader, RetentionStatus

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
        """For ever: what an operator sets is known here soon, or when the metastore answers."""

        async def ask() -> None:
            self.learn(await metastore.call(GetRetention()))

        failed = "retention not learnt"
        await Loop(ask, failed=failed, log=log, level=logging.DEBUG, every_s=ASK_S).run()
