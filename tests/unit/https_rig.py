"""The HTTPS of replicas, and a program that has a token and the file of the authority alone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cron.access import Role
from cron.api.tasks import SubmitReport, SubmitVerdict
from launcher.client.client import Client
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import FakeBackend
from tests.unit.certs_rig import CELL, Certs
from tests.unit.web_rig import Site, site

R = TypeVar("R")


class HttpsSite:
    """Replicas that serve HTTPS and a program's folder with `ca.pem` alone."""

    def __init__(self, folder: Path) -> None:
        certs = Certs(folder)
        self.ours = certs.credentials("replica", "r1")
        self.world = AccessWorld()
        self.token = self.world.token(Role.SUBMITTER)
        self.folder = folder / "trusted"
        self.folder.mkdir()
        shutil.copy(certs.authority() / "ca.pem", self.folder)
        self.backend = FakeBackend(submit=self.submit)

    def submit(self, request: Any) -> SubmitReport:
        tasks = [SubmitVerdict(task=one.name, state="due", is_new=True) for one in request.tasks]
        return SubmitReport(tasks=tasks)

    def payloads(self) -> list[Any]:
        """The payloads of the tasks that came in, in order."""
        calls = [request for name, (request,) in self.backend.calls if name == "submit"]
        return [msgspec.json.decode(one.payload) for request in calls for one in request.tasks]

    def serves(self, backend: FakeBackend | None = None) -> Any:
        ours, admission = self.ours, self.world.admission(is_open=False)
        served = backend or self.backend
        return site(served, credentials=lambda: ours, cell=CELL, admission=admission)

    async def asks(self, *sites: Site | str, what: Callable[[Client], R], **how: Any) -> R:
        """What a program gets that asks these replicas in turn."""
        places = [f"127.0.0.1:{one.port}" if isinstance(one, Site) else one for one in sites]

        def ask() -> R:
            usual = {"tls": str(self.folder), "token": self.token, "timeout": 60}
            with Client(",".join(places), **usual | how) as client:
                return what(client)

        return await asyncio.to_thread(ask)
