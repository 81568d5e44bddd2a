"""An executor on its way to a cell with certificates: connected, or told once why it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import structlog

from launcher.config import ExecutorConfig
from launcher.errors import BadConfig
from launcher.executor import connector
from launcher.executor.connector import Connector
from launcher.executor.lease import Lease
from launcher.executor.loop import ExecutorLoop
from launcher.executor.main import run
from launcher.executor.stream import LeaderStream
from launcher.pool.events import Joined
from launcher.protocol.reports import Accounts, Ordered
from launcher.protocol.status import Limiting
from launcher.protocol.work import Epoch
from launcher.tls import Credentials, TlsFiles
from tests.unit.api_rig import FakeBackend
from tests.unit.certs_rig import CELL, EXECUTOR, PERSON, Certs
from tests.unit.outputs_rig import IdleUploads
from tests.unit.pool_rig import LEDGER, Rig, rigged, until
from tests.unit.tls_rig import secured


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once, also where no replica trusts us."""
    monkeypatch.setattr(connector, "DISTRUST_S", 0.01)


class Counted(asyncio.Event):
    """Counts who waited for it: each visit to a replica begins with that."""

    count = 0

    async def wait(self) -> Literal[True]:
        self.count += 1
        return await super().wait()


class IdleExecutorLoop:
    """An executor loop without work; `welcomed` has the epochs that it met."""

    def __init__(self) -> None:
        self.able = Counted()
        self.able.set()
        self.ledger_uuid = LEDGER
        self.knows_secrets = False
        self.limiting = Limiting.NONE, Limiting.NONE
        self.accounts = Accounts("raftcron")
        self.highest = Epoch(0, 0, "")
        self.ordered = Ordered()
        self.running = 0
        self.lease = Lease()
        self.is_full = False
        self.uploads = IdleUploads()
        self.clock_offset_ms = 0
        self.welcomed: list[Epoch] = []

    def attach(self, visit: LeaderStream) -> None:
        visit.begin([], self.highest)

    def detach(self, visit: LeaderStream) -> None:
        """Nothing is kept of a visit."""

    def welcome(self, epoch: Epoch) -> None:
        self.welcomed.append(epoch)

    def answered(self, number: int) -> bool:
        return True

    def renewed(self) -> None:
        """There is no guarded work."""


@asynccontextmanager
async def on_the_way(
    server: str, credentials: Credentials | None, tls: TlsFiles | None = None
) -> AsyncIterator[IdleExecutorLoop]:
    """An executor that looks for its leader."""
    executor_loop = IdleExecutorLoop()
    config = ExecutorConfig(id=EXECUTOR[1], data="d", leaders=(server,), cell=CELL, tls=tls)
    shown = (lambda: credentials) if credentials is not None else None
    way = Connector(config, cast("ExecutorLoop", cast("Any", executor_loop)), "i1", shown)
    task = asyncio.create_task(way.run())
    try:
        yield executor_loop
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_connects_with_its_certificate(certs: Certs) -> None:
    rig = Rig()
    async with (
        secured(certs, FakeBackend(), rig=rig) as server,
        on_the_way(server, certs.credentials(*EXECUTOR)) as executor_loop,
    ):
        assert (await rig.heard(Joined)).executor == EXECUTOR[1]
        rig.pool.welcome(EXECUTOR[1])
        await until(lambda: executor_loop.welcomed == [Epoch(0, 7, "r1")])


async def refusals(server: str, credentials: Credentials | None) -> list[str]:
    """What it says of being refused, in the time of several visits."""
    with structlog.testing.capture_logs() as lines:
        async with on_the_way(server, credentials) as executor_loop:
            await until(lambda: executor_loop.able.count >= 4)
    return [line["error"] for line in lines if "replica" in line]


async def test_without_a_certificate_it_says_so_once(certs: Certs) -> None:
    async with secured(certs, FakeBackend(), rig=Rig()) as server:
        [said] = await refusals(server, None)
    assert said.startswith("it wants a certificate (")
    assert "[tls] in its configuration" in said


async def test_a_certificate_that_is_not_taken_is_named_once(certs: Certs) -> None:
    strange = certs.unchecked(*EXECUTOR, authority="other")
    async with secured(certs, FakeBackend(), rig=Rig()) as server:
        [said] = await refusals(server, strange)
    assert said.startswith("it does not accept the certificate")


async def test_a_cell_without_tls_is_told_apart_from_one_that_is_down(certs: Certs) -> None:
    async with rigged() as rig:
        [said] = await refusals(f"127.0.0.1:{rig.port}", certs.credentials(*EXECUTOR))
    assert said.startswith("it does not speak TLS")


async def test_another_ones_certificate_is_refused_in_words(certs: Certs) -> None:
    async with secured(certs, FakeBackend(), rig=Rig()) as server:
        [said] = await refusals(server, certs.credentials("executor", "executor-8"))
        assert "the certificate is of executor executor-8, not of executor-7" in said
        [said] = await refusals(server, certs.credentials(*PERSON))
        assert "person ada of cell berlin may not use Pool" in said


@pytest.mark.parametrize(
    ("who", "cell", "message"),
    [
        (("executor", "e2"), CELL, "executor e2 of cell berlin, and this is executor executor-7"),
        (
            ("replica", "executor-7"),
            CELL,
            "replica executor-7 of cell berlin, and this is executor",
        ),
        (EXECUTOR, "munich", "cell munich, and this is executor executor-7 of cell berlin"),
    ],
)
async def test_it_does_not_start_with_the_certificate_of_somebody_else(
    certs: Certs, who: tuple[str, str], cell: str, message: str, tmp_path: Path
) -> None:
    config = ExecutorConfig(
        id=EXECUTOR[1],
        data=str(tmp_path / "d"),
        leaders=("r1.example.org:7400",),
        cell=CELL,
        tls=certs.files(*who, cell=cell),
    )
    with pytest.raises(BadConfig, match=message):
        await run(config)
    assert not (tmp_path / "d").exists()
