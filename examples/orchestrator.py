"""An orchestrator that maar does not know: it schedules, executes and cleans over HTTP and Spark.

Start it as often as you like, on as many hosts as you like, at the same time: all of them may fire
the same plans. One gets the lease, the others are told so and go on. It needs the server's URL
only, and Spark with maar in this Python:

    python orchestrator.py --server http://127.0.0.1:4040 --shards 1-16
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

DONE = ("completed", "already_completed")
ASK_AGAIN = 3  # the exit code of a command that may succeed when it is called again


def maar(*arguments: str, server: str) -> tuple[int, dict[str, Any]]:
    """A command's exit code and the object that it prints."""
    called = subprocess.run(
        [sys.executable, "-m", "maar.cli.main", *arguments, "--json", "--server", server],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return called.returncode, json.loads(called.stdout) if called.stdout else {}


def schedule(shard: int, *, server: str, run: str) -> str | None:
    """The plan that merges what waits in a shard. Two who ask find the same one."""
    wish = ("plans", "schedule", "compact", "--shard", str(shard), "--level", "0")
    _, found = maar(*wish, "--request-id", f"{run}-{shard}", server=server)
    plan: str | None = found.get("plan")
    return plan


def execute(plan: str, *, server: str, master: str, patience_s: float) -> str:
    """Until the plan is done, by us or by somebody else."""
    deadline = time.monotonic() + patience_s
    while True:
        code, found = maar("plans", "execute", plan, "--spark-master", master, server=server)
        outcome: str = found.get("outcome", "no answer")
        print(f"plan {plan}: {outcome}", flush=True)
        if code != ASK_AGAIN or time.monotonic() > deadline:
            return outcome
        time.sleep(min(1.0, found.get("seconds_left", 1.0)))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", default="http://127.0.0.1:4040")
    options.add_argument("--shards", default="1-4", help="the first and the last, like 1-16")
    options.add_argument("--run", default="", help="a name that all who do the same work share")
    options.add_argument("--spark-master", default="local[1]")
    options.add_argument("--patience", type=float, default=300.0, help="seconds for each plan")
    given = options.parse_args()
    first, _, last = given.shards.partition("-")
    shards = range(int(first), int(last or first) + 1)
    run = given.run or time.strftime("%Y-%m-%dT%H:%M", time.gmtime())

    wanted = [schedule(shard, server=given.server, run=run) for shard in shards]
    plans = [plan for plan in wanted if plan is not None]
    print(f"{len(plans)} plans to execute: {' '.join(plans)}", flush=True)
    outcomes = [
        execute(plan, server=given.server, master=given.spark_master, patience_s=given.patience)
        for plan in plans
    ]
    code, cleaned = maar("clean", server=given.server)
    print(f"cleaned: {len(cleaned.get('executed', ()))} rollbacks", flush=True)
    return 0 if all(outcome in DONE for outcome in outcomes) and code in (0, ASK_AGAIN) else 1


if __name__ == "__main__":
    sys.exit(main())
