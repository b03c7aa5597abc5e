"""What a distributor knows of the rings only grows truer."""

from __future__ import annotations

import asyncio

from maar.distributor.rings import FollowedRings
from maar.model.errors import Unavailable
from maar.model.ids import HOME, NodeId, Zone
from maar.model.ring import Ring, Writer, WriterState
from maar.ports.calls import LocalPort
from maar.ports.writer.membership import RingView
from support.clock.virtual_time import until
from support.http.pushed import run


def view(
    zone: Zone = HOME, *, at: int = 1, complete: bool = True, dead: tuple[str, ...] = ()
) -> RingView:
    writer = Writer(NodeId(f"w-{at}"), "here:1", "s", 1, WriterState.ACTIVE)
    return RingView(Ring(zone, at, (writer,), (0,)), tuple(map(NodeId, dead)), complete)


def test_until_a_complete_ring_was_told_there_is_none() -> None:
    rings = FollowedRings(HOME)
    rings.learn(())
    rings.learn((view(complete=False),))
    assert rings.home() is None
    rings.learn((view(),))
    assert rings.home() == view()


def test_an_incomplete_ring_never_replaces_a_complete_one() -> None:
    rings = FollowedRings(HOME)
    rings.learn((view(at=5),))
    rings.learn((view(at=6, complete=False),))
    rings.learn(())
    assert rings.home() == view(at=5)
    rings.learn((view(at=7),))
    assert rings.home() == view(at=7)


def test_news_of_the_dead_are_news() -> None:
    rings = FollowedRings(HOME)
    rings.learn((view(),))
    rings.learn((view(dead=("w-1",)),))
    assert rings.home() == view(dead=("w-1",))


def test_the_same_ring_told_again_is_the_same_value() -> None:
    rings = FollowedRings(HOME)
    rings.learn((view(),))
    known = rings.home()
    rings.learn((view(),))
    assert rings.home() is known


def test_other_zones_come_by_name() -> None:
    rings = FollowedRings(Zone("b"))
    rings.learn(tuple(view(Zone(name)) for name in ("c", "a", "b")))
    assert [one.ring.zone for one in rings.others()] == ["a", "c"]


def test_a_home_ring_is_awaited_while_a_new_leader_listens_for_it() -> None:
    rings = FollowedRings(HOME)
    assert rings.is_awaited()
    rings.learn((view(complete=False), view(Zone("other"))))
    assert rings.is_awaited()
    rings.learn((view(Zone("other")),))  # nobody ever joined at home
    assert not rings.is_awaited()
    rings.learn((view(),))
    rings.learn((view(complete=False),))
    assert not rings.is_awaited()


class Metastore(LocalPort):
    """Answers what is next in the list; the last for ever."""

    def __init__(self, *answers: tuple[RingView, ...] | Unavailable) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def rings(self) -> tuple[RingView, ...]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Unavailable):
            raise answer
        return answer


def followed(metastore: Metastore, *, asked: int, every_s: float = 0.001) -> FollowedRings:
    rings = FollowedRings(HOME)

    async def story() -> None:
        following = asyncio.create_task(rings.follow(metastore, every_s=every_s))
        await until(lambda: metastore.asked >= asked, within_s=60)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run(story())
    return rings


def test_the_last_ring_stays_while_the_metastore_is_away() -> None:
    rings = followed(Metastore((view(at=3),), Unavailable("away")), asked=5)
    assert rings.home() == view(at=3)


def test_following_goes_on_after_the_metastore_was_away() -> None:
    away = Unavailable("away")
    rings = followed(Metastore(away, (view(at=3),), away, (view(at=4),)), asked=6)
    assert rings.home() == view(at=4)


def test_without_anybody_to_push_to_it_asks_more_often() -> None:
    empty = RingView(Ring(HOME, 1, (), ()), (), True)
    followed(Metastore((view(complete=False),), (empty,)), asked=5, every_s=3600)
