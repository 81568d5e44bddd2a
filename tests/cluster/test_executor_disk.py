"""An executor with workers at work, on a disk that is full, fails, or forgets what was written.

No attempt begins without its row in the ledger; nothing is told to be over that is not; and it ends
with a clear message, or begins again once the disk is well.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from launcher.executor.main import CANNOT_RUN
from launcher.protocol.v1 import pool_pb2
from launcher.worker.options import WorkerOptions
from tests.cluster.engine_disks import Mounts, Syncs, why_no_mounts
from tests.cluster.executor_host import ROOT, ExecutorHost, FakeLeader, runs, until, work
from tests.unit.rows_rig import reports_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

A, B = (f"default/{name}@2026-11-20T15:00:00Z#1" for name in "ab")
APP = """
import os, time
from pathlib import Path
from typing import Final
from launcher.worker.facade import Context, handler
FOLDER = Path(os.environ["SHOP"])

@handler("hold")
def hold(payload: str, context: Context):
    with (FOLDER / "began").open("a") as file:
        file.write(f"{context.launch} {os.getpid()}\\n")
    while not (FOLDER / payload).exists():
        time.sleep(0.01)
"""


class Worker:
    """A `raftcron worker` of two processes beside an executor, and what its handlers began with."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self.folder = folder
        (folder / "tasks.py").write_text(APP)
        options = WorkerOptions(app="tasks", processes=2, executor=str(socket))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launcher.worker", msgspec.json.encode(options).decode()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SHOP": str(folder)},
        )

    def began(self, name: str) -> list[int]:
        """The processes that began with an attempt, in order."""
        path = self.folder / "began"
        lines = path.read_text().splitlines() if path.exists() else []
        launch = name.partition("#")[0]
        return [int(line.split()[1]) for line in lines if line.split()[0] == launch]

    def children(self) -> list[int]:
        """Its processes now."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [pid for pid in map(int, path.read_text().split()) if runs(pid)]

    def close(self) -> None:
        for pid in self.children():
            os.kill(pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def worker(tmp_path: Path, host: ExecutorHost) -> Iterator[Callable[[], Worker]]:
    """A function that starts the worker of the host's executor."""
    started: list[Worker] = []

    def start() -> Worker:
        (tmp_path / "shop").mkdir()
        data = Path(host_data(host))
        started.append(Worker(tmp_path / "shop", data / "workers.sock"))
        return started[-1]

    yield start
    for one in started:
        one.close()


def host_data(host: ExecutorHost) -> Path:
    """The directory of the host's executor."""
    line = next(one for one in host.config.read_text().splitlines() if one.startswith("data = "))
    return (host.directory / line.split('"')[1]).resolve()


def hold(payload: bytes = b'"go"') -> bytes:
    """Return the work of a launch that runs until there is a file."""
    return work(argv=(), handler="hold", payload=payload)


async def running(leader: FakeLeader, worker: Worker, name: str, payload: bytes = b'"go"') -> int:
    """Have an attempt begin; return its process."""
    await until(lambda: leader.offers, "the worker")
    leader.start(name, hold(payload))
    await leader.told(name, pool_pb2.ACCEPTED)
    return int((await until(lambda: worker.began(name), "its begin"))[0])


# ---- a disk that is full


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    if reason := why_no_mounts(tmp_path / "trial"):
        pytest.skip(reason)
    mounts = Mounts(tmp_path / "mounts")
    yield mounts.small("executor", "4m")
    mounts.close()


def fill(point: Path) -> None:
    """Leave no room; that an executor gives some back when it ends changes nothing of that."""
    with (point / f"full-{len(list(point.iterdir()))}").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


PAGE: Final = 4_096
LETTERS: Final = 80
"""Of a job's name in a tombstone, for which its record is as much longer."""
LEFT_MAX: Final = 8
"""Bytes into which no record fits: its frame is longer."""


def size_of(path: Path) -> int:
    return path.stat().st_size


async def fill_page(leader: FakeLeader, journal: Path) -> None:
    """Have tombstones written until the last page of the journal takes no record more: it is there
    already, and on a full disk it would still take what fits."""
    sizes = [size_of(journal)]

    async def fence(letters: int) -> None:
        nonlocal beside
        name = f"default/{'x' * letters}{len(sizes) % 10}@2026-11-20T15:00:00Z#{len(sizes)}"
        leader.order(fences=[name])
        await leader.told(name, pool_pb2.FENCED)
        sizes.append(size_of(journal))
        beside = min(beside, sizes[-1] - sizes[-2] - letters)  # a worker that joins adds a record

    beside = PAGE
    await fence(LETTERS)
    while (left := -sizes[-1] % PAGE) > LEFT_MAX:
        room = left - beside - LEFT_MAX // 2  # a record is a byte or two longer or shorter
        if 1 <= room <= LETTERS:
            await fence(room)
        elif LETTERS < room <= LETTERS + beside:
            await fence((room - beside) // 2)
        else:
            await fence(LETTERS)


def clear(point: Path) -> None:
    for file in point.glob("full-*"):
        file.unlink()


@pytest.mark.parametrize("what", ["a start", "an end"])
async def test_on_a_full_disk_nothing_begins_and_nothing_is_told_and_it_says_why(
    leader: FakeLeader, host: ExecutorHost, worker: Callable[[], Worker], small: Path, what: str
) -> None:
    host.configure([leader.address], data=str(small / "data"))
    host.start()
    await leader.connected()
    shop = worker()
    pid = await running(leader, shop, A)
    await fill_page(leader, small / "data/journal")
    fill(small)
    if what == "an end":
        (shop.folder / "go").touch()
    else:
        leader.start(B, hold())
    assert await host.ended() == CANNOT_RUN
    full = f"journal {small}/data/journal: cannot write: No space left on device"
    assert full in host.errors()
    assert "make room on the disk, then start the executor again" in host.errors()
    assert not leader.about(A, pool_pb2.ENDED)
    assert not leader.about(B)
    assert shop.began(B) == []
    await until(lambda: not runs(pid), "the end of what ran")

    fill(small)
    host.log.unlink()
    host.start()
    assert await host.ended() == CANNOT_RUN, "nor does it start on a full disk"
    assert "move" not in host.errors(), "a full disk is no damage"
    assert "disk" in host.errors()

    clear(small)
    (shop.folder / "go").touch()
    host.start()
    await leader.connected(streams=2)
    known = {row.name: row.status for row in reports_of(leader.hellos[-1].known)}
    assert known[A] == pool_pb2.INTERRUPTED
    assert {status for name, status in known.items() if name != A} == {pool_pb2.FENCED}
    await until(lambda: len(shop.children()) == 2 and leader.offers, "the worker")
    leader.start(B, hold())
    await leader.told(B, pool_pb2.ENDED)
    assert (len(shop.began(A)), len(shop.began(B))) == (1, 1)


async def test_a_sync_that_fails_ends_the_executor_and_the_start_was_never_made(
    leader: FakeLeader, host: ExecutorHost, worker: Callable[[], Worker], tmp_path: Path
) -> None:
    syncs = Syncs(tmp_path)
    syncs.let("e1", "true")
    host.variables = syncs.environment("e1")
    host.start()
    await leader.connected()
    shop = worker()
    pid = await running(leader, shop, A)
    syncs.let("e1", "fail")
    leader.start(B, hold())
    assert await host.ended() == CANNOT_RUN
    assert "journal: cannot be used: Input/output error" in host.errors()
    assert "see to the disk of" in host.errors()
    assert shop.began(B) == []
    assert not leader.about(B)
    await until(lambda: not runs(pid), "the end of what ran")
    syncs.let("e1", "true")
    host.start()
    await leader.connected(streams=2)
    known = {row.name: row.status for row in reports_of(leader.hellos[-1].known)}
    assert known[A] == pool_pb2.INTERRUPTED
    assert known.get(B) in (None, pool_pb2.INTERRUPTED, pool_pb2.REFUSED)
    assert shop.began(B) == []


# ---- a ledger that is damaged, while something of the last executor still lives


def flip(data: Path) -> None:
    """A bit of a record that was synced."""
    path = data / "journal"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(data: Path) -> None:
    path = data / "journal"
    path.write_bytes(path.read_bytes()[:-100])


def scratch(data: Path) -> None:
    """The head of the file."""
    path = data / "journal"
    content = bytearray(path.read_bytes())
    content[0:20] = b"\xa5" * 20
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [flip, cut, scratch])
async def test_on_a_damaged_ledger_nothing_is_started_beside_what_still_lives(
    leader: FakeLeader,
    host: ExecutorHost,
    worker: Callable[[], Worker],
    damage: Callable[[Path], None],
) -> None:
    host.start()
    await leader.connected()
    shop = worker()
    pid = await running(leader, shop, A)
    for child in shop.children():
        os.kill(child, signal.SIGSTOP)
    os.kill(shop.process.pid, signal.SIGSTOP)
    await host.kill()
    assert runs(pid), "it stands still, and would go on"
    damage(host_data(host))
    host.start()
    try:
        assert await host.ended() == CANNOT_RUN
        assert "journal: cannot be read: " in host.errors()
        assert "the cell takes its open launches for lost" in host.errors()
        assert len(leader.hellos) == 1, "the leader was told nothing"
    finally:
        os.kill(shop.process.pid, signal.SIGCONT)
        for child in shop.children():
            os.kill(child, signal.SIGCONT)
    await until(lambda: not runs(pid), "its end, with the connection")
    assert shop.began(A) == [pid]


async def test_another_executors_ledger_kills_nothing_and_says_nothing(
    leader: FakeLeader, host: ExecutorHost, worker: Callable[[], Worker], tmp_path: Path
) -> None:
    # A directory that was copied to make a second executor: the same boot, the same process ids.
    host.start()
    await leader.connected()
    shop = worker()
    pid = await running(leader, shop, A)
    (tmp_path / "other").mkdir()
    other = ExecutorHost(tmp_path / "other", [leader.address], id="e2")
    no_sockets = shutil.ignore_patterns("*.sock")
    shutil.copytree(host_data(host), other.directory / "data", ignore=no_sockets)
    try:
        other.start()
        assert await other.ended() == CANNOT_RUN
        assert "is that of executor e1, and this one is e2" in other.errors()
        assert "give e2 a directory of its own" in other.errors()
    finally:
        other.close()
    assert runs(pid)
    assert len(leader.hellos) == 1
    (shop.folder / "go").touch()
    await leader.told(A, pool_pb2.ENDED)
