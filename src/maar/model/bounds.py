"""Numbers with bounds, as the settings of several packages declare them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
