"""How an etcd cluster is reached, and under which prefix a log lives in it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class EtcdAccess(Struct, frozen=True, kw_only=True):
    """How etcd is spoken to, wherever it is; a part of the section `log`."""

    user: str = ""
    """The name that etcd knows us by, when it asks for one."""
    password: str = ""
    """Its password. Better given by the environment: `MAAR_LOG__PASSWORD`. Never logged."""
    ca_file: str = ""
    """The certificates that etcd's own must be signed by (PEM). With it the connections to etcd are
    encrypted; without it they are not.
    """
    cert_file: str = ""
    """Our certificate, for an etcd that asks clients for one (PEM). Needs `log.ca_file` and
    `log.key_file`.
    """
    key_file: str = ""
    """Its private key (PEM)."""
    election_s: Annotated[float, Meta(ge=2, le=60)] = 5.0
    """How long a leader of which nothing is heard goes on leading. A shorter time means that
    another one leads sooner after a crash, and that a shorter pause of the leader, or of etcd, ends
    its term. The same for all replicas.
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
