"""Metrics of the log in etcd."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class EtcdMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"maar_log_etcd_{name}", text, registry=registry)

        self.quota = gauge("quota_bytes", "Bytes that etcd may have, as the settings say")
        self.in_use = gauge("in_use_bytes", "Bytes in use, in the fullest member; set by a leader")
        self.file = gauge("file_bytes", "Bytes of the largest member's file; set by a leader")
        self.members = gauge("members_answering", "Members that answered the leader's last check")
        self.refusing = gauge("refusing", "1 while appends are refused for lack of room")
        self.damaged = Counter(
            "maar_log_etcd_damaged_reads",
            "Reads whose bytes were damaged",
            ("member",),
            registry=registry,
        )
