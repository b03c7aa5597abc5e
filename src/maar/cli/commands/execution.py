"""`maar plans schedule|execute|rollback`: what anybody may do with plans, at any time."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from maar.cli.executing import carry_out, exit_code_of
from maar.cli.input.options import connect, json_option, server_option
from maar.cli.input.settings import config_option, given_settings, set_option
from maar.cli.output.failure import EXIT_REFUSED
from maar.cli.output.show import print_json, say
from maar.model.ids import PlanId
from maar.ports.plans.outcome import OutcomeName, PlanOutcome
from maar.services.kinds import KINDS

if TYPE_CHECKING:
    from maar.adapters.http_board import HttpBoard
    from maar.app.execution import Executor, Tell
    from maar.app.settings.config import Settings
    from maar.ports.plans.runner import JobRunner
    from maar.ports.stores.stores import StorePlaces
    from maar.runner.settings import SparkSettings

SCHEDULED = ("plan", "kind", "state", "created", "why")
NOTHING_TO_DO = "nothing_to_do"


@click.command("schedule")
@click.argument("kind", type=click.Choice(tuple(KINDS)))
@click.option("--tenant", default="", help="Whose blocks; those of level 0 are of all tenants.")
@click.option("--shard", default=0, type=click.IntRange(min=0), help="Of which shard.")
@click.option("--level", default=0, type=click.IntRange(min=0), help="Of which level.")
@click.option(
    "--window",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="Of which UTC day, like 2026-11-15.",
)
@click.option("--request-id", default="", help="The same id again gives the same plan.")
@json_option
@server_option
def schedule(window: datetime | None, as_json: bool, server: str, **wish: Any) -> None:
    """Schedule a plan of KIND, and do not execute it. The same wish finds the same plan."""
    day = window.strftime("%Y-%m-%d") if window else ""
    found = connect(server).ask("/api/v1/plans", {**wish, "window": day})
    told = {name: found[name] for name in SCHEDULED if name in found}
    if as_json:
        print_json(told)
    elif found["plan"] is None:
        say(f"maar: {found['why']}", err=True)
    else:
        there = "is scheduled" if found["created"] else f"was there already ({found['state']})"
        say(f"plan {found['plan']} ({found['kind']}) {there}")
    if found["plan"] is None:
        raise SystemExit(EXIT_REFUSED)


@click.command("execute")
@click.argument("plan_id")
@click.option("--spark-master", help="Where it runs: local[*], spark://host:port, yarn.")
@click.option("--data", help="A directory for scratch files.")
@click.option("--ignore-windows", is_flag=True, help="Also when a run policy refuses; it is noted.")
@config_option
@set_option("Any other setting, such as credentials of the store.")
@json_option
@server_option
def execute(
    plan_id: str,
    ignore_windows: bool,
    config: Path | None,
    others: tuple[str, ...],
    as_json: bool,
    server: str,
    **flags: Any,
) -> None:
    """Execute PLAN_ID here, under a lease, whoever scheduled it."""
    plan, settings = PlanId.parse(plan_id), own_settings(config, others, **flags)

    async def work(executor: Executor, board: HttpBoard) -> PlanOutcome:
        executor.ignore_windows = ignore_windows
        return await executor.execute(plan, board.plan, lambda *asked: engine(settings, *asked))

    outcome = carry_out(server, settings, work)
    print_json(outcome.as_json()) if as_json else _tell(outcome)
    raise SystemExit(exit_code_of(outcome.outcome))


@click.command("run-now")
@click.argument("plan_id")
@json_option
@server_option
def run_now(plan_id: str, as_json: bool, server: str) -> None:
    """Have a worker execute PLAN_ID next, also while it rests after a failure."""
    plan = PlanId.parse(plan_id)
    found = connect(server).ask(f"/api/v1/plans/{plan}/run-now", {})
    told = {name: value for name, value in found.items() if name not in ("code", "message")}
    outcome, why = OutcomeName(found["outcome"]), found.get("why", "")
    if as_json:
        print_json(told)
    elif outcome is OutcomeName.ALREADY_COMPLETED:
        say(f"plan {plan} was completed already: {len(found['outputs']):,} blocks")
    else:
        asked = outcome is OutcomeName.ASKED
        say(why if asked else f"maar: {outcome}: {why}", err=not asked)
    raise SystemExit(exit_code_of(outcome))


@click.command("rollback")
@click.argument("plan_id")
@config_option
@set_option("Any other setting, such as credentials of the store.")
@json_option
@server_option
def rollback(
    plan_id: str, config: Path | None, others: tuple[str, ...], as_json: bool, server: str
) -> None:
    """Roll PLAN_ID back: what its ended attempts wrote is deleted. Of a plan that is not removable
    only that goes; the plan itself stays.
    """
    target = PlanId.parse(plan_id)
    found = connect(server).ask(f"/api/v1/plans/{target}/rollback", {})
    told = {name: found[name] for name in ("rollback", "target", "outcome")}
    why = found.get("message", "")
    if found["outcome"] == "scheduled":
        pending, settings = PlanId.parse(found["rollback"]), own_settings(config, others)

        async def work(executor: Executor, _board: HttpBoard) -> PlanOutcome:
            return await executor.finish_rollback(pending)

        from maar.app.execution import rolled_back

        done = carry_out(server, settings, work)
        why = done.why or done.cause
        told |= rolled_back(done)
    print_json(told) if as_json else _tell_rollback(told, why)
    if told["outcome"] != NOTHING_TO_DO:
        raise SystemExit(exit_code_of(OutcomeName(told["outcome"])))


def own_settings(config: Path | None, others: tuple[str, ...], **flags: Any) -> Settings:
    from maar.app.settings.config import load_here

    return load_here(file=config, flags=given_settings(others, **flags), roles_here=False)


def engine(settings: Settings, stores: StorePlaces, slots: int, tell: Tell) -> JobRunner:
    """Spark for one plan: with as many slots as that takes, if the master has them."""
    from maar.adapters.stores.open import open_store
    from maar.app.processes.process import take_the_session_along
    from maar.runner.java import check_java
    from maar.runner.runner import SparkRunner

    check_java()
    take_the_session_along()
    spark = for_one_plan(settings.spark, slots)
    return SparkRunner(spark, stores, settings.scratch_dir, open_store=open_store, told=tell)


def for_one_plan(spark: SparkSettings, slots: int) -> SparkSettings:
    """No slot is warmed up that the plan does not take."""
    from maar.runner.session import is_local, local_slots

    there = local_slots(spark) if is_local(spark) else spark.slots or slots
    return msgspec.structs.replace(spark, slots=min(slots, there))


def _tell(outcome: PlanOutcome) -> None:
    plan, why = outcome.plan, outcome.why or outcome.cause
    match outcome.outcome:
        case OutcomeName.COMPLETED:
            say(f"plan {plan} is completed: {len(outcome.outputs):,} blocks")
        case OutcomeName.ALREADY_COMPLETED:
            say(f"plan {plan} was completed already: {len(outcome.outputs):,} blocks")
        case OutcomeName.FAILED:
            say(f"maar: plan {plan} failed: {why}", err=True)
        case OutcomeName.CANCELLED if outcome.children:
            children = ", ".join(map(str, outcome.children))
            say(f"maar: {why}; it was divided into {children}", err=True)
        case _:
            say(f"maar: {outcome.outcome}: {why or f'plan {plan}'}", err=True)


def _tell_rollback(told: dict[str, Any], why: str) -> None:
    target = told["target"]
    match told["outcome"]:
        case "completed":
            say(f"plan {target} is rolled back, by plan {told['rollback']}")
        case "nothing_to_do":
            say(f"plan {target} has nothing to roll back")
        case other:
            say(f"maar: {other}: {why}", err=True)
