"""The engine against forged frames, large entries, far-behind followers and damaged files."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consensus.config import EngineConfig
from consensus.engine.network.wire import (
    HEADER,
    PROTOCOL,
    FrameReader,
    Goodbye,
    Hello,
    encode_frame,
)
from consensus.engine.replica import EngineLog
from consensus.errors import (
    ConsensusError,
    DataInUse,
    EntryTooBig,
    LogDamaged,
    NotLeader,
    OutcomeUnknown,
    QueueFull,
    Stopped,
)
from consensus.leadership import Position
from consensus.limits import ENTRY_BYTES_MAX, HELLO_BYTES_MAX, SEGMENT_BYTES
from tests.cluster.engine_cell import LocalCell
from tests.conformance.cells import IDS, dial_once, eventually
from tests.conformance.ledger import Ledger
from tests.fakes.ports import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[LocalCell]:
    local = LocalCell(tmp_path, snapshot_entries=1_000_000, trailing_entries=5)
    await local.start()
    yield local
    await local.stop()


class RunsCode:
    """A pickle that makes a directory when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (__import__("os").mkdir, (str(self.path),))


@pytest.mark.parametrize("size", [1, 64 * 1024, 1024 * 1024, 6 * 1024 * 1024, ENTRY_BYTES_MAX])
async def test_entries_up_to_the_limit_arrive_whole(tmp_path: Path, size: int) -> None:
    cell = LocalCell(tmp_path, election_min_ms=2_000, election_max_ms=4_000)
    await cell.start()
    leader = await cell.leader()
    entry = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await leader.append(entry, timeout_ms=20_000)
    await leader.append(b"after", timeout_ms=20_000)
    await cell.settled(2)
    assert all(cell.ledgers[name].entries == [entry, b"after"] for name in IDS)
    assert leader.leadership.leads, "a large entry cost the leadership"
    await cell.stop()


async def test_an_entry_over_the_limit_is_refused_before_anything_happens(cell: LocalCell) -> None:
    leader = await cell.leader()
    with pytest.raises(EntryTooBig):
        await leader.append(b"x" * (ENTRY_BYTES_MAX + 1), timeout_ms=5_000)
    await leader.append(b"y", timeout_ms=5_000)
    await cell.settled(1)


async def test_a_full_queue_refuses_and_recovers(tmp_path: Path) -> None:
    cell = LocalCell(tmp_path, election_min_ms=2_000, election_max_ms=4_000)
    await cell.start()
    leader = await cell.leader()
    big = b"x" * ENTRY_BYTES_MAX
    answers = await asyncio.gather(
        *(leader.append(big, timeout_ms=30_000) for _ in range(10)), return_exceptions=True
    )
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 2
    assert all(not isinstance(a, BaseException) or isinstance(a, QueueFull) for a in answers)
    await leader.append(b"y", timeout_ms=30_000)
    await cell.settled(9)
    await cell.stop()


def hello_of(leader: EngineLog, peer: str, *, token: int) -> bytes:
    """Return what `peer`, with a disk of that token, would say first to the leader."""
    return encode_frame(Hello(PROTOCOL, PROTOCOL, "default", peer, leader.replica, 1, token, False))


def is_turned_away(answer: bytes) -> bool:
    """Whether nothing came back, or a Goodbye."""
    reader = FrameReader(HELLO_BYTES_MAX)
    reader.feed(answer)
    return answer == b"" or isinstance(reader.next(), Goodbye)


async def test_a_forged_frame_runs_nothing_and_the_replica_lives_on(
    cell: LocalCell, tmp_path: Path
) -> None:
    leader = await cell.leader()
    marker = tmp_path / "owned"
    evil = pickle.dumps(RunsCode(marker), protocol=2)
    address = cell.configs[leader.replica].peers[leader.replica]
    peer = next(name for name in IDS if name != leader.replica)
    hello = hello_of(leader, peer, token=5)
    strange = hello_of(leader, "mallory", token=5)
    wrapped = HEADER.pack(len(evil), __import__("zlib").crc32(evil)) + evil
    stock = len(evil).to_bytes(4, "little") + __import__("zlib").compress(evil)
    for sent in (wrapped, stock, hello + wrapped, strange, b"\xff" * 64, hello + b"\xff" * 64):
        assert is_turned_away(await asyncio.to_thread(dial_once, address, sent))
    assert not marker.exists()
    await leader.append(b"alive", timeout_ms=5_000)
    await cell.settled(1)
    assert not cell.failures


async def test_whoever_comes_last_as_a_peer_ends_the_older_connection(cell: LocalCell) -> None:
    # S15: bytes of a former connection are not heard after a newer one; the cell goes on
    leader = await cell.leader()
    peer = next(name for name in IDS if name != leader.replica)
    address = cell.configs[leader.replica].peers[leader.replica]
    known = leader._raft.transport.peer(peer) if leader._raft else None
    assert known is not None
    token = known.token
    hello = hello_of(leader, peer, token=token)
    for _ in range(3):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(hello)
        await writer.drain()
        _, second = await asyncio.open_connection(*address.split(":"))
        second.write(hello)
        await second.drain()
        await asyncio.wait_for(reader.read(), 40)  # up to its end
        writer.close()
        second.close()
    await cell.leader()
    leader = await cell.leader()
    await leader.append(b"x", timeout_ms=5_000)
    await cell.settled(1)


async def test_a_follower_far_behind_gets_the_dump_and_then_the_rest(cell: LocalCell) -> None:
    leader = await cell.leader()
    behind = next(name for name in IDS if name != leader.replica)
    await cell.stop(behind)
    bulk = [b"%05d" % number + b"x" * 40_000 for number in range(80)]  # a dump of several pieces
    await asyncio.gather(*(leader.append(entry, timeout_ms=20_000) for entry in bulk))
    position = await leader.snapshot()
    await leader.append(b"after", timeout_ms=5_000)
    await cell.start(behind)
    await cell.settled(81)
    assert cell.ledgers[behind].entries == [*bulk, b"after"]
    assert cell.ledgers[behind].restored == [position]
    await cell.stop(behind)
    await cell.start(behind)
    await cell.settled(81)
    assert cell.ledgers[behind].restored == [position], "the received dump was kept"


async def test_dumps_are_taken_by_themselves_and_the_journal_stays_short(tmp_path: Path) -> None:
    cell = LocalCell(
        tmp_path,
        snapshot_entries=20,
        trailing_entries=5,
        election_min_ms=3_000,
        election_max_ms=6_000,
    )
    await cell.start()
    leader = await cell.leader()
    for number in range(10):
        batch = [b"%d/%d" % (number, one) + b"." * 300_000 for one in range(12)]
        await asyncio.gather(*(leader.append(entry, timeout_ms=20_000) for entry in batch))
    await cell.settled(120)

    async def short() -> bool:
        sizes = [
            sum(file.stat().st_size for file in (tmp_path / name).glob("wal-*")) for name in IDS
        ]
        return max(sizes) < 2.5 * SEGMENT_BYTES

    await eventually(short, "journals of two segments, where 36 MB were appended")
    await cell.stop()
    await cell.start()
    await cell.leader()
    await cell.settled(120)
    assert all(cell.ledgers[name].restored[0] > Position(0, 60) for name in IDS)
    await cell.stop()


async def test_a_damaged_dump_is_reported_and_not_taken_for_empty(cell: LocalCell) -> None:
    # S9
    leader = await cell.leader()
    await leader.append(b"x" * 5_000, timeout_ms=5_000)
    name = leader.replica
    await leader.snapshot()
    await cell.stop(name)
    dump = Path(cell.configs[name].data) / "dump"
    content = bytearray(dump.read_bytes())
    content[-100] ^= 1
    dump.write_bytes(content)
    with pytest.raises(LogDamaged, match="digest"):
        await cell.start(name)
    content[-100] ^= 1
    dump.write_bytes(content)
    await cell.start(name)
    await cell.settled(1)


async def test_one_directory_serves_one_process(cell: LocalCell) -> None:
    duplicate_id = EngineLog(cell.configs["r1"], Ledger(), on_failure=pytest.fail)
    with pytest.raises(DataInUse):
        await duplicate_id.start()


async def test_a_taken_port_is_reported_and_the_directory_let_go(tmp_path: Path) -> None:
    peers = {"r1": f"127.0.0.1:{free_ports(1)[0]}"}
    first = EngineConfig(replica="r1", peers=peers, data=str(tmp_path / "a"), start="bootstrap")
    second = EngineConfig(replica="r1", peers=peers, data=str(tmp_path / "b"), start="bootstrap")
    log = EngineLog(first, Ledger(), on_failure=pytest.fail)
    await log.start()
    with pytest.raises(ConsensusError, match="cannot listen"):
        await EngineLog(second, Ledger(), on_failure=pytest.fail).start()
    await log.stop()
    again = EngineLog(second, Ledger(), on_failure=pytest.fail)
    await again.start()
    await again.stop()


async def test_a_cell_of_one_commits_alone_and_remembers(tmp_path: Path) -> None:
    peers = {"r1": f"127.0.0.1:{free_ports(1)[0]}"}
    config = EngineConfig(replica="r1", peers=peers, data=str(tmp_path), start="bootstrap")
    for round_ in range(2):
        ledger = Ledger()
        log = EngineLog(config, ledger, on_failure=pytest.fail)
        await log.start()

        async def leads(log: EngineLog = log) -> bool:
            return log.leadership.leads

        await eventually(leads, "it leads alone")
        await log.barrier(timeout_ms=5_000)
        assert len(ledger.entries) == round_
        assert (await log.append(b"x", timeout_ms=5_000)).outcome == round_ + 1
        await log.stop()


async def test_an_applier_that_raises_stops_the_replica_and_tells(cell: LocalCell) -> None:
    leader = await cell.leader()
    cell.ledgers[leader.replica].poison = b"poison"
    with pytest.raises(OutcomeUnknown):
        await leader.append(b"poison", timeout_ms=5_000)
    assert isinstance(cell.failures[leader.replica], RuntimeError)
    assert not leader.leadership.leads
    with pytest.raises(Stopped):
        await leader.append(b"x", timeout_ms=5_000)
    rest = [name for name in IDS if name != leader.replica]
    successor = await cell.leader(*rest)
    await successor.append(b"y", timeout_ms=5_000)
    await cell.settled(2, *rest)


async def test_stopping_ends_the_thread_and_whoever_waits(cell: LocalCell) -> None:
    leader = await cell.leader()
    rest = [name for name in IDS if name != leader.replica]
    await cell.stop(*rest)
    waiting = asyncio.create_task(leader.append(b"x", timeout_ms=60_000))
    await asyncio.sleep(0)
    await leader.stop()
    with pytest.raises((OutcomeUnknown, NotLeader)):
        await waiting
    names = [thread.name for thread in threading.enumerate()]
    assert "consensus-tick" not in names


async def test_listeners_hear_of_every_change_on_the_loops_thread(tmp_path: Path) -> None:
    cell = LocalCell(tmp_path)
    heard: list[tuple[bool, int]] = []
    await cell.start("r1")
    cell.logs["r1"].subscribe(
        lambda belief: heard.append((belief.leads, threading.current_thread().ident or 0))
    )
    await cell.start("r2", "r3")
    leader = await cell.leader()
    if leader.replica != "r1":
        await leader.transfer("r1")
    await cell.leader()
    leads, threads = zip(*heard, strict=True)
    assert cell.logs["r1"].leadership.leads == leads[-1]
    assert set(threads) == {threading.get_ident()}
    await cell.stop()
