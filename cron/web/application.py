"""The HTTP API of one replica, as an ASGI application: its routes, and what each request passes.

A request passes, in this order: the checks of where it comes from, the route, its body, the reading
and checking of its fields, who its caller is and what they may, a turn, and the Backend.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import structlog
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from cron import limits
from cron.api.admission import Admission, Shown
from cron.api.calls import Calls, pages_of
from cron.api.overview import ActivityQuery
from cron.api.reading import BEHIND, STALE, Behind, reading
from cron.api.rpc import Request, Rpc, Where, encode
from cron.api.status import error_of
from cron.api.table import ACTIVITY
from cron.api.tasks import SubmitReport
from cron.errors import (
    CronError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
)
from cron.web import openapi
from cron.web.console.site import Console
from cron.web.exchange import Bodies, Exchange, shown_by
from cron.web.forwarding import Forwarding, calling, timeout_of
from cron.web.health import HealthChecks
from cron.web.origin import check_host, check_origin, is_visit
from cron.web.problems import RETRY_AFTER_S, Answer, Refusal, refused, with_lists
from cron.web.requests import JSON, Read, read_request
from cron.web.routes import Route, routes
from cron.web.turns import Turns

log = structlog.get_logger()

LIST_S: Final = 60.0
"""How long it may take to send a list."""
_EXCHANGE: Final = "raftcron.exchange"
_BUG: Final = Refusal(500, "bug", "a bug ended the request; see the replica's log")

_ABSENT: Final = "\n"
"""What no header says."""
Endpoint = Callable[[Exchange, str], Any]
Metrics = Callable[[], Awaitable[tuple[str, bytes]]]
"""Returns the metrics of this replica, as a content type and a body."""


class Application:
    """Answers HTTP requests of one replica. Without `is_secure` it listens on loopback only, and
    answers to names of loopback only."""

    def __init__(
        self,
        forwarding: Forwarding,
        admission: Admission,
        health: HealthChecks,
        wall_ms: Callable[[], int],
        *,
        is_secure: bool = False,
        turns: Turns | None = None,
        console: Console | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._forwarding = forwarding
        self._calls = Calls(forwarding)
        self._admission = admission
        self._wall_ms = wall_ms
        self._is_secure = is_secure
        self._reading = turns or Turns(rests=True)
        self._changing = turns or Turns(limits.HTTP_CHANGES_MAX)
        self._streams = Turns(limits.HTTP_STREAMS_MAX, waiting=0)
        self._lists = Turns(limits.HTTP_LISTS_MAX, waiting=0)
        self._bodies = Bodies()
        self._console = console
        self._metrics = metrics
        listed = routes()
        self._document = openapi.Document(listed)
        self._router = Router(self._paths(listed, health), redirect_slashes=False)
        self._router.default = self._unknown

    def _paths(self, listed: Sequence[Route], health: HealthChecks) -> list[Path]:
        resources: dict[str, dict[str, Endpoint]] = {
            "/healthz": {"GET": _fixed(health.alive)},
            "/readyz": {"GET": _fixed(health.ready)},
            "/v1/openapi.json": {"GET": _fixed(self._document.answer)},
        }
        if self._metrics is not None:
            resources["/metrics"] = {"GET": self._measured(self._metrics)}
        for route in listed:
            # A name may contain slashes, and is therefore all that follows.
            path = route.path.partition("{")[0] + ("{value:path}" if route.field else "")
            resources.setdefault(path, {})[route.method] = self._endpoint(route)
        if self._console is not None:
            resources |= self._console.paths(self)
        return [Path(path, _Resource(methods)) for path, methods in resources.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send, self._wall_ms)
        scope[_EXCHANGE] = exchange
        try:
            exchange.check_head()
            host = exchange.header("host")
            check_host(host, is_secure=self._is_secure)
            if not (self._shows_pages(exchange) and is_visit(exchange.method, exchange.header)):
                site = exchange.header("sec-fetch-site")
                check_origin(exchange.header("origin"), site, host, scope["scheme"])
            await self._router(scope, receive, send)
        except (CronError, Refusal) as error:
            answer = self._refused(exchange, error)
        except TimeoutError:  # a client that reads a list slowly
            answer = refused(Refusal(503, "timeout", "the answer took too long to send"))
        except Exception as error:  # the top of a request: a bug ends it, not the replica
            log.exception("request.failed", error=str(error))
            answer = self._refused(exchange, _BUG)
        else:
            return
        if exchange.is_begun:  # the connection ends, so that the client sees that rows are missing
            raise ConnectionAbortedError
        await exchange.answer(answer)

    def _shows_pages(self, exchange: Exchange) -> bool:
        return self._console is not None and self._console.wants(
            exchange.scope, exchange.header("accept")
        )

    def _refused(self, exchange: Exchange, error: CronError | Refusal) -> Answer:
        """Return a refusal as a problem document; as a page where a browser asks."""
        if self._console is not None and self._shows_pages(exchange):
            return self._console.refusal(exchange, error)
        return refused(error)

    async def ask(
        self, rpc: Rpc[Any, Any], request: Request, shown: Shown, *, is_stale: bool
    ) -> tuple[Any, Behind | None]:
        """Return the answer to a call that a page makes for its caller, and how far this replica is
        behind where it answers by itself."""
        with reading([(STALE, "1")] if is_stale else []) as how, calling(shown):
            is_change = rpc.where is Where.CHANGE
            async with (self._changing if is_change else self._reading).turn():
                result = await self._within(rpc, request, shown)
            return result, how.behind

    async def _unknown(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        path = scope["path"][:200]
        raise Refusal(404, "unknown_path", f"there is no {path}", "/v1/openapi.json has all paths")

    def _endpoint(self, route: Route) -> Endpoint:
        async def answer(exchange: Exchange, path_value: str) -> None:
            if route.field and not path_value:
                raise Refusal(404, "unknown_path", f"{route.path}: {route.field} is empty")
            read = await self._read(exchange, route, path_value)
            shown = shown_by(exchange)
            with reading(_staleness(exchange)) as how, calling(shown):
                check = self._rechecked(route.rpc, read.request, shown)
                is_change = route.rpc.where is Where.CHANGE
                async with (self._changing if is_change else self._reading).turn():
                    result = await self._within(route.rpc, read.request, shown)
                behind = {} if how.behind is None else {BEHIND: encode(how.behind).decode()}
                if route.rpc.is_stream:
                    await self._rows(exchange, route.rpc, result, behind, check)
                elif read.is_one:
                    await exchange.answer(answer_of_one(result))
                else:
                    headers = {"content-type": JSON, **behind}
                    await exchange.answer(Answer(200, headers, with_lists(result)))

        return answer

    def _measured(self, metrics: Metrics) -> Endpoint:
        async def answer(exchange: Exchange, _path_value: str) -> None:
            try:  # whoever may ask what the whole cell does may read its numbers
                self._admission.admit(ACTIVITY, ActivityQuery(), shown_by(exchange))
            except NotLeader as error:  # the numbers are of this replica: it cannot ask the leader
                raise error.__cause__ or error from None
            async with self._reading.turn():
                kind, body = await metrics()
            await exchange.answer(Answer(200, {"content-type": kind}, body))

        return answer

    async def _read(self, exchange: Exchange, route: Route, path_value: str) -> Read:
        """Return the request that was sent."""
        is_stranger = self._is_stranger(shown_by(exchange))
        most = limits.HTTP_STRANGER_BYTES_MAX if is_stranger else limits.HTTP_BODY_BYTES_MAX
        if route.has_body:
            exchange.check_json()
        body = await exchange.body(self._bodies, most, is_stranger=is_stranger)
        try:
            return read_request(route, path_value, exchange.scope["query_string"], body)
        except LimitExceeded as error:  # by the request itself, whenever it is sent
            raise InvalidInput(str(error), error.hint) from error
        finally:
            self._bodies.release(len(body))

    def _is_stranger(self, shown: Shown) -> bool:
        """Return whether what a caller shows is not known here. It may send a small body: its token
        may be one that the leader has made a moment ago.

        Raises:
            NotAuthenticated: the caller shows nothing, and has to.
        """
        try:
            self._admission.caller(shown)
        except NotAllowed:
            if not shown.authorization and shown.identity is None:
                raise
            return True
        return False

    async def _rows(
        self,
        exchange: Exchange,
        rpc: Rpc[Any, Any],
        result: Any,
        headers: dict[str, str],
        check: Callable[[], None],
    ) -> None:
        """Send the rows of a stream, for as long as `check` raises nothing."""
        is_list = isinstance(result, list)
        async with (
            (self._lists if is_list else self._streams).turn(),
            asyncio.timeout(LIST_S if is_list else None),
        ):
            await exchange.rows(pages_of(result), headers, check)

    def _rechecked(self, rpc: Rpc[Any, Any], request: Request, shown: Shown) -> Callable[[], None]:
        """Return what raises once a caller may see a stream no more, or not the same of it as now.
        What only the leader knows to be allowed, the leader checks."""

        def admitted() -> Request | None:
            with contextlib.suppress(NotLeader):
                return self._admission.admit(rpc, request, shown)
            return None

        def check() -> None:
            if first is not None and admitted() != first:
                raise NotAllowed("the caller's roles have changed", "ask again")

        first = admitted() if rpc.is_stream else None
        return check

    async def _within(self, rpc: Rpc[Any, Any], request: Request, shown: Shown) -> Any:
        """Return the answer to a request, if its caller may make it and it comes in time."""
        timeout_ms = timeout_of(rpc, request)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                try:
                    admitted = self._admission.admit(rpc, request, shown)
                except NotLeader as error:  # a role may have been granted there a moment ago
                    return await self._forwarding.ask(error.leader, rpc, request)
                return await self._calls.answer(rpc, admitted)
        except TimeoutError:
            text = f"{rpc.name} took longer than {timeout_ms} ms"
            if rpc.where is Where.CHANGE and rpc.is_change(request):
                hint = "it goes on; look whether it happened before you repeat it"
                raise OutcomeUnknown(text, hint) from None
            raise Unavailable(text, "try again") from None


class _Resource:
    """What has one path: an endpoint for each method."""

    def __init__(self, methods: dict[str, Endpoint]) -> None:
        self._methods = methods
        names = {*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])}
        self._allowed = ", ".join(sorted(names))

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        exchange: Exchange = scope[_EXCHANGE]
        if exchange.method == "OPTIONS":
            await exchange.answer(Answer(204, {"allow": self._allowed}, b""))
            return
        method = "GET" if exchange.method == "HEAD" else exchange.method
        endpoint = self._methods.get(method)
        if endpoint is None:
            text = f"{scope['path'][:200]} has no {exchange.method[:20]}"
            raise Refusal(405, "method", text, f"it has {self._allowed}", allow=self._allowed)
        await endpoint(exchange, next(iter(scope["path_params"].values()), ""))


def _staleness(exchange: Exchange) -> tuple[tuple[str, str], ...]:
    """Return what a request says of how old its answer may be, as a call's metadata.

    Raises:
        InvalidInput: it says something else than 1, which might be meant as a yes.
    """
    said = exchange.header(STALE, absent=_ABSENT)
    if said not in (_ABSENT, "1"):
        raise InvalidInput(f"{STALE} is {said[:40]!r}, not 1", "write 1, or leave it out")
    return ((STALE, said),) if said == "1" else ()


def _fixed(make: Callable[[], Answer]) -> Endpoint:
    async def answer(exchange: Exchange, _path_value: str) -> None:
        await exchange.answer(make())

    return answer


def answer_of_one(report: SubmitReport) -> Answer:
    """Return the answer to a program that hands over one task, whose verdict is that of the
    request: 201 for a new task, 200 for one that was there, or the problem."""
    (verdict,) = report.tasks
    if verdict.error is None:
        headers = {"content-type": JSON, "location": f"/v1/tasks/{quote(verdict.task, safe='/:')}"}
        return Answer(201 if verdict.is_new else 200, headers, encode(verdict))
    error = verdict.error
    answer = refused(error_of(error.code, error.message, error.hint))
    if verdict.retry_after_ms:
        answer.headers["retry-after"] = str(max(RETRY_AFTER_S, -(-verdict.retry_after_ms // 1000)))
    return answer
