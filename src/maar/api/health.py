"""Whether a process is alive and ready, and its metrics: the routes that every role has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

PURPOSES = ("push", "query")
# For push or query ('': all); '' when ready, else why not.
Readiness = Callable[[str], Awaitable[str]]
# What does not work as it should although it is ready; '': nothing.
Degraded = Callable[[], Awaitable[str]]
ExtraMetrics = Callable[[], Awaitable[list[str]]]  # what other roles expose, as text


async def nothing() -> str:
    return ""


def health_routes(
    registries: Sequence[CollectorRegistry],
    readiness: Readiness,
    extra_metrics: ExtraMetrics,
    degraded: Degraded = nothing,
) -> list[Route]:
    async def ready(request: Request) -> Response:
        purpose = request.query_params.get("for", "")
        if purpose and purpose not in PURPOSES:
            known = " or ".join(f"for={name}" for name in PURPOSES)
            return PlainTextResponse(f"for={purpose[:60]!r} is not known; use {known}\n", 400)
        why_not = await readiness(purpose)
        if why_not:
            return PlainTextResponse(f"{why_not}\n", 503)
        less = await degraded()
        return PlainTextResponse(f"ready\n{less}\n" if less else "ready\n")

    async def healthz(_request: Request) -> Response:
        """The process is alive; /ready says whether it can do its work."""
        return PlainTextResponse("ok\n")

    async def metrics(_request: Request) -> Response:
        own = [generate_latest(registry).decode() for registry in registries]
        texts = [*own, *await extra_metrics()]
        return Response("".join(texts), media_type=CONTENT_TYPE_LATEST)

    return [Route("/ready", ready), Route("/healthz", healthz), Route("/metrics", metrics)]
