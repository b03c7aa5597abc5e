"""Options that several commands share, read the same way everywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from maar.cli.client import Server
from maar.cli.input.times import parse_range_ms

DEFAULT_SERVER = "http://127.0.0.1:4040"
PARTIAL = "maar.allow_partial"  # in a command's context: answers may leave out damaged blocks

_TYPED = click.core.ParameterSource.COMMANDLINE

F = TypeVar("F", bound=Callable[..., Any])


def server_option(command: F) -> F:
    return click.option(
        "--server",
        default=DEFAULT_SERVER,
        envvar="MAAR_SERVER",
        show_default=True,
        show_envvar=True,
        help="Where the server listens.",
    )(command)


def server_options(command: F) -> F:
    tenant = click.option(
        "--tenant", default="", help="Whose data; the server's default when absent."
    )
    return server_option(tenant(command))


def range_options(command: F) -> F:
    for option in (
        click.option("--until", default="now", show_default=True, help="End of the time range."),
        click.option(
            "--from",
            "start",
            default="now-1h",
            show_default=True,
            help="Its start: now-1h, an RFC 3339 time, unix seconds or milliseconds.",
        ),
    ):
        command = option(command)
    return command


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(command)


def partial_option(command: F) -> F:
    """For commands whose answers may leave out damaged blocks."""

    def take(context: click.Context, _option: click.Parameter, value: bool) -> None:
        context.meta[PARTIAL] = value

    return click.option(
        "--allow-partial",
        is_flag=True,
        expose_value=False,
        callback=take,
        help="Leave out blocks whose objects are damaged, and say so.",
    )(command)


def connect(server: str, tenant: str = "") -> Server:
    """The server, closed when the command ends."""
    context = click.get_current_context()
    found = Server(server, tenant=tenant, allow_partial=context.meta.get(PARTIAL, False))
    context.call_on_close(found.close)
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def time_range(start: str, until: str) -> tuple[int, int]:
    return parse_range_ms(start, until, now_ms=now_ms())


def label_pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not of the form name=value", param_hint="--label")
    return name, value


def selector(service: str, labels: Iterable[str], more: str) -> str:
    """Prometheus matchers in braces, from the pairs and from a selector given whole."""
    pairs = [("service_name", service)] if service else []
    pairs += [label_pair(text) for text in labels]
    matchers = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in pairs]
    inner = more.strip().removeprefix("{").removesuffix("}").strip().strip(",")
    return "{" + ",".join([*matchers, *([inner] if inner else [])]) + "}"


def refuse_options(context: click.Context) -> None:
    """Refuse options of the list before a subcommand, which would ignore them."""
    for option in context.command.params:
        if option.name and context.get_parameter_source(option.name) is _TYPED:
            name = max(option.opts, key=len)
            raise click.UsageError(f"give {name} after {context.invoked_subcommand}, or not at all")
