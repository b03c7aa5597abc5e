"""Objects that are missing, damaged or another tenant's: an error, never half an answer."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from maar.adapters.stores.open import open_store
from maar.api.admin.admin import Admin
from maar.api.app import admin_routes
from maar.api.guard import RequestGuard
from maar.api.settings import ApiSettings
from maar.model.errors import (
    Corrupt,
    Damaged,
    NotFound,
    Unavailable,
)
from maar.model.ids import (
    TenantId,
)
from maar.ports.calls import Caller
from maar.ports.metastore.metastore import Metastore
from maar.ports.reader.index import IndexView, ViewRequest
from maar.ports.reader.query import DrawFlameGraph, GetProfile, Matcher, Scope
from maar.ports.stores.object_store import ObjectStore
from maar.pprof.gzip import gunzip
from support.http.front import no_causes
from support.lake.asking import (
    ALWAYS,
    ODD,
    START,
    Asker,
    ask,
    lake,
    service,
    some_profiles,
    spread,
    stacks_of,
    store,
)
from support.lake.query_lake import (
    CPU,
    TENANT,
    Known,
    Lake,
    by_stack,
    known_profile,
    rows,
)
from support.oracles.pprof_reader import canonical
from support.stores.s3_server import S3Server

__all__ = ["ask", "lake", "store"]

pytestmark = pytest.mark.component


class Retiring(Lake):
    """An index whose first view is older than the deletion of what it lists."""

    async def view(self, request: ViewRequest) -> IndexView:
        answer = await super().view(request)
        if len(self.asked) == 1:
            replaced = self.blocks.pop(0)
            for file in replaced.files:
                self.store.delete(file.locations[0].key)
        return answer


@pytest.mark.parametrize("kind", ["block", "segment"])
def test_a_view_that_lost_its_objects_is_renewed_once(store: ObjectStore, kind: str) -> None:
    lake = Retiring(store)
    profiles = some_profiles(Random(4), 5)
    if kind == "block":
        lake.add_block(profiles)
    else:
        lake.add_segment(profiles)
    lake.add_block(profiles, level=2)
    ask = Asker(lake)
    assert ask.stacks() == by_stack(rows(profiles, time=ALWAYS))
    assert len(lake.asked) == 2
    ask.engine.close()


@pytest.mark.parametrize("table", ["samples", "stacks", "profiles"])
def test_a_missing_object_is_an_error_and_never_skipped(lake: Lake, ask: Asker, table: str) -> None:
    lake.add_block(some_profiles(Random(5), 5))
    meta = lake.add_block(some_profiles(Random(6), 5))
    key = meta.file(table).locations[0].key
    lake.store.delete(key)
    with pytest.raises(Damaged, match=f"object {key} of block {meta.id} is missing") as error:
        ask.stacks(time=ODD)
    assert f"maar blocks lose {meta.id}" in str(error.value)
    assert error.value.blocks == ((meta.id, meta.min_time_ns, meta.max_time_ns),)


@pytest.mark.parametrize("table", ["samples", "stacks", "profiles"])
def test_a_damaged_object_is_an_error(lake: Lake, ask: Asker, table: str) -> None:
    lake.add_block(some_profiles(Random(5), 5))
    meta = lake.add_block(some_profiles(Random(6), 5))
    key = meta.file(table).locations[0].key
    path = lake.store.local_path(key)
    assert path is not None
    path.write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")
    with pytest.raises(Damaged, match=f"object {key} of block {meta.id} has 108 bytes"):
        ask.stacks(time=ODD)


@pytest.mark.parametrize("kind", ["block", "segment"])
def test_an_object_with_damage_within_is_named(lake: Lake, ask: Asker, kind: str) -> None:
    """Its size is right, and so is its footer: only its checksum tells."""
    add = lake.add_block if kind == "block" else lake.add_segment
    add(some_profiles(Random(5), 50))
    meta = add(some_profiles(Random(6), 50))
    key = meta.files[0].locations[0].key
    path = lake.store.local_path(key)
    assert path is not None
    body = path.read_bytes()
    path.write_bytes(b"PAR1" + b"\xff" * (len(body) // 3) + body[4 + len(body) // 3 :])
    with pytest.raises(Damaged, match=f"object {key} of block {meta.id} has other bytes"):
        ask.stacks()


@pytest.mark.parametrize("place", ["segment", "block", "quarantine"])
def test_over_http_too_a_profile_is_only_its_own_tenants(
    lake: Lake, ask: Asker, place: str
) -> None:
    other = TenantId("other")
    (mine,) = some_profiles(Random(2), 1)
    (theirs,) = some_profiles(Random(3), 1, tenant=other)
    if place == "segment":
        lake.add_segment([mine, theirs])
    for each in (mine, theirs):
        if place == "block":
            lake.add_block([each])
        elif place == "quarantine":
            lake.add_quarantine([each.raw])
    app = Starlette(
        routes=admin_routes(
            RequestGuard(ApiSettings(), CollectorRegistry()),
            Admin(cast(Caller[Metastore], lake), ask.engine, lambda: ALWAYS, no_causes, list, list),
        )
    )

    async def status(tenant: TenantId, profile: Known) -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://maar") as client:
            path = f"/api/v1/profiles/{profile.raw.id.hex()}"
            return (await client.get(path, headers={"X-Scope-OrgID": tenant})).status_code

    assert ask.run(status(TENANT, mine)) == ask.run(status(other, theirs)) == 200
    assert ask.run(status(other, mine)) == ask.run(status(TENANT, theirs)) == 404


def test_what_is_left_can_be_asked_for_without_the_damaged_block(lake: Lake, ask: Asker) -> None:
    kept, lost = some_profiles(Random(5), 5), some_profiles(Random(6), 5)
    lake.add_block(kept)
    meta = lake.add_block(lost)
    lake.store.delete(meta.file("samples").locations[0].key)
    scope = Scope(TENANT, ALWAYS, without=(meta.id,))
    graph = ask.run(ask.engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=1_000_000)))
    assert stacks_of(graph) == by_stack(rows(kept, time=ALWAYS))


@pytest.mark.parametrize("place", ["segment", "block", "quarantine"])
def test_nobody_gets_a_profile_of_another_tenant_wherever_it_is(
    lake: Lake, ask: Asker, place: str
) -> None:
    """The lake's index shows every block to everybody: the engine itself must tell them apart."""
    other = TenantId("other")
    (mine,) = some_profiles(Random(2), 1)
    (theirs,) = some_profiles(Random(3), 1, tenant=other)
    if place == "segment":
        lake.add_segment([mine, theirs])
    for each in (mine, theirs):
        if place == "block":
            lake.add_block([each])
        elif place == "quarantine":
            lake.add_quarantine([each.raw])
    for owner, stranger, each in ((TENANT, other, mine), (other, TENANT, theirs)):
        assert ask.run(ask.engine.call(GetProfile(owner, each.raw.id, ALWAYS)))
        with pytest.raises(NotFound):
            ask.run(ask.engine.call(GetProfile(stranger, each.raw.id, ALWAYS)))


class Away:
    """A store over the network that no longer answers."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def local_path(self, _key: str) -> Path | None:
        return None

    def open(self, key: str) -> Any:
        raise Unavailable(f"the object store could not serve {key}")


@pytest.mark.parametrize("kind", ["block", "segment"])
def test_a_store_that_does_not_answer_is_away_and_not_broken(store: ObjectStore, kind: str) -> None:
    lake = Lake(cast(ObjectStore, Away(store)))
    getattr(lake, f"add_{kind}")(some_profiles(Random(5), 5))
    ask = Asker(lake)
    with pytest.raises(Unavailable, match="could not serve"):
        ask.stacks()
    ask.engine.close()


def test_samples_whose_stack_is_missing_are_an_error(lake: Lake, ask: Asker) -> None:
    first = lake.add_block([known_profile([(("a",), {}, (1, 1))], time_ns=START)])
    second = lake.add_block([known_profile([(("b",), {}, (1, 1))], time_ns=START)])
    paths = [lake.store.local_path(m.file("stacks").locations[0].key) for m in (first, second)]
    assert paths[0] is not None
    assert paths[1] is not None
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(Corrupt, match="missing"):
        ask.stacks()


def test_the_same_answers_come_from_s3(s3_server: S3Server, store: ObjectStore) -> None:
    random = Random(7)
    profiles = some_profiles(random, 24, region="eu")
    remote, local = Lake(open_store(s3_server.bucket())), Lake(store)
    for each in (remote, local):
        spread(each, Random(8), profiles)
    far, near = Asker(remote), Asker(local)
    assert far.stacks(service("checkout")) == near.stacks(service("checkout"))
    assert far.stacks(Matcher("region", "=~", "e.*")) == by_stack(rows(profiles, time=ALWAYS))
    compacted = remote.blocks[0]
    got = far.run(far.engine.call(GetProfile(TENANT, profiles[0].raw.id, ALWAYS)))
    assert canonical(gunzip(got, limit=1 << 20)).samples
    remote.store.delete(compacted.file("samples").locations[0].key)
    assert far.stacks() == near.stacks()  # what it has kept of an object is as good as the object
    fresh = Asker(remote)
    with pytest.raises(Corrupt, match="missing"):
        fresh.stacks()
    for asker in (far, near, fresh):
        asker.engine.close()
