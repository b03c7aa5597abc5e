"""Draws the result of a simulation. matplotlib is optional: it is needed for plots only."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maar.cli.output.failure import CommandFailed
from maar.tools.simulate.report import SimulationReport, skew

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

KINDS = (".png", ".svg", ".pdf")
COLOURS = ("#2a78d6", "#eb6834", "#1baf7a", "#7a4fd0", "#c2418f", "#b58a00")
GREY = "#8a8a85"
MIB = 1 << 20
DPI = 80
PALETTE = 256  # colours of a PNG: lines on white need no more, and docs stay small


def check(path: Path) -> None:
    """Whether it can be drawn there, before the work is done."""
    if path.suffix.lower() not in KINDS:
        raise click.BadParameter(
            f"{path.name!r} does not say which kind of picture: it must end in {', '.join(KINDS)}",
            param_hint="--plot",
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandFailed(
            "plots need matplotlib, which is not installed: install maar with its extra "
            "(`pip install 'maar[plot]'`) or matplotlib alone; --json has the same numbers",
            2,
        )
    if not path.absolute().parent.is_dir():
        raise CommandFailed(f"{path} cannot be written: {path.parent} is no directory", 2)


def draw(report: SimulationReport, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 9), layout="constrained")
    load, shards, even, nodes = figure.subplots(
        4, 1, sharex=True, gridspec_kw={"height_ratios": (2, 3, 2, 2.4)}
    )
    figure.suptitle(f"{report.scenario}: {report.about}", fontsize=11)
    _load(load, report)
    _shards(shards, report)
    _evenness(even, report)
    _nodes(nodes, report)
    for axes in (load, shards, even, nodes):
        _plain_frame(axes)
        for at_s, _ in report.events:
            axes.axvline(_x(report, at_s), color=GREY, linewidth=0.8, linestyle=":")
    for at_s, what in report.events:
        nodes.annotate(
            what, (_x(report, at_s), 1), xycoords=("data", "axes fraction"), fontsize=7,
            color="#52514e", xytext=(3, -9), textcoords="offset points",
        )  # fmt: skip
    nodes.set_xlabel("hours" if _in_hours(report) else "minutes")
    try:
        figure.savefig(path, dpi=DPI)
        if path.suffix.lower() == ".png":
            _shrink(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror or error}", 2) from error


def _load(axes: Axes, report: SimulationReport) -> None:
    for service, colour in zip(report.allotted, COLOURS, strict=False):
        rates = [sample.focus[service].rate / MIB for sample in report.samples]
        axes.plot(_times(report), rates, color=colour, linewidth=1.5, label=service)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("load, MiB/s")
    _legend(axes, "service")


def _shards(axes: Axes, report: SimulationReport) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    times, top = _times(report), 1
    for place, (service, colour) in enumerate(zip(report.allotted, COLOURS, strict=False)):
        focus = [sample.focus[service] for sample in report.samples]
        given, ideal = [one.shards for one in focus], [one.ideal for one in focus]
        top = max(top, *given, *ideal)
        axes.step(times, given, where="post", color=colour, linewidth=1.8)
        axes.step(times, ideal, where="post", color=colour, linewidth=1.1, linestyle=":")
        below = -0.05 * (place + 1)
        by_chance = [below if one.by_chance else float("nan") for one in focus]
        axes.plot(times, by_chance, color=colour, linewidth=3.5, solid_capstyle="butt",
                  transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip
    axes.set_ylim(0, 1.08 * top)
    axes.set_ylabel("shards")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [
        Line2D([], [], color="#52514e", linewidth=1.8, label="has"),
        Line2D([], [], color="#52514e", linewidth=1.1, linestyle=":", label="needs"),
    ]
    if any(one.by_chance for sample in report.samples for one in sample.focus.values()):
        label = "spread by chance\n(bars below)"
        handles.append(Line2D([], [], color="#52514e", linewidth=3.5, label=label))
    _legend(axes, "", handles)


def _evenness(axes: Axes, report: SimulationReport) -> None:
    times = _times(report)
    ways = (
        ("placement", COLOURS[0], [skew(one.nodes.values()) for one in report.samples]),
        ("hashing of labels", GREY, [skew(one.plain_nodes.values()) for one in report.samples]),
    )
    for name, colour, values in ways:
        axes.plot(times, values, color=colour, linewidth=1.5, label=name)
    axes.set_ylim(1, max(2.0, 1.05 * max(max(values[2:], default=1) for _, _, values in ways)))
    axes.set_ylabel("node load,\nmax/mean")
    _legend(axes, "")


def _nodes(axes: Axes, report: SimulationReport) -> None:
    names = sorted({node for sample in report.samples for node in sample.nodes})
    for node, colour in zip(names, COLOURS, strict=False):
        loads = [sample.nodes.get(node, float("nan")) / MIB for sample in report.samples]
        axes.plot(_times(report), loads, color=colour, linewidth=1.3, label=node)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("node load, MiB/s")
    _legend(axes, "")


def _plain_frame(axes: Axes) -> None:
    axes.grid(axis="y", color="#e8e7e3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    axes.tick_params(labelsize=8)


def _legend(axes: Axes, title: str, handles: Sequence[Line2D] | None = None) -> None:
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=8, frameon=False,
        title=title or None, title_fontsize=8, alignment="left",
    )  # fmt: skip


def _in_hours(report: SimulationReport) -> bool:
    return report.duration_s > 4 * 3600


def _x(report: SimulationReport, at_s: float) -> float:
    return at_s / (3600 if _in_hours(report) else 60)


def _times(report: SimulationReport) -> list[float]:
    return [_x(report, sample.at_s) for sample in report.samples]


def _shrink(path: Path) -> None:
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
