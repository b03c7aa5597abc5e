"""How an etcd cluster is reached, and under which prefix a log lives in it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class EtcdAccess(Struct, frozen=True, kw_only=True):
    """How maar connects to etcd; a part of the section `log`."""

    user: str = ""
    """The user name for etcd, if it requires authentication."""
    password: str = ""
    """Its password. Better given by the environment: `MAAR_LOG__PASSWORD`. Never logged."""
    ca_file: str = ""
    """The CA certificates that etcd's certificate must be signed by (PEM). With it the connections
    to etcd are encrypted; without it they are not.
    """
    cert_file: str = ""
    """The client certificate, for an etcd that requires one (PEM). Needs `log.ca_file` and
    `log.key_file`.
    """
    key_file: str = ""
    """Its private key (PEM)."""
    election_s: Annotated[float, Meta(ge=2, le=60)] = 5.0
    """How long a silent leader keeps its lease. With a shorter time another replica leads sooner
    after a crash, but a shorter pause of the leader, or of etcd, already ends its term. It must be
    the same for all replicas.
    """
    quota_bytes: Annotated[int, Meta(ge=16 << 20)] = 2 << 30
    """The size that etcd's database may have, as its `--quota-backend-bytes` says (etcd's own
    default is 2 GiB). Registrations are refused with 503 when 80 % of it are in use, before etcd
    refuses everything.
    """


class EtcdSettings(EtcdAccess, frozen=True, kw_only=True):
    """Where the cluster is, and under which prefix this log lives in it."""

    endpoints: tuple[str, ...]  # host:port
    prefix: str
