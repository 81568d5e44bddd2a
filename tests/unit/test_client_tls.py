"""launcher.client with certificates of `raftcron certs issue`, against the real server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cron.api.tasks import SubmitReport, SubmitVerdict
from launcher.client.client import Client, Task
from launcher.client.errors import Denied
from launcher.errors import BadConfig
from tests.unit.api_rig import FakeBackend
from tests.unit.certs_rig import PERSON, Certs
from tests.unit.tls_rig import secured


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path)


def backend() -> FakeBackend:
    def submit(request: Any) -> SubmitReport:
        tasks = [SubmitVerdict(task=one.name, state="due", is_new=True) for one in request.tasks]
        return SubmitReport(tasks=tasks)

    return FakeBackend(submit=submit)


async def submitted(server: str, folder: Path | None) -> Task:
    """Submit a task as a program with these certificates would."""

    def submit() -> Task:
        with Client(server, tls=str(folder or ""), timeout=60) as client:
            return client.submit("h", key="k")

    return await asyncio.to_thread(submit)


async def test_a_task_is_submitted_with_a_certificate(certs):
    folder = certs.issued(*PERSON)
    async with secured(certs, cell := backend()) as server:
        task = await submitted(server, folder)
    assert task.name == "default/h:k"
    (_, (request,)) = cell.calls[0]
    assert [one.key for one in request.tasks] == ["k"]


async def test_a_cell_that_wants_certificates_is_said_at_once(certs):
    async with secured(certs, backend()) as server:
        with pytest.raises(Denied, match="wants a certificate") as caught:
            await submitted(server, None)
    assert "RAFTCRON_TLS" in caught.value.hint


async def test_a_cell_of_another_authority_is_not_trusted(certs):
    folder = certs.issued(*PERSON, authority="theirs")
    async with secured(certs, backend()) as server:
        with pytest.raises(Denied):
            await submitted(server, folder)


def test_a_folder_without_certificates_is_refused(tmp_path):
    with pytest.raises(BadConfig, match=r"ca\.pem"):
        Client("10.0.0.1", tls=str(tmp_path))
