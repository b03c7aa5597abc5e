"""Dead letters lie in the home stores of their writers, and the floor waits for all of those."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from maar.block.format import dead_letter
from maar.metastore.leader.letters.dead_letters import DeadLetters
from maar.metastore.leader.letters.letters_of_stores import LettersOfStores, home_stores
from maar.metastore.state.state import NO_FLOOR
from maar.model.block import BlockMeta
from maar.model.errors import NotFound, Unavailable
from maar.model.ids import StoreName
from maar.ports.stores.stores import Stores
from support.clock.virtual_time import run_virtually
from support.lake.several_stores import SeveralStores
from support.metastore.copies import EU, MAIN, US
from support.metastore.dead_letters import letter_key
from support.metastore.fold import segment


class Homes(SeveralStores):
    """Two zones write, each to a store of its own; the third store holds copies only."""

    def __init__(self) -> None:
        super().__init__()
        self.pass_time(2 * self.state.policy.registration_floor_lag_ns)
        zones = {MAIN: ("home",), EU: ("fra",), US: ()}
        places = tuple(p._replace(zones=zones[p.name]) for p in self.stores.places.places)
        self.stores = Stores(self.stores.places._replace(places=places), self._open)
        self.letters = LettersOfStores(
            self.stores,
            lambda home, shown: DeadLetters(
                *(self, home, self.append, self.metrics, Random(7).randbytes), shown=shown
            ),
        )

    def post(self, number: int, store: StoreName) -> BlockMeta:
        meta = segment(number, at=self.fold.now)
        (file,) = meta.files
        at = msgspec.structs.replace(file.locations[0], store=store)
        files = (msgspec.structs.replace(file, locations=(at,)),)
        meta = msgspec.structs.replace(meta, store=store, files=files)
        self.named[store].create(files[0].locations[0].key, b"x" * files[0].size)
        self.named[store].create(letter_key(meta.id), dead_letter.encode(meta))
        return meta


def test_letters_are_in_home_stores_only() -> None:
    assert home_stores(Homes().stores) == (MAIN, EU)


def test_letters_of_every_home_are_delivered() -> None:
    lake = Homes()
    metas = [lake.post(1, MAIN), lake.post(2, EU)]
    assert len(run_virtually(lake.letters.list_letters(limit=9)).letters) == 2
    run_virtually(lake.letters.drain())
    assert {meta.id for meta in metas} <= lake.fold.live()
    assert lake.letters.floor_max > NO_FLOOR
    assert lake.letters.status().delivered == 2
    assert lake.registry.get_sample_value("maar_metastore_letters_waiting") == 0


def test_the_floor_waits_for_a_home_that_is_away_and_not_for_a_store_of_copies() -> None:
    lake = Homes()
    lake.named[US].cut_off()
    run_virtually(lake.letters.drain())
    assert lake.letters.floor_max > NO_FLOOR
    lake = Homes()
    late = lake.post(2, EU)
    lake.named[EU].cut_off()
    with pytest.raises(Unavailable):
        run_virtually(lake.letters.drain())
    assert lake.letters.floor_max == NO_FLOOR
    assert lake.letters.status().drained_s == -1.0
    lake.named[EU].heal()
    run_virtually(lake.letters.drain())
    assert late.id in lake.fold.live()


def test_a_letter_is_found_in_whichever_home_it_lies() -> None:
    lake = Homes()
    meta = lake.post(2, EU)
    assert run_virtually(lake.letters.one(meta.id)).name == meta.id
    with pytest.raises(NotFound):
        run_virtually(lake.letters.one("f" * 32))
