"""Commit objects: after a lost log they tell which bulk writes were whole.

The blocks of a bulk write replace nothing, so a part of it would be adopted like any other block.
Its commit object names all of its blocks; it is written when the log has it completed and before
whoever wrote it is told. So a bulk write that was acknowledged is adopted whole, and any other not
at all. One is needed as long as the store holds a block that it names, which may be years; then it
goes as orphans do (`orphan_commits`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import AlreadyExists, Corrupt, NotFound
from maar.model.ids import FencingToken, PlanId
from maar.ports.plans.board import PollReply, PollRequest
from maar.ports.stores.object_store import ObjectStore


class Commit(NamedTuple):
    key: str
    blocks: tuple[str, ...]  # the object that stands for each


def to_write(state: MetaState, request: PollRequest, reply: PollReply) -> list[Commit]:
    """What the accepted reports of a poll, new or repeated, have to leave in the store."""
    accepted = {(each.plan, each.token) for each in reply.outcomes if each.accepted}
    found: list[Commit] = []
    for report in request.reports:
        done = state.finished.get(report.plan)
        if done is None or done.result is None or (report.plan, report.token) not in accepted:
            continue
        if state.kinds[done.kind].commits and done.result.outputs:
            named = tuple(map(_stands_for, done.result.outputs))
            found.append(Commit(keys.commit(plan=report.plan, token=report.token), named))
    return found


def write(store: ObjectStore, commit: Commit) -> None:
    with suppress(AlreadyExists):
        store.create(commit.key, "\n".join(commit.blocks).encode())


def read(store: ObjectStore, *, plan: PlanId, token: FencingToken) -> frozenset[str]:
    """The objects that stand for the blocks of a bulk write; none when it was not completed."""
    try:
        body = store.read(keys.commit(plan=plan, token=token))
    except NotFound:
        return frozenset()
    try:
        return frozenset(body.decode("ascii").split("\n"))
    except UnicodeDecodeError as error:
        key = keys.commit(plan=plan, token=token)
        raise Corrupt(f"the commit object {key} is not text; restore it from a copy") from error


def _stands_for(meta: BlockMeta) -> str:
    first = meta.files[0].locations[0].key
    return first if meta.kind is Kind.QUARANTINE else keys.manifest_of(first)
