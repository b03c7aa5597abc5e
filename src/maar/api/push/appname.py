"""What /ingest calls `name`: an application, and labels in braces."""

from __future__ import annotations

import msgspec

from maar.model.errors import InvalidInput
from maar.model.labels import PROFILE_NAME, SERVICE_NAME, sanitize_name

SPY_LABEL = "pyroscope_spy"
APP_LABEL = "app_name"


class AppName(msgspec.Struct, frozen=True):
    """shop.checkout{region=eu} as parts."""

    app: str
    labels: tuple[tuple[str, str], ...]

    def pairs(self, *, app: str = "", spy: str = "") -> tuple[tuple[str, str], ...]:
        """The labels of a profile pushed under this name."""
        app = app or self.app
        extra: list[tuple[str, str]] = []
        taken = {sanitize_name(name) for name, _ in self.labels}
        if SERVICE_NAME in taken:
            extra.append((APP_LABEL, app))
        else:
            extra.append((SERVICE_NAME, app))
        if spy:
            extra.append((SPY_LABEL, spy))
        return (*self.labels, *(pair for pair in extra if pair[0] not in taken))


def parse_name(text: str) -> AppName:
    """app or app{k=v,k2=v2}; values are not quoted."""
    app, brace, rest = text.strip(" ").partition("{")
    app = app.strip(" ")
    if not app:
        raise InvalidInput(
            "the query parameter `name` is missing: it names the application, as in "
            "name=shop.checkout{region=eu}",
            reason="name",
        )
    if not brace:
        return AppName(app, ())
    if not rest.endswith("}"):
        raise InvalidInput(
            f"the name {text[:60]!r} opens a brace and does not close it", reason="name"
        )
    labels = []
    for item in filter(None, (item.strip(" ") for item in rest[:-1].split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise InvalidInput(
                f"{item[:60]!r} in the name is not a label; one looks like region=eu", reason="name"
            )
        if key.strip(" ") != PROFILE_NAME:  # the type comes from the profile, not from its sender
            labels.append((key.strip(" "), value.strip(" ")))
    return AppName(app, tuple(labels))
