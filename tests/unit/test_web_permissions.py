"""Every route of HTTP with every role, and with none: the same as over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from cron.access import CELL, TOKEN_ROLES, Role, token_id
from cron.api.rpc import encode
from cron.state.access import RevokeTokens
from cron.web.console.acts import ACTS
from cron.web.console.site import PAGES as CONSOLE
from cron.web.console.site import Console
from cron.web.routes import Route, routes
from tests.style import access_table
from tests.unit.access_calls import CALLS, JOB, LAUNCH, TASK, Reached, expected
from tests.unit.access_rig import AccessWorld
from tests.unit.certs_rig import EXECUTOR, REPLICA, Certs
from tests.unit.console_rig import Browser
from tests.unit.test_web_callers import client
from tests.unit.web_rig import Site, site

ROUTES = {f"{route.method} {route.path}": route for route in routes()}


def http_request(route: Route) -> tuple[str, str, Any]:
    """The method, the path with its query, and the body of the request of a route's call."""
    fields: dict[str, Any] = msgspec.json.decode(encode(CALLS[route.rpc.name][0]))
    path = route.path
    if route.field:
        value = fields.pop(route.field)
        path = path.replace(f"{{{route.shown}}}", value[0] if isinstance(value, list) else value)
    if route.has_body:
        return route.method, path, fields
    flat = fields | fields.pop("filter", {})
    pairs = {
        name: one if isinstance(one, str | list) else msgspec.json.encode(one).decode()
        for name, one in flat.items()
    }
    query = urlencode(pairs, doseq=True)
    return route.method, f"{path}?{query}" if query else path, None


async def statuses(served: Site, token: str) -> dict[str, int]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    found = {}
    for name, route in ROUTES.items():
        said = await served.ask(*http_request(route), headers=headers)
        found[name] = said.status
    return found


def test_every_call_of_people_has_a_route() -> None:
    assert {route.rpc.name for route in ROUTES.values()} == {*CALLS} - {"FetchSegment"}


@pytest.mark.parametrize("role", TOKEN_ROLES)
async def test_every_route_with_every_role(role: Role) -> None:
    world, reached = AccessWorld(), Reached()
    async with site(reached, cell="berlin", admission=world.admission(is_open=False)) as served:
        for scope in (CELL, "billing/*", "ops/*"):
            wanted = {
                name: 404 if expected(route.rpc.name, role, scope) else 403  # 404: it was reached
                for name, route in ROUTES.items()
            }
            assert await statuses(served, world.token(role, scope)) == wanted
            assert len(reached.requests) == [*wanted.values()].count(404)
            reached.requests.clear()


async def test_every_route_without_a_token_that_counts() -> None:
    world, reached = AccessWorld(), Reached()
    token = world.token(Role.ADMIN)
    world.rig.to(86_400)
    async with site(reached, cell="berlin", admission=world.admission(is_open=False)) as served:
        for shown in ("", token, token[:-1]):
            assert {*(await statuses(served, shown)).values()} == {401}
    assert reached.requests == []


# ---- what HTTP answers beside the calls

SCOPES = (CELL, "billing/*", "ops/*")
OTHERS = {row.name: row for row in access_table.paths()}
PAGES = {name: row for name, row in OTHERS.items() if name.removeprefix("GET ") in CONSOLE}
NAMED = {"/jobs/": JOB, "/launches/": LAUNCH, "/tasks/": TASK, "/groups/": JOB}


def is_covered(row: access_table.Row, role: Role, scope: str, path: str) -> bool:
    """Whether a role within a scope is enough for a path, by the table of the documents."""
    needs_cell = row.scope == access_table.CELL
    about = JOB if path in NAMED else ""
    covers = scope in (CELL, "billing/*") if about else not needs_cell or scope == CELL
    return role in row.roles and covers


async def measured() -> tuple[str, bytes]:
    return "text/plain", b"raftcron_up 1\n"


@asynccontextmanager
async def everything(world: AccessWorld) -> AsyncIterator[Site]:
    """A site with all that a replica serves; whatever reaches the cell is told so."""
    admission = world.admission(is_open=False)
    async with site(
        Reached(), cell="berlin", admission=admission, has_console=True, metrics=measured
    ) as served:
        yield served


def bearer(token: str, **more: str) -> dict[str, str]:
    return more | ({"authorization": f"Bearer {token}"} if token else {})


def test_every_path_of_the_console_is_in_the_table() -> None:
    some: Any = None
    console = Console("berlin", some, some, lambda: 0, is_secure=True)
    for path, methods in console.paths(some).items():
        shown = "/assets/" if path.startswith("/assets/") else path.partition("{")[0]
        for method in methods:
            assert shown == "/acts/" or f"{method} {shown}" in OTHERS, path


@pytest.mark.parametrize("role", TOKEN_ROLES)
async def test_every_page_and_the_metrics_with_every_role(role: Role) -> None:
    world = AccessWorld()
    async with everything(world) as served:
        for scope in SCOPES:
            token = world.token(role, scope)
            for name, row in {**PAGES, "GET /metrics": OTHERS["GET /metrics"]}.items():
                path = name.removeprefix("GET ")
                headers = bearer(token, accept="text/html")
                said = await served.ask("GET", path + NAMED.get(path, ""), headers=headers)
                allowed = {200, 404} if path in access_table.SHOWN_BY else {200}
                wanted = allowed if is_covered(row, role, scope, path) else {403}
                assert said.status in wanted, (path, scope)
            head = await served.ask("HEAD", "/events", headers=bearer(token))
            assert head.status == 200


@pytest.mark.parametrize("role", TOKEN_ROLES)
async def test_every_act_of_the_console_with_every_role(role: Role) -> None:
    world = AccessWorld()
    async with everything(world) as served:
        browser = Browser(served)
        await browser.get("/signin")
        await browser.send("/signin", {"token": world.token(role)})
        for name in ACTS:
            await browser.get("/cell")
            said = await browser.send(f"/acts/{name}", {"job": JOB})
            is_refused = said.status == 403 and "it needs a role that may" in said.body.decode()
            assert is_refused is (role not in OTHERS[f"POST /acts/{name}"].roles), name


@pytest.mark.parametrize("how", ["none", "cut", "expired", "revoked", "of another cell"])
async def test_without_a_token_that_counts_only_what_is_open_answers(how: str) -> None:
    world = AccessWorld()
    token = world.token(Role.ADMIN)
    if how == "none":
        token = ""
    elif how == "cut":
        token = token[:-1]
    elif how == "expired":
        world.rig.to(86_400)
    elif how == "revoked":
        world.rig.append(RevokeTokens((token_id(token),), "ada"))
    else:
        token = AccessWorld().token(Role.ADMIN)[:-1] + "f"
    async with everything(world) as served:
        for name, row in OTHERS.items():
            method, _, path = name.partition(" ")
            if method != "GET" or path == "/assets/":
                continue
            said = await served.ask(method, path + NAMED.get(path, ""), headers=bearer(token))
            is_open = access_table.NOBODY in row.others
            assert (said.status == 200) is is_open, name
            assert is_open or said.status == 401, name


@pytest.mark.parametrize("who", [REPLICA, EXECUTOR], ids=lambda who: who[0])
async def test_the_console_is_for_people(tmp_path: Path, who: tuple[str, str]) -> None:
    certs, world = Certs(tmp_path), AccessWorld()
    ours, theirs = certs.credentials(*REPLICA), certs.credentials(*who)
    admission = world.admission(is_open=False)
    async with site(
        Reached(),
        credentials=lambda: ours,
        cell="berlin",
        admission=admission,
        has_console=True,
        metrics=measured,
    ) as served:
        for name, row in OTHERS.items():
            method, _, path = name.partition(" ")
            if method == "GET" and path != "/assets/":
                tls = client(theirs, ours)
                said = await served.ask(method, path + NAMED.get(path, ""), tls=tls)
                assert said.status == (200 if who[0] in row.others else 403), name
