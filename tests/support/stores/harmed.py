"""Stores that a test can harm behind maar's back: directories, and buckets of S3 servers.

Everything here goes past maar: by the file system, or by Amazon's client to the server itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from support.network.cut import Line, lines
from support.stores import s3_server

UNFINISHED = ".maar-tmp/"  # of a process that was killed while it wrote: no object, gone in an hour


class HarmedStore(Protocol):
    name: str

    def settings(self) -> list[str]: ...

    def list(self) -> set[str]: ...

    def read(self, key: str) -> bytes: ...

    def write(self, key: str, body: bytes) -> None:
        """Over what is there: no store of maar's own would do that."""
        ...

    def delete(self, key: str) -> None: ...

    def cut(self) -> None:
        """Nobody can reach it until it is healed; what is in it stays."""
        ...

    def heal(self) -> None: ...


def wipe(store: HarmedStore) -> None:
    """Its marker too."""
    for key in store.list():
        store.delete(key)


def flip(store: HarmedStore, key: str, at: int) -> None:
    """One bit, somewhere."""
    body = bytearray(store.read(key))
    body[at % len(body)] ^= 1 << at % 8
    store.write(key, bytes(body))


class Directory:
    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        self._away = path.with_suffix(".away")
        path.mkdir(parents=True)

    def settings(self) -> list[str]:
        return [f"stores.{self.name}.url={self._path.as_uri()}"]

    def list(self) -> set[str]:
        files = (path for path in self._path.rglob("*") if path.is_file())
        found = {str(path.relative_to(self._path)) for path in files}
        return {key for key in found if not key.startswith(UNFINISHED)}

    def read(self, key: str) -> bytes:
        return (self._path / key).read_bytes()

    def write(self, key: str, body: bytes) -> None:
        self.delete(key)
        (self._path / key).write_bytes(body)

    def delete(self, key: str) -> None:
        (self._path / key).unlink(missing_ok=True)  # maar deletes at the same time

    def cut(self) -> None:
        self._path.rename(self._away)

    def heal(self) -> None:
        """What somebody made in its place meanwhile is no part of it."""
        if self._path.exists():
            shutil.rmtree(self._path)
        self._away.rename(self._path)


class Bucket:
    def __init__(self, server: s3_server.S3Server, line: Line, name: str) -> None:
        import boto3  # type: ignore[import-untyped]  # slow to import: only for who wants it

        self.name = name
        made = server.bucket(name=name)
        options = dict(made.options)
        self._options = options | {"endpoint": f"http://{line.address}", "allow_http": "true"}
        self._url, self._line = made.url, line
        parts = urlsplit(made.url)
        self._bucket, self._prefix = parts.netloc, parts.path.lstrip("/") + "/"
        self._client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name=options["region"],
            aws_access_key_id=options["access_key_id"],
            aws_secret_access_key=options["secret_access_key"],
        )

    def settings(self) -> list[str]:
        options = {"url": self._url, **self._options}
        return [f"stores.{self.name}.{option}={value}" for option, value in options.items()]

    def list(self) -> set[str]:
        pages = self._client.get_paginator("list_objects_v2")
        asked = pages.paginate(Bucket=self._bucket, Prefix=self._prefix)
        found = (each["Key"] for page in asked for each in page.get("Contents", ()))
        return {key.removeprefix(self._prefix) for key in found}

    def read(self, key: str) -> bytes:
        try:
            body: bytes = self._client.get_object(**self._at(key))["Body"].read()
        except self._client.exceptions.NoSuchKey as error:
            raise FileNotFoundError(key) from error
        return body

    def write(self, key: str, body: bytes) -> None:
        self._client.put_object(**self._at(key), Body=body)

    def delete(self, key: str) -> None:
        self._client.delete_object(**self._at(key))

    def cut(self) -> None:
        self._line.cut()

    def heal(self) -> None:
        self._line.heal()

    def close(self) -> None:
        self._client.close()

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}


@contextmanager
def four_stores(directory: Path) -> Iterator[list[HarmedStore]]:
    """A bucket, which is home, a directory, a bucket of another server, and another directory."""
    with ExitStack() as stack:
        network = stack.enter_context(lines())
        servers = [stack.enter_context(s3_server.apart()) for _ in range(2)]
        wires = [network.open(server.endpoint.removeprefix("http://")) for server in servers]
        home, far = (
            Bucket(server, line, name)
            for server, line, name in zip(servers, wires, ("home", "far"), strict=True)
        )
        stack.callback(home.close)
        stack.callback(far.close)
        disks = [Directory(name, directory / "stores" / name) for name in ("disk", "shelf")]
        yield [home, disks[0], far, disks[1]]
