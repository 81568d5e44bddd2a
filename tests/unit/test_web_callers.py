"""cron.web: who makes a request, by certificate or token, and what the leader is told."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cron import origin
from cron.access import AccessRules, Binding, Role, Token, token_digest, token_id, token_text
from cron.api.admission import Admission
from cron.api.jobs import JobView
from cron.api.launches import TriggerRequest
from cron.api.listening import listen, make_server
from cron.api.peers import Peers
from cron.api.server import add_admin
from cron.api.table import TRIGGER
from cron.errors import NotAllowed, NotLeader, UnknownJob
from cron.web import exchange
from cron.web.forwarding import Forwarding
from launcher.identity import REPLICA_HOST
from launcher.tls import Credentials
from tests.unit.api_rig import FakeBackend, Follower, launch, serving
from tests.unit.certs_rig import CELL, EXECUTOR, PERSON, REPLICA, Certs
from tests.unit.tls_rig import secured
from tests.unit.web_rig import WALL_MS, site

BODY = {"job": "b", "request_id": "1", "by": "mallory"}
SECRET = token_text(bytes(range(38)))
LARGE = (
    b"POST /v1/launches HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9000000\r\n\r\n"
)
TOKEN = {"authorization": f"Bearer {SECRET}"}


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path)


def client(shown: Credentials | None, authority: Credentials) -> ssl.SSLContext:
    """What a client of HTTPS has: the authority, and perhaps a certificate of its own."""
    context = ssl.create_default_context(cadata=authority.authority.decode())
    context.check_hostname = False  # the test connects by address
    if shown is not None:
        context.load_cert_chain(shown.files.cert, shown.files.key)
    return context


def rules(role: Role = Role.ADMIN, **more: Any) -> AccessRules:
    """What knows the one token."""
    number = token_id(SECRET)
    token = Token(number, "deploy", role, "", token_digest(SECRET), **more)
    return AccessRules(tokens={number: token})


def admission(known: AccessRules, *, is_open: bool = False) -> Admission:
    return Admission(CELL, lambda: known, lambda: WALL_MS, is_open=is_open)


async def metrics() -> tuple[str, bytes]:
    return "text/plain", b"raftcron_term 3\n"


# ---- certificates


async def test_a_persons_certificate_signs_a_change(certs: Certs) -> None:
    ours, ada = certs.credentials(*REPLICA), certs.credentials(*PERSON)
    backend = FakeBackend(trigger=launch())
    async with site(backend, credentials=lambda: ours, cell=CELL) as served:
        said = await served.ask("POST", "/v1/launches", BODY, tls=client(ada, ours))
    assert said.status == 200, said.body
    assert backend.calls[0][1][0].by == "ada"


async def test_a_revoked_certificate_is_refused(certs: Certs) -> None:
    ours, ada = certs.credentials(*REPLICA), certs.credentials(*PERSON)
    backend = FakeBackend(trigger=launch())
    known = AccessRules(revoked=certs.revoked(ada))
    admission = Admission(CELL, lambda: known, lambda: WALL_MS, is_open=False)
    async with site(backend, credentials=lambda: ours, cell=CELL, admission=admission) as served:
        said = await served.ask("POST", "/v1/launches", BODY, tls=client(ada, ours))
    assert said.status == 401, said.body
    assert b"of person ada was revoked" in said.body
    assert backend.calls == []


async def test_without_credentials_only_health_and_the_document_are_answered(certs: Certs) -> None:
    ours = certs.credentials(*REPLICA)
    nobody = client(None, ours)
    backend = FakeBackend()
    async with site(backend, credentials=lambda: ours, cell=CELL) as served:
        said = await served.ask("GET", "/v1/jobs", tls=nobody)
        change = await served.ask("POST", "/v1/launches", b"x" * 900_000, tls=nobody)
        large = await served.raw_tls(nobody, LARGE)
        alive = await served.ask("GET", "/healthz", tls=nobody)
        ready = await served.ask("GET", "/readyz", tls=nobody)
        document = await served.ask("GET", "/v1/openapi.json", tls=nobody)
    assert said.status == change.status == 401
    assert said.headers["www-authenticate"].startswith("Bearer ")
    assert large.startswith(b"HTTP/1.1 401 "), "without reading the body"
    assert b"connection: close" in large
    assert (alive.status, ready.status, document.status) == (200, 200, 200)
    assert backend.calls == []


@pytest.mark.parametrize("shown", [EXECUTOR, ("replica", "r2")])
async def test_an_executor_and_a_replica_make_no_changes(
    certs: Certs, shown: tuple[str, str]
) -> None:
    ours, theirs = certs.credentials(*REPLICA), certs.credentials(*shown)
    backend = FakeBackend()
    async with site(backend, credentials=lambda: ours, cell=CELL) as served:
        said = await served.ask("POST", "/v1/launches", BODY, tls=client(theirs, ours))
    assert (said.status, said.json["code"]) == (403, "not_allowed")
    assert backend.calls == []


async def test_a_certificate_of_another_authority_is_no_connection(certs: Certs) -> None:
    ours = certs.credentials(*REPLICA)
    theirs = certs.credentials(*PERSON, authority="theirs")
    async with site(FakeBackend(), credentials=lambda: ours, cell=CELL) as served:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await served.ask("GET", "/healthz", tls=client(theirs, ours))


async def test_tls_1_2_is_refused(certs: Certs) -> None:
    ours = certs.credentials(*REPLICA)
    old = client(None, ours)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with site(FakeBackend(), credentials=lambda: ours, cell=CELL) as served:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await served.ask("GET", "/healthz", tls=old)


async def test_the_certificate_has_the_name_of_all_replicas_and_is_followed(certs: Certs) -> None:
    first, second = certs.credentials(*REPLICA), certs.credentials(*REPLICA)
    shown = [first]
    numbers = []
    async with site(FakeBackend(), credentials=lambda: shown[0], cell=CELL) as served:
        for one in (first, second):
            shown[0] = one
            context = ssl.create_default_context(cadata=first.authority.decode())
            _, writer = await asyncio.open_connection(
                "127.0.0.1", served.port, ssl=context, server_hostname=REPLICA_HOST
            )
            numbers.append(writer.get_extra_info("peercert")["serialNumber"])
            writer.close()
    assert len(set(numbers)) == 2


async def test_a_handshake_that_never_ends_is_ended(certs: Certs, monkeypatch: Any) -> None:
    monkeypatch.setattr("cron.web.server.HANDSHAKE_S", 0.05)
    ours = certs.credentials(*REPLICA)
    async with site(FakeBackend(), credentials=lambda: ours, cell=CELL) as served:
        assert await served.raw() == b""
        assert await served.raw(b"GET / HTTP/1.1\r\n\r\n") != b"HTTP"


# ---- tokens


async def test_a_token_says_who_calls_with_and_without_tls(certs: Certs) -> None:
    ours = certs.credentials(*REPLICA)
    known = rules()
    backend = FakeBackend(trigger=launch())
    async with site(backend, admission=admission(known, is_open=True)) as served:
        open_ = await served.ask("POST", "/v1/launches", BODY, TOKEN)
    async with site(
        backend, credentials=lambda: ours, cell=CELL, admission=admission(known)
    ) as served:
        over_tls = await served.ask("POST", "/v1/launches", BODY, TOKEN, client(None, ours))
    assert open_.status == over_tls.status == 200
    assert [request.by for _, (request,) in backend.calls] == ["deploy", "deploy"]


async def test_nobody_is_refused_on_loopback_who_shows_nothing() -> None:
    backend = FakeBackend(trigger=launch())
    async with site(backend, admission=admission(rules(), is_open=True)) as served:
        said = await served.ask("POST", "/v1/launches", BODY)
    assert said.status == 200
    assert backend.calls[0][1][0].by == "mallory", "as the client says: nobody asked"


@pytest.mark.parametrize(
    ("header", "known", "status"),
    [
        ("Bearer x", rules(), 401),
        ("Basic YTpi", rules(), 401),
        (TOKEN["authorization"], AccessRules(), 401),
        (TOKEN["authorization"], rules(revoked_ms=1), 401),
        (TOKEN["authorization"], rules(expires_ms=WALL_MS), 401),
        (TOKEN["authorization"], rules(Role.VIEWER), 403),
        (f"{TOKEN['authorization']}, {TOKEN['authorization']}", rules(), 401),
    ],
)
async def test_a_token_that_is_no_good_is_refused(header, known, status) -> None:
    backend = FakeBackend()
    async with site(backend, admission=admission(known, is_open=True)) as served:
        said = await served.ask("POST", "/v1/launches", BODY, {"authorization": header})
    assert said.status == status, said.body
    assert SECRET.encode() not in said.body
    assert backend.calls == []


def watching() -> bytes:
    """A request to watch tasks, with a token."""
    said = f"Host: localhost\r\nAuthorization: {TOKEN['authorization']}"
    return f"GET /v1/tasks/watch HTTP/1.1\r\n{said}\r\n\r\n".encode()


async def test_a_stream_ends_when_its_token_is_revoked(monkeypatch: Any) -> None:
    monkeypatch.setattr(exchange, "RECHECK_S", 0.02)
    known = rules()
    first = asyncio.Event()

    async def rows() -> Any:
        yield JobView(name="a", schedule="@daily")
        first.set()
        await asyncio.Event().wait()

    async with site(
        FakeBackend(watch=lambda _: rows()), admission=admission(known, is_open=True)
    ) as served:
        asked = asyncio.create_task(served.raw(watching()))
        await first.wait()
        known.tokens.clear()
        said = await asked
    assert b'"name":"a"' in said
    assert not said.endswith(b"0\r\n\r\n"), "cut off"


async def test_a_busy_stream_ends_too_when_its_token_is_revoked(monkeypatch: Any) -> None:
    monkeypatch.setattr(exchange, "RECHECK_S", 0.02)
    known, sent = rules(), 0
    begun = asyncio.Event()

    async def rows() -> Any:
        nonlocal sent
        while sent < 500:
            sent += 1
            yield JobView(name="a", schedule="@daily")
            begun.set()
            await asyncio.sleep(0.002)

    async with site(
        FakeBackend(watch=lambda _: rows()), admission=admission(known, is_open=True)
    ) as served:
        asked = asyncio.create_task(served.raw(watching()))
        await begun.wait()
        known.tokens.clear()
        said = await asked
    assert not said.endswith(b"0\r\n\r\n"), "cut off"
    assert sent < 500


@pytest.mark.parametrize("is_follower", [False, True])
async def test_a_stream_ends_when_its_caller_may_see_less_of_it(
    monkeypatch: Any, is_follower: bool
) -> None:
    monkeypatch.setattr(exchange, "RECHECK_S", 0.02)
    known = rules()
    first = asyncio.Event()
    door = Admission(
        CELL,
        lambda: known,
        lambda: WALL_MS,
        is_open=True,
        elsewhere=lambda: NotLeader("127.0.0.1:1") if is_follower else None,
    )

    async def rows() -> Any:
        yield JobView(name="a", schedule="@daily")
        first.set()
        await asyncio.Event().wait()

    async with site(FakeBackend(watch=lambda _: rows()), admission=door) as served:
        asked = asyncio.create_task(served.raw(watching()))
        await first.wait()
        for number, token in known.tokens.items():
            less = {"expires_ms": 1} if is_follower else {"scope": "billing/*"}
            known.tokens[number] = msgspec.structs.replace(token, **less)
        said = await asyncio.wait_for(asked, 10)
    assert not said.endswith(b"0\r\n\r\n"), "cut off"


# ---- what the leader is told


async def test_the_leader_hears_the_token_and_decides(certs: Certs) -> None:
    backend = FakeBackend(trigger=launch())
    async with serving(backend) as leader:
        peers = Peers()
        forwarding = Forwarding(Follower(leader), peers)
        async with site(forwarding, admission=admission(rules(), is_open=True)) as served:
            said = await served.ask("POST", "/v1/launches", BODY, TOKEN)
        await peers.close()
    assert said.status == 200
    assert backend.calls[0][1][0].by == "deploy"


async def test_the_leader_hears_whose_certificate_a_follower_was_shown(certs: Certs) -> None:
    ours, ada = certs.credentials(*REPLICA), certs.credentials(*PERSON)
    backend = FakeBackend(trigger=launch())
    async with secured(certs, backend) as leader:
        peers = Peers(lambda: ours)
        forwarding = Forwarding(Follower(leader), peers)
        async with site(forwarding, credentials=lambda: ours, cell=CELL) as served:
            said = await served.ask("POST", "/v1/launches", BODY, tls=client(ada, ours))
        await peers.close()
    assert said.status == 200, said.body
    assert backend.calls[0][1][0].by == "ada"


async def test_what_a_follower_would_refuse_is_the_leaders_to_decide() -> None:
    """A token that was made a moment ago is not known to every replica yet."""
    backend = FakeBackend(trigger=launch())
    server = make_server(CELL, None, admission=admission(rules(), is_open=True))
    add_admin(server, backend)
    leader = f"127.0.0.1:{listen(server, '127.0.0.1:0', None)}"
    await server.start()
    peers = Peers()
    late = Admission(
        CELL, AccessRules, lambda: WALL_MS, is_open=True, elsewhere=lambda: NotLeader(leader)
    )
    async with site(Forwarding(Follower(leader), peers), admission=late) as served:
        said = await served.ask("POST", "/v1/launches", BODY, TOKEN)
        nobody = await served.ask("POST", "/v1/launches", BODY, {"authorization": "Bearer x"})
        large = await served.ask("POST", "/v1/launches", b" " * 70_000, TOKEN)
    await peers.close()
    await server.stop(0)
    assert said.status == 200, said.body
    assert (nobody.status, large.status) == (401, 413)
    ((_, (request,)),) = backend.calls
    assert request.by == "deploy"


async def test_an_authorization_that_no_token_is_like_reaches_no_leader_as_it_is() -> None:
    async with serving(FakeBackend(trigger=launch())) as leader:
        peers = Peers()
        late = Admission(
            CELL, AccessRules, lambda: WALL_MS, is_open=True, elsewhere=lambda: NotLeader(leader)
        )
        async with site(Forwarding(Follower(leader), peers), admission=late) as served:
            said = await served.raw(
                b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xe9\r\n"
                b"Connection: close\r\n\r\n"
            )
        await peers.close()
    assert not said.startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize(
    ("shown", "by"),
    [(REPLICA, "ada"), (("person", "bob"), "bob"), (EXECUTOR, None)],
)
async def test_only_a_replica_is_believed_on_whose_behalf_it_calls(
    certs: Certs, shown: tuple[str, str], by: str | None
) -> None:
    backend = FakeBackend(trigger=launch())
    theirs = certs.credentials(*shown)
    seen: list[str] = []
    backend.answers["trigger"] = lambda _: seen.append(origin.CURRENT.get()) or launch()
    async with secured(certs, backend) as leader:
        peers = Peers(lambda: theirs)
        request = TriggerRequest(job="default/b", request_id="1", by="mallory")
        metadata = (("raftcron-person", "ada"), ("raftcron-address", "http:10.0.0.9:5"))
        try:
            await peers.forward(leader, TRIGGER, request, metadata, 10_000)
        except NotAllowed:
            assert by is None
        await peers.close()
    assert [request.by for _, (request,) in backend.calls] == ([by] if by else [])
    assert [("http:10.0.0.9:5" in one) for one in seen] == ([by == "ada"] if by else [])


async def test_a_person_who_lost_every_role_is_refused(certs: Certs) -> None:
    ours, ada = certs.credentials(*REPLICA), certs.credentials(*PERSON)
    known = AccessRules(bindings={"bob": (Binding("bob", Role.ADMIN),)})
    async with site(
        FakeBackend(jobs=UnknownJob("x")),
        credentials=lambda: ours,
        cell=CELL,
        admission=admission(known),
    ) as served:
        said = await served.ask("GET", "/v1/jobs", tls=client(ada, ours))
    assert (said.status, said.json["code"]) == (403, "not_allowed")


# ---- metrics


@pytest.mark.parametrize(
    ("known", "headers", "status"),
    [
        (rules(Role.VIEWER), TOKEN, 200),
        (rules(Role.SUBMITTER), TOKEN, 403),
        (AccessRules(), TOKEN, 401),
        (rules(Role.VIEWER), {}, 401),
    ],
)
async def test_metrics_need_the_role_viewer_where_callers_sign_in(
    known: AccessRules, headers: dict[str, str], status: int
) -> None:
    admitted = admission(known)
    async with site(FakeBackend(), admission=admitted, metrics=metrics) as served:
        said = await served.ask("GET", "/metrics", headers=headers)
    assert said.status == status, said.body
    assert (b"raftcron_term" in said.body) is (status == 200)


async def test_metrics_are_free_on_loopback_without_tls() -> None:
    async with site(FakeBackend(), metrics=metrics, has_console=True) as served:
        said = await served.ask("GET", "/metrics", headers={"accept": "text/html"})
    assert (said.status, said.body) == (200, b"raftcron_term 3\n")


async def test_a_follower_that_does_not_know_a_token_refuses_to_show_its_metrics() -> None:
    elsewhere = Admission(
        CELL, AccessRules, lambda: WALL_MS, is_open=False, elsewhere=lambda: NotLeader("r1:7400")
    )
    async with site(FakeBackend(), admission=elsewhere, metrics=metrics) as served:
        said = await served.ask("GET", "/metrics", headers=TOKEN)
    assert said.status == 401
