"""What stores must hold when all is healed, by the index and by their bytes alone.

Nothing of maar is used: keys are taken apart here, and copies are compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

OF_THE_LOG = ("metastore/v1/", "markers/v1/", "placement/v1/")  # no part of any block

Contents = Mapping[str, Mapping[str, bytes]]  # of each store, by key


def audit(blocks: Iterable[Mapping[str, Any]], contents: Contents) -> list[str]:
    """Sentences, none of which is good news: every block is whole in every store, all copies of a
    file have the same bytes, and there is nothing else.
    """
    faults: list[str] = []
    listed: dict[str, set[str]] = {store: set() for store in contents}
    for block in blocks:
        if block["level"] == 0:
            faults.append(f"{block['id']} is a segment, and should be merged by now")
        for file in block["files"]:
            faults += _of_file(block["id"], file, contents)
            for at in file["locations"]:
                listed.setdefault(at["store"], set()).update((at["key"], manifest(at["key"])))
    for store, objects in contents.items():
        faults += [f"{store} lacks {key}" for key in sorted(listed[store] - objects.keys())]
        surplus = (key for key in sorted(objects.keys() - listed[store]))
        faults += [f"{store} has {key} in vain" for key in surplus if not _of_log(key)]
        if not any(key.startswith("markers/v1/") for key in objects):
            faults.append(f"{store} has no marker")
    return faults


def _of_file(block: str, file: Mapping[str, Any], contents: Contents) -> list[str]:
    what = f"{file['table']} of {block}"
    places = {at["store"]: at["key"] for at in file["locations"]}
    if len(places) < len(file["locations"]):
        return [f"{what} is listed twice in one store"]
    faults = [f"{what} is not listed in {store}" for store in contents.keys() - places.keys()]
    there = {
        store: body
        for store, key in places.items()
        if (body := contents.get(store, {}).get(key)) is not None
    }
    faults += [
        f"{what} has {len(body)} bytes in {store}, not {file['size']}"
        for store, body in there.items()
        if len(body) != file["size"]
    ]
    if len(set(there.values())) > 1:
        faults.append(f"{what} has different bytes in {', '.join(sorted(there))}")
    return faults


def manifest(key: str) -> str:
    """Of the block that a file of the lake belongs to."""
    lake, version, _, *rest, name = key.split("/")
    return "/".join((lake, version, "manifests", *rest, name.removesuffix(".parquet") + ".msgpack"))


def _of_log(key: str) -> bool:
    return key.startswith(OF_THE_LOG)
