"""What etcd's numbers mean: may it be used, is there room, is it worth tidying. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

REFUSED_AT = 0.80  # of the quota in use: nothing is appended any more
RESUMED_AT = 0.75
RESERVE_TO = 0.90  # up to here the steps that make room are still taken
FILE_AT = 0.95  # etcd counts the file, free pages and all
TIDY_FROM_BYTES = 64 << 20
TIDY_NEAR = 0.70

INCONSISTENT = ((3, 5, 0), (3, 5, 2))  # these releases and those between


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member's word about itself."""

    endpoint: str
    version: str
    size: int  # of its file
    in_use: int  # of that, what is not free for reuse
    revision: int = 0
    leads: bool = False


@dataclass(frozen=True, slots=True)
class EtcdRoom:
    """Why nothing more is taken; '' while it is. The reserve is for what makes room."""

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
        "lose entries on one member without a word. Upgrade etcd to 3.5.3 or later, or use 3.4"
    )


def room(
    statuses: Sequence[MemberStatus],
    *,
    quota: int,
    alarm: bool,
    refused: bool = False,
    wrote: int = 0,
) -> EtcdRoom:
    """Whether appends are taken. `refused`: they were not until now; `wrote`: bytes since then.

    What is written may take twice its room in the file: pages are copied before they are freed.
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
    """Whether the member's file should be written anew, without its free pages.

    `blindly`: what it says of its use may be old.
    """
    if status.size > TIDY_NEAR * quota and (blindly or status.in_use < 0.8 * status.size):
        return True
    return status.size > TIDY_FROM_BYTES and status.in_use < 0.4 * status.size


def _none(said: str) -> EtcdRoom:
    return EtcdRoom(_refusal(said), _refusal(said))


def _refusal(said: str) -> str:
    return (
        f"{said}: the log takes nothing more until a snapshot has let old entries go, or etcd has "
        "a larger quota (see the runbook: etcd at its quota)"
    )
