"""The commands' HTTP client; every failure is one sentence."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

import click
import httpx

from maar.api.protocol import wire
from maar.cli.output.failure import EXIT_UNAVAILABLE, EXIT_USAGE, CommandFailed

TENANT_HEADER = "X-Scope-OrgID"
IDS_HEADER = "Maar-Profile-Ids"
TIMEOUT_S = 90.0
CONNECT_TIMEOUT_S = 5.0
RETRY_AFTER_MAX_S = 60.0

TRY_LATER = (429, 502, 503, 504)


class Server:
    def __init__(self, url: str, *, tenant: str = "", allow_partial: bool = False) -> None:
        self._url = url.rstrip("/")
        headers = {TENANT_HEADER: tenant} if tenant else {}
        headers |= {"X-Maar-Allow-Partial": "true"} if allow_partial else {}
        try:
            self._http = httpx.Client(
                base_url=self._url,
                headers=headers,
                timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                trust_env=False,
                # Reading the certificates takes a third of a short command's time.
                verify=not self._url.lower().startswith("http://"),
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise CommandFailed(f"{url!r} is not a server's address: {error}", EXIT_USAGE) from None

    def close(self) -> None:
        self._http.close()

    def pause(self, seconds: float) -> None:
        """Before it is asked again."""
        time.sleep(seconds)

    def push(
        self, labels: Iterable[tuple[str, str]], body: bytes, *, client_id: str = ""
    ) -> list[str]:
        """Push one pprof; returns the ids that the server gave.

        The same `client_id` and bytes are one profile however often they are pushed, also when
        they carry no time.
        """
        request = wire.PushRequest()
        series = request.series.add()
        for name, value in labels:
            series.labels.add(name=name, value=value)
        series.samples.add(raw_profile=body, ID=client_id)
        response = self._send(
            "POST",
            "/push.v1.PusherService/Push",
            content=request.SerializeToString(),
            headers={"Content-Type": "application/proto"},
        )
        ids = [text for text in response.headers.get(IDS_HEADER, "").split(",") if text]
        if not ids:
            raise self._stranger("a push")
        return ids

    def querier(self, method: str, request: Mapping[str, Any]) -> Any:
        """A call of the query API; 64-bit numbers come as text and stay so."""
        path = f"/querier.v1.QuerierService/{method}"
        return self._json(self._send("POST", path, json=dict(request)))

    def get(self, path: str, params: Mapping[str, str | int] | None = None) -> Any:
        return self._json(self._send("GET", path, params=params))

    def order(self, verb: Literal["POST", "PUT"], path: str, body: Mapping[str, Any]) -> Any:
        """Send a request that changes something."""
        return self._json(self._send(verb, path, json=dict(body)))

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request about plans, whose refusals are answers too: the object that a success
        would be, with its outcome.
        """
        try:
            return self.order("POST", path, body)
        except CommandFailed as error:
            if "plan" in error.answer or "outcome" in error.answer:
                return error.answer
            raise

    def get_bytes(self, path: str, params: Mapping[str, str | int] | None = None) -> bytes:
        return self._send("GET", path, params=params).content

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError:
            raise self._stranger(response.request.url.path) from None

    def _stranger(self, asked: str) -> CommandFailed:
        return CommandFailed(
            f"the server at {self._url} did not answer {asked} as maar does; name a maar server "
            "with --server"
        )

    def _send(
        self, verb: Literal["GET", "POST", "PUT"], path: str, **arguments: Any
    ) -> httpx.Response:
        try:
            response = self._http.request(verb, path, **arguments)
        except httpx.ConnectError as error:
            raise CommandFailed(
                f"no maar server answers at {self._url} ({error}); start one with `maar serve`, "
                "or name another with --server",
                EXIT_UNAVAILABLE,
            ) from None
        except httpx.UnsupportedProtocol:
            raise CommandFailed(
                f"{self._url!r} is not a server's address; use http://host:port", EXIT_USAGE
            ) from None
        except httpx.TimeoutException:
            raise CommandFailed(
                f"the server at {self._url} did not answer in time; try again", EXIT_UNAVAILABLE
            ) from None
        except httpx.HTTPError as error:
            sentence = f"the connection to {self._url} broke: {error}"
            raise CommandFailed(sentence, EXIT_UNAVAILABLE, retry_after_s=0.0) from None
        if response.is_success:
            if lacks := response.headers.get("X-Maar-Partial"):
                click.echo(f"PARTIAL: damaged blocks are left out: {lacks}", err=True)
            return response
        if response.status_code in TRY_LATER:
            told_s = retry_after_s(response.headers.get("Retry-After", ""))
            raise CommandFailed(
                _sentence(response),
                EXIT_UNAVAILABLE,
                retry_after_s=told_s,
                answer=_answer(response),
            )
        raise CommandFailed(_sentence(response), answer=_answer(response))


def retry_after_s(header: str | bytes) -> float:
    """Retry-After in seconds, 0 when absent; maar never sends it as a date, nor for long: whoever
    else sends it must not make us wait for ever.
    """
    with suppress(ValueError):
        return min(max(0.0, float(header)), RETRY_AFTER_MAX_S)
    return 0.0


def _answer(response: httpx.Response) -> dict[str, Any]:
    """The object that a refusal carries, if it is one."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sentence(response: httpx.Response) -> str:
    """The error message; maar answers {code, message}, other servers anything."""
    try:
        message = response.json()["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:500].strip()
    return f"{message or 'no reason given'} (HTTP {response.status_code})"
