"""Many workers on one metastore, killed and stopped: the short form of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.soak.run import SHORT, soak

pytestmark = [pytest.mark.component, pytest.mark.long(41), pytest.mark.timeout(900)]

SEED = 20261116


def test_after_every_fault_each_plan_is_completed_once_and_nothing_is_lost_doubled_or_left(
    tmp_path: Path,
) -> None:
    summary = soak(tmp_path, seconds=None, seed=SEED, parts=SHORT)
    assert not summary.faults, f"{summary}\n{(tmp_path / 'soak.log').read_text()[-8000:]}"
    assert summary.profiles > 0
    assert summary.audit.winners
    assert set(summary.injected.values()) == {1}
