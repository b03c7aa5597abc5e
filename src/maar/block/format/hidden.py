"""Which rows of a table are hidden, because somebody deleted their profiles (S8)."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from maar.model.predicate import Mask

COLUMNS = ("service", "time_nanos")  # that tell


def hidden_rows(table: pa.Table, masks: Iterable[Mask], *, time: str = "time_nanos") -> pa.Array:
    """A flag for each row, from its service and its time: nanoseconds, or a timestamp of
    microseconds, which bounds of masks are whole numbers of.
    """
    times = table[time]
    step = 1
    if pa.types.is_timestamp(times.type):
        times, step = times.cast(pa.int64()), 1_000
    services = table["service"]
    if pa.types.is_dictionary(services.type):
        services = services.cast(services.type.value_type)
    flags = pa.chunked_array([pa.repeat(pa.scalar(False), table.num_rows)])
    for mask in masks:
        here = pc.and_(
            pc.greater_equal(times, mask.from_ns // step), pc.less(times, -(-mask.until_ns // step))
        )
        if mask.service:
            here = pc.and_(here, pc.equal(services, mask.service))
        flags = pc.or_(flags, here)
    flags = flags.combine_chunks()
    return flags.chunk(0) if isinstance(flags, pa.ChunkedArray) else flags


def without_hidden(table: pa.Table, masks: Iterable[Mask], *, time: str = "time_nanos") -> pa.Table:
    return table.filter(pc.invert(hidden_rows(table, masks, time=time)))
