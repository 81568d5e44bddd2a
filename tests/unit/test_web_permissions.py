"""Every route of HTTP with every role, and with none: the same as over gRPC."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from cron.access import CELL, TOKEN_ROLES, Role
from cron.api.rpc import encode
from cron.web.routes import Route, routes
from tests.unit.access_calls import CALLS, Reached, expected
from tests.unit.access_rig import AccessWorld
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
