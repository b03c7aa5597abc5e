"""Whoever cleans and was stopped meanwhile deletes nothing by what it knew before."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from maar.metastore.leader.deleting.cleaner import Cleaner
from maar.metastore.records.entries import AttemptFenced
from maar.model.errors import NotLeading
from maar.model.policy import MINUTE_NS
from maar.model.time import SECOND_NS
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import Lake
from support.metastore.dead_letters import FaultyStore
from support.metastore.fold import SMALL

POLICY = msgspec.structs.replace(SMALL, leftovers_ns=45 * MINUTE_NS, retire_delay_ns=MINUTE_NS)

Step = Callable[[Cleaner], Coroutine[Any, Any, bool]]
STEPS: list[Step] = [lambda cleaner: cleaner.remove(), lambda cleaner: cleaner.sweep()]
both = pytest.mark.parametrize("step", STEPS, ids=["retired blocks", "leftovers"])


class Stoppable(Lake):
    """Retired blocks and leftovers that are due; the process may be stopped on its way."""

    def __init__(self) -> None:
        self.faulty = FaultyStore()
        super().__init__(POLICY, self.faulty)
        self.stop_ns = 0  # for so long, after the next confirmation
        self.merge(self.add(1, 2, 3))
        plan = self.schedule(self.add(4, 5))
        token = self.lease(plan)
        self.write(plan, token)
        self.fold.put(AttemptFenced(plan, token, "?"))
        self.pass_time(POLICY.leftovers_ns + 1)

    def stop(self, ns: int) -> None:
        """Meanwhile somebody else is elected, or the log is restored elsewhere."""
        self.clock.advance(ns)
        self.deposed = True

    def confirm_deletes(self) -> None:
        super().confirm_deletes()
        if self.stop_ns:
            self.stop(self.stop_ns)
            self.stop_ns = 0


@both
def test_stopped_for_two_seconds_after_the_confirmation_it_deletes_nothing(step: Step) -> None:
    lake = Stoppable()
    before = lake.objects()
    lake.stop_ns = 2 * SECOND_NS
    with pytest.raises(NotLeading):
        run_virtually(step(lake.cleaner))
    assert lake.objects() == before
    assert lake.confirmations > 1
    lake.cleaner.close()


@both
def test_stopped_between_two_deletes_it_deletes_nothing_more(step: Step) -> None:
    lake = Stoppable()
    before = lake.objects()

    def stop(operation: str, _key: str) -> None:
        if operation == "delete":
            lake.stop(2 * SECOND_NS)

    lake.faulty.fault = stop
    with pytest.raises(NotLeading):
        run_virtually(step(lake.cleaner))
    assert len(before - lake.objects()) == 1
    lake.cleaner.close()


@both
def test_what_is_deleted_together_is_confirmed_together(step: Step) -> None:
    lake = Stoppable()
    before = lake.objects()
    run_virtually(step(lake.cleaner))
    assert len(before - lake.objects()) >= 3
    assert lake.confirmations <= 2
    lake.cleaner.close()
