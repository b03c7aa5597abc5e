"""Recognises formats from before the first release, and says how to bring their data over.

Records of the log and headers of snapshots began with the number of their version. Today they begin
with a word, so that neither is ever taken for the other.
"""

from __future__ import annotations

import msgspec

from maar.model.errors import Rejected

MARK = "maar"  # what the records and headers of today begin with


class FormerFormat(Rejected):
    """A log of a maar from before its first release."""

    def __init__(self, what: str, *, log: str = "URL", store: str = "URL") -> None:
        super().__init__(f"{what} {way_over(log=log, store=store)}")
        self.what = what  # for a caller that can add where log and store are


def way_over(*, log: str = "URL", store: str = "URL") -> str:
    """A sentence that says what it is, what that means, and what to do."""
    return (
        "was written by a maar from before its first release, in a format that this program does "
        "not read. No profile is lost by that: log and snapshots are the index only, and the "
        "segments and blocks in the store are read as ever. Stop the server, move the old log "
        f"away, run `maar metastore restore --without-snapshot --log {log} --store {store}` and "
        "start the server again: the new log adopts all that the store holds. Settings such as the "
        "retention of tenants have to be given again (docs/runbook.md)"
    )


def is_former(raw: bytes | msgspec.Raw) -> bool:
    """Whether it is an array that begins with a number."""
    try:
        found = msgspec.msgpack.decode(raw)
    except (msgspec.DecodeError, ValueError):
        return False
    return isinstance(found, list) and bool(found) and isinstance(found[0], int)
