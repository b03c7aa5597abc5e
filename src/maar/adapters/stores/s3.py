"""An S3 bucket as an object store, with obstore; creates are conditional and retried safely."""

from __future__ import annotations

import builtins
import io
import re
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store as Client

from maar.adapters.stores.key import check_key, directory_of
from maar.model.errors import (
    AlreadyExists,
    InvalidInput,
    MaarError,
    NotFound,
    OutcomeUnknown,
    StoreFull,
    Unavailable,
)
from maar.model.time import SECOND_NS
from maar.ports.stores.object_store import ObjectInfo, StoreSettings

OPTIONS = (
    "endpoint",
    "region",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "allow_http",
    "timeout_s",
)
TIMEOUT_S = 30.0
READ_RETRIES = 3
CREATE_PAUSES_S = (0.1, 0.5)  # one attempt more than pauses
READ_AHEAD = 1 << 20
SIZES_MAX = 10_000

_STATUS = re.compile(r"non-2xx status code: (\d{3})")


class S3Store:
    """See ports.object_store. Reads are retried by the client, creates only by us."""

    def __init__(
        self, settings: StoreSettings, *, create_pauses_s: tuple[float, ...] = CREATE_PAUSES_S
    ) -> None:
        self._settings = settings
        self._create_pauses_s = create_pauses_s
        self._reader = _client(settings, retries=READ_RETRIES)
        # The client's own retry of a create could meet its first try and report "exists".
        self._creator = _client(settings, retries=0)
        self._sizes: dict[str, int] = {}

    def create(self, key: str, body: bytes) -> None:
        self._create(check_key(key), body, lambda: body)

    def create_from_file(self, key: str, path: Path) -> None:
        self._create(check_key(key), path, path.read_bytes)

    def read(self, key: str) -> bytes:
        return self._guard(key, lambda: obstore.get(self._reader, check_key(key)).bytes())

    def read_range(self, key: str, *, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            return self._guard(
                key,
                lambda: obstore.get_range(self._reader, check_key(key), start=start, length=length),
            )
        except Unavailable as error:
            if isinstance(error.__cause__, BaseError) and _status(error.__cause__) == 416:
                return b""  # the range starts at or behind the end
            raise

    def size(self, key: str) -> int:
        self._sizes.pop(key, None)  # whoever asks may doubt that the object is what it was
        try:
            return obstore.head(self._reader, check_key(key))["size"]
        except (BaseError, OSError) as error:
            raise _error_of(error, key) from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = directory_of(prefix)
        try:
            for page in obstore.list(self._reader, prefix=folder or None):
                for item in page:
                    if item["path"].startswith(prefix):
                        yield ObjectInfo(item["path"], item["size"])
        except (BaseError, OSError) as error:
            raise _error_of(error, prefix) from error

    def delete(self, key: str) -> None:
        self._sizes.pop(key, None)
        try:
            obstore.delete(self._reader, check_key(key))
        except (BaseError, OSError) as error:
            if not isinstance(error, NotFoundError | FileNotFoundError):
                raise _error_of(error, key) from error

    def local_path(self, key: str) -> Path | None:  # noqa: ARG002  (the port's signature)
        return None

    def open(self, key: str) -> Any:
        size = self._sizes.get(key)
        if size is None:
            size = self.size(key)
            if len(self._sizes) >= SIZES_MAX:
                self._sizes.clear()
            self._sizes[key] = size  # objects never change, and readers open them often
        return io.BufferedReader(RangedFile(self, key, size), buffer_size=READ_AHEAD)

    def clock_ns(self) -> int | None:
        endpoint = urlsplit(dict(self._settings.options).get("endpoint", ""))
        return None if _is_loopback(endpoint.hostname or "") else self.server_time_ns()

    def server_time_ns(self) -> int:
        """The server's time, from the date of an object written now; precise to a second."""
        key = f"probe/clock-{secrets.token_hex(16)}"
        try:
            self.create(key, b"what time is it?")
            stored: datetime = obstore.head(self._reader, key)["last_modified"]
        except (BaseError, OSError) as error:
            raise _error_of(error, key) from error
        finally:
            self.delete(key)
        return int(stored.timestamp()) * SECOND_NS

    def settings(self) -> StoreSettings:
        return self._settings

    def _create(self, key: str, source: bytes | Path, content: Callable[[], bytes]) -> None:
        """Create once. After a try with unknown outcome, finding our own bytes is success."""
        unknown: BaseException | None = None
        failure: BaseException | None = None
        for pause in (*self._create_pauses_s, None):
            try:
                obstore.put(self._creator, key, source, mode="create")
                return
            except AlreadyExistsError as error:
                if _status(error) == 409:  # two concurrent creates: S3 asks one to try again
                    failure = error
                elif unknown is not None and self._holds(key, content()):
                    return
                else:
                    raise AlreadyExists(
                        f"object {key} exists already; keys are written once"
                    ) from error
            except (BaseError, OSError) as error:
                failure = error
                if not _worth_retrying(error):
                    break
                if not _never_sent(error):
                    unknown = error
            if pause is not None:
                time.sleep(pause)
        if unknown is None:
            assert failure is not None
            raise _error_of(failure, key) from failure
        raise OutcomeUnknown(
            f"object {key} may or may not have been written ({_first_line(unknown)}); "
            "read it before writing again"
        ) from unknown

    def _holds(self, key: str, body: bytes) -> bool:
        return self.size(key) == len(body) and self.read(key) == body

    def _guard(self, key: str, call: Callable[[], Any]) -> bytes:
        try:
            return bytes(call())
        except (BaseError, OSError) as error:
            raise _error_of(error, key) from error


class RangedFile(io.RawIOBase):
    """An object as a seekable file; every read is a ranged request, so wrap it in a buffer."""

    def __init__(self, store: S3Store, key: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        body = self._store.read_range(self._key, start=self._position, length=wanted)
        buffer[: len(body)] = body
        self._position += len(body)
        return len(body)


def _client(settings: StoreSettings, *, retries: int) -> Client:
    options = dict(settings.options)
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise InvalidInput(
            f"store {settings.name} has unknown options {', '.join(unknown)}; "
            f"S3 stores take {', '.join(OPTIONS)}"
        )
    parts = urlsplit(settings.url)
    if not parts.netloc:
        raise InvalidInput(f"store {settings.name}: {settings.url!r} names no bucket")
    timeout_s = float(options.pop("timeout_s", TIMEOUT_S))
    plain_http = _plain_http(settings.name, options)
    return Client(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        client_options={"allow_http": plain_http, "timeout": timedelta(seconds=timeout_s)},
        retry_config={
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=2 * timeout_s),
        },
        **options,  # type: ignore[arg-type]  # the names were checked above
    )


def _plain_http(name: str, options: dict[str, str]) -> bool:
    """Refuse plain HTTP to other hosts, unless the settings allow it."""
    told = options.pop("allow_http", "").lower() in ("1", "true", "yes")
    endpoint = urlsplit(options.get("endpoint", ""))
    if endpoint.scheme != "http":
        return False
    if not told and not _is_loopback(endpoint.hostname or ""):
        raise InvalidInput(
            f"store {name} has the plain-text endpoint {endpoint.netloc}, which is not on this "
            "host; use https, or set allow_http=true if the network is trusted"
        )
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _status(error: BaseException) -> int:
    """The HTTP status that the server gave, or 0 when there was no answer."""
    match = _STATUS.search(str(error))
    return int(match.group(1)) if match else 0


def _never_sent(error: BaseException) -> bool:
    return "kind: Connect" in str(error)


def _worth_retrying(error: BaseException) -> bool:
    status = _status(error)
    return status in (0, 408, 409, 429) or (status >= 500 and status != 507)


def _error_of(error: BaseException, key: str) -> MaarError:
    if "<Code>NoSuchBucket</Code>" in str(error):  # which says nothing about the object
        return Unavailable(
            f"the object store could not serve {key}: its server knows no such bucket; make it, or "
            "correct the store's URL"
        )
    if isinstance(error, NotFoundError | builtins.FileNotFoundError):
        return NotFound(f"object {key} does not exist")
    if _status(error) == 507:
        return StoreFull(f"the object store has no room for {key}; nothing was written")
    return Unavailable(f"the object store could not serve {key}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]
