"""How an etcd cluster is reached, and under which prefix a log lives in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """Where the cluster is, and under which prefix this log lives in it."""

    endpoints: tuple[str, ...]  # host:port
    prefix: str
    user: str = ""
    password: str = ""
    ca_file: str = ""  # with it, the connections are encrypted
    cert_file: str = ""
    key_file: str = ""
    election_s: float = 5.0
    quota_bytes: int = 2 << 30
