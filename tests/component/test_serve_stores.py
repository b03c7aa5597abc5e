"""The whole pipeline with two S3 servers as stores: copies are made, read instead, and healed."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from maar.adapters.stores.open import open_store
from maar.ports.stores.object_store import StoreSettings
from support.load.crowd import profile
from support.network.cut import lines
from support.oracles.pprof_reader import canonical
from support.processes.serving import Served, run_server, wait_for
from support.stores import s3_server

pytestmark = [pytest.mark.component, pytest.mark.long(55), pytest.mark.timeout(300)]


def table(store: StoreSettings, endpoint: str) -> str:
    options = dict(store.options) | {"endpoint": endpoint}
    fields = "".join(f'{name} = "{value}"\n' for name, value in options.items())
    return f'[[stores]]\nname = "{store.name}"\nurl = "{store.url}"\nallow_http = true\n{fields}\n'


def test_two_stores_hold_every_block_and_one_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server.apart() as one, s3_server.apart() as other, lines() as network:
        line = network.open(other.endpoint.removeprefix("http://"))
        near, far = one.bucket(name="near"), other.bucket(name="far")
        settings = tmp_path / "maar.toml"
        settings.write_text(
            table(near, one.endpoint)
            + table(far, f"http://{line.address}")
            + '[tenant_defaults]\nstores = ["near", "far"]\n'
        )
        monkeypatch.setenv("MAAR_CONFIG", str(settings))
        with run_server(tmp_path, "compaction.level_ages_s=2,600,600", "spark.slots=1") as server:
            pushed = profile(time_ns=server.get("/api/v1/status")["wall_time_ns"])
            file = tmp_path / "p.pb"
            file.write_bytes(pushed)
            said = server.cli("push", str(file), "--service", "checkout")
            assert said.returncode == 0, said.stderr
            identity = said.stdout.strip()

            def check() -> None:
                back = tmp_path / "back.pb.gz"
                assert server.cli("get", identity, "-o", str(back)).returncode == 0
                assert canonical(gzip.decompress(back.read_bytes())) == canonical(pushed)

            wait_for(lambda: whole(server), 120, server.log)
            check()
            line.cut()
            check()
            line.heal()
            (block,) = server.get("/api/v1/blocks")["blocks"]
            at_home = [f["locations"][0] for f in block["files"]]
            assert {at["store"] for at in at_home} == {"near"}
            opened = open_store(near._replace(options=(*near.options, ("allow_http", "true"))))
            for at in at_home:
                opened.delete(at["key"])
            check()
            wait_for(lambda: healed(server, at_home[0]["key"]), 120, server.log)
            check()


def whole(server: Served) -> bool:
    stores = server.get("/api/v1/stores")["stores"]
    return [each["blocks"] for each in stores] == [1, 1]


def healed(server: Served, former: str) -> bool:
    (block,) = server.get("/api/v1/blocks")["blocks"]
    now: dict[str, Any] = {at["store"]: at["key"] for at in block["files"][0]["locations"]}
    return now.keys() == {"near", "far"} and now["near"] != former
