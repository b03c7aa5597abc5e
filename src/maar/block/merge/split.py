"""Where to cut a merge into several blocks of about the same size, no profile in two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from maar.block.format.hashing import Int
from maar.block.merge.run import CutPoint, Run, RunShare
from maar.block.merge.sorted_runs import BUDGET

_COLUMNS = ("service", "time", "profile_id", "sample_count")


def places(
    runs: Sequence[Run], *, size: int, target: int, share: RunShare | None = None
) -> list[CutPoint]:
    """The places (service, time) at which outputs 2, 3 … begin; none when one block will do.

    With a share, only what is in it is divided.
    Outputs are between one and two targets before repeated symbols are merged. A profile's weight
    is its samples; profiles of one service and microsecond stay together.
    """
    parts = max(1, size // max(1, target))
    if parts == 1:
        return []
    names, services, times, weights = _weights(runs, share)
    if not weights.size:
        return []
    order = np.lexsort((times, services))
    services, times, weights = services[order], times[order], weights[order]
    total = np.cumsum(weights)
    cuts = np.searchsorted(total, total[-1] * np.arange(1, parts) / parts)
    found = {CutPoint(names[services[cut]], int(times[cut])) for cut in cuts}
    found.discard(CutPoint(names[services[0]], int(times[0])))
    return sorted(found)


class _Weights(NamedTuple):
    """Of every profile, in no order."""

    names: list[str]  # of services, sorted
    services: Int  # the place of its service in `names`
    times: Int
    weights: Int


def _weights(runs: Sequence[Run], share: RunShare | None) -> _Weights:
    number: dict[str, int] = {}  # of services, as they come
    empty = np.empty(0, np.int64)
    services, times, weights = [empty], [empty], [empty]
    for run in runs:
        for piece in run.originals("profiles", budget=BUDGET, share=share, columns=_COLUMNS):
            coded = piece["service"].combine_chunks()
            named = coded.dictionary.to_pylist()
            numbers = np.array([number.setdefault(name, len(number)) for name in named], np.int64)
            services.append(numbers[coded.indices.to_numpy()])
            times.append(piece["time"].cast(pa.int64()).to_numpy())
            weights.append(piece["sample_count"].to_numpy() + 1)
    names = sorted(number)
    places = np.empty(len(names), np.int64)
    places[[number[name] for name in names]] = np.arange(len(names))
    return _Weights(
        names, places[np.concatenate(services)], np.concatenate(times), np.concatenate(weights)
    )
