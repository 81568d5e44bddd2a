"""A cell of one leader behind the guard, on one State: a role counts from the next call on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import msgspec

from cron.access import CELL, TOKEN_BYTES, Role, token_digest, token_id, token_text
from cron.api.admission import Admission
from cron.api.callers import Guard
from cron.api.client import Client
from cron.api.rpc import Backend, Rpc
from cron.api.server import SERVER_OPTIONS, add_admin
from cron.service.replica import Replica
from cron.service.service import CellService
from cron.state import access as a
from tests.unit.pool_people_rig import FakeClock, World
from tests.unit.state_rig import StateRig


class AccessWorld(World):
    """As World, with a guard that asks its State."""

    def __init__(self, rig: StateRig | None = None) -> None:
        super().__init__(rig or StateRig())
        world: Any = self
        rows: Any = None
        clock: Any = FakeClock(self.rig)
        self.cell = CellService(Replica(world, world, rows, clock))
        self.drawn = 0

    @property
    def pool(self) -> Any:
        return SimpleNamespace(
            cell="berlin", sessions=self.sessions, duplicate_ids=self.duplicate_ids
        )

    def token(
        self,
        role: Role,
        scope: str = CELL,
        name: str = "ci",
        days: int = 1,
        users: tuple[str, ...] = (),
    ) -> str:
        """Make a token known; its text."""
        self.drawn += 1
        text = token_text(self.drawn.to_bytes(TOKEN_BYTES, "little"))
        expires_ms = self.rig.at_ms + days * 86_400_000
        made = a.CreateToken(token_id(text), name, role, scope, token_digest(text), expires_ms)
        self.rig.append(msgspec.structs.replace(made, users=users))
        return text

    async def submit(self, build: Any, **_said: Any) -> Any:
        return await super().submit(build)

    def admission(self, *, is_open: bool = True) -> Admission:
        return Admission(
            "berlin", lambda: self.state.access, lambda: self.rig.at_ms, is_open=is_open
        )

    @contextlib.asynccontextmanager
    async def serving(
        self, backend: Backend | None = None, *, is_open: bool = True
    ) -> AsyncIterator[str]:
        """Serve the cell, or a backend in its place, without TLS; the address."""
        guard = Guard(None, admission=self.admission(is_open=is_open), recheck_s=0.05)
        server = grpc.aio.server(interceptors=[guard], options=SERVER_OPTIONS)
        add_admin(server, backend or self.cell)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


def asked(server: str, token: str, rpc: Rpc[Any, Any], request: Any = None) -> Any:
    """What a caller is answered that shows a token, or none."""
    with Client([server], 20_000, by=lambda: "mallory", token=token) as client:
        return client.ask(rpc, request)
