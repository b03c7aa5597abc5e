"""The compiled functions of queries."""

from __future__ import annotations

from maar.block.decode import to_tables
from maar.pprof import wire
from maar.pprof.compile_once import once
from maar.query.decide import flamegraph, go_stacks, run_choice, stack_sums


def warm() -> None:
    """Load everything that queries need, or have it compiled (seconds, once)."""
    to_tables.warm()
    once("query", wire.walk.stats.cache_path, _call_all)


def _call_all() -> None:
    flamegraph.warm()
    stack_sums.warm()
    go_stacks.warm()
    run_choice.warm()
