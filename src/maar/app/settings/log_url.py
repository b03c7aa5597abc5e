"""Where a metastore keeps its log, as an operator writes it: etcd://h1:2379,h2:2379/prefix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from maar.model.errors import InvalidInput

ETCD_PORT = 2379
DEFAULT_PREFIX = "/maar"


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """A prefix in an etcd cluster."""

    endpoints: tuple[str, ...]  # host:port
    prefix: str


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A directory with a SQLite file in it."""

    directory: Path


def place_in(url: str) -> EtcdPlace | FilePlace:
    """InvalidInput when it is neither."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _wrong(url, str(error)) from None
    if parts.query or parts.fragment:
        raise _wrong(url, "it has no parameters: log.user, log.ca_file and the like are settings")
    match parts.scheme:
        case "etcd":
            return _etcd(url, parts.netloc, parts.path)
        case "sqlite":
            path = unquote(parts.path)
            if parts.netloc or not path.strip("/"):
                raise _wrong(url, "a directory is named with three slashes, sqlite:///var/maar/log")
            return FilePlace(Path(path))
        case _:
            raise _wrong(url, "it begins with etcd:// or sqlite:///")


def url_of(place: EtcdPlace | FilePlace) -> str:
    """The URL that names it."""
    match place:
        case EtcdPlace(endpoints, prefix):
            return f"etcd://{','.join(endpoints)}{prefix}"
        case FilePlace(directory):
            return f"sqlite://{quote(str(directory.absolute()))}"


def _etcd(url: str, hosts: str, path: str) -> EtcdPlace:
    if "@" in hosts:
        raise _wrong("etcd://…@…", "user and password are settings of their own: log.user")
    endpoints = tuple(_endpoint(url, host.strip()) for host in hosts.split(","))
    prefix = "/" + path.strip("/")
    return EtcdPlace(tuple(dict.fromkeys(endpoints)), DEFAULT_PREFIX if prefix == "/" else prefix)


def _endpoint(url: str, text: str) -> str:
    """With a port in any case; an IPv6 address stands in brackets."""
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, str(ETCD_PORT)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise _wrong(url, f"{text!r} is not the address of an etcd member")
    if ":" in host and not host.startswith("["):
        raise _wrong(url, f"write an IPv6 address in brackets, not {text!r}")
    return f"{host}:{port}"


def _wrong(url: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"log.url = {url!r} does not say where a log is: {why}. It looks like "
        "etcd://h1:2379,h2:2379,h3:2379/maar; left out, the log is a file in the data directory",
        reason="settings",
    )
