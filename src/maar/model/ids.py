"""Every kind of id in the system, its text form and how it is made.

Randomness and time are arguments; nothing here reads a clock or draws random numbers.
"""

from __future__ import annotations

import re
from typing import NewType
from urllib.parse import quote

import msgspec
import xxhash

from maar.model.errors import InvalidInput

TenantId = NewType("TenantId", str)
WorkerId = NewType("WorkerId", str)
Shard = NewType("Shard", int)  # from 1; 0 is "none"
Incarnation = NewType("Incarnation", str)  # 8 random hex digits; a restored log gets a new one
StoreName = NewType("StoreName", str)  # a named bucket; "main" by default
Zone = NewType("Zone", str)  # where processes run: a data centre, an availability zone
NodeId = NewType("NodeId", str)  # a segment writer, the same after every restart
ProfileId = NewType("ProfileId", bytes)  # 16 bytes; 32 hex digits as text
BlockId = NewType(
    "BlockId", str
)  # 32 hex digits: 16 of lease time (ns), 16 of entropy; sorts by age

ANONYMOUS = TenantId("anonymous")
NO_TENANT = TenantId("")  # the tenant of a level-0 segment, which holds all tenants
MAIN_STORE = StoreName("main")
HOME = Zone("home")  # the zone of those who name none
NO_ZONE = Zone("")  # of blocks from before blocks knew their zone

JOINED_SEGMENT = "6a6f696e"  # "join", in place of half of the entropy

TENANT_QUOTED_MAX = 240  # a directory's name has at most 255 bytes

_TENANT = re.compile(r"[A-Za-z0-9!_.*'()\-]{1,150}")
_PLAN_NUMBER = re.compile(r"[0-9]{1,18}")
_HEX32 = re.compile(r"[0-9a-f]{32}")


class PlanId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Index of the entry that scheduled the plan, and its place in that entry."""

    index: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.index}.{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> PlanId:
        index, _, ordinal = text.partition(".")
        if not all(_PLAN_NUMBER.fullmatch(part) for part in (index, ordinal)):
            raise InvalidInput(f"{text[:60]!r} is not a plan id; one looks like 1042.0")
        return cls(int(index), int(ordinal))


class FencingToken(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The entry that granted a lease; a restored log has another incarnation: no token recurs."""

    incarnation: Incarnation
    index: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.index}"

    @classmethod
    def parse(cls, text: str) -> FencingToken:
        incarnation, _, index = text.partition(".")
        if not (incarnation and index.isascii() and index.isdigit()):
            raise InvalidInput(f"{text!r} is not a fencing token; one looks like 3fa9c1d2.1042")
        return cls(Incarnation(incarnation), int(index))


def tenant_id(text: str) -> TenantId:
    """Check a tenant's name: it becomes part of object keys."""
    if not _TENANT.fullmatch(text) or text in (".", ".."):
        raise InvalidInput(
            f"tenant {text[:60]!r} is not allowed: use 1 to 150 of A-Z a-z 0-9 ! - _ . * ' ( ), "
            "and neither '.' nor '..'",
            reason="tenant",
        )
    if len(quote(text, safe="")) > TENANT_QUOTED_MAX:
        raise InvalidInput(
            f"tenant {text[:60]!r} is not allowed: it has {len(text)} characters, and too many of "
            "them are ! * ' ( ), which take three bytes each in a file's name",
            reason="tenant",
        )
    return TenantId(text)


def profile_id_text(profile: ProfileId) -> str:
    return profile.hex()


def parse_profile_id(text: str) -> ProfileId:
    if not _HEX32.fullmatch(text.lower()):
        raise InvalidInput(f"{text!r} is not a profile id; one has 32 hex digits")
    return ProfileId(bytes.fromhex(text))


def segment_id(*, lease_time_ns: int, entropy: int) -> BlockId:
    """A segment's id carries lease time, so that a floor can refuse the late ones (S4)."""
    return BlockId(f"{lease_time_ns:016x}{entropy & 0xFFFF_FFFF_FFFF_FFFF:016x}")


def output_id(*, plan: PlanId, oldest_input: BlockId, ordinal: int) -> BlockId:
    """The id of a plan's nth output: as old as its oldest input, the same for every attempt."""
    entropy = xxhash.xxh3_64_intdigest(f"{plan}/{ordinal}".encode())
    return BlockId(f"{oldest_input[:16]}{entropy:016x}")


def joined_segment_id(*, plan: PlanId, oldest_input: BlockId) -> BlockId:
    """The id of a segment that a plan made of others: it shows what it is, so that who only knows
    ids never merges it with others again.
    """
    entropy = xxhash.xxh3_64_intdigest(f"{plan}/0".encode()) & 0xFFFF_FFFF
    return BlockId(f"{oldest_input[:16]}{JOINED_SEGMENT}{entropy:08x}")


def is_joined_segment(segment: BlockId) -> bool:
    """Whether a plan made this segment of others; once in four billion a writer's looks so too."""
    return segment[16:24] == JOINED_SEGMENT


def block_time_ns(block: BlockId) -> int:
    """The lease time that a block's id carries."""
    return int(block[:16], 16)
