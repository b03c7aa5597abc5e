"""`maar plans`: lists plans and their attempts; schedules, executes and sets them aside."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.client import Server
from maar.cli.commands import execution
from maar.cli.input.options import (
    connect,
    json_option,
    refuse_options,
    server_option,
    server_options,
)
from maar.cli.input.times import parse_duration_s
from maar.cli.output.failure import EXIT_REFUSED, CommandFailed
from maar.cli.output.plan import print_plans, show_plan
from maar.cli.output.show import duration, print_json, say
from maar.model.ids import PlanId
from maar.model.plan import PlanState
from maar.services.kinds import KINDS

STATES = tuple(member.name.lower() for member in PlanState)
KIND_NAMES = tuple(KINDS)


@click.group("plans", invoke_without_command=True)
@click.option("--state", type=click.Choice(STATES), help="Only plans in this state.")
@click.option("--level", type=click.IntRange(min=0), help="Only of this level.")
@click.option("--shard", type=click.IntRange(min=1), help="Only of this shard.")
@click.option("--kind", type=click.Choice(KIND_NAMES), help="Only of this kind.")
@click.option("--failing", is_flag=True, help="Only with failures, excluded or parked.")
@click.option("--limit", default=50, show_default=True, help="Rows.")
@json_option
@server_options
def command(as_json: bool, server: str, tenant: str, **wanted: Any) -> None:
    """List the plans, newest first; or schedule, execute, roll back, show, requeue and exclude
    some, or raise their limit.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    params = {name: value for name, value in wanted.items() if value is not None}
    found = connect(server).get("/api/v1/plans", {**params, "tenant": tenant})["plans"]
    if as_json:
        print_json({"plans": found})
    else:
        print_plans(found)
        click.echo(f"{len(found)} plans")


@command.command("show")
@click.argument("plan_id")
@json_option
@server_option
def show(plan_id: str, as_json: bool, server: str) -> None:
    """Show PLAN_ID: inputs, attempts with their causes, failures, outputs, timings."""
    found = connect(server).get(f"/api/v1/plans/{PlanId.parse(plan_id)}")
    print_json(found) if as_json else show_plan(found)


@command.command("requeue")
@click.argument("plan_ids", nargs=-1, required=True)
@server_option
def requeue(plan_ids: tuple[str, ...], server: str) -> None:
    """Try excluded or parked PLAN_IDS again, with their failures reset."""
    api = connect(server)
    plans = [PlanId.parse(text) for text in plan_ids]
    refused = [plan for plan in plans if not _requeue(api, plan)]
    if refused:
        raise CommandFailed(f"{len(refused)} of {len(plans)} plans were not requeued")


def _requeue(api: Server, plan: PlanId) -> bool:
    """Requeue each; one that fails does not stop the others."""
    try:
        api.order("POST", f"/api/v1/plans/{plan}/requeue", {})
    except CommandFailed as error:
        if error.exit_code != EXIT_REFUSED:
            raise
        say(f"maar: {error}", err=True)
        return False
    click.echo(f"plan {plan} is requeued")
    return True


@command.command("exclude")
@click.argument("plan_id")
@click.option("--reason", required=True, help="Why; it is shown with the plan.")
@server_option
def exclude(plan_id: str, reason: str, server: str) -> None:
    """Exclude PLAN_ID until it is requeued; the worker that runs it has to stop."""
    plan = PlanId.parse(plan_id)
    connect(server).order("POST", f"/api/v1/plans/{plan}/exclude", {"reason": reason})
    click.echo(f"plan {plan} is excluded; `maar plans requeue {plan}` brings it back")


@command.command("limit")
@click.argument("failures", type=click.IntRange(min=1), required=False)
@click.option("--for", "span", default="", help="For how long, like 1h.")
@click.option("--reset", is_flag=True, help="Back to the limit of the settings, now.")
@server_option
def limit(failures: int | None, span: str, reset: bool, server: str) -> None:
    """Let plans fail FAILURES times, for a while, before they are set aside."""
    if reset == (failures is not None) or bool(span) == reset:
        raise click.UsageError("use `maar plans limit 10 --for 1h`, or `maar plans limit --reset`")
    body = {"for_s": 0} if reset else {"limit": failures, "for_s": parse_duration_s(span)}
    if not reset and not body["for_s"]:
        raise click.BadParameter(
            f"{span!r} is not a duration above 0; use --reset to end a raised limit"
        )
    done = connect(server).order("POST", "/api/v1/plans/limit", body)
    if reset:
        click.echo("the limit of the settings is in force again")
    else:
        click.echo(f"plans may fail {done['limit']} times for {duration(done['for_s'])}")


for each in (execution.schedule, execution.execute, execution.run_now, execution.rollback):
    command.add_command(each)
