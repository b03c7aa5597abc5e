"""/ingest: how older agents send profiles. The query string says what the body is."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope

from maar.api.body import BodyShare, header, read_body
from maar.api.errors import answer_to, text_error
from maar.api.guard import Endpoint, RequestGuard
from maar.api.push.appname import AppName, parse_name
from maar.api.push.multipart import is_multipart, parse_form
from maar.api.push.pusher import ids_header
from maar.api.times import is_own, unix_ns
from maar.distributor.admit import PushedProfile
from maar.distributor.service import Distributor
from maar.model.errors import InvalidInput, MaarError
from maar.model.ids import TenantId
from maar.model.labels import PROFILE_NAME
from maar.model.time import SECOND_NS
from maar.pprof.folded import parse_groups, parse_lines, type_of_suffix
from maar.pprof.gzip import promised_size

PPROF, GROUPS, LINES = "pprof", "groups", "lines"
NOT_READ = ("trie", "tree", "jfr", "speedscope")
SAMPLE_RATE_DEFAULT = 100
SAMPLE_RATE_MAX = SECOND_NS
NAME_LENGTH_MAX = 64 << 10


class IngestRequest(msgspec.Struct, frozen=True):
    """The query string, understood."""

    name: AppName
    format: str
    from_ns: int  # 0 when it is not given
    until_ns: int
    sample_rate: int
    spy: str
    own_time: bool = True  # of the client's clock, not of ours


class Ingest(Endpoint):
    def __init__(self, guard: RequestGuard, route: str, distributor: Distributor) -> None:
        super().__init__(guard, route)
        self._distributor = distributor

    async def respond(self, scope: Scope, receive: Receive) -> Response:
        tenant = self.guard.tenant(scope)
        content_type = header(scope, b"content-type")
        query = query_of(scope)
        request = parse_query(query, content_type, now_ns=self._distributor.clock.wall_ns())
        with self.guard.budget.hold() as hold:
            limit = self.guard.settings.body_bytes_max
            body = await read_body(scope, receive, limit=limit, hold=hold)
            pushed = await self._profile(tenant, request, content_type, body, hold)
            try:
                ids = await self._distributor.push(tenant, (pushed,))
            except InvalidInput as error:
                return self._unprocessable(error)
        return Response(headers=ids_header(ids))

    def refuse(self, error: MaarError) -> Response:
        return text_error(error, status=answer_to(error).status)

    def _unprocessable(self, error: InvalidInput) -> Response:
        """The address was fine, the profile was not; agents tell the two apart."""
        self.guard.count(self.route, 422, error)
        return text_error(error, status=422)

    async def _profile(
        self,
        tenant: TenantId,
        request: IngestRequest,
        content_type: str,
        body: bytes,
        hold: BodyShare,
    ) -> PushedProfile:
        if not body:
            raise InvalidInput("the body is empty; it should hold a profile", reason="empty")
        form = is_multipart(content_type)
        if request.format == PPROF and not form:
            return pprof_profile(request, body)
        limit = self._distributor.limits.profile_bytes_max
        if request.format == PPROF:
            raw = await self.guard.decompress(body, limit=limit, hold=hold)
            return form_profile(request, parse_form(content_type, raw))
        size = promised_size(body, limit=limit)
        await self._distributor.count_in(tenant, size)  # to read text costs more than all the rest
        raw = await self.guard.decompress(body, limit=limit, hold=hold)
        return await self.guard.parse(len(raw), text_profile, request, raw, size)


def query_of(scope: Scope) -> QueryParams:
    """The query string, of which names are kept: what is not UTF-8 would come back as another."""
    try:
        text = scope["query_string"].decode()
        return QueryParams(parse_qsl(text, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the query string is not UTF-8 at byte {error.start}: {ascii(error.object[:60])[1:]}",
            reason="utf8",
        ) from error


def parse_query(query: QueryParams, content_type: str, *, now_ns: int) -> IngestRequest:
    name = query.get("name", "")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidInput(f"the name is over {NAME_LENGTH_MAX} characters", reason="name")
    from_ns = unix_ns(query.get("from", ""), name="from", default_ns=0, now_ns=now_ns)
    until_ns = unix_ns(query.get("until", ""), name="until", default_ns=now_ns, now_ns=now_ns)
    return IngestRequest(
        name=parse_name(name),
        format=_format(query.get("format", ""), content_type),
        from_ns=from_ns,
        # The Go agent rounds the end of a flush down, to before its beginning: no time passed.
        until_ns=max(from_ns, until_ns),
        sample_rate=_sample_rate(query.get("sampleRate", "")),
        spy=query.get("spyName", ""),
        own_time=is_own(query.get("from", "") or query.get("until", "")),
    )


def pprof_profile(
    request: IngestRequest, body: bytes, shown_as: dict[str, str] | None = None
) -> PushedProfile:
    return PushedProfile(
        labels=request.name.pairs(spy=request.spy),
        body=body,
        time_ns=request.from_ns,
        own_time=request.own_time,
        shown_as=shown_as or {},
    )


def form_profile(request: IngestRequest, form: dict[str, bytes]) -> PushedProfile:
    """What the Go agent sends."""
    if "prev_profile" in form:
        raise InvalidInput(
            "the form holds prev_profile: differences of cumulative profiles are not computed "
            "here; upgrade the agent, which then sends them itself",
            reason="multipart",
        )
    if "profile" not in form:
        raise InvalidInput("the form has no field `profile`", reason="multipart")
    return pprof_profile(
        request, form["profile"], _display_names(form.get("sample_type_config", b""))
    )


def text_profile(request: IngestRequest, body: bytes, counted_bytes: int) -> PushedProfile:
    """Folded stacks; what their counts mean, the end of the name tells."""
    app, kind = type_of_suffix(request.name.app)
    parse = parse_groups if request.format == GROUPS else parse_lines
    time_ns = request.from_ns or request.until_ns
    raw = parse(
        body,
        kind=kind,
        sample_rate=request.sample_rate,
        time_ns=time_ns,
        duration_ns=request.until_ns - request.from_ns if request.from_ns else 0,
    )
    return PushedProfile(
        labels=((PROFILE_NAME, kind.name), *request.name.pairs(app=app, spy=request.spy)),
        body=raw,
        read_bytes=len(body),
        counted_bytes=counted_bytes,
        time_ns=time_ns,
        own_time=request.own_time,
    )


def _format(text: str, content_type: str) -> str:
    if text in (PPROF, GROUPS, LINES):
        return text
    if not text:
        return PPROF if is_multipart(content_type) else GROUPS
    if text in NOT_READ:
        raise InvalidInput(
            f"format {text!r} is not read by maar yet; it reads pprof, groups and lines",
            reason="format",
        )
    raise InvalidInput(
        f"format {text[:60]!r} is unknown; use pprof, groups or lines", reason="format"
    )


def _sample_rate(text: str) -> int:
    if text in ("", "0"):  # the Go agent sends 0 with what is not sampled by time
        return SAMPLE_RATE_DEFAULT
    if text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) <= SAMPLE_RATE_MAX:
        return int(text)
    raise InvalidInput(
        f"sampleRate={text[:60]!r} is not a number of samples per second", reason="sample_rate"
    )


def _display_names(config: bytes) -> dict[str, str]:
    """Only the display names matter here; values are kept as they were pushed."""
    if not config:
        return {}
    try:
        parsed: Any = msgspec.json.decode(config, type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(
            f"sample_type_config is not JSON of the form {{type: {{…}}}}: {str(error)[:200]}",
            reason="multipart",
        ) from error
    names = {kind: settings.get("display-name") for kind, settings in parsed.items()}
    return {kind: name for kind, name in names.items() if isinstance(name, str)}
