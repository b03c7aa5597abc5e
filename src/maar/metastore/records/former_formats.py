"""What maar wrote before its first release: recognised, and refused with the way its data comes.

Records of the log and headers of snapshots began with the number of their version. Today they begin
with a word, so that neither is ever taken for the other.
"""

from __future__ import annotations

import msgspec

MARK = "maar"  # what the records and headers of today begin with
WAY_OVER = (
    "was written by a maar from before its first release, in a format that this program does not "
    "read. No profile is lost by that: the log and its snapshots are only the index, and the "
    "segments and blocks in the store are read as ever. Stop the server, move the old log away, "
    "and run `maar metastore restore --without-snapshot` with the same --data, --log and --store: "
    "the new log adopts all that the store holds. Only orders have to be given again, such as the "
    "retention of tenants (docs/runbook.md)"
)


def is_former(raw: bytes | msgspec.Raw) -> bool:
    """Whether it is an array that begins with a number."""
    try:
        found = msgspec.msgpack.decode(raw)
    except (msgspec.DecodeError, ValueError):
        return False
    return isinstance(found, list) and bool(found) and isinstance(found[0], int)
