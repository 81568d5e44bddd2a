"""Light executors, many in one process: the whole protocol of the stream, and no processes started.

    python -m bench.reconnect_stand --first 0 --count 2500 --replicas HOST:PORT ... --work-ms 300

Each has an id and a ledger of its own, keeps rows until they are acknowledged, refuses what an
executor refuses, and comes back at the product's own pace (`launcher.executor.backoff`). What is
asked on stdin is answered on stdout, a line of JSON each: `count` how many have a lease of which
epoch, `report` everything. Clocks are those of the machine, so that reports of several processes
compare.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from bench.reconnect_line import Line, LineEnded
from launcher.config import ExecutorConfig
from launcher.executor.backoff import Backoff
from launcher.executor.lease import Lease
from launcher.protocol.columns import full, sums
from launcher.protocol.limits import PROTOCOL
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.v1 import pool_pb2

CELL: Final = "default"
SLOTS: Final = 8
SPACE: Final = uuid.UUID("6b0a1c52-2f6f-4a2e-9d0e-0d5d3c8f7a11")
FILES_BESIDE: Final = 256
STEP_MS: Final = 1_000
"""Between looks for answers; an executor looks ten times as often."""
ARRIVAL_MS: Final = 8
"""Between two that are started in one process."""


def boot_ms() -> int:
    """Return the time since the machine started, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


Place = tuple[int, int]
"""Log index of a Begin, row of the batch."""


class Stand:
    """One executor."""

    def __init__(self, number: int, replicas: list[str], work_ms: int) -> None:
        self.id = f"h{number:05}"
        self.ledger = str(uuid.uuid5(SPACE, self.id))
        self.incarnation = f"{os.getpid()}-{number}"
        self.replicas = replicas
        self.work_ms = work_ms
        self.lease = Lease()
        config = ExecutorConfig(id=self.id, data="/nowhere", leaders=tuple(replicas), cell=CELL)
        self.pace = Backoff(config, f"{self.id}/{self.incarnation}")
        self.rows: dict[Place, pool_pb2.RowReport] = {}  # not acknowledged
        self.settled: set[Place] = set()  # acknowledged, and not below the floor as far as we know
        self._jobs: dict[int, str] = {}  # by the number that this stream has for their work
        self.accepted: Counter[str] = Counter()
        self.highest = (0, 0, "")
        self.visits = 0
        self.leased: list[tuple[int, int]] = []  # (boot ms, term) of the first answered heartbeats
        self.ends: Counter[str] = Counter()
        self.lapsed = 0
        self._line: Line | None = None
        self._is_welcome = False
        self._parked: list[pool_pb2.Orders] | None = []

    # ---- coming and going

    async def run(self) -> None:
        """Be connected for ever, as `launcher.executor.stream.Connector` is."""
        pace, number, hint = self.pace, 0, ""
        while True:
            followed, address = bool(hint), hint or self.replicas[number % len(self.replicas)]
            number += not followed
            hint = ""
            self.visits += 1
            self._is_welcome = False
            try:
                await self._visit(address)
            except LineEnded as error:
                hint = self._heed(error)
            self._close()
            if self._is_welcome:
                number += pace.first(len(self.replicas))
                await asyncio.sleep(pace.after_stream_ms() / 1000)
            if hint and not followed:
                continue
            rest_ms = 0 if self._is_welcome and pace.spread_ms else pace.after_failure_ms()
            await asyncio.sleep(rest_ms / 1000)

    def _heed(self, error: LineEnded) -> str:
        """Return the leader that a refusal names."""
        self.pace.met(is_late=error.is_late and not self._is_welcome)
        self.ends[str(error)[:60]] += 1
        if (spread := error.said("raftcron-spread-ms")).isdecimal():
            self.pace.learn(int(spread))
        hint = error.said("raftcron-leader")
        return hint if hint in self.replicas else ""

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None

    async def _visit(self, address: str) -> None:
        """Serve one stream until it ends."""
        host, _, port = address.rpartition(":")
        self._parked = []
        self._jobs.clear()
        line = await Line.open(host, int(port), self.pace.connect_ms / 1000)
        self._line = line
        line.send(self._hello())
        try:
            async with asyncio.timeout(self.pace.welcome_ms / 1000):
                received = await line.read()
        except TimeoutError:
            raise LineEnded("no welcome in time", is_late=True) from None
        first = pool_pb2.FromLeader.FromString(received.pop(0))
        if not first.HasField("welcome"):
            raise LineEnded("the first message is no welcome")
        self._welcome(first.welcome)
        beats = asyncio.create_task(self._beat(line, first.welcome.heartbeat_ms))
        try:
            while True:
                for message in received:
                    self._take(pool_pb2.FromLeader.FromString(message), first.welcome.epoch.term)
                received = await line.read()
        finally:
            beats.cancel()

    def _welcome(self, welcome: pool_pb2.Welcome) -> None:
        epoch = welcome.epoch
        self._is_welcome = True
        self.highest = max(self.highest, (epoch.generation, epoch.term, epoch.replica))
        self.lease.connected(welcome.self_kill_ms)
        self.pace.learn(welcome.spread_ms)

    async def _beat(self, line: Line, every_ms: int) -> None:
        due_ms = boot_ms()
        while True:
            now_ms = boot_ms()
            if self.lease.unanswered_ms(now_ms) > self.pace.answer_ms:
                self.ends["heartbeats are not answered"] += 1
                line.close()
                return
            if now_ms >= due_ms:
                due_ms = now_ms + every_ms
                beat = pool_pb2.Heartbeat(
                    number=self.lease.sent(now_ms), wall_ms=wall_ms(), running=self._running()
                )
                line.send(pool_pb2.FromExecutor(heartbeat=beat).SerializeToString())
            await asyncio.sleep(min(due_ms - now_ms, STEP_MS) / 1000)

    def _running(self) -> int:
        return sum(row.status == pool_pb2.ACCEPTED for row in self.rows.values())

    def _hello(self) -> bytes:
        generation, term, replica = self.highest
        hello = pool_pb2.Hello(
            cell=CELL,
            executor=self.id,
            ledger=self.ledger,
            incarnation=self.incarnation,
            slots=SLOTS,
            host="stand",
            pid=os.getpid(),
            version="bench",
            wall_ms=wall_ms(),
            highest_epoch=pool_pb2.Epoch(generation=generation, term=term, replica=replica),
            known=_told(self.rows.values()),
            can_inventory=True,
            protocol=PROTOCOL,
        )
        return pool_pb2.FromExecutor(hello=hello).SerializeToString()

    # ---- what the leader says

    def _take(self, message: pool_pb2.FromLeader, term: int) -> None:
        if message.HasField("heartbeat"):
            now_ms = boot_ms()
            was_valid = self.lease.valid(now_ms)
            if not self.lease.answered(message.heartbeat.number):
                return
            self.lapsed += bool(self.leased) and not was_valid
            parked, self._parked = self._parked, None
            if parked is not None:
                self.leased.append((now_ms, term))
            for orders in parked or ():
                self._obey(orders)
        elif message.HasField("probe") and self._line is not None:
            answer = pool_pb2.ProbeAnswer(number=message.probe.number)
            self._line.send(pool_pb2.FromExecutor(probe=answer).SerializeToString())
        elif message.HasField("orders"):
            if self._parked is None:
                self._obey(message.orders)
            else:
                self._parked.append(message.orders)

    def _obey(self, orders: pool_pb2.Orders) -> None:
        epoch = orders.epoch
        if (epoch.generation, epoch.term, epoch.replica) < self.highest:
            return
        for work in orders.works:
            self._jobs[work.number] = work.job
        answers = [row for batch in orders.batches for row in self._batch(batch)]
        answers += [self._fence((fence.index, fence.row)) for fence in orders.fences]
        for ack in orders.acks:
            for row in sums(ack.rows):
                self.rows.pop((ack.index, row), None)
                self.settled.add((ack.index, row))
        self._report(answers)

    def _batch(self, batch: pool_pb2.StartBatch) -> Iterator[pool_pb2.RowReport]:
        rows = sums(batch.rows)
        columns = (
            rows,
            full(batch.works, len(rows)),
            full(batch.scheduled_s, len(rows), is_times=True),
            full(batch.triggers, len(rows)),
            full(batch.attempts, len(rows), 1),
            full(batch.parts, len(rows), 1),
            full(batch.not_after_ms, len(rows), is_times=True),
        )
        for row, work, at_s, trigger, attempt, part, not_after_ms in zip(*columns, strict=True):
            place = (batch.index, row)
            if place in self.rows:
                yield self.rows[place]
            elif place not in self.settled:
                name = AttemptName(LaunchName(self._jobs[work], at_s, trigger), attempt, part)
                yield self._start(place, str(name), not_after_ms)

    def _start(self, place: Place, name: str, not_after_ms: int) -> pool_pb2.RowReport:
        row = pool_pb2.RowReport(index=place[0], row=place[1])
        self.rows[place] = row
        if not self.lease.valid(boot_ms()) or wall_ms() >= not_after_ms:
            row.status, row.reason = pool_pb2.REFUSED, 0
            return row
        self.accepted[name] += 1
        row.status, row.started_ms = pool_pb2.ACCEPTED, wall_ms()
        asyncio.get_running_loop().call_later(self.work_ms / 1000, self._end, place)
        return row

    def _end(self, place: Place) -> None:
        row = self.rows.get(place)
        if row is not None:
            row.status, row.finished_ms = pool_pb2.ENDED, wall_ms()
            self._report([row])

    def _fence(self, place: Place) -> pool_pb2.RowReport:
        if place not in self.rows:
            index, row = place
            self.rows[place] = pool_pb2.RowReport(index=index, row=row, status=pool_pb2.FENCED)
        return self.rows[place]

    def _report(self, rows: list[pool_pb2.RowReport]) -> None:
        if rows and self._line is not None:
            message = pool_pb2.FromExecutor(reports=_told(rows))
            self._line.send(message.SerializeToString())

    def state(self) -> tuple[int, int]:
        """Return (term, since boot ms) of the lease it has now on a stream; term 0: none."""
        is_there = self._line is not None and self._parked is None and self.lease.valid(boot_ms())
        return (self.leased[-1][1], self.leased[-1][0]) if is_there and self.leased else (0, 0)


def _told(rows: Iterable[pool_pb2.RowReport]) -> pool_pb2.Reports:
    """Return what a leader is told of rows, each by itself."""
    message = pool_pb2.Reports()
    for row in rows:
        message.batches.add(
            index=row.index,
            rows=[row.row],
            status=row.status,
            reason=row.reason,
            started_ms=[row.started_ms] if row.started_ms else [],
            finished_ms=[row.finished_ms] if row.finished_ms else [],
        )
    return message


def answer(question: str, stands: list[Stand]) -> dict[str, Any]:
    """Return what is asked."""
    if question == "count":
        return dict(Counter(str(stand.state()[0]) for stand in stands))
    ends: Counter[str] = Counter()
    for stand in stands:
        ends.update(stand.ends)
    return {
        "leased": [stand.leased for stand in stands],
        "accepted": {name: n for stand in stands for name, n in stand.accepted.items()},
        "visits": sum(stand.visits for stand in stands),
        "lapsed": sum(stand.lapsed for stand in stands),
        "ends": dict(ends),
    }


async def begin(stand: Stand, after_s: float) -> None:
    """Be an executor from then on: hosts of a new cell are not all started in one moment."""
    await asyncio.sleep(after_s)
    await stand.run()


async def serve(first: int, count: int, replicas: list[str], work_ms: int) -> None:
    """Be executors until stdin ends."""
    stands = [Stand(first + i, replicas, work_ms) for i in range(count)]
    tasks = [
        asyncio.create_task(begin(stand, i * ARRIVAL_MS / 1000)) for i, stand in enumerate(stands)
    ]
    while question := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(answer(question.strip(), stands)), flush=True)
        failed = [task for task in tasks if task.done()]
        for task in failed:
            task.result()


def main() -> int:
    """Serve."""
    said = argparse.ArgumentParser(prog="python -m bench.reconnect_stand")
    said.add_argument("--first", type=int, required=True)
    said.add_argument("--count", type=int, required=True)
    said.add_argument("--replicas", nargs="+", required=True)
    said.add_argument("--work-ms", type=int, default=300)
    options = said.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, options.count + FILES_BESIDE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    asyncio.run(serve(options.first, options.count, options.replicas, options.work_ms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
