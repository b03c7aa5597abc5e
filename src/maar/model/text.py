"""Escapes untrusted text, so that it can neither control a terminal nor forge a log line."""

from __future__ import annotations

import re

# Control characters of ASCII and Latin 1, line and paragraph separators, turners of direction.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with what is not seen spelled out: `\\x1b` for an escape, `\\n` for a new line."""
    return _UNSEEN.sub(_spell, text)


def visible_lines(text: str) -> str:
    """The same for a text of ours that has lines and names of others in them."""
    return "\n".join(map(visible, text.split("\n")))


def visible_json(text: str) -> str:
    """The same for JSON, which then still says exactly what it said."""
    return _UNSEEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    """Outside of strings JSON has new lines, which stay; within, it has none."""
    return "\n" if found[0] == "\n" else f"\\u{ord(found[0]):04x}"


def _spell(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
