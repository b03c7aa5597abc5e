"""Several stores in the settings: how they are written, found and refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from maar.app.settings.config import Settings, load
from maar.app.settings.layers import Key
from maar.app.settings.tenants import Tenants
from maar.model.errors import InvalidInput
from maar.model.ids import StoreName, TenantId, Zone
from maar.model.stores import StoreSpec, TenantStores

EU, US = StoreName("eu"), StoreName("us")
TWO = """
[[stores]]
name = "eu"
url = "file:///lake/eu"
region = "europe"
zones = ["fra", "ams"]

[[stores]]
name = "us"
url = "s3://lake/us"
region = "us-east-1"
zones = ["iad"]
endpoint = "https://s3.example.com"

[ring]
zone = "fra"
"""


def loaded(tmp_path: Path, text: str, **variables: str) -> Settings:
    file = tmp_path / "maar.toml"
    file.write_text(text)
    return load(file=file, environ=variables)


def test_stores_are_tables_with_names_in_their_order(tmp_path: Path) -> None:
    settings = loaded(tmp_path, TWO, MAAR_STORES__US__SECRET_ACCESS_KEY="hush")
    eu, us = settings.store_places().places
    assert (eu.name, eu.settings.url, eu.region, eu.zones) == (
        "eu",
        "file:///lake/eu",
        "europe",
        ("fra", "ams"),
    )
    assert eu.settings.options == (), "the region of a directory is nothing that opens it"
    assert dict(us.settings.options) == {
        "endpoint": "https://s3.example.com",
        "region": "us-east-1",
        "secret_access_key": "hush",
    }
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_a_flag_sets_what_is_in_one_of_the_tables(tmp_path: Path) -> None:
    file = tmp_path / "maar.toml"
    file.write_text(TWO)
    flags = {"--set stores.us.url": (Key("stores", "us.url"), "s3://other")}
    settings = load(file=file, environ={}, flags=flags)
    assert [each.url for each in settings.stores] == ["file:///lake/eu", "s3://other"]


def test_a_zone_writes_to_the_store_that_names_it(tmp_path: Path) -> None:
    assert loaded(tmp_path, TWO).store_settings().name == "eu"
    assert loaded(tmp_path, TWO, MAAR_RING__ZONE="iad").store_settings().name == "us"


def test_without_zones_the_first_store_is_home_to_all(tmp_path: Path) -> None:
    text = '[[stores]]\nname = "b"\nurl = "file:///b"\n[[stores]]\nname = "a"\nurl = "file:///a"\n'
    assert loaded(tmp_path, text).store_settings().name == "b"


def test_one_store_needs_no_list() -> None:
    (only,) = Settings().store_places().places
    assert only.name == "main"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[store]\nurl = "file:///x"\n' + TWO, r"both \[store\] \(or --store\) and \[\[stores\]\]"),
        (TWO.replace('"us"', '"eu"', 1), "two stores in .* are both named 'eu'"),
        (TWO.replace('name = "eu"', 'name = "E.U"'), "small letters, digits"),
        (TWO.replace('"iad"', '"ams"'), "zone 'ams' has two home stores, eu and us"),
        (TWO.replace('zone = "fra"', 'zone = "lhr"'), "ring.zone = 'lhr' has no home store"),
        (TWO.replace("file:///lake/eu", "lake/eu"), "stores.eu.url = 'lake/eu' must be like"),
        (TWO.replace("endpoint", "endpont"), "did you mean stores.us.endp"),
        (TWO + '[tenant_defaults]\nstores = ["eu", "asia"]\n', "'asia', and there are: eu, us"),
        ('stores = ["a"]\n', r"must be tables, like \[\[stores\]\]"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ('url = "file:///lake/x"', 'url = "file:///lake/../lake/x/"', "are the same place"),
        ('url = "file:///lake/%78"', 'url = "file:///lake/x"', "are the same place"),
        ('url = "file:///lake"', 'url = "file:///lake/x"', "one lies within the other"),
        ('url = "s3://b/x"', 'url = "s3://b/x/"', "are the same place"),
        (
            'url = "s3://b/x"\nendpoint = "http://S3.example:80"',
            'url = "s3://b/x"\nendpoint = "http://s3.example/"',
            "are the same place",
        ),
        ('url = "s3://b"', 'url = "s3://b/x"', "one lies within the other"),
    ],
)
def test_two_names_for_one_place_are_refused(
    tmp_path: Path, one: str, other: str, said: str
) -> None:
    text = f'[[stores]]\nname = "a"\n{one}\n[[stores]]\nname = "b"\n{other}\n'
    with pytest.raises(InvalidInput, match=said):
        loaded(tmp_path, text)


def test_a_link_to_a_directory_is_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    text = "".join(
        f'[[stores]]\nname = "{name}"\nurl = "{(tmp_path / name).as_uri()}"\n'
        for name in ("real", "link")
    )
    with pytest.raises(InvalidInput, match="are the same place"):
        loaded(tmp_path, text)


def test_prefixes_that_only_begin_alike_are_apart(tmp_path: Path) -> None:
    text = '[[stores]]\nname = "a"\nurl = "s3://b/x"\n[[stores]]\nname = "b"\nurl = "s3://b/xy"\n'
    assert len(loaded(tmp_path, text).stores) == 2


def test_a_tenant_names_its_stores_in_the_tenants_file(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[acme]\nstores = ["eu", "us"]\n[other]\nrate_bytes = 7\n')
    text = f'{TWO}[tenant_defaults]\nstores = ["us"]\n'
    known = Tenants(loaded(tmp_path, text, MAAR_TENANTS__FILE=str(tenants))).stores()
    assert known.tenants == (TenantStores(TenantId("acme"), (EU, US)),)
    assert known.default == (US,)
    assert known.stores == (
        StoreSpec(EU, "europe", (Zone("fra"), Zone("ams"))),
        StoreSpec(US, "us-east-1", (Zone("iad"),)),
    )
    assert known.problem() == ""
    tenants.write_text('[acme]\nstores = ["asia"]\n')
    with pytest.raises(InvalidInput, match=r"stores of \[acme\] in .* names the store 'asia'"):
        Tenants(loaded(tmp_path, TWO, MAAR_TENANTS__FILE=str(tenants)))
    tenants.write_text('[acme]\nstores = "eu"\n')
    with pytest.raises(InvalidInput, match="must be a list"):
        Tenants(loaded(tmp_path, TWO, MAAR_TENANTS__FILE=str(tenants)))
