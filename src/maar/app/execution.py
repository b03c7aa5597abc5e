"""One plan, executed in this process under a lease: for the command line and for Spark programs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from maar.adapters.http_board import ExecutorSetup
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.app.health.troubles import NOT_TOLD, Troubles
from maar.app.roles import marker
from maar.app.roles.wiring import node_name
from maar.background import cancel
from maar.model.errors import MaarError, NotFound, Unavailable
from maar.model.ids import Incarnation, PlanId, WorkerId
from maar.model.plan import PlanState
from maar.model.trouble import Trouble
from maar.ports.calls import Caller
from maar.ports.operator.operator import PlanDetail
from maar.ports.plans.board import Answer, PollRequest, not_open
from maar.ports.plans.executor import ExecutorPort
from maar.ports.plans.outcome import DONE, OutcomeName, PlanOutcome, refusal_of
from maar.ports.plans.runner import JobRunner, RunnerDied
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from maar.services.kinds import KINDS
from maar.worker.service import Worker
from maar.worker.settings import WorkerSettings
from maar.worker.store_runner import StoreRunner, Undoing

log = logging.getLogger("maar.stores")

ENDED = (PlanState.COMPLETED, PlanState.ROLLED_BACK, PlanState.CANCELLED)  # for good
SECRETS = ("access_key_id", "secret_access_key", "session_token")
ASK_AGAIN_S = 0.2
AT_MOST_S = 5.0  # how long rollbacks that somebody else is at are waited for

Tell = Callable[[Trouble], None]  # of a copy that a task could not read
StartEngine = Callable[[StorePlaces, int, Tell], JobRunner]  # for a plan of so many slots
FindPlan = Callable[[PlanId], Awaitable[PlanDetail]]  # NotFound when there is none


class Site(NamedTuple):
    """A server for which plans are executed, its stores, and what could not be read of them."""

    board: Caller[ExecutorPort]
    stores: Stores
    troubles: Troubles


def with_own_secrets(told: StorePlaces, own: StorePlaces) -> StorePlaces:
    """The stores that the server has, opened with our own credentials: it tells nobody its own.

    Those of a store of the same name; who has credentials of a single store uses them for all.
    """
    ours = {place.name: place.settings for place in own.places}
    alone = own.places[0].settings if len(own.places) == 1 else None
    return told._replace(
        places=tuple(_with_secrets(place, ours.get(place.name, alone)) for place in told.places)
    )


def _with_secrets(place: StorePlace, own: StoreSettings | None) -> StorePlace:
    if place.settings.url.startswith("file:"):
        return place  # a directory needs none; ours are those of a bucket that is read from
    secret = {name: text for name, text in (own.options if own else ()) if name in SECRETS}
    options = tuple(sorted({**dict(place.settings.options), **secret}.items()))
    return place._replace(settings=place.settings._replace(options=options))


async def open_site(
    board: Caller[ExecutorPort], places: StorePlaces, incarnation: Incarnation, *, server: str
) -> Site:
    """InvalidInput when what is reached from here is another store than the server's."""
    troubles = Troubles()
    stores = Stores(places, open_store, told=troubles.note)
    home = await asyncio.to_thread(lambda: stores.home)
    await asyncio.to_thread(marker.check, home, incarnation, metastore=server)
    return Site(board, stores, troubles)


async def site_of(
    board: Caller[ExecutorPort], setup: ExecutorSetup, own: StorePlaces, *, server: str
) -> Site:
    """As the server told us."""
    places = with_own_secrets(setup.stores, own)
    return await open_site(board, places, setup.incarnation, server=server)


class Executor:
    """Executes plans one after the other; `stop` ends the one that runs."""

    def __init__(self, site: Site, settings: WorkerSettings) -> None:
        self._site = site
        self._settings = settings
        self._worker: Worker | None = None
        self.stopped = False
        self.ignore_windows = False  # of the schedule; the metastore has the last word

    @property
    def places(self) -> StorePlaces:
        return self._site.stores.places

    def stop(self) -> None:
        """What runs is finished if that takes not long, else given up and its plan handed back."""
        self.stopped = True
        if self._worker is not None:
            self._worker.stop()

    async def execute(self, plan: PlanId, find: FindPlan, engine: StartEngine) -> PlanOutcome:
        """The engine is started only for a plan that needs one and that can still be executed."""
        try:
            found = await find(plan)
        except NotFound:
            return await self._ask(plan)
        kind, would = found.plan.kind, found.execution
        if found.plan.state in ENDED:
            return await self._ask(plan)
        if would is not None and would.answer is not Answer.GRANTED:
            by_window = self.ignore_windows and would.answer is Answer.BUSY
            if not by_window:
                return refusal_of(would)
        if kind not in KINDS:
            why = f"this maar does not know plans of the kind {kind[:60]!r}"
            return PlanOutcome(plan, OutcomeName.WRONG_KIND, why=why)
        if not KINDS[kind].open_to_all:
            return refusal_of(not_open(plan, kind))
        if kind in KINDS.on_engine():
            note = self._site.troubles.note
            return await self._run(plan, lambda: engine(self.places, found.slots, note))
        return await self.roll_back(plan)

    async def execute_with(self, plan: PlanId, engine: Callable[[], JobRunner]) -> PlanOutcome:
        """Execute a plan whose source only the caller has, by an engine that knows it."""
        return await self._run(plan, engine)

    async def roll_back(self, plan: PlanId) -> PlanOutcome:
        """Execute a plan that needs no engine: a rollback, or a cleaning."""
        return await self._run(plan, None)

    async def finish_rollback(self, rollback: PlanId) -> PlanOutcome:
        """The same; when somebody else is at it, wait a moment for him to be done."""
        (done,) = (await self._finish([rollback])).values()
        return done

    async def execute_pending(self, cleaned: dict[str, Any]) -> None:
        """The second step of a cleaning, whose first step was answered with this object: it is told
        what came of each rollback. One that somebody else is at for long is left to him.
        """
        pending = {PlanId.parse(each["rollback"]): each for each in cleaned["pending"]}
        for rollback, done in (await self._finish(list(pending))).items():
            if done.outcome in DONE:
                cleaned["executed"].append(pending[rollback])
            elif done.outcome is OutcomeName.LEASE_LIVE:
                cleaned["skipped"].append({"plan": str(rollback), "why": "live_lease"})
            else:
                cleaned.setdefault("failed", []).append(done.as_json())

    async def _finish(self, rollbacks: list[PlanId]) -> dict[PlanId, PlanOutcome]:
        """In their order. The cleaner beside the metastore takes rollbacks too, and is done with
        most of them within a moment; whoever asked for them wants to find them done.
        """
        loop, found = asyncio.get_running_loop(), {}
        until = loop.time() + AT_MOST_S
        left = rollbacks
        while left:
            for rollback in left:
                if not self.stopped:
                    found[rollback] = await self.roll_back(rollback)
            left = [each for each in left if _is_held(found.get(each))]
            if self.stopped or loop.time() >= until:
                break
            await asyncio.sleep(ASK_AGAIN_S if left else 0)
        return found

    async def _ask(self, plan: PlanId) -> PlanOutcome:
        """A plan that has ended for good, or never was: the metastore says which."""
        reply = await self._site.board.call(PollRequest(_name(), 1, execute=plan))
        assert reply.execution is not None
        return refusal_of(reply.execution)

    async def _run(self, plan: PlanId, engine: Callable[[], JobRunner] | None) -> PlanOutcome:
        name, board, clock = _name(), self._site.board, SystemClock()
        undoing = Undoing(board, lambda: self._site.stores, clock, asyncio.get_running_loop())
        runner = engine() if engine is not None else StoreRunner(undoing, name)
        self._worker = Worker(
            self._settings,
            board,
            runner,
            clock,
            CollectorRegistry(),
            name,
            random=Random(secrets.randbits(64)),
            undo=undoing.roll_back,
            execute=plan,
            ignore_windows=self.ignore_windows,
        )
        executed = self._worker.executed
        telling = asyncio.create_task(self._site.troubles.tell(board))
        try:
            if self.stopped:
                self._worker.stop()
            await self._worker.run()
        except RunnerDied as error:
            if executed.execution is None:
                raise Unavailable(f"nothing was executed: {error}") from error
            return PlanOutcome(plan, OutcomeName.FAILED, cause=str(error))
        finally:
            await cancel(telling)
            await asyncio.to_thread(runner.close)
            await self._tell_the_rest()
            self._worker = None
        return executed.plan_outcome()

    async def _tell_the_rest(self) -> None:
        """What nobody hears now is found by the next repair."""
        try:
            await self._site.troubles.tell_once(self._site.board)
        except MaarError as error:
            log.warning("%s cause=%s", NOT_TOLD, error)


def _is_held(outcome: PlanOutcome | None) -> bool:
    return outcome is not None and outcome.outcome is OutcomeName.LEASE_LIVE


def _name() -> WorkerId:
    return WorkerId(f"{node_name()}-{secrets.token_hex(4)}")


def rolled_back(done: PlanOutcome) -> dict[str, Any]:
    """What became of a rollback that was executed, for whoever asked for it by its target."""
    outcome = OutcomeName.COMPLETED if done.outcome in DONE else done.outcome
    return {"outcome": str(outcome)} | ({"cause": done.cause} if done.cause else {})
