"""`maar plans execute` with an engine that writes half a block and hangs, to be ended."""

from __future__ import annotations

import sys
import threading

from maar.adapters.stores.open import open_store
from maar.app.execution import Tell
from maar.app.settings.config import Settings
from maar.cli.commands import execution
from maar.cli.main import run
from maar.model import keys
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.model.time import utc_day
from maar.ports.plans.runner import AttemptFailed
from maar.ports.stores.stores import StorePlaces
from maar.services.kinds import KINDS
from support.metastore.fold import TENANT

WROTE = "wrote"


class HangingEngine:
    """Slow enough to be killed in the middle, whatever the machine does."""

    def __init__(self, _settings: Settings, stores: StorePlaces, _slots: int, _tell: Tell) -> None:
        self._store = open_store(stores.home.settings)
        self._cancelled = threading.Event()

    def warm(self) -> None:
        return None

    def kinds(self) -> tuple[PlanKind, ...]:
        return KINDS.on_engine()

    def slots(self) -> int:
        return 1

    def run(self, plan: LeasedPlan) -> PlanResult:
        written = half_block(plan)
        intent = keys.intent(plan=plan.id, token=plan.token, attempt="half", ordinal=0)
        self._store.create(intent, written.encode())
        self._store.create(written, b"half a table")
        print(WROTE, written, flush=True)  # noqa: T201
        self._cancelled.wait()
        raise AttemptFailed("it was cancelled", stopped=True, plan_at_fault=False)

    def cancel(self, _plan: LeasedPlan) -> None:
        self._cancelled.set()

    def close(self) -> None:
        return None


def half_block(plan: LeasedPlan) -> str:
    first = plan.inputs[0]
    stem = keys.stem(block=first.id, plan=plan.id, token=plan.token, attempt="half")
    day = utc_day(first.min_time_ns)
    return keys.table(name="samples", tenant=TENANT, day=day, stem=stem)


if __name__ == "__main__":
    execution.engine = HangingEngine  # type: ignore[assignment]
    sys.exit(run(sys.argv[1:]))
