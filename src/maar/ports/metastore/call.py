"""A request that the metastore answers, whoever asks it."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from maar.ports.calls import Call

P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class MetastoreCall(Call[P_contra, R_co], frozen=True):
    """It may raise Unavailable; and NotLeading with the leader's address, unless any replica may
    answer it.
    """

    wire_service: ClassVar[str] = "maar.Metastore"
