"""What one of several fronts may have of what is bounded for all of them together.

Connections are spread evenly, so an equal part each is enough; the sum then needs nobody to keep
it. What a tenant's own connections may use up at one front alone, its rate, is not divided: see
`distributor/shared_rates.py`.
"""

from __future__ import annotations

import msgspec

from maar.api.settings import ApiSettings
from maar.distributor.settings import RouterSettings


def share_of(whole: ApiSettings, fronts: int) -> ApiSettings:
    """The bounds of one front over HTTP; those of a single request are everybody's."""
    return msgspec.structs.replace(
        whole,
        reading_bytes_max=whole.reading_bytes_max // fronts,
        unfinished_per_address_max=max(1, whole.unfinished_per_address_max // fronts),
        unfinished_max=max(1, whole.unfinished_max // fronts),
        connections_max=max(1, whole.connections_max // fronts),
    )


def retries_of(whole: RouterSettings, fronts: int) -> RouterSettings:
    """The budget of retries of one front."""
    return msgspec.structs.replace(
        whole,
        retries_per_s=whole.retries_per_s / fronts,
        retries_saved_max=max(1, whole.retries_saved_max // fronts),
    )
