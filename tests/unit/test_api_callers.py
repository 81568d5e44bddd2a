"""cron.api.callers: who calls, what they may, and what is recorded of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from cron.access import AccessRules
from cron.api import table
from cron.api.admission import name_of
from cron.api.callers import caller_of, may
from cron.api.client import Client
from cron.api.jobs import PauseReport, PauseRequest
from cron.api.launches import BackfillRequest
from cron.api.members import StatusReport
from cron.errors import InvalidInput, NotAllowed, NotAuthenticated, NotLeader
from launcher.identity import REPLICA_HOST, Identity
from launcher.tls import Credentials
from tests.unit.api_rig import FakeBackend, call, in_thread, launch
from tests.unit.certs_rig import CELL, EXECUTOR, PERSON, REPLICA, Certs
from tests.unit.tls_rig import ask, secured

ADA = b"raftcron://berlin/person/ada"


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path)


# ---- the decisions


@pytest.mark.parametrize(
    ("kind", "admin", "pool"),
    [
        ("replica", False, False),
        ("person", True, False),
        ("executor", False, True),
        ("authority", False, False),
        ("", False, False),
    ],
)
def test_each_kind_has_its_service(kind: str, admin: bool, pool: bool) -> None:
    assert may(kind, "/raftcron.v1.Admin/Trigger") is admin
    assert may(kind, "/raftcron.pool.v1.Pool/Connect") is pool
    assert not may(kind, "/raftcron.v1.Administration/Trigger")
    assert not may(kind, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")


def proven(*names: bytes, version: bytes = b"TLSv1.3") -> dict[str, list[bytes]]:
    return {"ssl_tls_version": [version], "peer_uri": list(names)}


def test_a_caller_is_who_the_certificate_states() -> None:
    identity = caller_of(proven(b"replica.raftcron", ADA), CELL)
    assert identity == Identity(CELL, "person", "ada")
    assert name_of(identity) == "ada"
    assert name_of(Identity(CELL, "replica", "r1")) == "replica r1"


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (proven(), "states no raftcron:// identity"),
        (proven(b"replica.raftcron"), "states no raftcron:// identity"),
        (proven(ADA, b"raftcron://berlin/person/bob"), "states no raftcron:// identity"),
        (proven(b"\xff"), "states no raftcron:// identity"),
        (proven(b"raftcron://munich/person/ada"), "person ada of cell munich; this is cell berlin"),
        (proven(ADA, version=b"TLSv1.2"), "not TLS 1.3"),
        ({"peer_uri": [ADA]}, "not TLS 1.3"),
        (
            {"ssl_tls_version": [b"TLSv1.3"], "peer_dns": [ADA], "x509_common_name": [ADA]},
            "states no raftcron:// identity",
        ),
        ({}, "not TLS 1.3"),
    ],
)
def test_who_is_not_proven_to_be_of_the_cell_is_nobody(
    properties: dict[str, list[bytes]], message: str
) -> None:
    with pytest.raises(NotAuthenticated, match=message) as caught:
        caller_of(properties, CELL)
    assert caught.value.hint


# ---- over real connections


async def test_people_are_answered(certs: Certs) -> None:
    backend = FakeBackend(jobs=[], status=[], history=[launch()])
    async with secured(certs, backend) as server:
        assert await ask(server, certs.credentials(*PERSON)) == []
        assert await ask(server, certs.credentials(*PERSON), "status") == StatusReport()


async def test_a_revoked_certificate_is_refused_from_the_next_call_on(certs: Certs) -> None:
    rules, ada = AccessRules(), certs.credentials(*PERSON)
    async with secured(certs, FakeBackend(jobs=[]), rules=rules) as server:
        assert await ask(server, ada) == []
        rules.revoked = certs.revoked(ada)
        with pytest.raises(NotAuthenticated, match="of person ada was revoked") as one:
            await ask(server, ada)
        assert "certs issue" in one.value.hint
        assert await ask(server, certs.credentials(*PERSON)) == []


def test_a_replica_may_ask_what_peers_need_and_nothing_else() -> None:
    calls = table.TABLE.values()
    allowed = {one.name for one in calls if may("replica", one.path)}
    assert allowed == {"Status", "PeerStatus", "FetchSegment"}
    for_people = {one.name for one in calls if may("person", one.path)}
    assert for_people == {*table.TABLE} - {"FetchSegment"}


async def test_a_replicas_certificate_does_not_administer(certs: Certs) -> None:
    backend = FakeBackend(jobs=[], status=[], pause=PauseReport(changed=["default/backup"]))
    async with secured(certs, backend) as server:
        ours = certs.credentials(*REPLICA)

        def pause() -> None:
            with Client([server], 60_000, ours) as client:
                client.ask(table.PAUSE, PauseRequest(pattern="*/*"))

        with pytest.raises(NotAllowed, match="replica r1 of cell berlin may not use Pause") as one:
            await in_thread(pause)
        assert "certs issue" in one.value.hint
        with pytest.raises(NotAllowed, match="may not use Jobs"):
            await ask(server, ours)
        assert await ask(server, ours, "status") == StatusReport()
    assert [method for method, _ in backend.calls] == ["status"]


async def test_an_executor_may_not_use_the_admin_service(certs: Certs) -> None:
    backend = FakeBackend(jobs=[], status=[])
    async with secured(certs, backend) as server:
        for method in ("jobs", "status"):
            with pytest.raises(NotAllowed, match="executor-7 of cell berlin may not use Admin"):
                await ask(server, certs.credentials(*EXECUTOR), method)
    assert backend.calls == []


async def test_a_certificate_of_another_cell_is_not_enough(certs: Certs) -> None:
    backend = FakeBackend(jobs=[])
    shown = certs.credentials(*REPLICA)
    async with secured(certs, backend, cell="munich", credentials=shown) as server:
        with pytest.raises(NotAuthenticated, match="cell berlin; this is cell munich") as caught:
            await ask(server, certs.credentials(*PERSON))
    assert caught.value.hint
    assert backend.calls == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"authority": "other"}, "it does not accept the certificate"),
        ({"begins_days": -11}, "it does not accept the certificate"),
    ],
)
async def test_a_wrong_certificate_asks_in_vain(
    certs: Certs, how: dict[str, Any], message: str
) -> None:
    backend = FakeBackend(jobs=[])
    async with secured(certs, backend) as server:
        with pytest.raises(NotAuthenticated, match=message) as caught:
            await ask(server, certs.unchecked(*PERSON, **how))
        assert str(caught.value).startswith(f"{server}: ")
    assert backend.calls == []


async def test_without_a_certificate_the_way_out_is_told(certs: Certs) -> None:
    backend = FakeBackend(jobs=[])
    async with secured(certs, backend) as server:
        with pytest.raises(NotAuthenticated, match=f"{server}: it wants a certificate") as caught:
            await ask(server, None)
    assert "--tls DIR" in caught.value.hint
    assert backend.calls == []


async def test_a_cell_that_trusts_us_nowhere_is_not_asked_for_long(certs: Certs) -> None:
    async with secured(certs, FakeBackend()) as one, secured(certs, FakeBackend()) as two:

        def asked() -> None:
            with Client([one, two], 60_000) as client:
                call(client, "trigger", "a", "1", "x")

        async with asyncio.timeout(60):
            with pytest.raises(NotAuthenticated, match="the change did not happen"):
                await in_thread(asked)


async def test_one_replica_with_a_bad_certificate_does_not_stop_the_others(certs: Certs) -> None:
    expired = certs.unchecked(*REPLICA, begins_days=-11)
    async with (
        secured(certs, FakeBackend(), credentials=expired) as bad,
        secured(certs, FakeBackend(jobs=[])) as good,
    ):
        credentials = certs.credentials(*PERSON)

        def asked() -> object:
            with Client([bad, good], 60_000, credentials) as client:
                return client.ask(table.JOBS)

        assert await in_thread(asked) == []


async def test_the_leader_that_a_replica_names_is_asked_with_the_same_certificate(
    certs: Certs,
) -> None:
    async with (
        secured(certs, FakeBackend(jobs=[])) as leader,
        secured(
            certs, FakeBackend(jobs=NotLeader(leader.replace("127.0.0.1", "localhost")))
        ) as follower,
    ):
        assert await ask(follower, certs.credentials(*PERSON)) == []


# ---- who is recorded


async def test_the_name_of_the_certificate_is_what_is_recorded(certs: Certs) -> None:
    paused = PauseReport(changed=[], unchanged=[])
    backend = FakeBackend(
        trigger=launch(), pause=paused, resume=paused, kill=launch(), backfill=InvalidInput("x")
    )
    credentials = certs.credentials(*PERSON)

    def change(client: Client) -> None:
        call(client, "trigger", "a", "1", "mallory")
        client.ask(table.PAUSE, PauseRequest(pattern="a", reason="", until_ms=0, by="mallory"))
        call(client, "resume", "a", "")
        call(client, "kill", "a@2026-11-20T15:00:00Z", "mallory")
        with pytest.raises(InvalidInput):
            client.ask(table.BACKFILL, BackfillRequest(job="a", from_s=0, to_s=1, by="mallory"))

    async with secured(certs, backend) as server:

        def asked() -> None:
            with Client([server], 60_000, credentials) as client:
                change(client)

        await in_thread(asked)
    recorded = [request.by for _, (request,) in backend.calls]
    assert recorded == ["ada"] * 5


def test_every_request_that_names_who_asks_is_signed() -> None:
    # The guard writes the field `by`: a change whose field is called otherwise would escape it.
    calls = table.TABLE.values()
    signed = {one.name for one in calls if "by" in one.request.__struct_fields__}
    changes = {"PutJobs", "Trigger", "Pause", "Resume", "Backfill", "Kill", "Replace"}
    assert signed & changes == changes & {*table.TABLE}
    assert len(signed) >= 6


# ---- TLS 1.3 and nothing older


def raw_call(server: str, credentials: Credentials, version: ssl.TLSVersion) -> None:
    """Call Status by hand: no gRPC client can be told which TLS to speak."""
    context = credentials.context()
    context.minimum_version, context.maximum_version = version, version
    host, _, port = server.rpartition(":")

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return (
            struct.pack(">I", len(payload))[1:]
            + bytes((kind, flags))
            + struct.pack(">I", stream)
            + payload
        )

    def field(name: bytes, value: bytes) -> bytes:
        return bytes((0, len(name))) + name + bytes((len(value),)) + value

    headers = b"".join(
        field(name, value)
        for name, value in (
            (b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"replica.raftcron"),
            (b":path", b"/raftcron.v1.Admin/PeerStatus"), (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )  # fmt: skip
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=REPLICA_HOST) as sock,
    ):
        assert sock.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2"}.get(version, "TLSv1.3")
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        sock.sendall(frame(1, 4, 1, headers) + frame(0, 1, 1, b"\0\0\0\0\x02{}"))
        while not _has_ended(sock):
            pass


def _has_ended(sock: ssl.SSLSocket) -> bool:
    """Read one frame; whether it ended stream 1."""
    header = _exactly(sock, 9)
    _exactly(sock, int.from_bytes(header[:3], "big"))
    return header[3] == 1 and bool(header[4] & 1) and header[8] == 1


def _exactly(sock: ssl.SSLSocket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = sock.recv(size - len(content))
        assert piece, "the replica hung up"
        content += piece
    return content


async def test_a_call_over_an_older_tls_reaches_nobody(certs: Certs) -> None:
    backend = FakeBackend(peer_status=InvalidInput("was asked"))
    credentials = certs.credentials(*REPLICA)
    async with secured(certs, backend) as server:
        await in_thread(raw_call, server, credentials, ssl.TLSVersion.TLSv1_2)
        assert backend.calls == []
        await in_thread(raw_call, server, credentials, ssl.TLSVersion.TLSv1_3)
        assert len(backend.calls) == 1


def test_history_is_handed_out_in_bulk_to_replicas_alone() -> None:
    method = "/raftcron.v1.Admin/FetchSegment"
    kinds = [kind for kind, _ in (REPLICA, PERSON, EXECUTOR)]
    assert [kind for kind in kinds if may(kind, method)] == ["replica"]
