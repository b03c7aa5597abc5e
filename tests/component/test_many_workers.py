"""Many workers on one metastore, killed and stopped at random: the short form of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.soak.processes import Parts
from support.soak.run import SETTINGS, soak

pytestmark = [pytest.mark.component, pytest.mark.serial, pytest.mark.timeout(1500)]

FAULTS_S = 30
SEED = 20261116


def test_after_faults_every_plan_is_completed_once_and_nothing_is_lost_doubled_or_left(
    tmp_path: Path,
) -> None:
    summary = soak(tmp_path, seconds=FAULTS_S, seed=SEED, parts=Parts(settings=SETTINGS))
    assert not summary.faults, f"{summary}\n{(tmp_path / 'soak.log').read_text()[-8000:]}"
    assert summary.profiles > 0
    assert summary.audit.winners
    assert summary.injected.total() > 0
