"""Decides from etcd's status: may it be used, is there room, should it be defragmented. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

REFUSED_AT = 0.80  # of the quota in use: nothing is appended any more
RESUMED_AT = 0.75
RESERVE_TO = 0.90  # up to here, entries that help to make room are still accepted
FILE_AT = 0.95  # etcd's quota counts the whole file, including free pages
TIDY_FROM_BYTES = 64 << 20
TIDY_NEAR = 0.70

INCONSISTENT = ((3, 5, 0), (3, 5, 2))  # the range of releases that can lose entries


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The status of one member, as it reports it."""

    endpoint: str
    version: str
    size: int  # of its file
    in_use: int  # of that, what is not free for reuse
    revision: int = 0
    leads: bool = False


@dataclass(frozen=True, slots=True)
class EtcdRoom:
    """Why appends are refused; '' while they are not. The reserve is for entries that make room."""

    refusal: str = ""
    reserve_refusal: str = ""


def version_refusal(status: MemberStatus) -> str:
    """Why a member's release cannot be used; '' when it can."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", status.version)
    if numbers is None:
        return ""
    least, most = INCONSISTENT
    if not least <= tuple(map(int, numbers.groups())) <= most:
        return ""
    return (
        f"etcd at {status.endpoint} is version {status.version}; the releases 3.5.0 to 3.5.2 can "
        "silently lose entries on one member. Upgrade etcd to 3.5.3 or later, or use 3.4"
    )


def room(
    statuses: Sequence[MemberStatus],
    *,
    quota: int,
    alarm: bool,
    refused: bool = False,
    wrote: int = 0,
) -> EtcdRoom:
    """Whether appends are accepted. `refused`: they were not until now; `wrote`: bytes since then.

    Written bytes may take twice their size in the file: pages are copied before they are freed.
    """
    used = max((status.in_use for status in statuses), default=0) + wrote
    size = max((status.size for status in statuses), default=0) + 2 * wrote
    if alarm:
        return _none("etcd has raised its alarm that its quota is reached")
    if size > FILE_AT * quota:
        return _none(f"etcd's file has, or soon has, {size} of the {quota} bytes of its quota")
    said = _refusal(f"{used} of the {quota} bytes of etcd's quota are in use")
    limit = RESUMED_AT if refused else REFUSED_AT
    return EtcdRoom(
        said if used > limit * quota else "",
        said if used > RESERVE_TO * quota else "",
    )


def worth_tidying(status: MemberStatus, *, quota: int, blindly: bool = False) -> bool:
    """Whether the member should be defragmented.

    `blindly`: its reported usage may be outdated.
    """
    if status.size > TIDY_NEAR * quota and (blindly or status.in_use < 0.8 * status.size):
        return True
    return status.size > TIDY_FROM_BYTES and status.in_use < 0.4 * status.size


def _none(said: str) -> EtcdRoom:
    return EtcdRoom(_refusal(said), _refusal(said))


def _refusal(said: str) -> str:
    return (
        f"{said}: the log accepts no entries until a snapshot lets old ones be deleted, or etcd "
        "has a larger quota (see the runbook: etcd at its quota)"
    )
