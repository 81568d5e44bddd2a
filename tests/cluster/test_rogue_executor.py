"""An executor with a valid certificate lies in a cell with certificates: of launches, labels and
outputs that are another one's. Nothing that is not its own changes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cron.api import table
from cron.api.launches import LaunchView
from cron.api.peers import open_aio_channel
from launcher.clock import wall_ms
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.tls import files_of, load_credentials
from tests.cluster.harness import SHORT_TIMES, Cell, wait_until
from tests.cluster.secured_cell import Secured
from tests.fakes.s3_server import S3Server, s3_server
from tests.unit.pool_rig import FakeExecutor, hello

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(180)]

ROGUE = "executor-9"
ROWS = 4
"""Row numbers that it lies of in a batch: that of the launch is among them."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def secured(tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    """A cell whose executors store outputs by signed URLs."""
    url = server.url(prefix=tmp_path.name)
    extra = f'{SHORT_TIMES}\n[object_storage]\nurl = "{url}"\n'
    one = Secured(tmp_path, replica_extra=extra)
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    one.cell.variables = {name: keys for name in one.cell.members}
    monkeypatch.setenv("RAFTCRON_TLS", str(one.person))
    with one.cell as cell:
        cell.start()
        cell.wait_connected()
        yield one


class Rogue:
    """The stream of the executor that lies, and what the leader sent it."""

    def __init__(self, fake: FakeExecutor) -> None:
        self.fake = fake
        self.heard: list[pool_pb2.FromLeader] = []
        self._beats = 0

    async def settle(self) -> None:
        """Return once the leader has read all that was sent before."""
        self._beats += 1
        await self.fake.beat(self._beats, wall_ms=wall_ms())
        while True:
            message = await self.fake.read()
            self.heard.append(message)
            if message.WhichOneof("kind") == "heartbeat":
                return

    def places(self) -> list[pool_pb2.OutputPlace]:
        return [one.place for one in self.heard if one.WhichOneof("kind") == "place"]

    def starts(self) -> list[pool_pb2.StartBatch]:
        orders = [one.orders for one in self.heard if one.WhichOneof("kind") == "orders"]
        return [batch for one in orders for batch in one.batches]


@asynccontextmanager
async def rogue(secured: Secured, **claims: Any) -> AsyncIterator[Rogue]:
    """The rogue, connected to the leader with a certificate of its own."""
    cell = secured.cell
    folder = secured.certs.issued("executor", ROGUE, cell="default")
    leader = await asyncio.to_thread(cell.leader)
    address = cell.ports.servers[int(leader[1:]) - 1]
    async with open_aio_channel(address, load_credentials(files_of(str(folder))), ()) as channel:
        fake = FakeExecutor(pool_pb2_grpc.PoolStub(channel).Connect())
        greeting = hello(cell="default", executor=ROGUE, wall_ms=wall_ms(), **claims)
        await fake.send(hello=greeting)
        one = Rogue(fake)
        one.heard.append(await fake.read())
        assert one.heard[0].WhichOneof("kind") == "welcome"
        yield one
        fake.call.cancel()


def lies(index: int, status: int, **more: Any) -> pool_pb2.Reports:
    """What the rogue says of the first rows of a batch."""
    said = pool_pb2.BatchReport(
        index=index,
        status=status,
        rows=[0, *[1] * (ROWS - 1)],
        started_ms=[wall_ms()],
        finished_ms=[wall_ms()],
        detail="says the rogue",
        **more,
    )
    return pool_pb2.Reports(batches=[said])


def only(cell: Cell, job: str) -> LaunchView:
    """The one attempt of a job."""
    [view] = cell.history(job)
    return view


STATUSES = ("ENDED", "REFUSED", "INTERRUPTED", "FENCED", "UNKNOWN", "ACCEPTED")


async def test_it_ends_and_restarts_nothing_that_another_executor_runs(
    secured: Secured, tmp_path: Path
) -> None:
    cell, go = secured.cell, tmp_path / "go"
    command = f"while [ ! -e {go} ]; do sleep 0.1; done; echo honest"
    await asyncio.to_thread(cell.apply, f"#: name=long on-lost=retry\n@every 100d {command}\n")
    await asyncio.to_thread(cell.cli, "trigger", "long")
    view = await asyncio.to_thread(wait_until, lambda: only(cell, "long").launched_index and only(
        cell, "long"))  # fmt: skip
    known = lies(view.begun_index, pool_pb2.ENDED, exit_code=3)
    async with rogue(secured, known=known) as liar:
        for status in STATUSES:
            number = getattr(pool_pb2, status)
            await liar.fake.send(reports=lies(view.begun_index, number, exit_code=3))
            await liar.settle()
        recalled = pool_pb2.RowReport(
            name=f"{view.launch}#1", status=pool_pb2.ENDED, index=view.begun_index, epoch="1.1.r1"
        )
        assert liar.starts() == []
        await liar.fake.send(recollection=pool_pb2.Recollection(reports=[recalled], last=True))
        code, details = await liar.fake.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "it was not asked for" in details
        await asyncio.to_thread(cell.cli, "pause", "long")  # an entry after all of it
        still = await asyncio.to_thread(only, cell, "long")
        assert (still.is_open, still.executor, still.attempt) == (True, "executor-1", 1)
    go.touch()
    ended = await asyncio.to_thread(
        wait_until, lambda: not only(cell, "long").is_open and only(cell, "long")
    )
    assert (ended.state, ended.executor, ended.exit_code) == ("succeeded", "executor-1", 0)
    assert "rogue" not in ended.detail
    assert cell.client.ask(table.AUDIT).violations == []


async def test_it_amends_no_launch_that_another_executor_lost(secured: Secured) -> None:
    cell = secured.cell
    await asyncio.to_thread(cell.apply, "#: name=long\n@every 100d sleep 60\n")
    await asyncio.to_thread(cell.cli, "trigger", "long")
    view = await asyncio.to_thread(wait_until, lambda: only(cell, "long").launched_index and only(
        cell, "long"))  # fmt: skip
    cell.kill("executor-1")
    await asyncio.to_thread(wait_until, lambda: only(cell, "long").state == "lost", 60, "its end")
    async with rogue(secured, known=lies(view.begun_index, pool_pb2.ENDED)) as liar:
        for status in STATUSES:
            await liar.fake.send(reports=lies(view.begun_index, getattr(pool_pb2, status)))
            await liar.settle()
        await asyncio.to_thread(cell.cli, "pause", "long")
        assert [row.state for row in await asyncio.to_thread(cell.history, "long")] == ["lost"]


async def test_the_labels_of_another_executor_bring_it_no_work(secured: Secured) -> None:
    cell = secured.cell
    grant = ("executor", "grant", "executor-1", "--labels", "zone=safe", "--pools", "*")
    await asyncio.to_thread(cell.cli, *grant, "--users", "*")
    job = "#: name=safe where=zone=safe\n@every 1s true\n"
    async with rogue(secured, labels={"zone": "safe"}, slots=100) as liar:
        offer = pool_pb2.Offer(slots=100)
        await liar.fake.send(offers=pool_pb2.Offers(offers=[offer]))
        await liar.settle()
        await asyncio.to_thread(cell.apply, job)
        for _ in range(8):
            await asyncio.to_thread(cell.wait_launches, len(cell.history("safe")) + 1, "safe")
            await liar.settle()
        assert liar.starts() == []
        rows = await asyncio.to_thread(cell.rows, "executors")
        told = {row["id"]: row for row in rows}
        assert told[ROGUE]["labels"] in (None, {}, [])
    assert {row.executor for row in cell.history("safe", states=["succeeded"])} == {"executor-1"}


async def placed(liar: Rogue, kept: pool_pb2.KeptOutput) -> pool_pb2.OutputPlace:
    """Offer an output; return the answer."""
    before = len(liar.places())
    await liar.fake.send(kept=kept)
    while len(liar.places()) == before:
        await liar.settle()
    return liar.places()[-1]


async def test_it_gets_no_url_for_the_output_of_another_executor(secured: Secured) -> None:
    cell = secured.cell
    await asyncio.to_thread(cell.apply, "#: name=tells\n@every 100d echo mine\n")
    await asyncio.to_thread(cell.cli, "trigger", "tells", "--wait")
    view = await asyncio.to_thread(only, cell, "tells")
    async with rogue(secured) as liar:
        assert liar.heard[0].welcome.stores_outputs
        forged = b"forged"
        kept = pool_pb2.KeptOutput(
            name=f"{view.launch}#1", bytes=len(forged), sha256=hashlib.sha256(forged).digest()
        )
        place = await placed(liar, kept)
        while place.placing == pool_pb2.PLACING_LATER:  # until the cell has claimed its store
            assert place.url == ""
            place = await placed(liar, kept)
        assert (place.url, dict(place.headers)) == ("", {})
        assert place.placing == pool_pb2.PLACING_NEVER
    said = await asyncio.to_thread(cell.cli, "logs", view.launch)
    assert said.stdout == "mine\n"
