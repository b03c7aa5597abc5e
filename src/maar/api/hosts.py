"""Which names a request may call us by, and which pages may make it. Decisions only.

A browser sends whatever a page tells it to, to any address; and when a name of the page's own leads
to our address (DNS rebinding), the page also reads the answers. The browser says both names: ours,
as it knows it, in `Host`, and the page's in `Origin`. An address in `Host` is no name that somebody
else could turn on us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec

ANY = "*"
READING = ("GET", "HEAD", "OPTIONS")
_NAME_LENGTH_MAX = 255


class Hosts(msgspec.Struct, frozen=True):
    """The names of one listener, without ports and in lower case."""

    allowed: frozenset[str] = frozenset()  # by whoever runs it; `*` is any
    own: frozenset[str] = frozenset()  # its address, its machine's name
    loopback: bool = True  # it is reached from its own machine only

    def take(self, name: str) -> bool:
        if ANY in self.allowed or name in self.allowed or name in self.own or is_loopback(name):
            return True
        return not self.loopback and _address(name) is not None


def hosts_of(listen: str, allowed: Iterable[str], *, own_name: str) -> Hosts:
    """What a listener at the host `listen` is called; `own_name` is the machine's."""
    trusted = frozenset(_bare(name) for name in allowed)
    if is_loopback(_bare(listen)):
        return Hosts(trusted)
    return Hosts(trusted, frozenset((_bare(listen), _bare(own_name))), loopback=False)


def refusal(hosts: Hosts, method: str, authorities: Sequence[str], origins: Sequence[str]) -> str:
    """Why a request must not be answered, or ''. `authorities` are its `Host` or `:authority`.

    One without a `Host` comes from no browser.
    """
    for authority in authorities:
        name = host_name(authority)
        if name is None or not hosts.take(name):
            return (
                f"this server does not answer to the name {authority[:100]!r}; if it is one of its "
                "names, add it to the setting server.allowed_hosts"
            )
    if method in READING:
        return ""
    for origin in origins:
        if not _is_ours(hosts, origin, authorities):
            return (
                f"a page of {origin[:100]!r} may not send this; if it is one of this server's own "
                "addresses, add its name to the setting server.allowed_hosts"
            )
    return ""


def host_name(authority: str) -> str | None:
    """`host:port` without the port, in lower case; None when it is neither name nor address."""
    host, port = authority, ""
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or _address(host) is None:
            return None
        port = rest[1:]
    elif ":" in authority:
        host, _, port = authority.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return None
    host = _bare(host)
    return host if 0 < len(host) <= _NAME_LENGTH_MAX else None


def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _is_ours(hosts: Hosts, origin: str, authorities: Sequence[str]) -> bool:
    """Whether a page is this server's: from where the request went, or from an allowed name.

    Another port of this machine is another server, whoever runs it. TLS may end at a proxy, so
    that the schemes need not be equal.
    """
    scheme, separator, authority = origin.partition("://")
    if not separator or scheme not in ("http", "https"):
        return False  # `null`, a file, an extension
    if authority.lower() in {text.lower() for text in authorities}:
        return True
    return ANY in hosts.allowed or host_name(authority) in hosts.allowed


def _bare(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """None when it is no address."""
    return _parse_address(name) if len(name) <= _NAME_LENGTH_MAX else None


@lru_cache(maxsize=256)  # nearly all requests have the same one
def _parse_address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
