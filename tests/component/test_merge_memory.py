"""A compaction's memory does not follow its input, not even when every stack is unique.

The quick form of bench/merge_memory.py, which does the same at 200 MB and 2 GB.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from maar.model.block import BlockMeta

pytestmark = [pytest.mark.component, pytest.mark.long(40)]

MIB = 1 << 20
PROFILES = 40


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    import merge_memory

    return merge_memory


def test_memory_stays_where_it_is_when_the_input_grows(bench: ModuleType, tmp_path: Path) -> None:
    lake = bench.Lake(tmp_path)
    templates = [bench.template(shape=1)]
    segments: list[BlockMeta] = [
        lake.segment(
            [
                bench.profile_of(templates, number=first + place, unique=True)
                for place in range(PROFILES)
            ]
        )
        for first in range(0, 12 * PROFILES, PROFILES)
    ]

    _, small = lake.compact(segments[:3])
    whole, large = lake.compact(segments)
    assert whole.account.kept == 12 * PROFILES
    assert large < 1_024 * MIB
    assert large - small < 200 * MIB, "four times the input must not need much more memory"

    halves = [lake.compact(part)[0].outputs for part in (segments[:3], segments[3:6])]
    blocks = [block for half in halves for block in half]
    merged, peak = lake.compact(blocks, target=sum(block.size for block in blocks) // 4)
    assert merged.account.kept == 6 * PROFILES
    assert len(merged.outputs) > 1
    assert peak < 700 * MIB
