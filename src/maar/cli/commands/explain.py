"""`maar explain`: why something is as it is, in sentences."""

from __future__ import annotations

from urllib.parse import quote

import click

from maar.cli.input.options import connect, json_option, server_option
from maar.cli.output.show import print_json, say, size


@click.group("explain")
def command() -> None:
    """Explain why something is as it is."""


@command.command("block")
@click.argument("block_id")
@json_option
@server_option
def block(block_id: str, as_json: bool, server: str) -> None:
    """Explain why block BLOCK_ID is not compacted yet, and what happens to it next."""
    path = f"/api/v1/blocks/{quote(block_id.lower(), safe='')}/explain"
    found = connect(server).get(path)
    if as_json:
        print_json(found)
        return
    meta = found["meta"]
    known = f": {meta['kind']} of level {meta['level']}, {size(meta['size'])}" if meta else ""
    say(f"{found['block']} ({found['standing']}){known}")
    for sentence in found["sentences"]:
        say(f"  {sentence}")
