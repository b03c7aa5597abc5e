"""The command as a whole: wrong words, exit codes, JSON, and readers that have read enough."""

from __future__ import annotations

import json
import os
import resource
import ssl
import subprocess
import sys
from typing import Any

import pytest

from maar.cli.client import Server
from maar.cli.main import exit_code_of, run
from maar.cli.output.failure import EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USAGE
from maar.model.errors import (
    Corrupt,
    InvalidInput,
    MaarError,
    MalformedProfile,
    NotFound,
    Rejected,
    Unavailable,
)
from support.http.command_line import Say, speaker
from support.http.front import Front

HEAVY = (
    "numba",
    "numpy",
    "pyarrow",
    "duckdb",
    "pyspark",
    "grpc",
    "httpx",
    "rich",
    "google",
    "uvloop",
)
MAAR = (sys.executable, "-m", "maar.cli.main")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(Front(), monkeypatch, capsys)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["stats"], "'status'"),
        (["dead-letter"], "'dead-letters'"),
        (["query", "flamegraf"], "'flamegraph'"),
        (["query", "top", "--sevice", "shop"], "'--service'"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "Did you mean" in said
    assert meant in said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("no such setting"), EXIT_USAGE),
        (MalformedProfile("a bad file"), EXIT_REFUSED),
        (NotFound("no such replica"), EXIT_REFUSED),
        (Rejected("it is there already"), EXIT_REFUSED),
        (Corrupt("a damaged backup"), EXIT_REFUSED),
        (Unavailable("nobody leads"), EXIT_UNAVAILABLE),
    ],
)
def test_exit_codes_tell_what_to_do(error: MaarError, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize("url", ["maar:4040", "ftp://maar", "http://[::1", "http://h:notaport"])
def test_what_is_no_address_is_wrong_use(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--server", url]) == EXIT_USAGE
    assert "is not a server's address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "noun"),
    [
        (["blocks"], "blocks"),
        (["plans"], "plans"),
        (["ring"], "zones"),
        (["query", "types"], "types"),
        (["query", "types", "--service", "shop"], "types"),
        (["query", "labels"], "labels"),
        (["query", "labels", "region"], "values"),
        (["query", "series"], "series"),
        (["query", "top"], "rows"),
        (["query", "flamegraph"], "levels"),
        (["dead-letters"], "letters"),
        (["placement"], "datasets"),
        (["retention", "preview"], "blocks"),
        (["status"], "levels"),
    ],
)
def test_json_is_an_object_with_lists_under_their_nouns(
    say: Say, command: list[str], noun: str
) -> None:
    code, out, err = say(*command, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert isinstance(found[noun], list)


def test_top_and_flamegraph_answer_for_the_fleet_when_no_service_is_named(say: Say) -> None:
    for command in ("top", "flamegraph"):
        assert say("query", command)[0] == 0


@pytest.mark.parametrize("words", [["version"], ["--help"], ["version", "--json"], ["nonsense"]])
def test_a_reader_who_has_read_enough_is_no_error(words: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)  # as head does when it ends
    try:
        done = subprocess.run([*MAAR, *words], stdout=theirs, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(theirs)
    expected = EXIT_USAGE if words == ["nonsense"] else 0
    assert done.returncode == expected, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


def test_complaints_that_nobody_reads_keep_their_exit_code() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run([*MAAR, "nonsense"], stdout=theirs, stderr=theirs, check=False)
    finally:
        os.close(theirs)
    assert done.returncode == EXIT_USAGE


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["no-such-command"]])
def test_help_needs_nothing_heavy(words: list[str]) -> None:
    """What is imported decides how long it takes; the bound of CPU is generous on purpose."""
    program = (
        f"import sys; sys.argv[1:] = {words!r}\n"
        "from maar.cli.main import run\n"
        "run(sys.argv[1:])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == b"[]"
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used_s < 1.0


def test_a_command_starts_no_threads_for_linear_algebra() -> None:
    """They spin for a tenth of a second in every process that loads NumPy."""
    program = (
        "import os, sys; sys.argv = ['maar', '--version']\n"
        "from maar.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: import numpy\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    given = {name: value for name, value in os.environ.items() if "OPENBLAS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=given, check=True
    )
    assert done.stdout.splitlines()[-1] == b"1"


def test_certificates_are_read_for_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    make = ssl.create_default_context

    def reading(*given: Any, **named: Any) -> ssl.SSLContext:
        read.append("certificates")
        return make(*given, **named)

    monkeypatch.setattr(ssl, "create_default_context", reading)
    Server("http://127.0.0.1:4040").close()
    Server("HTTP://127.0.0.1:4040").close()
    assert read == []
    Server("https://maar.example.com").close()
    assert read == ["certificates"]
