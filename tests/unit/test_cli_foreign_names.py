"""Names that somebody else chose are shown by the commands, and never obeyed by a terminal."""

from __future__ import annotations

import json

import pytest

from maar.cli.commands import query
from maar.cli.main import run
from maar.cli.output import flametree
from maar.cli.output.show import print_json, print_table, say
from maar.model.text import visible, visible_lines

EVIL = "evil\x1b]0;owned\x07\x1b[2J\x9b1A\nmain\u202e"
SEEN = r"evil\x1b]0;owned\x07\x1b[2J\x9b1A\nmain\u202e"


def test_what_is_not_seen_is_spelled_out() -> None:
    assert visible(EVIL) == SEEN
    assert visible("größe ▏ 関数 [vdso] \U0001f600") == "größe ▏ 関数 [vdso] \U0001f600"
    assert visible_lines("a\x1b\nb") == "a\\x1b\nb"


def test_a_flame_graph_of_escapes_is_drawn_and_not_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["total", EVIL]
    root = flametree.tree(names, [[0, 7, 0, 0], [0, 7, 7, 1]])
    assert root is not None
    query.draw(root, unit="count", least=0.0, depth=9)
    out = capsys.readouterr().out
    assert SEEN in out
    assert out.replace("\n", "").isprintable()


def test_json_says_exactly_what_the_name_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"names": [EVIL, "größe"]})
    out = capsys.readouterr().out
    assert json.loads(out) == {"names": [EVIL, "größe"]}
    assert "größe" in out
    assert out.replace("\n", "").isprintable()


def test_tables_and_sentences_show_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [[EVIL]])
    say(f"two\nlines of {EVIL[:5]}")
    out = capsys.readouterr().out
    assert SEEN in out
    assert "two\nlines of evil\\x1b" in out


def test_an_error_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["query", "types", "--from", "\x1b[2Jyesterday"]) != 0
    assert "\x1b" not in capsys.readouterr().err
