"""The sections of settings that belong to no stage: the server, where things are, the ring."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from maar.adapters.etcd.settings import EtcdAccess
from maar.app.settings.log_url import place_in
from maar.model.bounds import Natural
from maar.model.ids import HOME

HUNG_AFTER_MIN_S = 5.0


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Where people and agents reach maar, and where it keeps its own things."""

    listen: str = "127.0.0.1:4040"
    """Where agents, people and commands connect: `host:port`, `[::1]:port`. Port 0 takes any free
    one. Flag `--listen`.
    """
    allow_remote: bool = False
    """Let an address be reached from other machines. There is no access control yet. Flag
    `--allow-remote`.
    """
    allowed_hosts: tuple[str, ...] = ()
    """Names by which requests may call this server (`Host`), and whose pages may change something
    (`Origin`); without ports. A server on a loopback address is also called `localhost` and by
    loopback addresses, another one by any address and its machine's name; every other name is
    answered 403. Agents and proxies that use a name need it here: `["maar.example.com"]`. `["*"]`
    takes every name, and a page elsewhere then can read and change what is here ([decision
    30](decisions/0030-host-and-origin.md)).
    """
    data_dir: str = "./.maar"
    """Log, local store and scratch space. One server per directory. Flag `--data`."""
    fronts: Annotated[int, Meta(ge=1, le=32)] = 1
    """Processes of `maar serve` that share the port. One takes what one core can; with several,
    the segment writer runs in a process of its own ([when to use
    it](operating.md#one-front-is-not-enough)). Limits hold for all of them together.
    """
    drain_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """How long requests and running plans may take to finish when the server stops."""
    reserve_bytes: Natural = 0
    """Free space that is reserved for the log and compaction: with less, pushes get 503, and with
    less than three times as much, `maar status` warns; 0: a twentieth of the disk, at most 512 MiB.
    """
    hung_after_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """`maar serve` and `maar worker` restart a process whose event loop sends no heartbeat for so
    long (during its start, ten times as long). At least 5; 0 means never.
    """
    log_format: Literal["text", "json"] = "text"
    """`text` (key=value) or `json`, one line an event, on stderr. Flag `--log-format`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged. Flag `--log-level`."""

    def __post_init__(self) -> None:
        if 0 < self.hung_after_s < HUNG_AFTER_MIN_S:
            raise ValueError(
                f"hung_after_s is under {HUNG_AFTER_MIN_S:g}, which a busy machine can reach "
                "without a hang; 0 means never"
            )


class LogSettings(EtcdAccess, frozen=True, kw_only=True):
    """The metastore's log: a SQLite file, or an etcd cluster that several replicas share."""

    url: str = ""
    """Where the metastore's log is: `etcd://h1:2379,h2:2379,h3:2379/prefix`, which several replicas
    share, or `sqlite:///dir`, a file for one. Each cluster of replicas has a prefix of its own.
    Empty: a file in `log.dir`. Flag `--log`.
    """
    dir: str = ""
    """The directory of a log that is a file. Empty: `log` in the data directory."""
    allow_network_fs: bool = False
    """Keep a log of the SQLite kind on a network file system (NFS, SMB, sshfs and the like) all the
    same. Locks and shared memory do not work between hosts there, so that two servers could write
    one log; unset, a server refuses such a directory with a sentence.
    """

    def __post_init__(self) -> None:
        if self.url and self.dir:
            raise ValueError("url and dir both say where the log is; leave one of them out")
        if self.url:
            place_in(self.url)
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file belong together; give both or neither")
        if self.cert_file and not self.ca_file:
            raise ValueError(
                "cert_file is shown over encrypted connections, which ca_file asks for; add it"
            )
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password belong together; give both or neither")


class MetastoreSettings(Struct, frozen=True, kw_only=True):
    """Where this replica listens, and by which address the others reach it.

    With the log in etcd, any number of replicas may run (`maar serve --roles metastore`, or in
    `maar serve`); one leads, and the others take over within `log.election_s` and two seconds. A
    replica must know itself and all others by the same addresses.
    """

    listen: str = ""
    """Where this replica listens: `host:port` or `unix:/path`. Unset: the address in
    `roles.metastore`, if that is a single one.
    """
    advertise: str = ""
    """The address by which clients and other replicas reach it, one of those in `roles.metastore`.
    Unset: `metastore.listen`. Needed when that one is of all hosts (`0.0.0.0:4041`).
    """
    name: str = ""
    """Its name in output and in the log; it must be the same after every restart. Unset: the host's
    name and the port of its address.
    """
    begin_anew: bool = False
    """Begin a new log although the store holds data of another log, or is claimed by another one.
    The new log does not see that data, adopts nothing, and deletes nothing of it. Unset, a
    metastore whose log is empty stops on such a store: its log was lost (`maar metastore restore`),
    or `--log` names another place than before. Take it out again once the log has begun
    ([runbook](runbook.md#an-empty-log-and-a-used-store)).
    """


class StoreSection(Struct, frozen=True, kw_only=True):
    """Where segments, blocks and snapshots are kept: the short form for a single store, which is
    called `main`.
    """

    url: str = ""
    """The object store: `file:///dir` or `s3://bucket/prefix`. Empty: `store` in the data
    directory. Flag `--store`.
    """
    endpoint: str = ""
    """The URL of an S3 server that is not Amazon's."""
    region: str = ""
    """The bucket's region."""
    access_key_id: str = ""
    """S3 credentials. Better given by the environment: `MAAR_STORE__ACCESS_KEY_ID`."""
    secret_access_key: str = ""
    """As above: `MAAR_STORE__SECRET_ACCESS_KEY`. Never logged."""
    session_token: str = ""
    """For temporary credentials. Never logged."""
    allow_http: bool = False
    """Let an S3 endpoint be plain HTTP."""


class StoreEntry(Struct, frozen=True, kw_only=True):
    """[Several stores](stores.md), each a table `[[stores]]`, in place of `[store]`. In the
    environment and in flags a store's settings are found by its name:
    `MAAR_STORES__EU__SECRET_ACCESS_KEY`, `--set stores.NAME.url=…`. All processes need the same
    list.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")] = ""
    """What the log, the index and the commands call it, for ever: small letters, digits, `-` and
    `_`. A store that was set up by `[store]` is called `main`.
    """
    url: str = ""
    """`file:///dir` or `s3://bucket/prefix`."""
    region: str = ""
    """Where it is. Stores of one region are near each other; of a bucket it is S3's own region.
    Empty: near to no other.
    """
    zones: tuple[str, ...] = ()
    """The zones (`ring.zone`) whose home it is: their segment writers write there. When no store
    names any, the first store is home to all.
    """
    endpoint: str = ""
    """The URL of an S3 server that is not Amazon's."""
    access_key_id: str = ""
    """S3 credentials. Better given by the environment: `MAAR_STORES__EU__ACCESS_KEY_ID`."""
    secret_access_key: str = ""
    """As above. Never logged."""
    session_token: str = ""
    """For temporary credentials. Never logged."""
    allow_http: bool = False
    """Let an S3 endpoint be plain HTTP."""


class TenantDefaults(Struct, frozen=True, kw_only=True):
    """What holds for every tenant whose table in the tenants file does not say otherwise."""

    stores: tuple[str, ...] = ()
    """Names of the stores that hold copies of a tenant's blocks, beside the store where they are
    written, which always does. Empty: that one alone.
    """


class RoleAddresses(Struct, frozen=True, kw_only=True):
    """Where roles that run by themselves (`maar serve --roles …`) find each other."""

    metastore: str = ""
    """Where the metastore is found by the other roles, by workers elsewhere, and by its replicas:
    `host:port` or `unix:/path`; of several replicas all, with commas between. Index reads go to the
    first that answers, so name the nearest first; everything else goes to the leader, whichever it
    is. A single metastore also listens there. Unset: `metastore.listen`; or `127.0.0.1:4041` for
    roles that run by themselves, a private socket for `maar serve` with all roles.
    """
    query: str = "127.0.0.1:4042"
    """Where the query role serves the front."""
    worker: str = "127.0.0.1:4043"
    """Where the worker serves health and metrics."""
    segment_writer: str = ""
    """Where this process's segment writer takes profiles from distributors: `host:port` or
    `unix:/path`. Unset: `127.0.0.1:4044` for roles that run by themselves, a private socket for
    `maar serve` with all roles.
    """


class RingSettings(Struct, frozen=True, kw_only=True):
    """Which zone this process is in, and how segment writers and distributors find each other."""

    zone: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,63}$")] = HOME
    """Where this process runs: a data centre, an availability zone. A distributor sends only to
    writers of its own zone.
    """
    node: str = ""
    """The segment writer's name in the ring. It must be the same after every restart, so that the
    writer keeps its shards. Unset: the host's name and the port of `roles.segment_writer`.
    """
    advertise: str = ""
    """The address by which distributors reach the segment writer, when it is not
    `roles.segment_writer`. Needed when that one is of all hosts (`0.0.0.0:4044`).
    """
    shards: Annotated[int, Meta(ge=1, le=64)] = 4
    """Shards that a segment writer takes. More shards spread the load finer and cost more PUT
    requests.
    """
    beat_ms: Annotated[int, Meta(ge=100, le=60_000)] = 2_000
    """Between two heartbeats of a segment writer."""
    dead_after_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 10_000
    """A writer without a heartbeat for so long counts as dead; its shards fail over. A setting of
    the metastore.
    """
    refresh_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1_000
    """How often a distributor refreshes the ring."""
    leave_on_stop: bool = False
    """When a segment writer is stopped, give its shards to the others (scaling in). Else they wait
    for its return (a rollout), and fail over meanwhile.
    """

    def __post_init__(self) -> None:
        if self.dead_after_ms < 3 * self.beat_ms:
            raise ValueError(
                f"dead_after_ms = {self.dead_after_ms} is less than three times beat_ms = "
                f"{self.beat_ms}, so that one late heartbeat would make a writer seem dead"
            )


class TenantsSettings(Struct, frozen=True, kw_only=True):
    """Limits of single tenants, from a file that is read again when it changes."""

    file: str = ""
    """A TOML file with a table for each tenant whose limits differ: `rate_bytes`, `burst_bytes`,
    `stores` (see `tenant_defaults.stores`), and a table `placement` with the settings of
    `placement.tenant`. It is read again when it changes; the metastore and the distributors need
    it.
    """
