"""What the log in etcd decides without etcd: tenure, room, releases, pages, stored values."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.adapters.etcd.connection import error_of
from maar.adapters.etcd.reading import KEYS_MAX, PageSize
from maar.adapters.etcd.room import MemberStatus, room, version_refusal, worth_tidying
from maar.adapters.etcd.tenure import Tenure
from maar.adapters.etcd.values import EntryBatch, Keys, Mark, batches, pack, unpack
from maar.model.errors import Corrupt, Rejected, Unavailable
from maar.ports.metastore.log import EMPTY, Head, Term, follow

SECOND = 1_000_000_000
QUOTA = 1 << 30
MIB = 1 << 20


def tenure(*, ttl_s: int = 5) -> Tenure:
    return Tenure(Term(3), 77, 12, ttl_s * SECOND, sent_ns=100 * SECOND, held_ns=100 * SECOND)


def test_leadership_lasts_for_the_lease_that_was_asked_for() -> None:
    leader_term = tenure()
    assert not leader_term.is_lost(105 * SECOND - 1)
    assert leader_term.is_lost(105 * SECOND)


def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    leader_term = tenure()
    leader_term.note_renewal(sent_ns=102 * SECOND)
    assert not leader_term.is_lost(107 * SECOND - 1)
    assert leader_term.is_lost(107 * SECOND)


def test_a_term_that_was_lost_does_not_come_back() -> None:
    leader_term = tenure()
    assert leader_term.is_lost(110 * SECOND)  # it slept
    leader_term.note_renewal(sent_ns=111 * SECOND)
    assert leader_term.is_lost(111 * SECOND)


def test_a_late_answer_does_not_shorten_the_term() -> None:
    leader_term = tenure()
    leader_term.note_renewal(sent_ns=103 * SECOND)
    leader_term.note_renewal(sent_ns=101 * SECOND)
    assert not leader_term.is_lost(107 * SECOND)


def test_leadership_is_renewed_only_while_the_loop_makes_progress() -> None:
    leader_term = tenure()
    leader_term.note_held(102 * SECOND)
    assert leader_term.due(103 * SECOND)
    assert not leader_term.due(104 * SECOND)  # silent for two seconds
    leader_term.note_held(104 * SECOND)
    assert leader_term.due(104 * SECOND)


def test_renewals_come_a_few_times_in_the_life_of_a_lease() -> None:
    leader_term = tenure(ttl_s=8)
    leader_term.note_held(101 * SECOND)
    assert not leader_term.due(101 * SECOND)
    leader_term.note_held(102 * SECOND)
    assert leader_term.due(102 * SECOND)
    leader_term.note_renewal(sent_ns=102 * SECOND)
    assert not leader_term.due(102 * SECOND)


def status(
    size: int = 0, in_use: int = 0, version: str = "3.4.23", endpoint: str = "m0:2379"
) -> MemberStatus:
    return MemberStatus(endpoint, version, size, in_use)


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.2", "3.5.1-rc.1"])
def test_releases_that_lose_entries_are_refused_by_name(version: str) -> None:
    refusal = version_refusal(status(version=version))
    assert version in refusal
    assert "m0:2379" in refusal
    assert "3.5.3" in refusal


@pytest.mark.parametrize("version", ["3.4.23", "3.4.0", "3.5.3", "3.5.21", "3.6.0", "3.15.1", "?"])
def test_other_releases_are_not(version: str) -> None:
    assert not version_refusal(status(version=version))


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", Unavailable),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "etcdserver: revision of auth store is old",
            Unavailable,
        ),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            Rejected,
        ),
    ],
)
def test_a_token_that_has_aged_is_no_wrong_password(
    code: grpc.StatusCode, said: str, kind: type[Exception]
) -> None:
    """The one passes by itself; the other needs an operator, and stops the replica."""
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=said)
    assert isinstance(error_of(error, "here", "maar"), kind)


def test_there_is_room_until_most_of_the_quota_is_in_use() -> None:
    least = [status(size=QUOTA // 2, in_use=QUOTA // 2)]
    full = [*least, status(size=900 * MIB, in_use=820 * MIB)]  # one member is enough
    assert room(least, quota=QUOTA, alarm=False).refusal == ""
    found = room(full, quota=QUOTA, alarm=False)
    assert str(820 * MIB) in found.refusal
    assert found.reserve_refusal == ""


def test_what_was_written_since_the_last_look_counts() -> None:
    at = [status(size=500 * MIB, in_use=500 * MIB)]
    assert room(at, quota=QUOTA, alarm=False, wrote=200 * MIB).refusal == ""
    assert room(at, quota=QUOTA, alarm=False, wrote=400 * MIB).refusal
    hollow = [status(size=900 * MIB, in_use=100 * MIB)]
    assert room(hollow, quota=QUOTA, alarm=False, wrote=100 * MIB).refusal


def test_the_reserve_ends_before_the_quota() -> None:
    full = [status(size=930 * MIB, in_use=925 * MIB)]
    assert room(full, quota=QUOTA, alarm=False).reserve_refusal


def test_appends_come_back_when_there_is_clearly_room() -> None:
    nearly = [status(size=900 * MIB, in_use=800 * MIB)]
    assert room(nearly, quota=QUOTA, alarm=False).refusal == ""
    assert room(nearly, quota=QUOTA, alarm=False, refused=True).refusal
    less = [status(size=900 * MIB, in_use=760 * MIB)]
    assert room(less, quota=QUOTA, alarm=False, refused=True).refusal == ""


def test_an_alarm_or_a_full_file_refuses_everything() -> None:
    empty = [status(size=MIB, in_use=MIB)]
    assert room(empty, quota=QUOTA, alarm=True).reserve_refusal
    hollow = [status(size=1000 * MIB, in_use=MIB)]  # etcd counts free pages too
    assert room(hollow, quota=QUOTA, alarm=False).reserve_refusal


def test_a_file_is_tidied_when_it_is_hollow_or_near_the_quota() -> None:
    def worth(size: int, in_use: int) -> bool:
        return worth_tidying(status(size=size * MIB, in_use=in_use * MIB), quota=QUOTA)

    assert worth(100, 30)
    assert not worth(100, 60)
    assert not worth(30, 1)  # too small to bother
    assert worth(800, 500)
    assert not worth(800, 700)
    unsure = status(size=800 * MIB, in_use=790 * MIB)
    assert worth_tidying(unsure, quota=QUOTA, blindly=True)
    assert not worth_tidying(status(size=MIB, in_use=MIB), quota=QUOTA, blindly=True)


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(1, 4096)), max_size=20))
def test_pages_have_bounded_keys_and_reach_the_next_batch(
    seen: list[tuple[int, int]],
) -> None:
    class Kv:
        def __init__(self, size: int) -> None:
            self.value = b"x" * min(size, 100)

    pace = PageSize()
    for size, entries in seen:
        keys, reach = pace.ask(1 << 20)
        assert 1 <= keys <= KEYS_MAX
        assert reach >= keys
        pace.learn([Kv(size)] * 3, entries * 3)
    before, _ = pace.ask(1 << 20)
    if pace.shrink():
        assert pace.ask(1 << 20)[0] < before
    while pace.shrink():
        pass
    assert pace.ask(1)[0] <= 2


@given(st.integers(0, 1 << 62), st.binary(min_size=32, max_size=32), st.data())
def test_a_flipped_bit_in_a_value_is_noticed(index: int, hash_: bytes, data: st.DataObject) -> None:
    stored = bytearray(pack(Mark(index, hash_)))
    assert unpack(bytes(stored), Mark, key=b"/k/head") == Mark(index, hash_)
    at = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[at // 8] ^= 1 << at % 8
    with pytest.raises(Corrupt, match="/k/head"):
        unpack(bytes(stored), Mark, key=b"/k/head")


@given(st.lists(st.tuples(st.integers(1, 4), st.binary(max_size=20)), min_size=1, max_size=30))
def test_records_of_any_terms_come_back_from_their_batches(
    entries: list[tuple[int, bytes]],
) -> None:
    at, records = EMPTY, []
    for term, body in sorted(entries, key=lambda entry: entry[0]):
        records += follow(at, [body], Term(term))
        at = Head(records[-1].index, records[-1].hash)
    back = [
        record
        for first, batch in batches(EMPTY, records)
        for record in unpack(pack(batch), EntryBatch, key=b"").records(first)
    ]
    assert back == records


def test_a_batch_whose_entries_do_not_follow_is_corrupt() -> None:
    ((first, batch),) = batches(EMPTY, follow(EMPTY, [b"a", b"b"], Term(1)))
    for wrong in (
        EntryBatch(2, batch.before, batch.hash, batch.bodies),
        EntryBatch(1, b"\1" * 32, batch.hash, batch.bodies),
        EntryBatch(1, batch.before, batch.hash, [b"a"]),
        EntryBatch(1, batch.before, batch.hash, []),
    ):
        with pytest.raises(Corrupt):
            wrong.records(first)
    with pytest.raises(Corrupt):
        batch.records(first + 1)


def test_keys_sort_as_their_indexes_do() -> None:
    keys = Keys("/maar/")
    made = [keys.batch(index) for index in (1, 9, 10, 99, 1_000_000, 1 << 60)]
    assert made == sorted(made)
    assert [Keys.first_of(key) for key in made][-1] == 1 << 60
    assert keys.head == b"/maar/head"
    with pytest.raises(Corrupt):
        Keys.first_of(b"/maar/log/x")
