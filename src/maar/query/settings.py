"""Every bound of the query role, with its default."""

from __future__ import annotations

import msgspec


class QuerySettings(msgspec.Struct, kw_only=True, frozen=True):
    """Bounds of the query role. All of them are per process."""

    memory_bytes_max: int = 1 << 30  # DuckDB's; it spills beyond
    spill_bytes_max: int = 8 << 30
    spill_dir: str = ""  # "" makes a temporary directory
    threads: int = 2
    concurrency: int = 4  # questions at work at once; more wait for their turn
    tenant_concurrency: int = 0  # of one tenant; 0: one less than all
    waiting_max: int = 256  # questions that wait; beyond, they are refused
    tenant_waiting_max: int = 32  # of one tenant
    answer_bytes_max: int = 512 << 20  # held for one question, outside of DuckDB's memory
    timeout_s: float = 30.0  # for a slot, and then for the answer
    level0_cache_bytes_max: int = 256 << 20
    level0_profiles_max: int = 50_000  # decoded for one question; beyond, compaction is too late
    points_max: int = 11_000  # steps in one time series
    series_max: int = 10_000  # series in one answer
    nodes_default: int = 8192  # of a flame graph that names no bound
    nodes_max: int = 1 << 20
