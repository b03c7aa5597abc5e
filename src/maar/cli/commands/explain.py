"""`maar explain`: why something is as it is, in sentences."""

from __future__ import annotations

from urllib.parse import quote

import click

from maar.cli.input.options import connected, json_option, server_option
from maar.cli.output.show import print_json, say, size


@click.group("explain")
def command() -> None:
    """Say why something is as it is."""


@command.command("block")
@click.argument("block_id")
@json_option
@server_option
def block(block_id: str, as_json: bool, server: str) -> None:
    """Why is block BLOCK_ID not compacted yet, and what becomes of it?"""
    path = f"/api/v1/blocks/{quote(block_id.lower(), safe='')}/explain"
    found = connected(server).get(path)
    if as_json:
        print_json(found)
        return
    meta = found["meta"]
    known = f": {meta['kind']} of level {meta['level']}, {size(meta['size'])}" if meta else ""
    say(f"{found['block']} ({found['standing']}){known}")
    for sentence in found["sentences"]:
        say(f"  {sentence}")
