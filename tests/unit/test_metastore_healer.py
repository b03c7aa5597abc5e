"""A copy that readers found bad ends after the leader's own look, and only beside a whole one."""

from __future__ import annotations

import msgspec

from maar.block.format import checksum
from maar.metastore.leader.damage_reports import DamageReports
from maar.metastore.leader.healer import Healer
from maar.model.block import BlockMeta
from maar.model.ids import FencingToken, PlanId, StoreName
from maar.model.stores import keys_at, lacking, stores_of
from maar.model.trouble import Trouble
from support.clock.virtual_time import run_virtually
from support.lake.several_stores import SeveralStores
from support.metastore.copies import EU, MAIN, want


class Healed(SeveralStores):
    """A block in two stores, with real checksums."""

    def __init__(self) -> None:
        super().__init__()
        want(self.fold, EU)
        self.reports = DamageReports()
        self.healer = Healer(self, self.stores, self.reports, self.append)
        made = self.block(1)
        self.copy(made.id, EU)
        self.meta = self.now_of(made.id)

    def make_output(self, plan: PlanId, token: FencingToken, attempt: str = "a1") -> BlockMeta:
        made = super().make_output(plan, token, attempt)
        size = made.files[0].size
        right = checksum.of_bytes(b"x" * size)
        files = (msgspec.structs.replace(f, size=size, checksum=right) for f in made.files)
        return msgspec.structs.replace(made, files=tuple(files))

    def damage(self, store: StoreName, file: int = 1) -> str:
        key = keys_at(self.meta, store)[file]
        body = self.named[store].read(key)
        self.named[store].smuggle(key, b"y" * len(body))
        return key

    def report(self, store: StoreName, key: str) -> None:
        told = Trouble(self.meta.id, store, key, "damaged", "it cannot be read", True)
        self.reports.hear(self.state, [told])

    def step(self) -> tuple[StoreName, ...]:
        """The stores that hold the block afterwards."""
        run_virtually(self.healer.step())
        return stores_of(self.now_of(self.meta.id))


def test_a_bad_copy_ends_and_repair_has_something_to_do() -> None:
    for store, rest in ((EU, MAIN), (MAIN, EU)):
        lake = Healed()
        lake.report(store, lake.damage(store))
        assert lake.step() == (rest,)
        assert lacking(lake.now_of(lake.meta.id), lake.state.stores) == (store,)
        assert lake.reports.bad(lake.state) == []


def test_a_reader_that_was_wrong_changes_nothing() -> None:
    lake = Healed()
    lake.report(EU, keys_at(lake.meta, EU)[0])
    assert lake.step() == (EU, MAIN)
    assert lake.reports.bad(lake.state) == []


def test_while_no_other_copy_is_whole_or_within_reach_the_bad_one_stays() -> None:
    lake = Healed()
    lake.report(EU, lake.damage(EU))
    whole = lake.damage(MAIN)
    assert lake.step() == (EU, MAIN)
    lake.named[MAIN].smuggle(whole, b"x" * lake.meta.files[0].size)
    lake.named[MAIN].cut_off()
    assert lake.step() == (EU, MAIN)
    lake.named[MAIN].fault = lambda *_: None
    assert lake.step() == (MAIN,)


def test_nothing_is_believed_of_a_store_that_is_away() -> None:
    lake = Healed()
    lake.report(EU, lake.damage(EU))
    lake.named[EU].cut_off()
    assert lake.step() == (EU, MAIN)
    assert len(lake.reports.bad(lake.state)) == 1
