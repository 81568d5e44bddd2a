"""cron.api.health: what probes ask of the client port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cron.api.health import HealthService
from cron.api.listening import listen, make_server
from launcher.identity import REPLICA_HOST
from tests.unit.certs_rig import CELL, EXECUTOR, REPLICA, Certs

Status = health_pb2.HealthCheckResponse
WATCHES_MAX = 3


class Probed:
    """A replica's server with nothing but its health service."""

    def __init__(self, certs: Certs | None = None) -> None:
        self.is_ready = True
        self.health = HealthService(lambda: self.is_ready, period_s=0.01, watches_max=WATCHES_MAX)
        self._certs = certs

    @contextlib.asynccontextmanager
    async def served(self, identity: Any = None) -> AsyncIterator[Any]:
        """Serve, and yield the standard client of a probe."""
        given = self._certs.credentials(*REPLICA) if self._certs is not None else None
        shown = None if given is None else lambda: given
        server = make_server(CELL, shown)
        self.health.add_to(server)
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0', shown)}"
        await server.start()
        channel = grpc.aio.insecure_channel(address)
        if self._certs is not None:
            mine = self._certs.credentials(*identity)
            proof = grpc.ssl_channel_credentials(mine.authority, mine.key, mine.certificate)
            options = [("grpc.ssl_target_name_override", REPLICA_HOST)]
            channel = grpc.aio.secure_channel(address, proof, options)
        try:
            async with channel:
                yield health_pb2_grpc.HealthStub(channel)
        finally:
            await server.stop(0)


def asks(name: str = "") -> Any:
    return health_pb2.HealthCheckRequest(service=name)


async def test_a_replica_serves_while_it_is_ready() -> None:
    probed = Probed()
    async with probed.served() as stub:
        for name in ("", "raftcron"):
            assert (await stub.Check(asks(name))).status == Status.SERVING
        probed.is_ready = False
        assert (await stub.Check(asks())).status == Status.NOT_SERVING
        probed.is_ready = True
        probed.health.close()
        assert (await stub.Check(asks())).status == Status.NOT_SERVING


async def test_a_name_that_is_not_served_is_unknown() -> None:
    async with Probed().served() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(asks("mail"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(asks("mail"))
        assert (await watch.read()).status == Status.SERVICE_UNKNOWN
        watch.cancel()


async def test_a_watch_hears_of_each_change_and_of_the_end() -> None:
    probed = Probed()
    async with probed.served() as stub:
        watch = stub.Watch(asks())
        assert (await watch.read()).status == Status.SERVING
        probed.is_ready = False
        assert (await watch.read()).status == Status.NOT_SERVING
        probed.is_ready = True
        assert (await watch.read()).status == Status.SERVING
        probed.health.close()
        assert (await watch.read()).status == Status.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF


async def test_watches_are_bounded_and_a_probe_that_is_gone_makes_room() -> None:
    probed = Probed()
    async with probed.served() as stub:
        watches = [stub.Watch(asks()) for _ in range(WATCHES_MAX)]
        for one in watches:
            await one.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Watch(asks()).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(asks())).status == Status.SERVING
        watches[0].cancel()
        async with asyncio.timeout(60):
            while probed.health.watches == WATCHES_MAX:  # noqa: ASYNC110 - gRPC says it to nobody
                await asyncio.sleep(0)
        assert (await stub.Watch(asks()).read()).status == Status.SERVING


async def test_any_certificate_of_the_cell_may_ask_and_needs_no_token(tmp_path: Path) -> None:
    certs = Certs(tmp_path)
    for identity in (EXECUTOR, REPLICA):
        async with Probed(certs).served(identity) as stub:
            assert (await stub.Check(asks())).status == Status.SERVING
