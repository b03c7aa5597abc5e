"""Encodes profiles as one segment; a dataset that cannot be written does not fail the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from maar.block.format.segment import SegmentBytes, write_segment
from maar.model.errors import InvalidInput, MaarError
from maar.model.ids import NO_ZONE, TenantId, Zone
from maar.model.profile import RawProfile


class DatasetName(NamedTuple):
    tenant: TenantId
    service: str


class Encoded(NamedTuple):
    segment: SegmentBytes | None  # None: of what there was, nothing could be written
    failed: dict[DatasetName, MaarError]  # what those who pushed it shall hear


def encode_profiles(profiles: Sequence[RawProfile], zone: Zone = NO_ZONE) -> Encoded:
    """All in one segment; or, when that fails, those datasets that can each be written alone."""
    try:
        return Encoded(write_segment(profiles, zone=zone), {})
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a dataset holds must not hit the others
        return _without_the_broken(profiles, zone, error)


def _without_the_broken(profiles: Sequence[RawProfile], zone: Zone, failure: Exception) -> Encoded:
    datasets: dict[DatasetName, list[RawProfile]] = {}
    for profile in profiles:
        datasets.setdefault(dataset_of(profile), []).append(profile)
    failed: dict[DatasetName, MaarError] = {}
    for name, members in datasets.items():
        try:
            write_segment(members)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # as above
            failed[name] = InvalidInput(
                f"profiles of service {name.service!r} cannot be written ({error}); they are "
                "refused, and sending them again unchanged will not help",
                reason="unwritable",
            )
    if not failed:
        raise failure  # each can be written, all together not: nobody's own fault
    good = [profile for profile in profiles if dataset_of(profile) not in failed]
    return Encoded(write_segment(good, zone=zone) if good else None, failed)


def dataset_of(profile: RawProfile) -> DatasetName:
    return DatasetName(profile.tenant, profile.service)
