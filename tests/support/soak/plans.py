"""`make soak-plans`: every order of two executors, a cleaner and leases that end, and more of them.

`tests/model/test_plan_interleavings.py` goes as far as one lease that ends where a plan stays, and
two where it is removable; this goes on to as many as are asked for, by the same code.
"""

from __future__ import annotations

import argparse
import sys
import time

from support.oracles.interleavings import Actor, Faults, World, visit_all

ACTORS = (Actor("x"), Actor("y"), Actor("cleaner"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak-plans", description=__doc__)
    parser.add_argument("--jumps", type=int, default=3, help="leases that end, at most")
    jumps = parser.parse_args().jumps
    for number in range(1, jumps + 1):
        for removable in (False, True):
            began = time.monotonic()
            visited = visit_all(World(removable=removable), ACTORS, Faults(jumps=number))
            kind = "removable" if removable else "immutable"
            sys.stdout.write(
                f"{kind}, {number} jumps: {visited.states} states, {visited.ends} ends, "
                f"{time.monotonic() - began:.0f} s\n"
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
