"""The executor loop's turns: written before acted on, answered through the report sink, nothing
twice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from launcher import failpoints
from launcher.clock import boot_ms, wall_ms
from launcher.config import ExecutorConfig
from launcher.errors import DirectoryInUse, FailpointHit
from launcher.executor import loop as executor_loop
from launcher.executor import main as executor
from launcher.executor.commands.children import Children
from launcher.executor.commands.trees import SurvivorsRemain
from launcher.executor.ledger import FILE, Ledger
from launcher.executor.loop import ExecutorLoop, interrupt_all
from launcher.executor.main import lock
from launcher.executor.outputs import Outputs
from launcher.executor.rows import ACCEPTED, ENDED, FENCED, INTERRUPTED, REFUSED
from launcher.executor.rules import Works
from launcher.executor.uploads import Packed
from launcher.protocol.reports import BatchReport, GroupOffer, RowReport
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch, WorkSpec
from tests.unit.journal_rig import read_only
from tests.unit.rows_rig import Start, found, insert, orders, rows_of

A, B, C = (f"default/{job}@2026-11-20T15:00:00Z#1" for job in "abc")


class Ear:
    """A report sink that keeps all reports."""

    def __init__(self) -> None:
        self.works = Works()
        self.hello: list[tuple[str, int]] | None = None
        self.told: list[tuple[str, int]] = []
        self.offers: list[tuple[GroupOffer, ...]] = []
        self.left = ""

    def begin(self, known: list[RowReport], highest: Epoch) -> None:
        self.hello = [(row.name, row.status) for row in known]

    def send(self, changes: list[BatchReport]) -> None:
        self.told += [(row.name, row.status) for row in rows_of(changes)]

    def offer(self, offers: Sequence[GroupOffer]) -> None:
        self.offers.append(tuple(offers))

    def leave(self, reason: str) -> None:
        self.left = reason


class Silence:
    """A leader that is offered outputs."""

    def keep(self, name: str, packed: Packed) -> None:
        pass


class Shop:
    """An executor loop with its ledger, thread and spawner; turns are taken one by one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self.config = ExecutorConfig(
            id="e1", data=str(directory), leaders=("127.0.0.1:1",), users=("root",)
        )
        self.ear = Ear()

    async def open(self, **settings: Any) -> None:
        self.config = msgspec.structs.replace(self.config, **settings)
        path = self.directory / FILE
        self.ledger = await asyncio.wrap_future(self.thread.submit(Ledger, path))
        outputs = Outputs(self.directory / "output", 100, 1 << 20)
        self.executor_loop = ExecutorLoop(self.config, self.ledger, outputs)
        await self.executor_loop.start()
        self.watch = asyncio.create_task(self.executor_loop.watch())
        self.lease()

    def lease(self, self_kill_ms: int = 60_000) -> None:
        lease = self.executor_loop.lease
        lease.connected(self_kill_ms)
        lease.answered(lease.sent(boot_ms()))
        self.executor_loop.renewed()

    async def close(self) -> None:
        await self.executor_loop.stop(self.thread)
        await self.watch
        await asyncio.wrap_future(self.thread.submit(self.ledger.close))
        self.thread.shutdown()

    async def turn(self) -> None:
        await self.executor_loop.run_once(self.thread)

    async def turns_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await self.executor_loop._wake.wait()
                self.executor_loop._wake.clear()
                await self.turn()

    def order(self, *, term: int = 1, names: tuple[str, ...] = (), **fields: Any) -> None:
        argv = ("/bin/sh", "-c", fields.pop("command", "exit 3"))
        user, is_guarded = fields.pop("user", ""), fields.pop("is_guarded", False)
        spec = msgspec.msgpack.encode(WorkSpec(argv, cwd="/", user=user, guarded=is_guarded))
        index, until_ms = fields.pop("index", 9), wall_ms() + 60_000
        starts = [Start(name, spec, until_ms, index) for name in names]
        self.executor_loop.order(self.ear, orders(*starts, epoch=(0, term), **fields))

    def on_disk(self, name: str) -> int | None:
        """The status that somebody else reads from the file."""
        row = found(read_only(self.directory / FILE)).get(name)
        return row.status if row else None


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    await shop.open()
    yield shop
    failpoints.arm("")
    await shop.close()


async def test_a_launch_goes_from_order_to_end(shop: Shop) -> None:
    shop.executor_loop.attach(shop.ear)
    shop.order(names=(A,))
    await shop.turn()
    assert shop.on_disk(A) == ACCEPTED
    assert shop.executor_loop.running == 1
    assert shop.ear.hello == []  # accepted, but not yet known whether it started
    await shop.turns_until(lambda: (A, ENDED) in shop.ear.told)
    assert shop.executor_loop.running == 0
    assert shop.on_disk(A) == ENDED


async def test_what_cannot_be_written_is_not_started(shop: Shop) -> None:
    failpoints.arm("before-ledger=error")
    shop.order(names=(A,), command=f"touch {shop.directory}/ran")
    with pytest.raises(FailpointHit):
        await shop.turn()
    assert shop.executor_loop.running == 0
    assert shop.on_disk(A) is None
    assert not (shop.directory / "ran").exists()


async def test_between_row_and_start_nothing_runs(shop: Shop) -> None:
    failpoints.arm("after-ledger=error")
    shop.order(names=(A,), command=f"touch {shop.directory}/ran")
    with pytest.raises(FailpointHit):
        await shop.turn()
    assert shop.on_disk(A) == ACCEPTED
    assert not (shop.directory / "ran").exists()
    # What the next life of the executor makes of it:
    lost = await asyncio.wrap_future(shop.thread.submit(interrupt_all, shop.ledger, "executor"))
    assert [(row.name, row.status) for row in lost] == [(A, INTERRUPTED)]
    assert shop.on_disk(A) == INTERRUPTED


async def test_a_report_that_found_no_report_sink_is_in_the_next_greeting(shop: Shop) -> None:
    shop.order(names=(A,))
    await shop.turns_until(lambda: shop.on_disk(A) == ENDED)
    shop.executor_loop.attach(shop.ear)
    await shop.turn()
    assert shop.ear.hello == [(A, ENDED)]
    assert shop.ear.told == []


async def test_an_executor_that_dies_once_an_end_is_recorded_still_knows_of_its_output(
    shop: Shop,
) -> None:
    class Died(Exception):
        pass

    class Thread(ThreadPoolExecutor):
        """The ledger's thread; the process dies as soon as A has ended there."""

        def submit(self, write: Any, /, *given: Any, **more: Any) -> Any:
            def written() -> Any:
                done = write(*given, **more)
                if shop.on_disk(A) == ENDED:
                    raise Died
                return done

            return ledger_thread.submit(written)

    shop.executor_loop.uploads.attach(Silence(), stores=True)
    shop.order(names=(A,), command="echo printed")
    ledger_thread, shop.thread = shop.thread, Thread()
    with pytest.raises(Died):
        await shop.turns_until(lambda: False)
    shop.thread = ledger_thread
    assert list(Outputs(shop.directory / "output", 100, 1 << 20).waiting.values()) == [A]


async def test_after_it_was_detached_an_report_sink_hears_nothing(shop: Shop) -> None:
    shop.executor_loop.attach(shop.ear)
    await shop.turn()
    shop.executor_loop.detach(shop.ear)
    shop.order(fences=[A])
    await shop.turn()
    assert shop.on_disk(A) == FENCED
    assert shop.ear.told == []


async def test_an_report_sink_that_left_before_its_turn_is_not_greeted(shop: Shop) -> None:
    shop.executor_loop.attach(shop.ear)
    shop.executor_loop.detach(shop.ear)
    shop.order(fences=[A])
    await shop.turn()
    assert shop.ear.hello is None


async def test_stale_orders_end_the_stream_they_came_from(shop: Shop) -> None:
    shop.executor_loop.welcome(Epoch(0, 7, "r1"))
    shop.order(term=6, names=(A,))
    await shop.turn()
    assert shop.ear.left == "epoch 0.6.r1 is older than 0.7.r1"
    assert shop.executor_loop.highest.term == 7
    assert shop.on_disk(A) is None


async def test_slots_are_counted_over_all_messages_of_a_turn(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.open(slots=1, worker_buffer=0)
    shop.order(names=(A,), command="sleep 60")
    shop.order(names=(B,))
    await shop.turn()
    assert (shop.on_disk(A), shop.on_disk(B)) == (ACCEPTED, REFUSED)
    await shop.close()


async def test_a_user_it_must_not_become_fails_the_launch(shop: Shop) -> None:
    shop.executor_loop.attach(shop.ear)
    shop.order(names=(A,), user="daemon")
    await shop.turns_until(lambda: (A, ENDED) in shop.ear.told)
    row = (await asyncio.wrap_future(shop.thread.submit(found, shop.ledger)))[A]
    assert (row.reason, row.started_ms) == (Reason.USER, 0)
    assert shop.executor_loop.running == 0


async def test_a_kill_in_the_message_of_its_start_ends_it(shop: Shop) -> None:
    shop.executor_loop.attach(shop.ear)
    shop.order(names=(A,), command="sleep 60", kills=[(A, Reason.KILLED)])
    await shop.turns_until(lambda: bool(shop.ear.told) and shop.ear.told[-1][1] != ACCEPTED)
    assert shop.ear.told[-1] in [(A, ENDED), (A, REFUSED)]


async def test_a_drained_executor_loop_refuses_and_ends(shop: Shop) -> None:
    shop.executor_loop.attach(shop.ear)
    shop.order(names=(A,), command="sleep 60")
    await shop.turns_until(lambda: (A, ACCEPTED) in shop.ear.told)
    turns = asyncio.create_task(shop.executor_loop.run(shop.thread))
    drained = asyncio.create_task(shop.executor_loop.drain(1_000, 5))
    shop.order(names=(B,))
    await drained
    turns.cancel()
    await asyncio.gather(turns, return_exceptions=True)
    assert (shop.on_disk(A), shop.on_disk(B)) == (ENDED, REFUSED)
    assert shop.executor_loop.running == 0


async def test_a_full_ledger_takes_no_work_until_rows_are_forgotten(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_loop, "LEDGER_ROWS_MAX", 1)
    served = (GroupOffer("app", 1, ("a.b",)),)
    shop.executor_loop.workers.groups.offers = served
    shop.executor_loop.attach(shop.ear)
    with structlog.testing.capture_logs() as lines:
        shop.order(names=(A,))
        await shop.turns_until(lambda: (A, ENDED) in shop.ear.told)
        shop.order(names=(B,), acks=[A])
        await shop.turns_until(lambda: (B, REFUSED) in shop.ear.told)
    assert "see why backups" in found(shop.ledger)[B].detail
    assert [line["event"] for line in lines].count("ledger.full") == 1
    assert shop.ear.offers == [()]
    shop.order(acks=[B], floor=9)
    await shop.turn()
    assert shop.ear.offers == [(), served]
    shop.order(names=(C,), index=10)
    await shop.turns_until(lambda: (C, ENDED) in shop.ear.told)


async def test_an_executor_that_starts_with_a_full_ledger_takes_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_loop, "LEDGER_ROWS_MAX", 1)
    ledger = Ledger(tmp_path / FILE)
    with ledger.transaction():
        insert(ledger, A, status=REFUSED)
    ledger.close()
    shop = Shop(tmp_path)
    await shop.open()
    shop.order(names=(B,))
    await shop.turn()
    assert shop.on_disk(B) == REFUSED
    await shop.close()


async def test_a_lease_that_is_renewed_while_a_spawner_is_replaced_harms_nobody(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Children.start

    async def start(fresh: Children) -> None:
        shop.lease()  # as an answer to a heartbeat does
        await begin(fresh)

    shop.executor_loop.attach(shop.ear)
    shop.order(names=(A,), command="sleep 60")
    await shop.turns_until(lambda: (A, ACCEPTED) in shop.ear.told)
    monkeypatch.setattr(Children, "start", start)
    os.kill(shop.executor_loop._children.pid, signal.SIGKILL)
    await shop.turns_until(lambda: (A, INTERRUPTED) in shop.ear.told)
    shop.order(names=(B,))
    await shop.turns_until(lambda: (B, ENDED) in shop.ear.told)


class Immortal:
    """Stands for kill_groups while something hangs in the kernel."""

    def __init__(self) -> None:
        self.count = 0
        self.hangs = True
        self.asked_again = threading.Event()

    def __call__(self, rows: list[RowReport], ledger: str) -> list[str]:
        self.count += 1
        if self.count > 1:
            self.asked_again.set()
        if self.hangs:
            raise SurvivorsRemain("process 77 is still there", "restart the host")
        return []


@pytest.fixture
def immortal(monkeypatch: pytest.MonkeyPatch) -> Immortal:
    immortal = Immortal()
    monkeypatch.setattr(executor_loop, "kill_groups", immortal)
    monkeypatch.setattr(executor_loop, "SURVIVORS_PAUSE_S", 0.001)
    monkeypatch.setattr(executor, "SURVIVORS_PAUSE_S", 0.001)
    return immortal


async def test_while_something_cannot_be_killed_nothing_is_concluded_and_no_leader_visited(
    shop: Shop, immortal: Immortal
) -> None:
    shop.executor_loop.attach(shop.ear)
    shop.order(names=(A,), command="sleep 60")
    await shop.turns_until(lambda: (A, ACCEPTED) in shop.ear.told)
    os.kill(shop.executor_loop._children.pid, signal.SIGKILL)
    turns = asyncio.create_task(shop.turns_until(lambda: (A, INTERRUPTED) in shop.ear.told))
    assert await asyncio.to_thread(immortal.asked_again.wait, 30)
    assert not shop.executor_loop.able.is_set()
    assert shop.on_disk(A) == ACCEPTED
    immortal.hangs = False
    await turns
    assert shop.executor_loop.able.is_set()


async def test_an_executor_that_waits_for_survivors_can_be_told_to_end(
    shop: Shop, immortal: Immortal
) -> None:
    shop.ledger.is_same_boot = True
    stop = asyncio.Event()
    cleared = asyncio.create_task(executor._cleared(shop.thread, shop.ledger, stop))
    assert await asyncio.to_thread(immortal.asked_again.wait, 30)
    stop.set()
    assert not await cleared
    immortal.hangs = False
    assert await executor._cleared(shop.thread, shop.ledger, asyncio.Event())


async def test_an_output_is_ended_once_its_launch_is(shop: Shop) -> None:
    shop.executor_loop.attach(shop.ear)
    shop.order(names=(A,), command="echo hello")
    request = pool_pb2.OutputRequest(request=1, name=A)
    await shop.turn()
    assert not shop.executor_loop.output(request).ended
    await shop.turns_until(lambda: (A, ENDED) in shop.ear.told)
    chunk = shop.executor_loop.output(request)
    assert (chunk.data, chunk.ended) == (b"hello\n", True)


def test_a_directory_has_one_executor(tmp_path: Path) -> None:
    lock(tmp_path / "new" / "data")
    with pytest.raises(DirectoryInUse, match="is in use by the executor with process id") as caught:
        lock(tmp_path / "new" / "data")
    assert "directory of its own" in caught.value.hint


async def test_orders_that_cannot_be_read_end_their_stream(shop: Shop) -> None:
    shop.executor_loop.attach(shop.ear)
    message = orders()
    message.batches.add(index=9, rows=[0], works=[5])
    shop.executor_loop.order(shop.ear, message)
    await shop.turn()
    assert shop.ear.left == "work 5 is not known in this stream"
    assert shop.executor_loop.running == 0


async def test_a_second_attempt_of_a_name_that_is_here_is_refused(shop: Shop) -> None:
    # As after a restore: the leader does not know of the first, and begins it once more.
    shop.executor_loop.attach(shop.ear)
    shop.order(names=(A,), command="sleep 60")
    await shop.turns_until(lambda: (A, ACCEPTED) in shop.ear.told)
    shop.order(names=(A,), index=10, command=f"touch {shop.directory}/ran")
    await shop.turns_until(lambda: (A, REFUSED) in shop.ear.told)
    assert shop.executor_loop.running == 1
    assert not (shop.directory / "ran").exists()
