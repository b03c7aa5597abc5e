"""multipart/form-data, of which agents send a few small fields: parsed in memory, with bounds."""

from __future__ import annotations

import re

from maar.model.errors import InvalidInput

PARTS_MAX = 16
HEAD_BYTES_MAX = 8 << 10

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'(?:^|;)\s*name="([^"\r\n]{0,200})"', re.IGNORECASE)


def is_multipart(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


def parse_form(content_type: str, body: bytes) -> dict[str, bytes]:
    """The fields by name. A name that comes twice is refused: one of them would be lost."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise _bad("its content-type names no boundary")
    delimiter = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
    # The first delimiter may open the body; with a line break before it, it looks like the rest.
    rest = b"\r\n" + body
    position = rest.find(delimiter)
    if position < 0:
        raise _bad("the boundary does not occur in the body")
    fields: dict[str, bytes] = {}
    for _ in range(PARTS_MAX + 1):
        position += len(delimiter)
        if rest[position : position + 2] == b"--":
            return fields
        end = rest.find(delimiter, position)
        if end < 0:
            raise _bad("it is cut off: the closing boundary is missing")
        name, content = _part(rest, position, end)
        if name in fields:
            raise _bad(f"the field {name[:60]!r} comes twice")
        fields[name] = content
        position = end
    raise _bad(f"it has more than {PARTS_MAX} parts")


def _part(rest: bytes, start: int, end: int) -> tuple[str, bytes]:
    line_end = rest.find(b"\r\n", start, end)
    if line_end < 0 or rest[start:line_end].strip(b" \t"):
        raise _bad("a boundary is followed by something else than a line break")
    head_end = rest.find(b"\r\n\r\n", line_end, min(end, line_end + HEAD_BYTES_MAX))
    if head_end < 0:
        raise _bad(f"a part has no header, or one over {HEAD_BYTES_MAX} bytes")
    for line in rest[line_end:head_end].split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            found = _NAME.search(value)
            if found is not None:
                return found[1].decode("utf-8", "replace"), rest[head_end + 4 : end]
    raise _bad("a part has no name")


def _bad(why: str) -> InvalidInput:
    return InvalidInput(f"the multipart form cannot be read: {why}", reason="multipart")
