"""Numbers with bounds, as the settings of several packages declare them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Age = Annotated[float, Meta(ge=0, le=10 * 365 * 86_400)]  # seconds
Pause = Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)]  # seconds
