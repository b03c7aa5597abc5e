"""Admission: checks a pushed profile against the limits, and gives it its identity."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from isal import isal_zlib

from maar.distributor.naming import profile_name
from maar.distributor.settings import Limits
from maar.model.errors import InvalidInput, MaarError, MalformedProfile, TooLarge
from maar.model.ids import TenantId
from maar.model.labels import PROFILE_NAME, SERVICE_NAME, Labels, labels_of, value_of
from maar.model.profile import RawProfile, profile_id, profile_type, with_underscores
from maar.model.time import DAY_NS, SECOND_NS
from maar.pprof.gzip import compress, gunzip
from maar.pprof.validate import Summary, validate

GZIP_MAGIC = b"\x1f\x8b"
RESERVED_FLAGS = 0xE0  # of gzip: other readers refuse what sets them, ours does not
HOUR_NS = 3600 * SECOND_NS
UNDATED_NS = 365 * DAY_NS  # a profile of 1970 comes from an agent that sets no time


class PushedProfile(msgspec.Struct, frozen=True):
    """One profile as an agent sent it."""

    labels: tuple[tuple[str, str], ...]
    body: bytes  # pprof, gzip or not
    client_id: str = ""
    time_ns: int = 0  # when the agent says it began; used only if the profile is undated
    own_time: bool = True  # that time is the client's own; False: derived from this server's clock
    shown_as: dict[str, str] = {}  # display names of value types
    read_bytes: int = 0  # of the text that it was made from, decompressed
    counted_bytes: int = 0  # in the tenant's rate, before that text was unpacked


def push_size(pushed: Sequence[PushedProfile], limits: Limits) -> int:
    """The bytes of a push as it was sent; InvalidInput or TooLarge when it is not allowed."""
    if not pushed:
        raise InvalidInput("the push holds no profile", reason="empty")
    if len(pushed) > limits.profiles_max:
        raise TooLarge(
            f"{len(pushed)} profiles in one push are over {limits.profiles_max}; "
            "send them in several"
        )
    size = sum(len(profile.body) for profile in pushed)
    if size > limits.push_bytes_max:
        raise TooLarge(
            f"{size} bytes of profiles in one push are over {limits.push_bytes_max}; "
            "send them in several"
        )
    return size


def admit_all(
    tenant: TenantId,
    pushed: Sequence[PushedProfile],
    now_ns: int,
    limits: Limits,
    kept_ns: int,
) -> list[RawProfile]:
    """Every profile of a push, or an error for all."""
    profiles: list[RawProfile] = []
    left = limits.push_raw_bytes_max
    for one in pushed:
        profile = admit(one, tenant=tenant, now_ns=now_ns, limits=limits, kept_ns=kept_ns)
        left -= profile.raw_size
        if left < 0:
            raise TooLarge(
                f"the profiles of one push have over {limits.push_raw_bytes_max} bytes, "
                "decompressed; send them in several"
            )
        profiles.append(profile)
    return profiles


def admit(
    pushed: PushedProfile, *, tenant: TenantId, now_ns: int, limits: Limits, kept_ns: int = 0
) -> RawProfile:
    """The profile ready to be stored; else InvalidInput, MalformedProfile or TooLarge.

    `kept_ns` is how long the tenant's profiles are kept, 0 for ever.
    """
    labels = labels_of(pushed.labels)
    service = _service(labels, limits)
    raw, payload = unpack(pushed.body, limit=limits.profile_bytes_max)
    summary = validate(raw, limits.profile)
    labels, types = _with_types(labels, summary, pushed, limits)
    dated_ns = summary.time_ns if summary.time_ns >= UNDATED_NS else pushed.time_ns
    time_ns = dated_ns or now_ns
    _check_age(time_ns, now_ns=now_ns, limits=limits, kept_ns=kept_ns)
    return RawProfile(
        id=profile_id(
            tenant=tenant,
            labels=labels,
            # An undated profile with a client's id must be the same when it is sent again.
            time_ns=dated_ns if pushed.client_id else time_ns,
            client_id=pushed.client_id,
            body=raw,
        ),
        tenant=tenant,
        service=service,
        labels=labels,
        types=types,
        time_ns=time_ns,
        duration_ns=summary.duration_ns,
        samples=summary.samples,
        payload=payload,
        raw_size=len(raw),
        dated=bool(dated_ns) and (pushed.own_time or dated_ns != pushed.time_ns),
    )


def admit_file(
    labels: Labels,
    body: bytes,
    client_id: str,
    *,
    tenant: TenantId,
    now_ns: int,
    limits: Limits,
    kept_ns: int,
) -> RawProfile:
    """A profile that comes from a file, and not from an agent."""
    pushed = PushedProfile(labels, body, client_id)
    return admit(pushed, tenant=tenant, now_ns=now_ns, limits=limits, kept_ns=kept_ns)


def unpack(body: bytes, *, limit: int) -> tuple[bytes, bytes]:
    """The pprof bytes, and a gzip of exactly them: the one that was sent, if it is intact."""
    raw = gunzip(body, limit=limit)
    if raw[:2] == GZIP_MAGIC:  # an agent's gzip within a proxy's; no pprof begins so
        body, raw = raw, gunzip(raw, limit=limit)
    if body[:2] != GZIP_MAGIC or body[3] & RESERVED_FLAGS or not _one_member(body, raw):
        return raw, compress(raw)
    return raw, body


def refusal(error: MaarError) -> str:
    """A short word for the metric: why the push was refused."""
    match error:
        case InvalidInput():
            return error.reason
        case TooLarge():
            return "too_large"
        case _:
            return type(error).__name__.lower()


def _service(labels: Labels, limits: Limits) -> str:
    service = value_of(labels, SERVICE_NAME)
    if not service:
        raise InvalidInput(
            "the profile has no service_name label, so nobody could find it again; "
            "set the agent's application name",
            reason="service_name",
        )
    size = len(service.encode())
    if size > limits.service_bytes_max:
        raise InvalidInput(
            f"the service_name has {size} bytes, over {limits.service_bytes_max}",
            reason="service_name",
        )
    return service


def _one_member(body: bytes, raw: bytes) -> bool:
    """Whether the gzip's trailer covers all of `raw`: no second member, no trailing bytes."""
    checksum = int.from_bytes(body[-8:-4], "little")
    size = int.from_bytes(body[-4:], "little")
    return size == len(raw) & 0xFFFF_FFFF and checksum == isal_zlib.crc32(raw)


def _with_types(
    labels: Labels, summary: Summary, pushed: PushedProfile, limits: Limits
) -> tuple[Labels, tuple[str, ...]]:
    """Labels with a `__name__`, and the type id of each value column.

    An agent that names its profile has its own words for value types too.
    """
    name = value_of(labels, PROFILE_NAME)
    kinds = tuple(kind for kind, _ in summary.sample_types)
    if not name:
        kinds = with_underscores(kinds)
        name = profile_name(kinds, pushed.shown_as)
        labels = tuple(sorted((*labels, (PROFILE_NAME, name))))
    types = tuple(
        profile_type(
            name=name,
            sample_type=kind,
            sample_unit=unit,
            period_type=summary.period_type,
            period_unit=summary.period_unit,
        )
        for kind, (_, unit) in zip(kinds, summary.sample_types, strict=True)
    )
    for text in types:
        if len(text) > limits.type_length_max or not text.isprintable():
            raise MalformedProfile(
                f"the profile type {text[:60]!r} is not usable: at most "
                f"{limits.type_length_max} printable characters"
            )
    return labels, types


def _check_age(time_ns: int, *, now_ns: int, limits: Limits, kept_ns: int) -> None:
    if time_ns > now_ns + limits.future_ns:
        ahead_s = (time_ns - now_ns) // SECOND_NS
        raise InvalidInput(
            f"the profile is dated {ahead_s} s in the future, over the "
            f"{limits.future_ns // SECOND_NS} s allowed; check the clock of its host",
            reason="time",
        )
    if kept_ns and time_ns <= now_ns - kept_ns:
        raise InvalidInput(
            f"the profile is {_age(now_ns - time_ns)} old and would be deleted at once: the "
            f"tenant's profiles are kept for {_age(kept_ns)}",
            reason="time",
        )
    if limits.retention_ns and time_ns <= now_ns - limits.retention_ns:
        raise InvalidInput(
            f"the profile is {_age(now_ns - time_ns)} old, over the {_age(limits.retention_ns)} "
            "that limits.retention_ns allows",
            reason="time",
        )


def _age(ns: int) -> str:
    if ns < 2 * DAY_NS:
        return f"{ns / HOUR_NS:.1f} hours"
    return f"{ns // DAY_NS} days"
