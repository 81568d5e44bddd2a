"""How many commands a second can be started? The spawner beside a loop of posix_spawn in C.

    python -m bench.starts [--count 2000] [--rounds 7] [--in-flight 8 64] [--executor]

Both start the same program, with as many of them at once, on the same machine, in turns: each round
runs all of them one after the other, and which is first changes. Ratios are taken within a round,
then their median. The spawner is the one that executors have, fed by their own end of its socket
(launcher.executor.commands.children) with orders as executors send them; each command has a
session, an environment, a directory, a pipe for its output and a deadline for its start. The loop
in C gives what it starts nothing at all; a second one gives it a session: where the kernel has
autogroups and other programs want the cores, that alone halves the rate, also in C. With
`--executor` the whole executor but its stream is measured, too: turns, ledger with its syncs on a
real disk, spawner, with starts and acknowledgements in batches.

Where no C compiler is found its rows are left out. All rows go to bench/results/starts.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from bench.probes.single import PROGRAM, build_peer
from bench.section import write_section
from bench.starts_table import EXECUTOR, PEER, PEER_SESSIONS, SPAWNER, Sample, summarize, table
from launcher import logs
from launcher.clock import boot_ms, wall_ms
from launcher.config import ExecutorConfig
from launcher.executor.attempt import Attempt
from launcher.executor.commands.children import Children, Event
from launcher.executor.commands.running import variables_of, work_of
from launcher.executor.lease import Lease
from launcher.executor.ledger import FILE, Ledger, Page
from launcher.executor.loop import TURN_GAP_MS, ExecutorLoop
from launcher.executor.outputs import Outputs
from launcher.executor.rows import ACCEPTED, ENDED, Batch, Job
from launcher.executor.rules import Works
from launcher.protocol.columns import differences
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch, WorkSpec

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "starts.jsonl"
README: Final = ROOT / "bench" / "README.md"
BEGIN: Final = "<!-- measured: written by `python -m bench.starts` -->"
END: Final = "<!-- end of what was measured of starts -->"
LONG_MS: Final = 600_000
WARM_UP: Final = 100
"""Starts before those that count: the spawner's first ones import and compare."""
WAIT_S: Final = 120.0
_WORK: Final = WorkSpec((PROGRAM,), cwd="/")
_WORK_BYTES: Final = msgspec.msgpack.encode(_WORK)
_TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")


class Meter:
    """What a process and its ended children use, and this one, between `begin` and `end`."""

    def begin(self, pid: int) -> None:
        """Begin to measure the process `pid`."""
        self._pid = pid
        self._used = _used_us(pid)
        self._client_us = time.process_time() * 1e6
        self._began_s = time.perf_counter()

    def end(self, who: str, in_flight: int, starts: int) -> Sample:
        """Return what was used since `begin` for so many starts."""
        seconds = time.perf_counter() - self._began_s
        client_us = time.process_time() * 1e6 - self._client_us
        own_us, children_us = (
            (now - before) / starts
            for now, before in zip(_used_us(self._pid), self._used, strict=True)
        )
        return Sample(
            who, in_flight, starts, starts / seconds, own_us, children_us, client_us / starts
        )


def _used_us(pid: int) -> tuple[float, float]:
    """CPU time of a process with one thread, and of its children that ended."""
    own_ns = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return own_ns / 1e3, float((int(fields[13]) + int(fields[14])) * _TICK_US)


# ---- the peer


def run_peer(program: Path, count: int, in_flight: int, *, session: bool = False) -> Sample:
    """Return what the loop in C does; with `session` each of what it starts has one."""
    argv = [str(program), str(count), str(in_flight), PROGRAM, *(["session"] if session else [])]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    row = json.loads(done.stdout)
    who = PEER_SESSIONS if session else PEER
    cpu = (row["self_us"] / count, row["children_us"] / count)
    return Sample(who, in_flight, count, count / row["seconds"], *cpu)


# ---- the spawner


def attempts(index: int, rows: Sequence[int]) -> list[Attempt]:
    """Return attempts that were accepted, of the batch of a log index."""
    jobs = [Job(f"acme/report{index}-{row}") for row in rows]
    batch = Batch(index, "0.1.r1", rows, jobs, ([wall_ms() // 1000], [1], [0], [1]))
    until_ms = wall_ms() + LONG_MS
    return [
        Attempt(
            index,
            row,
            ACCEPTED,
            name=name,
            epoch=batch.epoch,
            batch=batch,
            place=place,
            spec=_WORK,
            not_after_ms=until_ms,
            is_starting=True,
        )
        for place, (row, name) in enumerate(zip(rows, batch.names(), strict=True))
    ]


def _order(attempt: Attempt, outputs: Outputs) -> Event:
    return [
        "start",
        {
            "name": attempt.name,
            "work": 1,
            "env": variables_of(attempt),
            "not_after_ms": attempt.not_after_ms,
            "output": str(outputs.stem(attempt.name)),
        },
    ]


class Feeder:
    """Keeps so many starts in flight: `order` is called with how many more are wanted."""

    def __init__(self, in_flight: int, order: Callable[[int], None]) -> None:
        self.in_flight = in_flight
        self._order = order
        self._left = self._open = 0
        self._done = asyncio.Event()

    async def run(self, count: int) -> None:
        """Return after `count` starts have ended."""
        self._left, self._open = count, 0
        self._done.clear()
        self._more()
        async with asyncio.timeout(WAIT_S):
            await self._done.wait()

    def ended(self, count: int) -> None:
        """Count ends, and have as many started."""
        self._open -= count
        self._more()
        if not self._open:
            self._done.set()

    def _more(self) -> None:
        count = min(self._left, self.in_flight - self._open)
        self._left -= count
        self._open += count
        if count:
            self._order(count)


async def run_spawner(folder: Path, count: int, in_flight: int) -> Sample:
    """Return what the spawner does for its executor's end of the socket."""
    config = ExecutorConfig(id="bench", data=str(folder), leaders=("127.0.0.1:1",), users=("root",))
    outputs = Outputs(folder / "output", 100, 1 << 20)
    indexes = itertools.count(1)

    def order(wanted: int) -> None:
        some = attempts(next(indexes), range(wanted))
        children.send([_order(attempt, outputs) for attempt in some])

    def hear(news: list[Event]) -> None:
        if ends := sum(_is_end(one) for one in news):
            feeder.ended(ends)

    children = Children(hear, in_flight, "bench", lambda: TURN_GAP_MS)
    feeder = Feeder(in_flight, order)
    await children.start()
    children.send([["lease", boot_ms() + LONG_MS], ["work", 1, work_of(_WORK, config)]])
    listening = asyncio.create_task(children.listen(Lease()))
    meter = Meter()
    await feeder.run(WARM_UP)
    meter.begin(_spawner_of(children))
    await feeder.run(count)
    sample = meter.end(SPAWNER, in_flight, count)
    listening.cancel()
    await children.stop()
    return sample


def _spawner_of(children: Children) -> int:
    """The process that starts commands: the first child of its reaper."""
    pid = children.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _is_end(news: Event) -> bool:
    if news[0] not in ("started", "ended") or (news[0] == "ended" and news[2] != 0):
        raise RuntimeError(f"the spawner says {news}")
    return bool(news[0] == "ended")


# ---- the executor


class Leader:
    """A report sink that answers ends with acknowledgements and as many new starts."""

    def __init__(self, executor_loop: ExecutorLoop, in_flight: int) -> None:
        self.works = Works()
        self.feeder = Feeder(in_flight, self._order)
        self._executor = executor_loop
        self._acks: list[pool_pb2.Ack] = []
        self._index = 0

    def begin(self, known: list[RowReport], highest: Epoch) -> None:
        """Nothing is known in the beginning."""

    def send(self, changes: list[BatchReport]) -> None:
        """Count what has ended."""
        wrong = [one for one in changes if one.status not in (ENDED, ACCEPTED) or one.exit_code]
        if wrong:
            raise RuntimeError(f"the executor says {wrong}")
        ends = [one for one in changes if one.status == ENDED]
        self._acks += [pool_pb2.Ack(index=one.index, rows=one.rows) for one in ends]
        if ends:
            self.feeder.ended(sum(len(one.rows) for one in ends))

    def offer(self, offers: Sequence[object]) -> None:
        """There are no workers."""

    def recollect(self, page: Page) -> None:
        """Nobody asks what is remembered."""

    def leave(self, reason: str) -> None:
        """It does not."""

    def _order(self, count: int) -> None:
        self._index += 1
        orders = pool_pb2.Orders(epoch=pool_pb2.Epoch(term=1, replica="r1"))
        orders.works.add(number=0, job="acme/report", spec=_WORK_BYTES)
        orders.batches.add(
            index=self._index,
            rows=differences(range(count)),
            works=[0],
            scheduled_s=[wall_ms() // 1000],
            not_after_ms=[wall_ms() + LONG_MS],
            triggers=[self._index * self.feeder.in_flight + row for row in range(count)],
        )
        orders.acks.extend(self._acks)
        self._acks.clear()
        self._executor.order(self, orders)


async def run_executor(folder: Path, count: int, in_flight: int) -> Sample:
    """Return what an executor does, without its stream; `client_us` has executor loop and
    ledger."""
    config = ExecutorConfig(
        id="bench", data=str(folder), leaders=("127.0.0.1:1",), slots=in_flight, users=("root",)
    )
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger") as thread:
        ledger = await loop.run_in_executor(thread, Ledger, folder / FILE)
        executor_loop = ExecutorLoop(config, ledger, Outputs(folder / "output", 100, 1 << 20))
        leader = Leader(executor_loop, in_flight)
        await executor_loop.start()
        executor_loop.lease.connected(LONG_MS)
        executor_loop.lease.answered(executor_loop.lease.sent(boot_ms()))
        executor_loop.renewed()
        executor_loop.attach(leader)
        tasks = [
            asyncio.create_task(executor_loop.run(thread)),
            asyncio.create_task(executor_loop.watch()),
        ]
        meter = Meter()
        await leader.feeder.run(WARM_UP)
        meter.begin(_spawner_of(executor_loop._children))
        await leader.feeder.run(count)
        sample = meter.end(EXECUTOR, in_flight, count)
        tasks[0].cancel()
        await executor_loop.stop(thread)
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.run_in_executor(thread, ledger.close)
    return sample


# ---- rounds


def measure(count: int, rounds: int, in_flight: list[int], *, executor: bool) -> list[Sample]:
    """Run everything in turns; print and keep each row as it comes."""
    samples: list[Sample] = []
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name, RESULTS.open("w") as file:
        peer = build_peer(Path(name)) if shutil.which("cc") else None
        if peer is None:
            print("no C compiler (cc) here: the loop in C is left out", file=sys.stderr)
        for number, size in itertools.product(range(rounds), in_flight):
            for run in _in_turn(number, peer, executor=executor):
                busy, total = _machine_us()
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    sample = run(Path(folder), count, size)
                busy, total = (
                    now - was for now, was in zip(_machine_us(), (busy, total), strict=True)
                )
                others = max(0.0, busy - sample.total_us * count) / max(1.0, total)
                sample = msgspec.structs.replace(sample, round=number, others=round(others, 3))
                samples.append(sample)
                line = msgspec.json.encode(samples[-1]).decode()
                print(line, flush=True)
                print(line, file=file, flush=True)
    return samples


def _machine_us() -> tuple[float, float]:
    """CPU time that this machine has used since its boot, and that it could have used."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(number) for number in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return float((sum(ticks) - idle) * _TICK_US), float(sum(ticks) * _TICK_US)


def _in_turn(
    number: int, peer: Path | None, *, executor: bool
) -> list[Callable[[Path, int, int], Sample]]:
    runs: list[Callable[[Path, int, int], Sample]] = []
    if peer is not None:
        runs.append(lambda _, count, size: run_peer(peer, count, size))
        runs.append(lambda _, count, size: run_peer(peer, count, size, session=True))
    runs.append(lambda folder, count, size: asyncio.run(run_spawner(folder, count, size)))
    if executor:
        runs.append(lambda folder, count, size: asyncio.run(run_executor(folder, count, size)))
    at = number % len(runs)
    return runs[at:] + runs[:at]


def main() -> int:
    """Measure, print the table, and write it into README.md if asked to."""
    parser = argparse.ArgumentParser(prog="bench.starts", description="starts of commands")
    parser.add_argument("--count", type=int, default=2_000, help="starts in each run")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[8, 64], help="at once")
    parser.add_argument("--executor", action="store_true", help="the whole executor, too")
    parser.add_argument("--readme", action="store_true", help="write the table into README.md")
    options = parser.parse_args()
    if min(options.count, options.rounds, *options.in_flight) < 1:
        parser.error("--count, --rounds and --in-flight are at least 1")
    with open(os.devnull, "w", encoding="utf-8") as null:
        with contextlib.redirect_stderr(null):
            logs.configure("bench")
        samples = measure(
            options.count, options.rounds, options.in_flight, executor=options.executor
        )
    shape = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    how = f"Medians of {options.rounds} rounds of {options.count:,} starts of {PROGRAM}; {shape}."
    text = f"{how}\n\n{table(summarize(samples))}"
    print(text)
    if options.readme:
        write_section(README, BEGIN, END, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
