"""The checker of several stores finds what it must find, and nothing where all is well."""

from __future__ import annotations

from typing import Any

import pytest

from support.oracles.copies_audit import audit

TABLES = ("profiles", "stacks")
Contents = dict[str, dict[str, bytes]]


def key(table: str, block: str, store: str) -> str:
    return f"lake/v1/{table}/tenant=acme/date=2026-01-01/{block}-1.0-x.2-{store}.parquet"


def manifest(block: str, store: str) -> str:
    return f"lake/v1/manifests/tenant=acme/date=2026-01-01/{block}-1.0-x.2-{store}.msgpack"


@pytest.fixture
def blocks() -> list[dict[str, Any]]:
    return [
        {
            "id": block,
            "level": 2,
            "files": [
                {
                    "table": table,
                    "size": 4,
                    "locations": [{"store": at, "key": key(table, block, at)} for at in "ab"],
                }
                for table in TABLES
            ],
        }
        for block in ("one", "two")
    ]


@pytest.fixture
def contents() -> Contents:
    return {
        store: {
            "markers/v1/x": store.encode(),
            "metastore/v1/x/snapshot-1.maar": b"any",
            **{key(table, block, store): b"body" for block in ("one", "two") for table in TABLES},
            **{manifest(block, store): b"it" for block in ("one", "two")},
        }
        for store in "ab"
    }


def test_all_is_well(blocks: list[dict[str, Any]], contents: Contents) -> None:
    assert audit(blocks, contents) == []


def test_a_copy_that_is_missing(blocks: list[dict[str, Any]], contents: Contents) -> None:
    del contents["b"][key("stacks", "two", "b")]
    assert audit(blocks, contents) == [f"b lacks {key('stacks', 'two', 'b')}"]


def test_a_manifest_that_is_missing(blocks: list[dict[str, Any]], contents: Contents) -> None:
    del contents["a"][manifest("one", "a")]
    assert audit(blocks, contents) == [f"a lacks {manifest('one', 'a')}"]


def test_a_flipped_bit(blocks: list[dict[str, Any]], contents: Contents) -> None:
    contents["b"][key("stacks", "two", "b")] = b"bodi"
    assert audit(blocks, contents) == ["stacks of two has different bytes in a, b"]


def test_a_copy_that_was_cut_short(blocks: list[dict[str, Any]], contents: Contents) -> None:
    for store in "ab":
        contents[store][key("stacks", "two", store)] = b"bod"
    assert audit(blocks, contents) == [
        f"stacks of two has 3 bytes in {store}, not 4" for store in "ab"
    ]


def test_a_block_that_is_not_listed_in_a_store(
    blocks: list[dict[str, Any]], contents: Contents
) -> None:
    for file in blocks[0]["files"]:
        del file["locations"][1]
    found = audit(blocks, contents)
    assert found[:2] == [f"{table} of one is not listed in b" for table in TABLES]
    assert found[2:] == [
        f"b has {name} in vain"
        for name in sorted((manifest("one", "b"), *(key(table, "one", "b") for table in TABLES)))
    ]


@pytest.mark.parametrize("what", ["attempts/v1/1.0/x.2/a-0", "segments/v1/shard=1/s-x.parquet"])
def test_what_is_surplus(blocks: list[dict[str, Any]], contents: Contents, what: str) -> None:
    contents["a"][what] = b""
    assert audit(blocks, contents) == [f"a has {what} in vain"]


def test_a_store_without_a_marker(blocks: list[dict[str, Any]], contents: Contents) -> None:
    del contents["b"]["markers/v1/x"]
    assert audit(blocks, contents) == ["b has no marker"]


def test_a_segment_that_was_never_merged(blocks: list[dict[str, Any]], contents: Contents) -> None:
    blocks[0]["level"] = 0
    assert audit(blocks, contents) == ["one is a segment, and should be merged by now"]
