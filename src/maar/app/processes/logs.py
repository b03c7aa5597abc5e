"""Formats log lines: one line per event, key=value or JSON, always with the role."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

from maar.model.text import visible

_FIRST_PAIR = re.compile(r"(?:^|\s)(?=[A-Za-z_][\w.]*=)")
_OURS = re.compile(r"^(time=\S+ level=|\{\"time\":)")


class RoleFormatter(logging.Formatter):
    def __init__(self, *, role: str, form: str) -> None:
        super().__init__()
        self._role = role
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message} trace={json.dumps(self.formatException(record.exc_info))}"
        return line(
            message,
            time_s=record.created,
            level=record.levelname.lower(),
            role=self._role,
            logger=record.name,
            form=self._form,
        )


def line(message: str, *, time_s: float, level: str, role: str, logger: str, form: str) -> str:
    """One event as one line; a message 'segment written key=a' gets event='segment written'."""
    when = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    when = when.replace("+00:00", "Z")
    message = visible(message.replace("\r", " ").replace("\n", " "))
    if form == "json":
        fields = {"time": when, "level": level, "role": role, "logger": logger, "message": message}
        return json.dumps(fields, ensure_ascii=False)
    event, *pairs = _FIRST_PAIR.split(message, maxsplit=1)
    rest = f" {pairs[0]}" if pairs else ""
    quoted = json.dumps(event.strip(), ensure_ascii=False)
    return f"time={when} level={level} role={role} event={quoted}{rest}"


def is_structured(text: str) -> bool:
    """Whether a child's line is already in one of our forms."""
    return _OURS.match(text) is not None


def configure(*, role: str, form: str, level: str) -> None:
    """Send all logging of this process to stderr; that of libraries only from warnings up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RoleFormatter(role=role, form=form))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("maar").setLevel(level.upper())
