"""`make soak`: the long form, one of whose workers is a real Spark."""

from __future__ import annotations

import argparse
import dataclasses
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from support.soak.run import LONG, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of faults")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--no-spark", action="store_true", help="cheap workers only")
    given = parser.parse_args()
    parts = dataclasses.replace(LONG, spark_workers=0 if given.no_spark else 1)
    directory = Path(tempfile.mkdtemp(prefix="maar-soak-"))
    _say(f"seed {given.seed}, log {directory}/soak.log")
    summary = soak(directory, seconds=given.seconds, seed=given.seed, parts=parts)
    _say(str(summary))
    if summary.faults:
        _say(f"everything is kept in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
