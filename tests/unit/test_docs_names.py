"""The pages name only what there is: files, settings, commands, dependencies, folders."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

from maar.app.settings.config import SECTIONS
from maar.app.settings.layers import setting_types
from maar.block.format.tables import LAYOUTS
from maar.cli.main import cli
from maar.metastore.records import entries
from maar.metastore.state import snapshot_records
from maar.services.rules import KindRules, QueueRules

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if page.name != "CHANGELOG.md"  # it tells also of what was there before
}
FILES = [
    str(file.relative_to(ROOT))
    for folder in ("src", "tests", "bench", "tools", "examples", "docs")
    for file in (ROOT / folder).rglob("*")
] + [file.name for file in ROOT.iterdir()]
MADE_UP = {"lake_files.py"}  # what a reader is to write
SETTINGS = {
    f"{section}.{name}" for section, kind in SECTIONS.items() for name in setting_types(kind)
}
every_page = pytest.mark.parametrize("page", sorted(PAGES))


@every_page
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    named = set(re.findall(r"`(?:maar/)?([\w/.-]+\.(?:py|md|toml|lock))`", PAGES[page])) - MADE_UP
    gone = {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in FILES)}
    assert not gone


@every_page
def test_every_setting_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`([a-z]+\.[a-z_.]+)[`=]", PAGES[page]))
    named |= set(re.findall(r"--set '?([a-z_.]+)=", PAGES[page]))
    ours = {name for name in named if name.partition(".")[0] in SECTIONS} - {"log.db"}
    known = SETTINGS | {name.rpartition(".")[0] for name in SETTINGS}
    assert {name for name in ours - known if not name.startswith("spark.")} == set()  # Spark's own


def command_lines(text: str) -> Iterator[str]:
    """Commands in backticks and in blocks, without what a block says of them further right."""
    yield from re.findall(r"`maar ([a-z][^`]*)`", text)
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in re.findall(r"^(?:\$ )?maar (.+)$", block.replace("\\\n", " "), re.MULTILINE):
            yield from re.split(r" · (?:maar )?", re.split(r"\s{2,}|#", line)[0])


def commands(line: str) -> Iterator[tuple[click.Command | None, list[str]]]:
    """What the words of a line call, each alternative of `a|b` by itself, and the words left."""
    found: list[click.Command | None] = [cli]
    words = line.split()
    while words and any(isinstance(one, click.Group) for one in found):
        if not re.fullmatch(r"\[?[a-z][a-z-]*\]?(?:\|[a-z][a-z-]*)*", words[0]):
            break
        names = re.findall(r"[a-z-]+", words.pop(0))
        context = click.Context(cli)
        found = [
            group.get_command(context, name)
            for group in found
            if isinstance(group, click.Group)
            for name in names
        ]
    for one in found:
        yield one, words


@every_page
def test_every_command_that_a_page_names_can_be_typed(page: str) -> None:
    for line in command_lines(PAGES[page]):
        for command, words in commands(line):
            assert command is not None, line
            group = command.commands.values() if isinstance(command, click.Group) else ()
            known = {
                option for one in (command, *group) for param in one.params for option in param.opts
            }
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert options <= known, line


OUR_OWN_WORDS = re.compile(
    r"\b(offices?|crew|chores?|litter|dut(?:y|ies)|torment\w*|sleepwalker|nursery|burials?|"
    r"at the door|wants? a person)\b",
    re.IGNORECASE,
)


@every_page
def test_pages_use_words_that_every_operator_knows(page: str) -> None:
    assert OUR_OWN_WORDS.findall(PAGES[page]) == []


def test_code_uses_them_too() -> None:
    code = {
        str(file.relative_to(ROOT)): OUR_OWN_WORDS.findall(file.read_text())
        for folder in ("src", "bench", "tools", "tests")
        for file in (ROOT / folder).rglob("*.py")
        if file != Path(__file__)
    }
    assert {file: words for file, words in code.items() if words} == {}


def test_every_dependency_has_its_reason_and_no_reason_is_left_over() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    page = PAGES["docs/decisions/0009-dependencies.md"]
    rows = re.findall(r"^\| ([a-z][^|]*) \|", page, re.MULTILINE)
    reasoned = {name for row in rows if row != "package" for name in row.split(", ")}
    assert {re.split(r"[\[=<>]", name)[0] for name in wanted} == reasoned


def test_the_short_list_of_numbers_is_a_part_of_the_long_one() -> None:
    rows = PAGES["README.md"].partition("| what |")[2].partition("\n\n")[0].splitlines()[2:]
    long = PAGES["docs/numbers.md"]
    assert rows
    assert [
        row for row in rows if row.replace("docs/placement.md", "placement.md") not in long
    ] == []


def kinds(page: str) -> list[tuple[str, str, str]]:
    """The rows of a format's page: the number of a kind, its name, and what it has."""
    return re.findall(r"^\| (\d+) \| `(\w+)` \|([^|]*)\|", PAGES[page], re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "module"), [("log", entries), ("snapshot", snapshot_records)], ids=["log", "snapshot"]
)
def test_a_format_lists_every_kind_of_record(page: str, module: object) -> None:
    made = {
        (str(tag), name)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == vars(module)["__name__"]
        if issubclass(kind, msgspec.Struct) and (tag := kind.__struct_config__.tag) is not None
        if not name.startswith("_") and name != "BlocksOutlined"  # BlocksAdded, read less of
    }
    assert {(number, name) for number, name, _ in kinds(f"docs/formats/{page}.md")} == made


def test_the_page_of_the_log_has_every_field_of_an_entry() -> None:
    for _, name, cell in kinds("docs/formats/log.md"):
        fields = {field.name for field in msgspec.structs.fields(getattr(entries, name))}
        assert fields <= set(re.findall(r"[a-z_0-9]+", cell)), name


def test_the_page_of_blocks_has_every_column() -> None:
    page = PAGES["docs/formats/block.md"]
    for table, layout in LAYOUTS.items():
        section = re.split(r"^## ", page.partition(f"\n## {table}: ")[2], flags=re.MULTILINE)[0]
        assert set(layout.schema.names) <= set(re.findall(r"`(\w+)`", section)), table


FOLDERS = {
    name: what
    for names, what in re.findall(
        r"^\| (`[a-z]+`(?:, `[a-z]+`)*) \| [^|]+ \| ([^|]+) \|$",
        PAGES["ARCHITECTURE.md"].partition("| folder |")[2],
        re.MULTILINE,
    )
    for name in re.findall(r"[a-z]+", names)
}


def test_the_architecture_lists_every_folder() -> None:
    there = {path.parent.name for path in (ROOT / "src" / "maar").glob("*/__init__.py")}
    assert set(FOLDERS) == there


@pytest.mark.parametrize("stage", ["placement", "distributor", "segment", "worker"])
def test_the_architecture_says_which_modules_do_io(stage: str) -> None:
    modules = {
        file.name
        for file in (ROOT / "src" / "maar" / stage).rglob("*.py")
        if re.search(r"\bawait\b|ports\.stores\.object_store import", file.read_text())
    }
    assert set(re.findall(r"`(\w+\.py)`", FOLDERS[stage])) == modules


def test_the_architecture_names_every_question_to_a_kind_of_plan() -> None:
    questions = {name for kind in (KindRules, QueueRules) for name in vars(kind) if name[0] != "_"}
    table = PAGES["ARCHITECTURE.md"].partition("| question |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_]+)`", table)) >= questions
