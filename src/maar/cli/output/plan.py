"""Formats plans: as rows, or one plan with all its details."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from maar.cli.output.show import duration, moment, print_table, say, size
from maar.metastore.state.timeline import NEVER
from maar.model.plan import PlanKind, QueueKey
from maar.services.kinds import KINDS

Json = dict[str, Any]


def print_plans(plans: list[Json]) -> None:
    headers = (
        "plan", "kind", "level", "tenant", "shard", "inputs", "state", "failures",
        "lease, result or reason",
    )  # fmt: skip
    print_table(
        headers, [_row(plan) for plan in plans], right=("level", "shard", "inputs", "failures")
    )


def _row(plan: Json) -> tuple[str, ...]:
    return (
        plan["id"],
        plan["service"],
        _level(plan),
        plan["key"]["tenant"] or "(all)",
        str(plan["key"]["shard"]),
        str(len(plan["inputs"])),
        plan["state"],
        str(plan["failures"]),
        _gist(plan),
    )


def _level(plan: Json) -> str:
    """A server may know kinds of plans that this command does not."""
    kind = PlanKind(plan["service"])
    return KINDS[kind].level(_key(plan)) if kind in KINDS else ""


def _scope(plan: Json) -> str:
    kind = PlanKind(plan["service"])
    return KINDS[kind].scope(_key(plan)) if kind in KINDS else kind


def _key(plan: Json) -> QueueKey:
    return QueueKey(**{name: plan["key"][name] for name in QueueKey.__struct_fields__})


def _gist(plan: Json) -> str:
    """The most relevant detail of a plan in its state."""
    lease = plan["lease"]
    if lease:
        return f"{lease['worker']}, token {lease['token']}"
    if plan["result"]:
        return _result(plan["result"])
    causes = [attempt["cause"] for attempt in plan["attempts"] if attempt["cause"]]
    return str(plan["note"] or (causes[-1] if causes else ""))


def _result(result: Json) -> str:
    outputs, account = result["outputs"], result["account"]
    text = f"{len(outputs)} blocks, {size(sum(block['size'] for block in outputs))}"
    for name in ("duplicates", "quarantined"):
        text += f", {account[name]} {name}" if account[name] else ""
    return text


def show_plan(detail: Json) -> None:
    plan = detail["plan"]
    for name, text in _facts(detail):
        say(f"{name:<9} {text}")
    known = {block["id"]: block for block in detail["inputs"]}
    click.echo(
        f"\ninputs: {len(plan['inputs'])}, "
        f"{size(sum(block['size'] for block in known.values()))} in those still known"
    )
    _print_blocks([known.get(block, {"id": block}) for block in plan["inputs"]])
    if plan["result"]:
        click.echo("\noutputs:")
        _print_blocks(plan["result"]["outputs"])
    if plan["attempts"]:
        click.echo("\nattempts:")
        _print_attempts(plan["attempts"], detail["now"])
    if detail["rollbacks"]:
        click.echo("\nrolled back:")
        rows = [(x["token"] or "-", x["rollback"], x["state"]) for x in detail["rollbacks"]]
        print_table(("attempt", "by plan", "state"), rows)


def _facts(detail: Json) -> Iterator[tuple[str, str]]:
    plan, now = detail["plan"], detail["now"]
    key, lease = plan["key"], plan["lease"]
    removable = ", removable" if plan["removable"] else ""
    yield "plan", f"{plan['id']} ({plan['service']}, {plan['state']}{removable})"
    yield (
        "lane",
        (
            f"{key['tenant'] or 'all tenants'}, shard {key['shard']}, {_scope(plan)}, "
            f"store {key['store']}"
        ),
    )
    yield "times", ", ".join(_times(plan, now))
    excused = f"; {plan['excused']} more were excused" if plan["excused"] else ""
    yield "failures", f"{plan['failures']} of at most {detail['failure_limit']}{excused}"
    if plan["note"]:
        yield "reason", plan["note"]
    if lease:
        left = _seconds(lease["expires_at"] - now)
        state = f"{duration(left)} left" if left >= 0 else f"expired {duration(-left)} ago"
        yield "lease", f"{lease['worker']} under token {lease['token']}, {state}"
    elif plan["state"] in ("requested", "excluded"):
        yield "next try", _next_try(plan, now)
    would = detail["execution"]
    if would and plan["state"] in ("requested", "inflight") and would["sentence"]:
        yield "execute", would["sentence"]
    if plan["parent"]:
        yield "parent", f"{plan['parent']}, which was divided"
    yield "result", _result(plan["result"]) if plan["result"] else "none"


def _times(plan: Json, now: int) -> Iterator[str]:
    yield f"planned {duration(_seconds(now - plan['scheduled_at']))} ago"
    if plan["attempts"]:
        first = plan["attempts"][0]["granted_at"] - plan["scheduled_at"]
        yield f"waited {duration(_seconds(first))} for a worker"
    if plan["completed_at"] is not None:
        yield f"ended after {duration(_seconds(plan['completed_at'] - plan['scheduled_at']))}"
    if plan["result"]:
        result = plan["result"]
        yield f"worked {duration(result['wall_ms'] / 1e3)}, {duration(result['cpu_ms'] / 1e3)} CPU"


def _next_try(plan: Json, now: int) -> str:
    if plan["eligible_at"] >= NEVER:
        return f"never, until `maar plans requeue {plan['id']}`"
    left = _seconds(plan["eligible_at"] - now)
    return f"in {duration(left)}" if left > 0 else "as soon as a worker has room for it"


def _print_blocks(blocks: list[Json]) -> None:
    headers = ("block", "kind", "level", "from", "until", "profiles", "size")
    rows = [_block(block) for block in blocks]
    print_table(headers, rows, right=("level", "profiles", "size"))


def _block(block: Json) -> tuple[str, ...]:
    if len(block) == 1:
        return (block["id"], "deleted", "", "", "", "", "")
    return (
        block["id"],
        block["kind"],
        str(block["level"]),
        moment(block["min_time_ns"]),
        moment(block["max_time_ns"]),
        f"{block['profiles']:,}",
        size(block["size"]),
    )


def _print_attempts(attempts: list[Json], now: int) -> None:
    headers = ("token", "worker", "granted", "began", "took", "end", "counts", "cause")
    rows = [_attempt(attempt, now) for attempt in attempts]
    print_table(headers, rows, right=("granted", "began", "took"))


def _attempt(attempt: Json, now: int) -> tuple[str, ...]:
    granted, started, ended = (attempt[f"{name}_at"] for name in ("granted", "started", "ended"))
    failed = attempt["end"] in ("expired", "failed")
    return (
        attempt["token"],
        attempt["worker"],
        f"{duration(_seconds(now - granted))} ago",
        f"after {duration(_seconds(started - granted))}" if started is not None else "never",
        duration(_seconds(ended - granted)) if ended is not None else "running",
        attempt["end"],
        ("yes" if attempt["counted"] else "no") if failed else "",
        attempt["cause"],
    )


def _seconds(lease_time_ns: int) -> float:
    return lease_time_ns / 1e9
