"""A dead letter of version 1 is read as it was meant, for ever."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from maar.block.format import dead_letter
from maar.model.errors import Corrupt
from maar.model.ids import MAIN_STORE, StoreName
from support.metastore.dead_letters import letter_key
from support.metastore.fold import INCARNATION, segment

GOLDEN = Path(__file__).parent / "golden" / "dead-letter-v1.msgpack"
META = msgspec.structs.replace(segment(7, at=1_000_000_000), dated_ns=0)  # as it was then


def test_the_golden_letter_reads_as_its_segment() -> None:
    key = letter_key(META.id)
    found = dead_letter.decode(GOLDEN.read_bytes(), key=key)
    assert found == META
    name = key.rpartition("/")[2]
    checked = partial(dead_letter.check, found, key=key, name=name, incarnation=INCARNATION)
    assert checked(store=MAIN_STORE) == META
    with pytest.raises(Corrupt, match="does not name the one object"):
        checked(store=StoreName("elsewhere"))


def test_letters_are_still_written_so_with_new_fields_at_the_end() -> None:
    def fields(letter: bytes) -> list[object]:
        version, _, body = msgspec.msgpack.decode(letter)
        found: list[object] = msgspec.msgpack.decode(body)
        return [version, *found]

    old, new = fields(GOLDEN.read_bytes()), fields(dead_letter.encode(META))
    assert new[: len(old)] == old
    assert new[len(old) :] == [META.zone, META.dated_ns, META.since]


@pytest.mark.parametrize("at", range(0, len(GOLDEN.read_bytes()), 7))
def test_no_damage_goes_unnoticed(at: int) -> None:
    """Whatever bit is flipped: Corrupt, and never another error or another segment."""
    body = bytearray(GOLDEN.read_bytes())
    body[at] ^= 1 << at % 8
    with pytest.raises(Corrupt):
        dead_letter.decode(bytes(body), key="a key")


@pytest.mark.parametrize("length", [0, 1, 5, 30, 100])
def test_a_letter_that_was_cut_short_is_corrupt(length: int) -> None:
    with pytest.raises(Corrupt):
        dead_letter.decode(GOLDEN.read_bytes()[:length], key="a key")
