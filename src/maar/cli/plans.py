"""`maar plans`: the maintenance on the timeline, who works on it and how it went."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.options import connected, json_option, server_options
from maar.cli.show import duration, print_json, print_table, size
from maar.model.ids import PlanId

STATES = ("requested", "inflight", "completed", "excluded", "rolled_back", "cancelled")


@click.command("plans")
@click.argument("plan_id", default="")
@click.option("--state", type=click.Choice(STATES), help="Only these.")
@click.option("--limit", default=50, show_default=True, help="Rows.")
@json_option
@server_options
def command(
    plan_id: str, state: str | None, limit: int, as_json: bool, server: str, tenant: str
) -> None:
    """List the plans, newest first, or show PLAN_ID with its attempts."""
    api = connected(server, tenant)
    if plan_id:
        plan = api.get(f"/api/v1/plans/{PlanId.parse(plan_id)}")
        print_json(plan) if as_json else _show(plan)
        return
    params: dict[str, str | int] = {"limit": limit, **({"state": state} if state else {})}
    found = api.get("/api/v1/plans", params)["plans"]
    if as_json:
        print_json(found)
    else:
        print_plans(found)
        click.echo(f"{len(found)} plans")


def print_plans(plans: list[dict[str, Any]]) -> None:
    headers = (
        "plan", "service", "level", "tenant", "shard", "inputs", "state", "failures",
        "lease or result",
    )  # fmt: skip
    print_table(
        headers, [_row(plan) for plan in plans], right=("level", "shard", "inputs", "failures")
    )


def _row(plan: dict[str, Any]) -> tuple[str, ...]:
    lease = plan["lease"] or {}
    return (
        plan["id"],
        plan["service"],
        str(plan["key"]["level"]),
        plan["key"]["tenant"] or "(all)",
        str(plan["key"]["shard"]),
        str(len(plan["inputs"])),
        plan["state"],
        str(plan["failures"]),
        f"{lease['worker']}, token {lease['token']}" if lease else _result(plan["result"]),
    )


def _result(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    outputs = result["outputs"]
    account = result["account"]
    text = f"{len(outputs)} blocks, {size(sum(block['size'] for block in outputs))}"
    for name in ("duplicates", "quarantined"):
        text += f", {account[name]} {name}" if account[name] else ""
    return text


def _show(plan: dict[str, Any]) -> None:
    key = plan["key"]
    click.echo(f"plan      {plan['id']} ({plan['service']}, {plan['state']})")
    click.echo(f"queue     tenant {key['tenant'] or '(all)'}, shard {key['shard']}, "
               f"level {key['level']}, store {key['store']}")  # fmt: skip
    click.echo(f"failures  {plan['failures']} of at most {plan['failure_limit']}")
    click.echo(f"result    {_result(plan['result']) or 'none yet'}")
    for block in plan["inputs"]:
        click.echo(f"input     {block}")
    for block in (plan["result"] or {}).get("outputs", ()):
        click.echo(f"output    {block['id']} level {block['level']}, {block['profiles']} profiles")
    rows = [
        (attempt["token"], attempt["worker"], _took(attempt), attempt["end"], attempt["cause"])
        for attempt in plan["attempts"]
    ]
    print_table(("attempt (token)", "worker", "took", "end", "cause"), rows, right=("took",))


def _took(attempt: dict[str, Any]) -> str:
    if attempt["ended_at"] is None:
        return "running"
    return duration((attempt["ended_at"] - attempt["granted_at"]) / 1e9)
