"""Every call with every role, and with none: over real connections, through the guard."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.access import CELL, TOKEN_ROLES, Role
from cron.api import table
from cron.api.admission import Admission, Shown
from cron.api.client import Client
from cron.api.rpc import Request, Rpc
from cron.errors import NotAllowed, NotAuthenticated, NotFound
from launcher.identity import Identity
from tests.unit.access_calls import CALLS, Reached, expected
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import in_thread


def outcome(client: Client, rpc: Rpc[Any, Any], request: Request) -> str:
    """What becomes of a call: reached, denied or unknown (who calls)."""
    try:
        client.ask(rpc, request)
    except NotAuthenticated:
        return "unknown"
    except NotAllowed:
        return "denied"
    except NotFound as error:
        return str(error)
    return "answered"


def walked(server: str, token: str) -> dict[str, str]:
    """The outcome of every call with a token."""
    with Client([server], 20_000, token=token) as client:
        return {name: outcome(client, table.TABLE[name], CALLS[name][0]) for name in CALLS}


def test_every_call_of_the_table_is_walked() -> None:
    assert [*CALLS] == [*table.TABLE]


@pytest.mark.parametrize("role", TOKEN_ROLES)
async def test_every_call_with_every_role(role: Role) -> None:
    world, reached = AccessWorld(), Reached()
    async with world.serving(reached, is_open=False) as server:
        for scope in (CELL, "billing/*", "ops/*"):
            outcomes = {
                name: "reached" if expected(name, role, scope) else "denied" for name in CALLS
            }
            token = world.token(role, scope)
            assert await in_thread(walked, server, token) == outcomes
            wanted = [] if scope == CELL else [scope]
            asked, reached.requests = reached.requests, []
            assert len(asked) == [*outcomes.values()].count("reached")
            for request in asked:
                assert getattr(request, "by", "ci") == "ci"
                assert getattr(request, "within", wanted) == wanted
                inner = getattr(request, "query", None) or getattr(request, "filter", None)
                assert getattr(inner, "within", wanted) == wanted


@pytest.mark.parametrize("how", ["none", "cut", "expired", "revoked", "of another cell"])
async def test_every_call_without_a_token_that_counts(how: str) -> None:
    world, reached = AccessWorld(), Reached()
    token = world.token(Role.ADMIN)
    if how == "none":
        token = ""
    elif how == "cut":
        token = token[:-1]
    elif how == "expired":
        world.rig.to(86_400)
    elif how == "revoked":
        world.rig.append(*_revocation(token))
    else:
        token = AccessWorld().token(Role.ADMIN)[:-1] + "f"
    async with world.serving(reached, is_open=False) as server:
        assert set((await in_thread(walked, server, token)).values()) == {"unknown"}
    assert reached.requests == []


def _revocation(token: str) -> list[Any]:
    from cron.access import token_id
    from cron.state.access import RevokeTokens

    return [RevokeTokens((token_id(token),), "ada")]


async def test_without_tls_every_call_is_open_to_who_shows_nothing() -> None:
    world, reached = AccessWorld(), Reached()
    async with world.serving(reached) as server:
        outcomes = await in_thread(walked, server, "")
    assert {*outcomes.values()} == {"reached"}  # also what replicas ask each other


@pytest.mark.parametrize("kind", ["replica", "executor", "authority", "worker"])
def test_certificates_of_machines_make_the_calls_of_machines(kind: str) -> None:
    rules = AccessWorld().state.access
    admission = Admission("berlin", lambda: rules, lambda: 0, is_open=False)
    shown = Shown(Identity("berlin", kind, "r1"))
    allowed = []
    for name, (request, _, _) in CALLS.items():
        try:
            admission.admit(table.TABLE[name], request, shown)
        except NotAllowed:
            continue
        else:
            allowed.append(name)
    assert allowed == (["Status", "PeerStatus", "FetchSegment"] if kind == "replica" else [])


def test_every_list_and_every_change_by_filter_is_limited_by_the_guard() -> None:
    """A call for which any scope will do has to tell its service what the scope is."""
    harmless = {"Status", "PeerStatus"}
    for name, (request, _, need) in CALLS.items():
        if need == "list" and name not in harmless:
            fields = [request, *(getattr(request, one, None) for one in ("query", "filter"))]
            has_within = [
                one
                for one in fields
                if isinstance(one, msgspec.Struct) and "within" in one.__struct_fields__
            ]
            assert has_within, f"{name}: nothing carries what its caller may see"
