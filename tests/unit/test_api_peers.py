from __future__ import annotations

import contextlib

import grpc
import pytest

from cron.api.peers import Peers
from cron.api.views import StatusRow
from tests.unit.api_rig import FakeBackend, closed_address, serving

ROW = StatusRow(kind="replica", id="r2", role="follower", applied=9, digest="ab")


@contextlib.asynccontextmanager
async def peers():
    made = Peers()
    try:
        yield made
    finally:
        await made.close()


async def test_a_replica_is_asked_for_itself_and_for_all():
    backend = FakeBackend(peer_status=ROW, status=[ROW, ROW])
    async with serving(backend) as server, peers() as ask:
        assert await ask.peer_status(server, 5_000) == ROW
        assert await ask.status(server, 5_000) == [ROW, ROW]


async def test_a_replica_that_is_away_is_an_error_at_once():
    async with peers() as ask:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask.peer_status(closed_address(), 5_000)
