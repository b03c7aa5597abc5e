"""Which replica of the metastore this process is, and who the others are."""

from __future__ import annotations

import socket
from typing import NamedTuple

from maar.app.settings.config import ANY_HOST, Settings, host_and_port
from maar.model.addresses import addresses_in
from maar.model.errors import InvalidInput
from maar.ports.metastore.log import Candidate


class ReplicaPlace(NamedTuple):
    """Where a replica listens, its name in elections, and the addresses of the others."""

    listen: str
    candidate: Candidate
    others: tuple[str, ...]


def replica_place(settings: Settings) -> ReplicaPlace:
    """InvalidInput when the addresses do not say which of the replicas this one is."""
    replicas = addresses_in(settings.roles.metastore)
    listen = settings.metastore.listen or _only(replicas)
    advertised = settings.metastore.advertise or _public_address(listen, replicas)
    if advertised not in replicas:
        raise _wrong(
            f"this replica is reached at {advertised!r}, which roles.metastore = "
            f"{settings.roles.metastore!r} does not name; all replicas must be known by the same "
            "addresses. Correct metastore.advertise, or name it in roles.metastore"
        )
    others = tuple(address for address in replicas if address != advertised)
    name = settings.metastore.name or _name(advertised)
    return ReplicaPlace(listen, Candidate(name, advertised), others)


def _only(replicas: tuple[str, ...]) -> str:
    if len(replicas) != 1:
        raise _wrong(
            f"roles.metastore names {len(replicas)} replicas, and nothing says which of them this "
            "one is; set metastore.listen to its own address"
        )
    return replicas[0]


def _public_address(listen: str, replicas: tuple[str, ...]) -> str:
    """Of one replica, its clients know the address; of several, the others must."""
    if len(replicas) == 1:
        listen = replicas[0]
    if not listen.startswith("unix:") and host_and_port("metastore.listen", listen)[0] in ANY_HOST:
        raise _wrong(
            f"{listen!r} does not say by which name others reach this replica, and they would be "
            "sent to themselves; set metastore.advertise to host:port"
        )
    return listen


def _name(address: str) -> str:
    """The same after every restart: the others know its votes by it."""
    port = "" if address.startswith("unix:") else f":{address.rpartition(':')[2]}"
    return f"{socket.gethostname()}{port}"


def _wrong(sentence: str) -> InvalidInput:
    return InvalidInput(sentence, reason="settings")
