"""A real etcd of one or three members on loopback; a test may kill, stop or corrupt a member."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from maar.adapters.etcd.log import EtcdSettings
from support.etcd.certificates import Certificates
from support.network.ports import free_port

PREFIX = "/maar"
ROOT_PASSWORD = "root-secret"
USER, PASSWORD = "maar", "maar-secret"
READY_S = 60.0
START_TRIES = 5


@dataclass
class Member:
    """One member: its process comes and goes, its data and its ports stay."""

    name: str
    directory: Path
    client_port: int
    peer_port: int
    metrics_port: int
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def database(self) -> Path:
        """The file with the keys and values; touch it only while the member is stopped."""
        return self.directory / "member" / "snap" / "db"

    @property
    def output(self) -> Path:
        return self.directory.with_suffix(".out")

    def start(self) -> None:
        """Start the process; `EtcdCluster.wait` waits until it answers."""
        assert self.process is None, f"{self.name} runs already"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [_etcd(), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(ETCD_UNSUPPORTED_ARCH="arm64"),
            )
        atexit.register(self.kill)

    def stop(self) -> None:
        """In good order, as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It holds its connections and says nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def healthy(self) -> bool:
        """It answers, and knows a leader."""
        try:
            return bool(self._get("/health").json()["health"] == "true")
        except (httpx.HTTPError, ValueError):
            return False

    @property
    def leads(self) -> bool:
        try:
            return "\netcd_server_is_leader 1\n" in self._get("/metrics").text
        except httpx.HTTPError:
            return False

    def flip(self, known: bytes) -> None:
        """Flip one bit of a value that stands in the database; stop the member first."""
        assert self.process is None, f"stop {self.name} before its file is changed"
        data = bytearray(self.database.read_bytes())
        assert known in data, f"{known!r} is not in the database of {self.name}"
        at = data.find(known)
        while at >= 0:  # an old page of the file may hold it too
            data[at + len(known) // 2] ^= 1
            at = data.find(known)
        self.database.write_bytes(data)

    def _get(self, path: str) -> httpx.Response:
        url = f"http://127.0.0.1:{self.metrics_port}{path}"
        return httpx.get(url, timeout=10.0, trust_env=False, verify=False)

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        atexit.unregister(self.kill)
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class EtcdCluster:
    """Made by `running`; `settings` is what a log needs to reach it."""

    directory: Path
    size: int = 1
    certificates: Certificates | None = None  # with them, clients must show theirs too
    auth: bool = False
    quota_bytes: int = 0
    members: list[Member] = field(default_factory=list)
    _auth_enabled: bool = False

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    @property
    def url(self) -> str:
        """As `--log` takes it."""
        return f"etcd://{','.join(self.endpoints)}{PREFIX}"

    def settings(
        self,
        prefix: str = PREFIX,
        *,
        election_s: float = 5.0,
        quota_bytes: int = 0,
        endpoints: tuple[str, ...] = (),
    ) -> EtcdSettings:
        made = self.certificates
        return EtcdSettings(
            endpoints=endpoints or self.endpoints,
            prefix=prefix,
            user=USER if self.auth else "",
            password=PASSWORD if self.auth else "",
            ca_file=str(made.ca) if made else "",
            cert_file=str(made.client_cert) if made else "",
            key_file=str(made.client_key) if made else "",
            election_s=election_s,
            quota_bytes=quota_bytes or self.quota_bytes or 2 << 30,
        )

    def start(self) -> None:
        """Start all members, those of a new cluster or those that were there."""
        if self.members:
            for member in self.members:
                if member.process is None:
                    member.start()
            self.wait()
            return
        for attempt in range(START_TRIES):
            self._form(attempt)
            try:
                self.wait()
                break
            except _Ended:  # somebody took one of the ports between our look and its start
                self.stop()
                if attempt == START_TRIES - 1:
                    raise
        if self.auth:
            self._enable_auth()

    def stop(self) -> None:
        for member in self.members:
            member.kill()

    def kill(self) -> None:
        """All at once, as a power cut would."""
        self.stop()

    def wait(self, *members: Member) -> None:
        """Until these members (all that run, when none is named) answer and know a leader."""
        wanted = members or tuple(m for m in self.members if m.process is not None)

        def well() -> bool:
            for member in wanted:
                if member.process is not None and member.process.poll() is not None:
                    said = member.output.read_bytes()[-2000:].decode(errors="replace")
                    raise _Ended(f"etcd member {member.name} ended by itself:\n{said}")
            return all(member.healthy for member in wanted)

        until(well, "etcd is healthy")

    def leader(self) -> Member:
        """The member that leads etcd itself (not maar's log)."""
        found: list[Member] = []

        def one_leads() -> bool:
            found[:] = [m for m in self.members if m.process is not None and m.leads]
            return len(found) == 1

        until(one_leads, "etcd has one leader")
        return found[0]

    def followers(self) -> list[Member]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def etcdctl(self, *arguments: str, endpoint: str = "") -> str:
        """A command as root, at one member or at all."""
        where = ["--endpoints", endpoint or ",".join(self.endpoints)]
        if self.certificates is not None:
            where += ["--cacert", str(self.certificates.ca)]
            where += ["--cert", str(self.certificates.client_cert)]
            where += ["--key", str(self.certificates.client_key)]
        if self.auth and self._auth_enabled:
            where += ["--user", f"root:{ROOT_PASSWORD}"]
        done = subprocess.run(
            [_etcdctl(), *where, *arguments],
            env=_environment(ETCDCTL_API="3"),
            capture_output=True,
            text=True,
            timeout=READY_S,
        )
        assert done.returncode == 0, f"etcdctl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def revoke_leases(self) -> None:
        """Whoever leads by a lease of this cluster leads no more."""
        for line in self.etcdctl("lease", "list").splitlines()[1:]:
            self.etcdctl("lease", "revoke", line.strip())

    def _form(self, attempt: int) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.members = [
            Member(f"m{n}", self.directory / f"m{n}", free_port(), free_port(), free_port())
            for n in range(self.size)
        ]
        peers = ",".join(f"{m.name}=http://127.0.0.1:{m.peer_port}" for m in self.members)
        for member in self.members:
            member.arguments = self._arguments(member, peers, f"{self.directory}-{attempt}")
            member.start()

    def _arguments(self, member: Member, peers: str, token: str) -> tuple[str, ...]:
        client = f"{'https' if self.certificates else 'http'}://{member.endpoint}"
        peer = f"http://127.0.0.1:{member.peer_port}"
        made: dict[str, object] = {
            "name": member.name,
            "data-dir": member.directory,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "listen-metrics-urls": f"http://127.0.0.1:{member.metrics_port}",
            "initial-cluster": peers,
            "initial-cluster-token": token,
            "election-timeout": 500,
            "heartbeat-interval": 50,
            "quota-backend-bytes": self.quota_bytes,
            "logger": "zap",
            "log-level": "warn",
        }
        flags = [f"--{name}={value}" for name, value in made.items()]
        if self.certificates is not None:
            flags += [
                f"--trusted-ca-file={self.certificates.ca}",
                f"--cert-file={self.certificates.server_cert}",
                f"--key-file={self.certificates.server_key}",
                "--client-cert-auth",
            ]
        return tuple(flags)

    def _enable_auth(self) -> None:
        for command in (
            f"user add root:{ROOT_PASSWORD}",
            "user grant-role root root",
            f"user add {USER}:{PASSWORD}",
            f"role add {USER}",
            f"role grant-permission {USER} --prefix=true readwrite {PREFIX}/",
            f"user grant-role {USER} {USER}",
            "auth enable",
        ):
            self.etcdctl(*command.split())
        self._auth_enabled = True


class _Ended(AssertionError):
    """A member ended by itself."""


@contextmanager
def running(
    directory: Path,
    *,
    members: int = 1,
    tls: bool = False,
    auth: bool = False,
    quota_bytes: int = 0,
) -> Iterator[EtcdCluster]:
    """A cluster that is healthy; all of it is gone at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = EtcdCluster(
        directory / "etcd",
        size=members,
        certificates=Certificates.make(directory / "certificates") if tls else None,
        auth=auth,
        quota_bytes=quota_bytes,
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.directory, ignore_errors=True)  # 130 MB of its log ahead per member


def until(condition: Callable[[], bool], what: str, *, within_s: float = READY_S) -> None:
    """Wait for a condition; a test that waits in vain says for what."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {within_s:.0f} s in vain until {what}")
        time.sleep(0.05)


async def apart(call: Callable[[], object]) -> None:
    """Run a blocking call of this module while the test's event loop goes on."""
    await asyncio.to_thread(call)


def _environment(**more: str) -> dict[str, str]:
    """Without what somebody may have set for an etcd of their own."""
    return {name: text for name, text in os.environ.items() if "ETCD" not in name} | more


def _etcd() -> str:
    return _program("etcd", "etcd-server")


def _etcdctl() -> str:
    return _program("etcdctl", "etcd-client")


def _program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.fail(
            f"The replicated metastore is tested with a real etcd and there is no {name} on the "
            f"PATH; install it, for example with: apt-get install {package}"
        )
    return path
