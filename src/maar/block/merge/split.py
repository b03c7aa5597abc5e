"""Where to cut a merge into several blocks of about the same size, no profile in two of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from maar.block.merge.run import CutPoint, Run
from maar.block.merge.sorted_runs import BUDGET

_COLUMNS = ("service", "time", "profile_id", "sample_count")


def places(runs: Sequence[Run], *, size: int, target: int) -> list[CutPoint]:
    """The places (service, time) at which outputs 2, 3 … begin; none when one block will do.

    Outputs are between one and two targets before repeated symbols are merged. A profile's weight
    is its samples; profiles of one service and microsecond stay together.
    """
    parts = max(1, size // max(1, target))
    if parts == 1:
        return []
    services, times, weights = _weights(runs)
    order = np.lexsort((times, services))
    services, times, weights = services[order], times[order], weights[order]
    names = np.array(_names(runs))
    total = np.cumsum(weights)
    cuts = np.searchsorted(total, total[-1] * np.arange(1, parts) / parts)
    found = {CutPoint(str(names[services[cut]]), int(times[cut])) for cut in cuts}
    found.discard(CutPoint(str(names[services[0]]), int(times[0])))
    return sorted(found)


def _names(runs: Sequence[Run]) -> list[str]:
    names: set[str] = set()
    for run in runs:
        for piece in run.originals("profiles", budget=BUDGET, columns=_COLUMNS):
            names.update(piece["service"].unique().to_pylist())
    return sorted(names)


def _weights(
    runs: Sequence[Run],
) -> tuple[np.typing.NDArray[np.int64], np.typing.NDArray[np.int64], np.typing.NDArray[np.int64]]:
    """Service number, time and weight of every profile, in no order."""
    number = {name: place for place, name in enumerate(_names(runs))}
    empty = np.empty(0, np.int64)
    services, times, weights = [empty], [empty], [empty]
    for run in runs:
        for piece in run.originals("profiles", budget=BUDGET, columns=_COLUMNS):
            coded = piece["service"].combine_chunks()
            numbers = np.array([number[name] for name in coded.dictionary.to_pylist()], np.int64)
            services.append(numbers[coded.indices.to_numpy()])
            times.append(piece["time"].cast(pa.int64()).to_numpy())
            weights.append(piece["sample_count"].to_numpy() + 1)
    return np.concatenate(services), np.concatenate(times), np.concatenate(weights)
