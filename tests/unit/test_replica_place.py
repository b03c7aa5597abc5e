"""Where the log is, and which of the replicas a process is, from its settings."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from maar.app.processes.supervisor import with_sockets
from maar.app.roles.replica import replica_place
from maar.app.roles.wiring import etcd_settings
from maar.app.settings.config import Settings, load
from maar.app.settings.log_url import EtcdPlace, FilePlace, place_in
from maar.model.errors import InvalidInput
from maar.ports.metastore.log import Candidate

THREE = "127.0.0.1:4051,127.0.0.1:4052,127.0.0.1:4053"


def settings(**variables: str) -> Settings:
    return load(file=None, environ={f"MAAR_{name}": value for name, value in variables.items()})


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("etcd://h1:2379,h2:2380/maar", EtcdPlace(("h1:2379", "h2:2380"), "/maar")),
        ("etcd://h1,h2/", EtcdPlace(("h1:2379", "h2:2379"), "/maar")),
        ("etcd://h1,h1:2379", EtcdPlace(("h1:2379",), "/maar")),
        ("etcd://[::1]:9,[fe80::1]/a/b/", EtcdPlace(("[::1]:9", "[fe80::1]:2379"), "/a/b")),
        ("sqlite:///var/lib/my%20log", FilePlace(Path("/var/lib/my log"))),
    ],
)
def test_a_log_is_named_by_a_url(url: str, place: EtcdPlace | FilePlace) -> None:
    assert place_in(url) == place


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("h1:2379", "begins with etcd://"),
        ("http://h1:2379/maar", "begins with etcd://"),
        ("etcd://", "not the address of an etcd member"),
        ("etcd:///maar", "not the address of an etcd member"),
        ("etcd://h1:2379,,h2/maar", "not the address of an etcd member"),
        ("etcd://h1:http/maar", "not the address of an etcd member"),
        ("etcd://h1:0/maar", "not the address of an etcd member"),
        ("etcd://h1:70000/maar", "not the address of an etcd member"),
        ("etcd://::1:2379/maar", "in brackets"),
        ("etcd://[::1/maar", "IPv6"),
        ("etcd://h1/maar?ca=x", "no parameters"),
        ("etcd://me:hush@h1/maar", "settings of their own"),
        ("sqlite://relative/dir", "three slashes"),
        ("sqlite:///", "three slashes"),
    ],
)
def test_what_names_no_log_is_refused_with_a_sentence(url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        settings(LOG__URL=url)
    assert "log.url" in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"LOG__URL": "etcd://h", "LOG__DIR": "/x"}, "both say where"),
        ({"LOG__CERT_FILE": "c", "LOG__CA_FILE": "a"}, "belong together"),
        ({"LOG__KEY_FILE": "k"}, "belong together"),
        ({"LOG__CERT_FILE": "c", "LOG__KEY_FILE": "k"}, "ca_file"),
        ({"LOG__USER": "root"}, "belong together"),
        ({"LOG__PASSWORD": "hush"}, "belong together"),
        ({"LOG__ELECTION_S": "1"}, "log.election_s"),
    ],
)
def test_settings_of_the_log_that_contradict_each_other_are_refused(
    given: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        settings(**given)
    assert "hush" not in str(caught.value)


def test_the_log_gets_all_its_settings() -> None:
    given = settings(
        LOG__URL="etcd://h1,h2/lake",
        LOG__USER="maar",
        LOG__PASSWORD="hush",
        LOG__CA_FILE="/ca",
        LOG__CERT_FILE="/cert",
        LOG__KEY_FILE="/key",
        LOG__ELECTION_S="3",
        LOG__QUOTA_BYTES="99000000",
    )
    place = given.log_place
    assert isinstance(place, EtcdPlace)
    made = etcd_settings(given, place)
    assert made.endpoints == ("h1:2379", "h2:2379")
    assert (made.prefix, made.user, made.password) == ("/lake", "maar", "hush")
    assert (made.ca_file, made.cert_file, made.key_file) == ("/ca", "/cert", "/key")
    assert (made.election_s, made.quota_bytes) == (3.0, 99_000_000)


def test_a_single_metastore_listens_where_it_is_found() -> None:
    place = replica_place(settings().apart())
    assert place.listen == "127.0.0.1:4041"
    assert place.candidate == Candidate(f"{socket.gethostname()}:4041", "127.0.0.1:4041")
    assert place.others == ()


def test_of_several_replicas_each_says_which_it_is() -> None:
    with pytest.raises(InvalidInput, match=r"names 3 replicas.*metastore\.listen"):
        replica_place(settings(ROLES__METASTORE=THREE))
    place = replica_place(settings(ROLES__METASTORE=THREE, METASTORE__LISTEN="127.0.0.1:4052"))
    assert place.candidate.address == "127.0.0.1:4052"
    assert place.others == ("127.0.0.1:4051", "127.0.0.1:4053")


def test_an_address_that_the_others_do_not_know_is_refused() -> None:
    """Else their leader would be nobody whom clients can find, and would wait for no vote of it."""
    with pytest.raises(InvalidInput, match=r"127\.0\.0\.1:4059.*does not name"):
        replica_place(settings(ROLES__METASTORE=THREE, METASTORE__LISTEN="127.0.0.1:4059"))
    place = replica_place(
        settings(
            ROLES__METASTORE=THREE,
            METASTORE__LISTEN="127.0.0.1:4059",
            METASTORE__ADVERTISE="127.0.0.1:4053",
            METASTORE__NAME="third",
        )
    )
    assert place.listen == "127.0.0.1:4059"
    assert place.candidate == Candidate("third", "127.0.0.1:4053")


def test_all_hosts_are_no_address_to_be_reached_by() -> None:
    everywhere = {"METASTORE__LISTEN": "0.0.0.0:4041", "SERVER__ALLOW_REMOTE": "true"}
    with pytest.raises(InvalidInput, match=r"metastore\.advertise"):
        replica_place(settings(**everywhere, ROLES__METASTORE="m1:1,m2:1"))
    with pytest.raises(InvalidInput, match=r"metastore\.advertise"):
        replica_place(settings(**everywhere).apart())
    place = replica_place(settings(**everywhere, ROLES__METASTORE="m1:4041"))
    assert place.candidate.address == "m1:4041"


def test_replicas_elsewhere_are_called_and_may_be_anywhere() -> None:
    assert settings(ROLES__METASTORE="10.0.0.1:4041,10.0.0.2:4041").roles.metastore
    settings(ROLES__METASTORE="10.0.0.1:4041", METASTORE__LISTEN="127.0.0.1:4041")
    with pytest.raises(InvalidInput, match=r"metastore\.listen.*--allow-remote"):
        settings(METASTORE__LISTEN="10.0.0.1:4041")
    for wrong in ({"ROLES__METASTORE": "m1:1,m2"}, {"METASTORE__ADVERTISE": "m2"}):
        with pytest.raises(InvalidInput, match="is not an address"):
            settings(**wrong)


def test_a_server_with_all_roles_finds_its_own_replica(tmp_path: Path) -> None:
    given = with_sockets(settings(METASTORE__LISTEN="127.0.0.1:4051"), tmp_path)
    assert given.roles.metastore == "127.0.0.1:4051"
    assert replica_place(given).listen == "127.0.0.1:4051"
    given = with_sockets(settings(LOG__URL="etcd://h"), tmp_path)
    assert replica_place(given).listen == f"unix:{tmp_path}/metastore.sock"
    assert replica_place(given).candidate.name == socket.gethostname()
