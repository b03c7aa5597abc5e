"""Runs all benchmarks in order and writes one table; or two revisions in turns, and their ratios.

    python tools/bench.py [--quick] [--only FILE…] [--out TABLE]
    python tools/bench.py --compare REV [--rounds 3] [--only FILE…]

A whole run takes half an hour at most: each benchmark has its share of it, and is ended when that
is over. The table (bench/last_run.tsv) has the date and the commit, and docs/numbers.md gets it
as its last section. `--quick` is for trying it out: its values mean nothing, and the document
stays. `--compare` checks another revision out beside this one, runs each revision's own benchmarks
alternately, which then meet the same neighbours, and prints medians of both and their ratio. The
CPU time of everything that a benchmark started is a line of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "bench" / "last_run.tsv"
PAGE = ROOT / "docs" / "numbers.md"
BEGIN, END = "<!-- the last whole run: by make bench -->", "<!-- end -->"
COLUMNS = ("file", "name", "value", "unit", "ratio", "baseline")
WHOLE_S = 30 * 60
BUSY = "do not quote this"
GRACE_S = 20
MARK = "MAAR_BENCH_RUN"  # in the environment of a benchmark and of all that it starts


class Bench(NamedTuple):
    """A file of bench/, its share of the time, and its arguments: whole, to compare, to try out."""

    file: str
    limit_s: int
    whole: str = ""
    quick: str = ""
    compared: str | None = None  # None: not unless it is asked for by name


# The cheap ones first, and those that need a quiet machine before those that heat it up.
PLAN = (
    Bench("decoder.py", 15, compared=""),
    Bench(
        "merging.py",
        40,
        "--plans 2 --rounds 1",
        quick="--plans 2 --segments 2 --profiles 2 --rounds 1",
        compared="--plans 2 --rounds 1",
    ),
    Bench("placement.py", 20, quick="--placements 2000 --rounds 1", compared="--rounds 2"),
    Bench("placement_moves.py", 15),
    Bench("placement_quality.py", 45, "--minutes 360", "--minutes 5 --scenarios steady"),
    Bench("puts.py", 10, quick="--minutes 5", compared="--minutes 20"),
    Bench("schedule.py", 30, quick="--jobs 200 1000 --blocks 2000"),
    Bench("prepare.py", 20, quick="--polls 30", compared="--polls 300"),
    Bench("log.py", 30, "--seconds 2", "--seconds 0.3 --members 1"),
    Bench(
        "metastore.py",
        80,
        "--sizes 1000 100000",
        "--sizes 200 600 --registrations 100 --polls 5",
        "--sizes 1000 10000 --registrations 1000 --polls 100",
    ),
    Bench(
        "replicas.py",
        80,
        "--entries 100000 --etcd-entries 20000 --registrations 2000",
        "--registrations 100 --entries 1500 --etcd-entries 500 --quiet 0.5 --here",
    ),
    Bench("failover.py", 60, "--times 4 --reads 500", "--times 1 --reads 20"),
    Bench("lone_push.py", 65, "--seconds 30 --warm 10", "--seconds 2 --warm 1"),
    Bench(
        "push.py",
        70,
        "--rounds 2 --seconds 2",
        "--seconds 0.5 --rounds 1",
        "--seconds 2 --rounds 1",
    ),
    Bench(
        "fronts.py",
        60,
        "--rounds 1 --seconds 6",
        "--rounds 1 --seconds 0.5 --warm 0.5 --connections 20",
    ),
    Bench(
        "distribution.py",
        70,
        "--rounds 1 --seconds 4 --latency-seconds 6",
        "--seconds 0.3 --rounds 1 --latency-seconds 0.5 --warm 0.1",
    ),
    Bench("flamegraph.py", 60, quick="--profiles 200", compared="--profiles 3000"),
    Bench(
        "top.py",
        70,
        "--services 300 --profiles 3000",
        "--services 40 --profiles 200",
        "--services 100 --profiles 1000",
    ),
    Bench(
        "small_queries.py",
        90,
        "--profiles 2000",
        "--profiles 40 --rounds 1",
        "--profiles 800 --rounds 15",
    ),
    Bench("first_compaction.py", 70, "--seconds 30 --warm 10", "--warm 0.2 --seconds 1"),
    Bench("read_amplification.py", 90, "--minutes 20", "--minutes 2 --merges 2 --workers 1"),
    Bench(
        "compaction.py",
        80,
        "--jobs 8 --rounds 2",
        "--jobs 2 --rounds 1 --slots 1 --profiles 1 --batches 1",
        "--jobs 4 --rounds 1 --profiles 8 --batches 2",
    ),
    Bench(
        "logcompact.py",
        60,
        "--segments 1500 --shards 2",
        "--segments 300 --shards 1 --profiles 2 --cost-segments 40",
    ),
    Bench("cluster.py", 60, "--profiles 10000 --rounds 1", "--profiles 240 --shards 3 --rounds 1"),
    Bench("backfill.py", 60, "--files 800 --days 8", "--files 60 --days 3"),
    Bench("repair.py", 25, "--mb 128", "--mb 2", "--mb 64"),
    Bench(
        "replication_lag.py",
        105,
        "--seconds 10 --warm 5 --tail 45 --flat-out 3",
        "--seconds 2 --warm 0 --tail 1 --flat-out 0.5 --rate 10 --soon",
    ),
    Bench(
        "compaction_whole.py",
        60,
        "--profiles 1000 --ages 3,8,2 --idle 3",
        "--profiles 60 --ages 1,2,1 --idle 1 --connections 5",
        "--profiles 1000 --ages 3,8,2 --idle 3",
    ),
    Bench("plan_cost.py", 50, "--pushes 30 --idle 5", "--pushes 2 --idle 1"),
    Bench("merge_memory.py", 110, "120", "20"),
    Bench(
        "memory.py",
        80,
        "--ten 15 --seconds 15 --drain 25",
        "--ten 2 --seconds 2 --drain 2 --connections 5",
        "--ten 10 --seconds 10 --drain 20",
    ),
)


class Line(NamedTuple):
    """What a benchmark says of one number."""

    name: str
    value: float
    unit: str
    ratio: str
    baseline: str


class Result(NamedTuple):
    """One run of one benchmark."""

    file: str
    lines: list[Line]
    busy: bool  # it said that others ran too
    failure: str  # why there are no lines, or not all
    cpu_s: float
    wall_s: float


# ------------------------------------------------------------------ decisions


def lines_of(said: str) -> list[Line]:
    """Lines of five words whose second is a number; all others are remarks."""
    found = []
    for line in said.splitlines():
        words = line.split()
        if line.startswith("#") or len(words) != 5:
            continue
        with contextlib.suppress(ValueError):
            found.append(Line(words[0], float(words[1]), *words[2:]))
    return found


def choose(only: Sequence[str], *, compared: bool) -> list[Bench]:
    """The plan, or the named files of it in its order."""
    names = {name.removeprefix("bench/").removesuffix(".py") + ".py" for name in only}
    if unknown := names - {bench.file for bench in PLAN}:
        raise SystemExit(f"there is no bench/{min(unknown)} in the plan of tools/bench.py")
    if names:
        return [bench for bench in PLAN if bench.file in names]
    return [bench for bench in PLAN if not compared or bench.compared is not None]


def table_of(results: Iterable[Result], *, date: str, commit: str, machine: str) -> str:
    """Tab-separated, with what it is about in remarks at its head."""
    rows = [f"# {date}\t{commit}\t{machine}", "\t".join(COLUMNS)]
    for result in results:
        if result.failure:
            rows.append(f"# {result.file}: {result.failure}")
        if result.busy:
            rows.append(f"# {result.file}: others ran too; do not quote it")
        rows += [
            "\t".join([result.file, line.name, f"{line.value:g}", *line[2:]])
            for line in result.lines
        ]
    return "\n".join(rows) + "\n"


def section_of(table: str) -> str:
    """The section of docs/numbers.md that shows such a table."""
    about, *rest = table.splitlines()
    date, commit, machine = about.removeprefix("# ").split("\t")
    remarks = [line.removeprefix("# ") for line in rest if line.startswith("#")]
    _, *rows = [line.split("\t") for line in rest if not line.startswith("#")]
    made = [
        f"## The last whole run: {date}, commit {commit}",
        "",
        f"Every line of `make bench`, on {machine}. A ratio is to the baseline of the same run.",
        "",
        "| benchmark | number | value | ratio | baseline |",
        "|---|---|---|---|---|",
        *(
            f"| `bench/{file}` | {name} | {value} {unit} | {ratio} | {baseline} |"
            for file, name, value, unit, ratio, baseline in rows
        ),
    ]
    if remarks:
        made += ["", *(f"- {remark}" for remark in remarks)]
    return "\n".join(made)


def with_section(page: str, section: str) -> str:
    """A document with the section in place of the one before, or behind everything."""
    made = f"{BEGIN}\n{section}\n{END}\n"
    before, found, rest = page.partition(BEGIN)
    if not found:
        return f"{page.rstrip()}\n\n{made}"
    return before + made + rest.partition(END)[2].lstrip("\n")


def turns(rounds: int) -> list[tuple[int, int]]:
    """Who goes first changes: what the first one warms up or wears out, the second one gets."""
    return [(0, 1) if number % 2 == 0 else (1, 0) for number in range(rounds)]


def ratios_of(here: Sequence[Result], there: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    """Name, median here, median there with the unit, and the ratio, of what both have."""
    mine, theirs = _values(here), _values(there)
    found = []
    for (name, unit), values in mine.items():
        if (others := theirs.get((name, unit))) is None:
            continue
        own, other = statistics.median(values), statistics.median(others)
        ratio = f"{own / other:.3f}" if other else "-"
        found.append((name, f"{own:.4g}", f"{other:.4g} {unit}", ratio))
    return found


def _values(results: Sequence[Result]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for line in result.lines:
            found.setdefault((line.name, line.unit), []).append(line.value)
        if not result.failure:
            found.setdefault((f"{Path(result.file).stem}_whole_cpu", "s"), []).append(result.cpu_s)
    return found


# ------------------------------------------------------------------ shells


def run(tree: Path, bench: Bench, arguments: str, *, limit_s: float) -> Result:
    """One benchmark of one revision; nothing that it started is left."""
    file = tree / "bench" / bench.file
    if not file.exists():
        return Result(bench.file, [], False, "is not in this revision", 0.0, 0.0)
    before, start, mark = _children_cpu_s(), time.monotonic(), uuid.uuid4().hex
    started = subprocess.Popen(
        [sys.executable, str(file), *arguments.split()],
        env={**os.environ, "PYTHONPATH": str(tree / "src"), MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    failure = ""
    try:
        said, wrong = started.communicate(timeout=limit_s)
        if started.returncode:
            failure = (wrong.strip().splitlines() or [f"exit code {started.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        failure = f"was ended after its {limit_s:.0f} s"
        said, _ = _end(started, mark)
    except BaseException:
        _end(started, mark)
        raise
    lines = lines_of(said)
    return Result(
        bench.file,
        lines,
        BUSY in said,
        failure or ("" if lines else "said no number"),
        _children_cpu_s() - before,
        time.monotonic() - start,
    )


def _end(started: subprocess.Popen[str], mark: str) -> tuple[str, str]:
    """Have it clean up; then by force, with all that it has started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(GRACE_S)
            break
    _kill_marked(mark)
    return started.communicate()


def _kill_marked(mark: str) -> None:
    """Servers lead sessions of their own, and outlive a benchmark that had no time to end them."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def whole(only: Sequence[str], *, quick: bool, out: Path) -> int:
    results = []
    for bench in choose(only, compared=False):
        arguments = bench.quick if quick else bench.whole
        print(f"== bench/{bench.file} {arguments}".rstrip(), flush=True)
        result = run(ROOT, bench, arguments, limit_s=bench.limit_s)
        for line in result.lines:
            print(line.name, f"{line.value:g}", *line[2:])
        if result.failure:
            print(f"# {result.failure}")
        print(f"# {result.wall_s:.0f} s, {result.cpu_s:.0f} s of CPU", flush=True)
        results.append(result)
    machine = f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}"
    date = time.strftime("%Y-%m-%d", time.gmtime())
    table = table_of(results, date=date, commit=_commit(), machine=machine)
    out.write_text(table)
    print(f"== {sum(result.wall_s for result in results):.0f} s; the table is in {out}")
    if not quick and not only:
        PAGE.write_text(with_section(PAGE.read_text(), section_of(table)))
    return 1 if any(result.failure for result in results) else 0


def _commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+changes", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"


def compare(revision: str, only: Sequence[str], *, rounds: int, quick: bool) -> int:
    failed = False
    with checked_out(revision) as other:
        trees = (ROOT, other)
        for tree in trees:  # what Numba compiles is kept beside the sources
            subprocess.run(
                [sys.executable, "-c", "from maar.query.compiled import warm; warm()"],
                env={**os.environ, "PYTHONPATH": str(tree / "src")},
                stderr=subprocess.DEVNULL,
                check=False,
            )
        print(f"number here {revision} unit ratio", flush=True)
        for bench in choose(only, compared=True):
            arguments = bench.quick if quick else bench.compared or bench.whole
            results: tuple[list[Result], list[Result]] = ([], [])
            for order in turns(rounds):
                for place in order:
                    results[place].append(
                        run(trees[place], bench, arguments, limit_s=2 * bench.limit_s)
                    )
            for row in ratios_of(*results):
                print(*row, flush=True)
            for place, name in enumerate(("here", revision)):
                for failure in sorted({each.failure for each in results[place]} - {""}):
                    print(f"# {bench.file} {name}: {failure}", flush=True)
                    failed = failed or place == 0
    return 1 if failed else 0


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Another revision in a directory of its own, as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as directory:
        tree = Path(directory) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--compare", metavar="REV")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.compare:
        code = compare(options.compare, options.only, rounds=options.rounds, quick=options.quick)
    else:
        code = whole(options.only, quick=options.quick, out=options.out)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
