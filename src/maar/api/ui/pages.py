"""The page and its modules, served from the folder beside this file; always revalidated."""

from __future__ import annotations

from pathlib import Path

import xxhash
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

UI = Path(__file__).parent
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
}

_GUARDS = {
    "X-Content-Type-Options": "nosniff",
    # Function names are hostile text: whatever slips into the page must not run.
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
}


async def page(request: Request) -> Response:
    return _file(request, UI / "index.html")


async def asset(request: Request) -> Response:
    return _file(request, UI / request.path_params["path"])


def _file(request: Request, path: Path) -> Response:
    """Small files, read each time: an upgrade shows at the next reload."""
    kind = _KINDS.get(path.suffix)
    if kind is None or not _is_ours(path):
        return JSONResponse(
            {"code": "not_found", "message": "there is no such file of the page"}, 404
        )
    body = path.read_bytes()
    etag = f'"{xxhash.xxh3_64_hexdigest(body)}"'
    headers = {"Cache-Control": "no-cache", "ETag": etag, **_GUARDS}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


def _is_ours(path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(UI.resolve()) and path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
