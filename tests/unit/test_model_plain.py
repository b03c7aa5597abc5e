"""Records as JSON with names, and back."""

from __future__ import annotations

import json

import pytest

from maar.model.errors import InvalidInput
from maar.model.ids import MAIN_STORE, FencingToken, PlanId, Shard, WorkerId
from maar.model.plain import plain, record
from maar.model.plan import (
    Attempt,
    AttemptEnd,
    LeasedPlan,
    Plan,
    PlanResult,
    PlanState,
    QueueKey,
    Rollback,
)
from maar.model.time import LeaseTime
from maar.services.compact.rules import COMPACT
from support.metastore.fold import INCARNATION, TENANT, result, segment

TOKEN = FencingToken(INCARNATION, 7)


def leased() -> LeasedPlan:
    metas = (segment(1), segment(2))
    key = plan().key
    undo = Rollback(PlanId(8, 0), TOKEN, PlanId(3, 0), (FencingToken(INCARNATION, 4),))
    return LeasedPlan(
        PlanId(3, 0), COMPACT, TOKEN, key, metas, 1 << 20, 15, "compact 3.0", 5, 9, (undo,)
    )


def plan() -> Plan:
    key = QueueKey(MAIN_STORE, TENANT, Shard(2), 1)
    attempt = Attempt(
        TOKEN, WorkerId("w"), LeaseTime(1), None, LeaseTime(2), AttemptEnd.FAILED, "no memory"
    )
    return Plan(
        PlanId(3, 0), COMPACT, True, key, (), PlanState.ROLLED_BACK, LeaseTime(5),
        attempts=(attempt,),
    )  # fmt: skip


def test_a_record_survives_json() -> None:
    inputs = (segment(1), segment(2))
    for one in (leased(), plan(), result(PlanId(3, 0), TOKEN, inputs)):
        assert record(type(one), json.loads(json.dumps(plain(one)))) == one


def test_a_field_that_we_do_not_know_is_ignored_and_one_that_may_be_left_out_is() -> None:
    told = plain(leased()) | {"colour": "blue"}
    del told["rollbacks"]
    assert record(LeasedPlan, told).rollbacks == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"kind": 7},
        {"kind": "compact", "outputs": 3},
        {"kind": "compact", "outputs": [{}], "account": {}},
        {"kind": "compact", "outputs": [], "account": {"kept": "1", "duplicates": 0}},
        {"kind": "compact", "outputs": [], "account": None},
    ],
)
def test_what_is_no_record_is_refused_in_a_sentence(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="this is no PlanResult"):
        record(PlanResult, wrong)
