"""The pages of the console: their addresses, sign-in, forms, and refusals as pages."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from starlette.types import Scope

from cron.api.admission import Admission, Caller, Shown
from cron.errors import CronError, NotAllowed, NotAuthenticated
from cron.web.console import (
    alerts,
    cell,
    dead,
    executors,
    groups,
    jobs,
    launches,
    now,
    queues,
    tasks,
)
from cron.web.console.acts import ACTS, SHOWN_MAX, may_act, said_done, with_done
from cron.web.console.events import KIND, Events
from cron.web.console.frame import NAV, Frame, Page
from cron.web.console.page_request import (
    FORM,
    FORM_BYTES_MAX,
    Asks,
    PageRequest,
    ServingNow,
    fields_of,
)
from cron.web.console.sessions import FORM_BYTES, Cookies, check_form, form_token
from cron.web.exchange import Bodies, Exchange, address_of, shown_by
from cron.web.problems import Answer, Refusal, refused
from launcher.identity import PERSON

Endpoint = Callable[[Exchange, str], Awaitable[None]]
Show = Callable[[PageRequest, str], Awaitable[Page]]

PAGES: Final[dict[str, Show]] = {
    "/": now.show,
    "/jobs": jobs.show,
    "/jobs/": jobs.show_one,
    "/launches/": launches.show,
    "/queues": queues.show,
    "/executors": executors.show,
    "/executors/": executors.show_one,
    "/dead": dead.show,
    "/tasks": tasks.show,
    "/tasks/": tasks.show_one,
    "/groups/": groups.show_one,
    "/alerts": alerts.show,
    "/cell": cell.show,
}
"""The pages by their paths; one that ends with a slash has a name after it."""


class Console:
    """Pages for people. `serving` says how this replica stands now."""

    def __init__(
        self,
        cell: str,
        admission: Admission,
        serving: ServingNow,
        wall_ms: Callable[[], int],
        *,
        is_secure: bool,
        events: Events | None = None,
        others: Callable[[], dict[str, tuple[str, str]]] = dict,
    ) -> None:
        self._cell = cell
        self._admission = admission
        self._serving = serving
        self._wall_ms = wall_ms
        self._is_secure = is_secure
        self._others = others
        self._frame = Frame.shared()
        self._bodies = Bodies()
        self._events = events or Events(serving)

    def paths(self, asks: Asks) -> dict[str, dict[str, Endpoint]]:
        """Return what answers at each path and method."""
        found: dict[str, dict[str, Endpoint]] = {
            asset.path: {"GET": _fixed(asset.answer)} for asset in self._frame.assets.values()
        }
        for path, show in PAGES.items():
            pattern = f"{path}{{value:path}}" if path.endswith("/") and path != "/" else path
            found[pattern] = {"GET": self._shows(asks, show)}
        found["/events"] = {"GET": self._send_events}
        found["/acts/{value}"] = {"POST": self._acts(asks)}
        found["/signin"] = {"GET": self._sign_in_page, "POST": self._sign_in}
        found["/signout"] = {"POST": self._sign_out}
        return found

    def wants(self, scope: Scope, accept: str) -> bool:
        """Return whether a request is one of a browser that shows pages."""
        is_api = scope["path"].startswith(("/v1/", "/assets/", "/healthz", "/readyz", "/metrics"))
        return "text/html" in accept and not is_api

    def refusal(self, exchange: Exchange, error: CronError | Refusal) -> Answer:
        """Return a refusal as a page: the sign-in where nobody is signed in."""
        asked = self._begin(exchange)
        if isinstance(error, NotAuthenticated):
            problem = error if asked.shown.authorization else None
            page = _signing_in(_path_of(exchange), problem, status=401)
        else:
            plain = refused(error)
            values = {"text": str(error), "hint": error.hint, "status": plain.status}
            page = Page("error.html", _HEADINGS.get(plain.status, "Refused"), values, plain.status)
        answer = self._answer(exchange, asked, page)
        if isinstance(error, Refusal):
            answer.headers.update(error.headers)
        return answer

    # ---- a page

    def _shows(self, asks: Asks, show: Show) -> Endpoint:
        async def answer(exchange: Exchange, path_value: str) -> None:
            asked = self._begin(exchange, asks)
            asked.caller = self._person(asked.shown)
            page = await show(asked, path_value)
            await exchange.answer(self._answer(exchange, asked, page))

        return answer

    def _acts(self, asks: Asks) -> Endpoint:
        """Return what shows the plan of an act, and does it once that is confirmed."""

        async def answer(exchange: Exchange, name: str) -> None:
            act = ACTS.get(name)
            if act is None:
                raise Refusal(404, "unknown_path", f"there is no act {name[:40]!r}")
            asked = self._begin(exchange, asks)
            asked.caller = self._person(asked.shown)
            await self._form(exchange, asked)
            if not may_act(asked.caller, name):
                needed = f"it needs a role that may {act.rpc.action.value}"
                text = f"{asked.caller} may not do this: {needed}"
                raise NotAllowed(text, "docs/security.md says which role may do what")
            back = local_path(asked.form.get("back", "/"))
            if asked.form.get("confirmed") == "1":
                count, location = await act.do(asked)
                await exchange.answer(see_other(with_done(location or back, name, count)))
                return
            plan = await act.plan(asked)
            values = {"plan": plan, "act": name, "back": back, "shown": SHOWN_MAX}
            page = Page("plan.html", plan.title, values)
            await exchange.answer(self._answer(exchange, asked, page))

        return answer

    def _begin(self, exchange: Exchange, asks: Asks | None = None) -> PageRequest:
        shown = self._shown(exchange)
        query = dict(reversed(fields_of(exchange.scope["query_string"]))) if asks else {}
        unasked: Any = None
        return PageRequest(asks or unasked, shown, None, self._wall_ms(), query)

    def _cookies(self, exchange: Exchange) -> Cookies:
        return Cookies(exchange.header("cookie"), is_secure=self._is_secure)

    def _shown(self, exchange: Exchange) -> Shown:
        """Return what the caller shows: a session counts where no other token is shown."""
        shown = shown_by(exchange)
        session = self._cookies(exchange).session
        if shown.authorization or not session:
            return shown
        return Shown(shown.identity, f"Bearer {session}", address_of(exchange))

    def _answer(self, exchange: Exchange, asked: PageRequest, page: Page) -> Answer:
        """Return a page in its frame; a browser without a key of forms gets one."""
        key = self._cookies(exchange).form
        drawn = "" if key else secrets.token_hex(FORM_BYTES)
        granted = asked.caller.subject.grants if asked.caller is not None else ()
        answer = self._frame.render(
            page,
            asked.now_ms,
            cell=self._cell,
            done=said_done(asked.query),
            caller=asked.caller,
            can=partial(may_act, asked.caller),
            roles=sorted({one.role.label for one in granted}),
            has_session=bool(self._cookies(exchange).session),
            csrf_token=form_token(key or drawn, asked.shown),
            serving=self._serving(),
            elsewhere=elsewhere(self._others(), is_secure=self._is_secure),
            nav=[(one, name) for one, name in NAV if one in PAGES],
            is_fixed=page.template in FIXED,
            path=exchange.scope["path"],
            here=_path_of(exchange),
        )
        if drawn:
            answer.headers["set-cookie"] = self._cookies(exchange).with_form(drawn)
        return answer

    async def _form(self, exchange: Exchange, asked: PageRequest) -> None:
        """Read the form that was sent.

        Raises:
            Refusal: it is not one of this console. InvalidInput: it cannot be read.
        """
        kind = exchange.header("content-type").partition(";")[0].strip().lower()
        if kind != FORM:
            raise Refusal(415, "content_type", "the form is sent as something else", accept=FORM)
        body = await exchange.body(self._bodies, FORM_BYTES_MAX)
        self._bodies.release(len(body))
        asked.fields = fields_of(body)
        check_form(asked.form.get("csrf", ""), self._cookies(exchange).form, asked.shown)

    async def _send_events(self, exchange: Exchange, _path_value: str) -> None:
        """Tell an open page that there is something new, for as long as its caller may see it."""
        shown = self._shown(exchange)
        self._person(shown)
        if exchange.method == "HEAD":
            await exchange.answer(Answer(200, {"content-type": KIND}, b""))
            return
        await self._events.send(exchange, lambda: self._check(shown))

    def _check(self, shown: Shown) -> None:
        self._person(shown)

    def _person(self, shown: Shown) -> Caller:
        """Return who looks.

        Raises:
            NotAuthenticated, NotAllowed: it is not proven who that is, it has no role, or it is no
                person, such as a replica.
        """
        caller = self._admission.caller(shown)
        if caller.kind != PERSON:
            hint = "sign in with a token, or show a person's certificate"
            raise NotAllowed(f"{caller} may not use the console", hint)
        return caller

    # ---- sessions

    async def _sign_in_page(self, exchange: Exchange, _path_value: str) -> None:
        asked = self._begin(exchange)
        query = dict(fields_of(exchange.scope["query_string"]))
        page = _signing_in(query.get("next", "/"), None, status=200)
        await exchange.answer(self._answer(exchange, asked, page))

    async def _sign_in(self, exchange: Exchange, _path_value: str) -> None:
        """Begin a session with a token that this replica knows."""
        asked = self._begin(exchange)
        await self._form(exchange, asked)
        token = asked.form.get("token", "").strip()
        try:
            if not token:
                raise NotAuthenticated("no token was given", "paste the whole token")
            shown = shown_by(exchange)
            self._admission.caller(Shown(None, f"Bearer {token}", shown.address))
        except (NotAuthenticated, NotAllowed) as error:
            page = _signing_in(asked.form.get("next", "/"), error, status=401)
            await exchange.answer(self._answer(exchange, asked, page))
            return
        location = local_path(asked.form.get("next", "/"))
        cookie = self._cookies(exchange).with_session(token)
        await exchange.answer(see_other(location, **{"set-cookie": cookie}))

    async def _sign_out(self, exchange: Exchange, _path_value: str) -> None:
        asked = self._begin(exchange)
        await self._form(exchange, asked)
        cookie = self._cookies(exchange).with_session("")
        await exchange.answer(see_other("/", **{"set-cookie": cookie}))


_HEADINGS: Final = {
    400: "That cannot be read",
    403: "Not allowed",
    404: "Not found",
    409: "In conflict with what is",
    429: "A limit is reached",
    503: "Not available now",
    504: "No answer in time",
}


FIXED: Final = ("plan.html", "signin.html", "error.html")
"""Pages that are not kept up to date."""


def elsewhere(others: dict[str, tuple[str, str]], *, is_secure: bool) -> dict[str, str]:
    """Return where the consoles of other replicas are, by their ids. One that listens everywhere is
    reached at the host of its client address."""
    found = {}
    for replica, (http, client) in sorted(others.items()):
        host, _, port = http.rpartition(":")
        if host in ("0.0.0.0", "[::]"):  # noqa: S104 - it is read, not listened on
            host = client.rpartition(":")[0]
        found[replica] = f"{'https' if is_secure else 'http'}://{host}:{port}"
    return found


def see_other(location: str, **headers: str) -> Answer:
    """Return the answer that leads a browser to another page."""
    return Answer(303, {"location": location, **headers}, b"")


def local_path(path: str) -> str:
    """Return a path of this site; "/" for what is not one. A browser takes two slashes, or a
    backslash, for another site."""
    is_local = path.startswith("/") and not path.startswith("//") and path.isascii()
    return path if is_local and path.isprintable() and "\\" not in path else "/"


def _signing_in(to: str, error: CronError | None, *, status: int) -> Page:
    values = {"to": local_path(to), "error": error}
    return Page("signin.html", "Sign in", values, status)


def _path_of(exchange: Exchange) -> str:
    """Return the path and query of a request as the browser sent them."""
    query = exchange.scope["query_string"].decode("latin-1")
    path = exchange.scope["raw_path"].decode("latin-1")
    return f"{path}?{query}" if query else str(path)


def _fixed(answer: Answer) -> Endpoint:
    async def send(exchange: Exchange, _path_value: str) -> None:
        await exchange.answer(answer)

    return send
