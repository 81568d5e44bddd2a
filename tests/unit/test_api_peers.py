from __future__ import annotations

import contextlib

import grpc
import pytest

from cron.api.members import StatusRow
from cron.api.peers import Peers
from tests.unit.api_rig import FakeBackend, closed_address, serving
from tests.unit.certs_rig import PERSON, Certs
from tests.unit.tls_rig import secured

ROW = StatusRow(kind="replica", id="r2", role="follower", applied=9, digest="ab")


@contextlib.asynccontextmanager
async def peers(credentials=None):
    made = Peers(credentials)
    try:
        yield made
    finally:
        await made.close()


async def test_a_replica_is_asked_for_itself_and_for_all():
    backend = FakeBackend(peer_status=ROW, status=[ROW, ROW])
    async with serving(backend) as server, peers() as ask:
        assert await ask.peer_status(server, 60_000) == ROW
        assert await ask.status(server, 60_000) == [ROW, ROW]


async def test_a_replica_that_is_away_is_an_error_at_once():
    async with peers() as ask:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask.peer_status(closed_address(), 60_000)


async def test_a_replica_with_certificates_is_asked_with_ours(tmp_path):
    certs = Certs(tmp_path)
    ours = certs.credentials("replica", "r2")
    backend = FakeBackend(peer_status=ROW)
    async with secured(certs, backend) as server:
        async with peers(lambda: ours) as ask:
            assert await ask.peer_status(server, 60_000) == ROW
        async with peers() as ask:
            with pytest.raises(grpc.aio.AioRpcError):
                await ask.peer_status(server, 60_000)


async def test_a_renewed_certificate_is_what_the_next_question_shows(tmp_path):
    certs = Certs(tmp_path)
    shown = [certs.unchecked(*PERSON, authority="other")]
    async with (
        secured(certs, FakeBackend(peer_status=ROW)) as server,
        peers(lambda: shown[0]) as ask,
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await ask.peer_status(server, 60_000)
        shown[0] = certs.credentials("replica", "r2")
        assert await ask.peer_status(server, 60_000) == ROW
