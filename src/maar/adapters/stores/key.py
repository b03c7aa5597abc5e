"""Which keys a store accepts: relative and plain, with the same meaning in every kind of store."""

from __future__ import annotations

from maar.model.errors import InvalidInput

KEY_BYTES_MAX = 1024  # S3's own bound
PRIVATE = ".maar-"  # names that a store keeps for itself


def check_key(key: str) -> str:
    """The key itself, or InvalidInput: a path outside of the store is never accepted."""
    if not key or len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise InvalidInput(f"an object key has 1 to {KEY_BYTES_MAX} bytes; this one has {len(key)}")
    if not key.isprintable() or "\\" in key:
        raise InvalidInput(f"object key {key!r} has a control character or a backslash")
    for part in key.split("/"):
        if part in ("", ".", "..") or part.startswith(PRIVATE):
            raise InvalidInput(
                f"object key {key!r} is not allowed: it must be relative, without empty parts, "
                f"'.', '..' or a part that starts with {PRIVATE!r}"
            )
    return key


def directory_of(prefix: str) -> str:
    """The deepest directory that holds every key with this prefix ('' is the root)."""
    folder = prefix.rpartition("/")[0]
    return check_key(folder) if folder else ""
