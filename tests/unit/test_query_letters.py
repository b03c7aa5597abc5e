"""Dead letters as questions see them, while others ask and the leader delivers."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from maar.model import keys
from maar.query.metrics import Metrics
from maar.query.read.letters import Letters
from support.clock.virtual_time import Gate, run_virtually
from support.metastore.dead_letters import LetterLake, letter_key
from support.metastore.fold import INCARNATION


def test_a_letter_that_goes_while_one_asks_about_another_is_still_read() -> None:
    lake = LetterLake()
    seen = lake.post(1)
    letters = Letters(lake.store, Metrics(CollectorRegistry()))
    looking, delivered = Gate(), Gate()

    def slow(operation: str, _key: str) -> None:
        if operation == "size":
            looking.set()
            delivered.wait()

    async def story() -> None:
        assert await letters.whole(INCARNATION, await letters.waiting(INCARNATION)) == [seen]
        new = lake.post(2)
        found = await letters.waiting(INCARNATION)
        lake.faulty.fault = slow
        asked = asyncio.create_task(letters.whole(INCARNATION, found))  # the view has neither
        await asyncio.to_thread(looking.wait)
        lake.store.delete(letter_key(seen.id))  # the leader has delivered it,
        await letters.waiting(INCARNATION)  # and somebody else asks
        delivered.set()
        assert await asked == [seen, new]

    run_virtually(story())
    letters.close()


def test_what_has_a_name_that_no_key_has_breaks_no_question() -> None:
    lake = LetterLake()
    good = lake.post(1)
    name = f"{keys.dead_letters(INCARNATION)}a\\b"  # a file system takes it
    lake.faulty.smuggle(name, b"whatever")
    letters = Letters(lake.store, Metrics(CollectorRegistry()))
    assert run_virtually(letters.waiting(INCARNATION)) == [good]
    letters.close()
