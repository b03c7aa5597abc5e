"""`maar simulate`: what placement or the schedule would do, without running a server."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click
import msgspec

from maar.cli.input.options import json_option
from maar.cli.input.settings import config_option, given_settings, set_option
from maar.cli.output.show import duration, print_json, print_table, size
from maar.tools.simulate.scenarios import SCENARIOS

if TYPE_CHECKING:
    from maar.tools.simulate.report import SimulationReport, Skew


@click.group("simulate")
def command() -> None:
    """Replay a load on a virtual clock; no server is needed."""


@command.command("placement")
@click.option(
    "--scenario", "name", type=click.Choice(list(SCENARIOS)), required=True, help="Which load."
)
@click.option("--seed", default=1, show_default=True, help="Another one makes another fleet.")
@click.option("--minutes", type=click.FloatRange(min=5), help="Only the beginning of it.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: a PNG, SVG or PDF."
)
@config_option
@set_option("A setting, like placement.tenant.unit_bytes=262144.")
@json_option
def placement(
    name: str,
    seed: int,
    minutes: float | None,
    plot: Path | None,
    config: Path | None,
    others: tuple[str, ...],
    as_json: bool,
) -> None:
    """How many shards do datasets get, how even is the load, what moves?

    Compared with plain consistent hashing of labels on the same pushes.
    """
    from maar.app.settings.config import load_here
    from maar.tools.simulate.replay import Replay
    from maar.tools.simulate.scenarios import scenario

    if plot is not None:
        from maar.tools.simulate.plot import check

        check(plot)  # before a minute of work
    settings = load_here(file=config, flags=given_settings(others), roles_here=False).placement
    chosen = scenario(name, seed)
    if minutes is not None:
        chosen = chosen._replace(duration_s=min(chosen.duration_s, 60 * minutes))
    report = Replay(chosen, settings, Random(seed)).report(seed)
    if plot is not None:
        from maar.tools.simulate.plot import draw

        draw(report, plot)
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        _show(report)
        if plot is not None:
            click.echo(f"drawn: {plot}")


@command.command("schedule")
@click.option("--tenants", default=60, show_default=True, help="Jobs, one for each tenant.")
@click.option("--stores", default=6, show_default=True, help="Stores that there are.")
@click.option("--copies", default=3, show_default=True, help="Stores that each job occupies.")
@click.option("--work", default="48s", show_default=True, help="How long a session works.")
@click.option("--interval", default="1h", show_default=True, help="How often a job is due.")
@click.option("--days", default=1.0, show_default=True, help="How long to simulate.")
@click.option("--stopped", type=(float, float), default=(0.0, 0.0), help="Days of a pause of all.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: a PNG, SVG or PDF."
)
@json_option
def schedule(
    tenants: int,
    stores: int,
    copies: int,
    work: str,
    interval: str,
    days: float,
    stopped: tuple[float, float],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Do all jobs run in time, and what is late after a pause?"""
    from maar.cli.input.times import parse_duration_s
    from maar.tools.simulate.schedule import Scene, simulate

    if not 0 < copies <= stores <= 20 or not 0 < tenants <= 10_000:
        raise click.BadParameter("a job needs some of the stores, and there are at most 20")
    if plot is not None:
        from maar.tools.simulate.plot import check

        check(plot)
    work_s, interval_s = parse_duration_s(work), parse_duration_s(interval)
    report = simulate(
        Scene(tenants, stores, copies, work_s, interval_s, days, stopped[0], stopped[1])
    )
    if plot is not None:
        from maar.tools.simulate.schedule_plot import draw as draw_schedule

        draw_schedule(report, plot)
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    click.echo(
        f"{duration(days * 86_400)} of {tenants} jobs on {copies} of {stores} stores: "
        f"{report.sessions:,} sessions, stores busy {100 * report.busy_share:.0f} % of the time"
    )
    click.echo(
        f"the longest time without a success was {report.latest:.2f} intervals; {report.late} "
        f"tenants were late, {report.alarms} alarms rang"
    )


def _show(report: SimulationReport) -> None:
    click.echo(f"{report.scenario} (seed {report.seed}): {report.about}")
    click.echo(
        f"{duration(report.duration_s)} of load: {report.profiles:,} profiles of "
        f"{report.datasets} datasets, {size(report.bytes)}"
    )
    click.echo()
    ours, plain = report.ours, report.plain
    print_table(
        ("", "placement", "hashing of labels"),
        [
            ("shards touched by a dataset", f"{ours.shards_touched:.2f}",
             f"{plain.shards_touched:.2f}"),
            ("node load, max/mean (worst)", _skew(ours.node_skew), _skew(plain.node_skew)),
            ("shard load, max/mean (worst)", _skew(ours.shard_skew), _skew(plain.shard_skew)),
            ("moved to another shard by the ring", _share(ours.moved_shard_by_ring),
             _share(plain.moved_shard_by_ring)),
            ("moved to another node by the ring", _share(ours.moved_node_by_ring),
             _share(plain.moved_node_by_ring)),
            ("moved to another shard by rules", _share(ours.moved_shard_by_rules),
             _share(plain.moved_shard_by_rules)),
            ("spread by chance", _share(ours.by_chance), _share(plain.by_chance)),
        ],
        right=("placement", "hashing of labels"),
    )  # fmt: skip
    click.echo()
    print_table(
        ("service", "shards", "ideal", "most", "most ideal", "short", "changes"),
        [
            (
                *(service, f"{one.given:.1f}", f"{one.ideal:.1f}", str(one.most)),
                *(str(one.ideal_most), _share(one.short), str(one.changes)),
            )
            for service, one in report.allotted.items()
        ],
        right=("shards", "ideal", "most", "most ideal", "short", "changes"),
    )
    click.echo(
        f"all datasets: {report.shards_given:.1f} shards, {report.shards_ideal:.1f} would do"
    )
    click.echo(_switches(report))
    for at_s, what in report.events:
        click.echo(f"{at_s / 60:.0f} min: {what}")


def _switches(report: SimulationReport) -> str:
    if not report.switches:
        return "balancing: switches none"
    text = f"balancing: switches {len(report.switches)}, most of one dataset {report.most_switches}"
    if report.shortest_s is not None:
        text += f"; shortest time by chance {duration(report.shortest_s)}"
    return text


def _skew(skew: Skew) -> str:
    return f"{skew.mean:.2f} ({skew.worst:.2f})"


def _share(share: float) -> str:
    return f"{100 * share:.0f}%"
