"""The reference of the command line names every command and option, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import pytest

from maar.cli.main import cli
from maar.model.block import BlockMeta
from maar.model.plan import Plan
from maar.ports.operator.dead_letters import Letter, LettersPage
from maar.ports.operator.operator import Explanation, Loss, PlanDetail, Status
from maar.ports.operator.retention import Undone
from maar.ports.plans.board import CleanStep, RollbackReply, ScheduledPlan
from maar.ports.plans.outcome import PlanOutcome

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


# What commands print as the metastore answers it, and what the API or the command puts around it.
PRINTED: dict[str, tuple[type[msgspec.Struct], set[str]]] = {
    "status": (Status, {"processes", "disks"}),
    "blocks": (BlockMeta, {"blocks"}),
    "blocks lose": (Loss, set()),
    "explain block": (Explanation, set()),
    "plans": (Plan, {"plans", "kind", "service"}),
    "plans show": (PlanDetail, {"kind"}),
    "plans schedule": (ScheduledPlan, set()),
    "plans execute": (PlanOutcome, set()),
    "plans rollback": (RollbackReply, set()),
    "clean": (CleanStep, {"executed", "failed", "outcome", "orphans", "objects", "bytes"}),
    "retention undo": (Undone, set()),
    "dead-letters": (LettersPage, set()),
    "dead-letters show": (Letter, set()),
}


def names_in(kind: Any) -> set[str]:
    """The names of all fields of a record, as JSON has them, and of the records within."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return {field.encode_name for field in fields}.union(
            *(names_in(field.type) for field in fields)
        )
    return set().union(*map(names_in, get_args(kind)))


@pytest.mark.parametrize("command", PRINTED)
def test_every_field_of_json_that_is_documented_exists(command: str) -> None:
    row = re.search(rf"^\| `maar {command}` \| (.+) \|$", REFERENCE, re.MULTILINE)
    assert row is not None
    kind, around = PRINTED[command]
    named = set(re.findall(r"`(\w+)`", row[1]))
    assert named <= names_in(kind) | around
