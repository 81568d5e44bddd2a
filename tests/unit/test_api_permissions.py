"""Every call with every role, and with none: over real connections, through the guard."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from cron.access import CELL, TOKEN_ROLES, AccessRules, Binding, Role
from cron.api import table
from cron.api.admission import Admission, Shown
from cron.api.client import Client
from cron.api.peers import open_aio_channel
from cron.api.rpc import Request, Rpc
from cron.errors import NotAllowed, NotAuthenticated, NotFound
from launcher.identity import Identity
from launcher.pool.events import Joined
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from tests.style import access_table
from tests.unit.access_calls import CALLS, Reached, expected
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import FakeBackend, in_thread
from tests.unit.certs_rig import EXECUTOR, PERSON, REPLICA, Certs
from tests.unit.pool_rig import Rig, hello
from tests.unit.tls_rig import secured


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


def admitted(admission: Admission, shown: Shown) -> set[str]:
    """The calls that somebody may make."""
    found = set()
    for name, (request, _, _) in CALLS.items():
        with contextlib.suppress(NotAllowed):
            admission.admit(table.TABLE[name], request, shown)
            found.add(name)
    return found


@pytest.mark.parametrize("role", Role)
def test_every_call_with_every_role_of_a_certificate(role: Role) -> None:
    """Roles that add to others, such as run-as, allow no call by themselves."""
    for scope in (CELL, "billing/*", "ops/*"):
        binding = Binding("ada", role, scope, users=("app",) if role is Role.RUN_AS else ())
        rules = AccessRules(bindings={"ada": (binding,)})
        admission = Admission("berlin", lambda rules=rules: rules, lambda: 0, is_open=False)
        shown = Shown(Identity("berlin", "person", "ada"))
        wanted = {name for name in CALLS if expected(name, role, scope)}
        assert admitted(admission, shown) == wanted
        with pytest.raises(NotAllowed, match="has no role"):
            admission.admit(table.STATUS, CALLS["Status"][0], Shown(_person("bob")))


def _person(name: str) -> Identity:
    return Identity("berlin", "person", name)


def test_the_table_of_the_documents_says_what_the_walk_expects() -> None:
    for row in access_table.calls():
        _, roles, need = CALLS[row.name]
        assert {role.label for role in row.roles} == {*roles.split()}
        if row.roles:
            assert (row.scope == access_table.CELL) is (need == "cell"), row.name
            assert row.scope != access_table.ANY or need == "list", row.name


# ---- streams of executors, and health checks


STRANGERS = {
    "no certificate": None,
    "another authority": {"authority": "other"},
    "expired": {"begins_days": -11},
}


REFUSED = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE,  # by TLS, before there is a call
)


class Calling:
    """Calls the methods beside those of the API, with a certificate and perhaps a token."""

    def __init__(self, channel: grpc.aio.Channel, rig: Rig, token: str) -> None:
        self._pool = pool_pb2_grpc.PoolStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)
        self._rig = rig
        self._said = (("authorization", f"Bearer {token}"),) if token else ()

    def _call(self, name: str) -> Any:
        cell, asked = self._rig.pool.cell, health_pb2.HealthCheckRequest()
        if name == "Connect":
            return self._pool.Connect(metadata=self._said)
        if name == "WatchLeader":
            request = pool_pb2.WatchRequest(cell=cell, executor="executor-7")
            return self._pool.WatchLeader(request, metadata=self._said)
        return getattr(self._health, name)(asked, metadata=self._said)

    async def answers(self, name: str) -> None:
        """Return once a method has answered its caller."""
        call = self._call(name)
        if name == "Connect":
            await call.write(pool_pb2.FromExecutor(hello=hello(executor="executor-7")))
            assert (await self._rig.heard(Joined)).executor == "executor-7"
        elif name == "Check":
            assert await call.code() is grpc.StatusCode.OK
        else:
            assert await call.read() is not grpc.aio.EOF
        call.cancel()

    async def is_refused(self, name: str) -> bool:
        """Return whether a method ends the call of its caller as it refuses callers."""
        return await self._call(name).code() in REFUSED


@pytest.mark.parametrize("token", ["", "admin", "none of ours"])
@pytest.mark.parametrize("who", [PERSON, REPLICA, EXECUTOR], ids=lambda who: who[0])
async def test_streams_and_health_checks_go_by_certificates_alone(
    tmp_path: Path, who: tuple[str, str], token: str
) -> None:
    certs, rig, world = Certs(tmp_path), Rig(), AccessWorld()
    text = world.token(Role.ADMIN) if token == "admin" else token and "rc1_" + token
    rows = access_table.methods()
    ours = certs.credentials(*who)
    async with (
        secured(certs, FakeBackend(), rig=rig, rules=world.state.access) as server,
        open_aio_channel(server, ours, ()) as channel,
    ):
        calling = Calling(channel, rig, text)
        for path, row in rows.items():
            name = path.rpartition("/")[2]
            if who[0] in {*row.others} | ({"person"} if row.roles else set()):
                await calling.answers(name)
            else:
                assert await calling.is_refused(name), path


@pytest.mark.parametrize("how", STRANGERS)
async def test_without_a_certificate_of_the_cell_no_stream_opens_whatever_token_is_shown(
    tmp_path: Path, how: str
) -> None:
    certs, rig, world = Certs(tmp_path), Rig(), AccessWorld()
    fields: Any = STRANGERS[how]
    ours = None if fields is None else certs.unchecked(*EXECUTOR, **fields)
    async with (
        secured(certs, FakeBackend(), rig=rig, rules=world.state.access) as server,
        open_aio_channel(server, ours, ()) as channel,
    ):
        calling = Calling(channel, rig, world.token(Role.ADMIN))
        for path in access_table.methods():
            assert await calling.is_refused(path.rpartition("/")[2]), path
    assert rig.events == []
