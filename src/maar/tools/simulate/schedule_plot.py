"""Draws how jobs stood over time."""

from __future__ import annotations

from pathlib import Path

from maar.scheduling.status import JobStatus
from maar.tools.simulate.schedule import ScheduleReport

COLOURS = {
    JobStatus.COMPLETED: "#cfe3f7",
    JobStatus.ON_TIME: "#2a78d6",
    JobStatus.BLOCKED: "#8a8a85",
    JobStatus.LATE: "#f2a541",
    JobStatus.OVERDUE: "#c8352b",
}
WORDS = {
    JobStatus.COMPLETED: "completed",
    JobStatus.ON_TIME: "due, on time",
    JobStatus.BLOCKED: "due, cannot run",
    JobStatus.LATE: "late (8/7 of the interval)",
    JobStatus.OVERDUE: "overdue (10/7)",
}
DPI = 80


def draw(report: ScheduleReport, path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    scene = report.scene
    days = scene.days > 2
    unit_s, unit = (86_400, "days") if days else (3600, "hours")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    times = [sample.at_s / unit_s for sample in report.samples]
    rows = [[sample.states[state] for sample in report.samples] for state in COLOURS]
    axes.stackplot(
        times, rows, colors=list(COLOURS.values()), labels=[WORDS[state] for state in COLOURS]
    )
    axes.set_title(
        f"{scene.tenants} jobs, each {scene.work_s:g} s on {scene.copies} of {scene.stores} stores "
        f"every {scene.interval_s / unit_s:g} {unit}",
        fontsize=10,
    )
    axes.set_xlabel(unit)
    axes.set_ylabel("jobs")
    axes.set_xlim(times[0], times[-1])
    axes.set_ylim(0, scene.tenants)
    axes.legend(loc="lower left", fontsize=8, ncols=5, bbox_to_anchor=(0, -0.38), frameon=False)
    of_kind = {"Date": None} if path.suffix == ".svg" else None
    with rc_context({"svg.hashsalt": "maar", "svg.fonttype": "none"}):  # the same file every time
        figure.savefig(path, dpi=DPI, metadata=of_kind)
