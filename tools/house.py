"""The house in numbers: files, lines, and what one push, query and compaction run through.

    python tools/house.py [--tree DIR] [--no-trace]

Run it on two revisions to compare them (`--tree` names another checkout, which is run with this
one's packages). The ways are traced, not guessed: a real `maar serve` runs with a profiling hook in
each of its processes, and what is called while one profile is pushed, asked for and compacted
counts, less what the server calls anyway while nobody asks anything. Each way is gone several
times, and what was not called every time was a background task that happened to be due.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROUNDS = 3
QUIET_S = 6.0  # longer than every background loop's period that is not minutes
PHASE_S = 0.3  # all processes have noticed a new phase after this long
READY_S = 180.0
COMPACTED_S = 120.0
LARGE_FOLDER = 15
# Past participles: some that do not end in -ed, and no infinitives that do. Before a noun one is an
# adjective, as in `stored_entry`, and before a particle it is not.
PARTICIPLE = re.compile(
    r"_*(?!(?:embed|exceed|feed|need|proceed|seed|shed|succeed)(?:_|$))"
    r"(?:[a-z]+ed|begun|borne|bought|bound|broken|built|chosen|dealt|done|drawn|found|frozen|given|"
    r"gone|grown|heard|held|hidden|kept|known|led|lent|lost|made|meant|met|paid|said|seen|sent|"
    r"shown|spent|spoken|taken|thought|thrown|told|woken|written)"
    r"(?:_(?:again|as|at|before|by|from|in|ns|of|or|s|since|to|together|up)(?:_.*)?)?"
)

OF_LIBRARIES = {"modified"}  # of fsspec

FOLDED = "".join(f"main;serve;f{number % 7};g{number} {number + 1}\n" for number in range(40))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--tree", type=Path, default=HERE.parent)
    asked.add_argument("--no-trace", action="store_true")
    options = asked.parse_args()
    tree = options.tree.resolve()
    _sizes(tree)
    if not options.no_trace:
        _ways(tree)


def _sizes(tree: Path) -> None:
    package = tree / "src" / "maar"
    folders = {
        folder: len(list(folder.glob("*.py")))
        for folder in [package, *package.rglob("*")]
        if folder.is_dir() and any(folder.glob("*.py"))
    }
    large = {folder: count for folder, count in folders.items() if count > LARGE_FOLDER}
    print(f"folders {len(folders)}, the largest has {max(folders.values())} files")
    for folder, count in sorted(large.items(), key=lambda item: -item[1]):
        print(f"  {folder.relative_to(package)} {count}")
    for part in ("src", "tests"):
        files = list((tree / part).rglob("*.py"))
        lines = [len(file.read_text().splitlines()) for file in files]
        print(f"{part}: {len(files)} files, {sum(lines)} lines, the longest {max(lines)}")
    for part in ("src", "tests/support", "bench", "tools"):
        named = sum(len(participles(file)) for file in (tree / part).rglob("*.py"))
        print(f"{part}: {named} functions named by a past participle")
    print(f"class names with more than one meaning: {len(repeated_classes(package))}")


def repeated_classes(package: Path) -> list[str]:
    """Names of classes of which there are several."""
    files = (file.read_text() for file in package.rglob("*.py"))
    counts = Counter(re.findall(r"^class ([A-Za-z_]\w*)", "\n".join(files), re.M))
    return sorted(name for name, count in counts.items() if count > 1)


def participles(file: Path) -> list[str]:
    """The functions that say what was done, instead of what they do or return.

    Properties do not count: theirs may be a state. Nor do names that a library gives.
    """
    return [
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and PARTICIPLE.fullmatch(node.name) is not None
        and node.name not in OF_LIBRARIES
        and "property" not in map(ast.unparse, node.decorator_list)
    ]


def _ways(tree: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "trace"
        trace.mkdir()
        profile = Path(place) / "house.folded"
        profile.write_text(FOLDED)
        with _serving(tree, Path(place), trace) as url:
            _phase(trace, "first")  # imports, connections, compiled code: once for all
            _maar(tree, url, "push", str(profile), "--service", "first")
            _maar(tree, url, "query", "flamegraph", "--service", "first")
            _until_compacted(url)
            for number in range(ROUNDS):
                _phase(trace, f"quiet-{number}")
                time.sleep(QUIET_S)
                _phase(trace, f"push-{number}")
                _maar(tree, url, "push", str(profile), "--service", f"house-{number}")
                _phase(trace, f"query-{number}")
                _maar(tree, url, "query", "flamegraph", "--service", f"house-{number}")
                _phase(trace, f"compaction-{number}")
                _until_compacted(url, blocks=2 + number)
            _phase(trace, "quiet-again")
            time.sleep(QUIET_S)
            _phase(trace, "watched")  # what it takes to see that a compaction is done
            _until_compacted(url)
            _phase(trace, "end")
        anyway = _functions_in(trace, "quiet-*")
        for way in ("push", "query", "compaction"):
            rounds = [_functions_in(trace, f"{way}-{number}") for number in range(ROUNDS)]
            called = set.intersection(*rounds) - anyway
            if way == "compaction":
                called -= _functions_in(trace, "watched")
            files = {line.split(":")[0] for line in called}
            print(f"one {way}: {len(called)} functions in {len(files)} files")


@contextlib.contextmanager
def _serving(tree: Path, place: Path, trace: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "MAAR_TRACE": str(trace),
        "PYTHONPATH": f"{HERE / 'tracing'}:{tree / 'src'}",
    }
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "maar.cli.main", "serve"),
                *("--listen", f"127.0.0.1:{port}", "--data", str(place / "data")),
            ],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _until(lambda: _answers(f"{url}/ready"), READY_S, place / "log")
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def _maar(tree: Path, url: str, *arguments: str) -> None:
    """A command of the same tree, in a process that is not traced."""
    subprocess.run(
        [sys.executable, "-m", "maar.cli.main", *arguments, "--server", url],
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _until_compacted(url: str, blocks: int = 1) -> None:
    def is_compacted() -> bool:
        live = json.loads(urllib.request.urlopen(f"{url}/api/v1/blocks").read())
        found = live if isinstance(live, list) else live["blocks"]
        return len([block for block in found if block["level"] == 1]) >= blocks

    _until(is_compacted, COMPACTED_S, None)


def _answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=2).status == 200)
    except OSError:
        return False


def _until(true: Callable[[], bool], patience_s: float, log: Path | None) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            sys.exit(f"nothing came of it in {patience_s:.0f} s: {log.read_text() if log else ''}")
        time.sleep(0.2)


def _phase(trace: Path, name: str) -> None:
    whole = trace / "phase.new"
    whole.write_text(name)
    whole.rename(trace / "phase")
    time.sleep(PHASE_S)


def _functions_in(trace: Path, phase: str) -> set[str]:
    return {line for file in trace.glob(f"{phase}.*") for line in file.read_text().splitlines()}


if __name__ == "__main__":
    main()
