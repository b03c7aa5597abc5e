"""Log lines: one an event, with the role, for people and for machines."""

from __future__ import annotations

import json
import logging
import sys

from maar.app.processes.logs import RoleFormatter, is_structured, line


def record(message: str, *arguments: object, exc_info: bool = False) -> logging.LogRecord:
    trace = sys.exc_info() if exc_info else None
    made = logging.LogRecord("maar.segment", logging.INFO, "f", 1, message, arguments, trace)
    made.created = 1_763_208_000.25
    return made


def test_a_message_becomes_an_event_and_its_pairs() -> None:
    text = RoleFormatter(role="front", form="text").format(
        record("segment written key=%s n=%d", "a", 3)
    )
    assert text == (
        'time=2025-11-15T12:00:00.250Z level=info role=front event="segment written" key=a n=3'
    )


def test_a_message_of_pairs_alone_or_words_alone_is_fine() -> None:
    shown = RoleFormatter(role="query", form="text")
    assert shown.format(record("key=1")).endswith('event="" key=1')
    assert shown.format(record("all is well")).endswith('event="all is well"')


def test_json_lines_are_objects() -> None:
    found = json.loads(RoleFormatter(role="front", form="json").format(record("done n=%d", 1)))
    assert found == {
        "time": "2025-11-15T12:00:00.250Z",
        "level": "info",
        "role": "front",
        "logger": "maar.segment",
        "message": "done n=1",
    }


def test_a_trace_stays_on_the_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        text = RoleFormatter(role="front", form="text").format(record("failed", exc_info=True))
    assert "\n" not in text
    assert "ValueError" in text


def test_our_lines_are_known_from_others() -> None:
    for form in ("text", "json"):
        ours = line("x", time_s=0, level="info", role="r", logger="l", form=form)
        assert is_structured(ours)
    assert not is_structured("26/11/15 21:00:00 WARN Utils: Your hostname resolves to loopback")


def test_names_of_others_neither_forge_a_line_nor_reach_the_terminal() -> None:
    for form in ("text", "json"):
        shown = RoleFormatter(role="front", form=form).format(
            record("refused name=%s", "a\x1b[2J\nlevel=error\x9b1A\u202e\x85x\u2028y")
        )
        assert shown.isprintable()
        message = shown if form == "text" else json.loads(shown)["message"]
        assert "\\x1b[2J level=error\\x9b1A" in message
