"""Settings on the command line: the options of commands that read them, and what was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

config_option = click.option(
    "--config", type=click.Path(path_type=Path), help="A TOML file of settings."
)
allow_remote_option = click.option(
    "--allow-remote",
    is_flag=True,
    default=None,
    help="Let --listen name an address that other machines reach; there is no access control.",
)


def set_option(text: str) -> Callable[[F], F]:
    return click.option("--set", "others", multiple=True, metavar="SECTION.NAME=VALUE", help=text)


def log_options(command: F) -> F:
    """How a process logs."""
    for option in (
        click.option("--log-level", help="debug, info, warning or error."),
        click.option("--log-format", help="text or json."),
    ):
        command = option(command)
    return command


def given_settings(others: tuple[str, ...], **flags: Any) -> dict[str, Any]:
    """The settings of flags, and those given by --set, by what the user wrote."""
    return {**_flag_settings(flags), **_other_settings(others)}


def _flag_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings that have a flag of their own."""
    from maar.app.settings.layers import Key

    keys = {
        "listen": Key("server", "listen"),
        "allow_remote": Key("server", "allow_remote"),
        "data": Key("server", "data_dir"),
        "store": Key("store", "url"),
        "log": Key("log", "url"),
        "metastore": Key("roles", "metastore"),
        "spark_master": Key("spark", "master"),
        "log_format": Key("server", "log_format"),
        "log_level": Key("server", "log_level"),
    }
    return {
        f"--{name.replace('_', '-')}": (keys[name], value)
        for name, value in given.items()
        if value is not None
    }


def _other_settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """Those given by --set."""
    from maar.app.settings.layers import Key

    found = {}
    for text in texts:
        path, separator, value = text.partition("=")
        section, dot, name = path.partition(".")
        if not (separator and dot and name):
            raise click.BadParameter(f"{text!r} is not SECTION.NAME=VALUE", param_hint="--set")
        found[f"--set {path}"] = (Key(section, name), value)
    return found
