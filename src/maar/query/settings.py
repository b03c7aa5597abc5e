"""Every bound of the query role, with its default."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from maar.model.bounds import Count, Natural


class QuerySettings(Struct, kw_only=True, frozen=True):
    """Bounds of the query role. All of them are per process."""

    memory_bytes_max: Count = 1 << 30
    """DuckDB's memory; beyond it, it spills."""
    spill_bytes_max: Natural = 8 << 30
    """What it may spill."""
    spill_dir: str = ""
    """Where to; empty: a directory under `server.data_dir`, emptied at the next start."""
    threads: Count = 2
    """DuckDB's threads."""
    concurrency: Count = 4
    """Queries answered at once; more wait for their turn."""
    tenant_concurrency: Natural = 0
    """Of those, how many may be one tenant's; 0: one less than `query.concurrency`, so that another
    tenant's query need not wait for them. With one tenant only, set it to `query.concurrency`.
    """
    waiting_max: Natural = 256
    """Queries that may wait for their turn; beyond it, 429."""
    tenant_waiting_max: Natural = 32
    """Of one tenant."""
    answer_bytes_max: Count = 512 << 20
    """Memory outside of DuckDB's that one query may use for its rows, its stacks and level 0;
    beyond it, 413 with what helps.
    """
    timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """How long a query may wait, and then take.

    Where roles run apart, fronts need the same value.
    """
    level0_cache_bytes_max: Natural = 256 << 20
    """Decoded segments that are kept in memory."""
    footer_cache_bytes_max: Natural = 256 << 20
    """Parsed footers of blocks that are kept in memory, each as nine times its bytes."""
    part_cache_bytes_max: Natural = 128 << 20
    """What is kept in memory of blocks so that small queries need not read it again: the profiles
    of services, labels and stacks, and, in a quarter of it, samples that were drawn last. A query
    that would need more of it than the other three quarters goes to DuckDB.
    """
    level0_profiles_max: Natural = 50_000
    """Profiles decoded for one query; beyond it compaction is too far behind."""
    points_max: Natural = 11_000
    """Steps in one time series."""
    series_max: Natural = 10_000
    """Series in one answer."""
    nodes_default: Natural = 8192
    """Frames of a flame graph that names no bound."""
    nodes_max: Natural = 1 << 20
    """The most frames one may ask for, and the most that are drawn: all that equal the smallest one
    are, up to this number.
    """
    tidy_go_stacks: bool = True
    """Flame graphs and tables of functions leave out the type parameters of Go's functions, and put
    back the roots of stacks that Go has cut short where other stacks tell them, much as Pyroscope
    does when it stores them. Profiles (`maar get`) and the tables of the lake are always as they
    were pushed.
    """
