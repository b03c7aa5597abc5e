"""The reference of the command line names every command and option, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from maar.cli.main import cli

REFERENCE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
ROW = re.compile(r"^\| (`-.*?) \|", re.MULTILINE)


def sections() -> dict[str, set[str]]:
    parts = re.split(r"^## maar ([\w-]+)$", REFERENCE, flags=re.MULTILINE)
    return {
        name: set(re.findall(r"`(-[a-z-]+)`", " ".join(ROW.findall(text))))
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def commands_within(command: click.Command) -> set[str]:
    return set(command.commands) if isinstance(command, click.Group) else set()


def options_of(command: click.Command) -> set[str]:
    found = {
        name
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
    }
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            found |= options_of(inner)
    return found


def test_every_command_is_documented() -> None:
    assert set(sections()) == set(cli.list_commands(click.Context(cli)))


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_option_is_documented(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert sections()[name] == options_of(command)


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_command_within_a_command_is_documented(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    typed = re.findall(rf"maar {name} ([a-z|-]+)", re.sub(r"[\[\]]", "", REFERENCE))
    assert {word for words in typed for word in words.split("|")} >= commands_within(command)
