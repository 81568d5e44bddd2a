"""What do tasks that are far ahead cost a replica, in memory and on disk?

    python -m bench.far_tasks [--tasks 9900000] [--in-memory | --restore]

The state of a cell with so many tasks, due within thirty days from now on, is made by the functions
that apply the log, and written as the first disk of a replica, as a restore writes it. Three real
replicas are started on it, two of them with empty disks: they get the state and the segments from
the first. The row has:

- `start`: from the start of the processes until a leader answers.
- `replaced`: until the two others have all segments.
- `hour back`: until the leader has brought back the tasks of the first hour.
- `rss`: of the leader after that, and of the most of the others, in MB.
- `restart`: a follower is killed and started; until it has applied the log and is asked again.
- `takeover`: the leader is killed; until another one has taken a new task.
- `get`: median and worst of 100 reads of tasks on disk, in ms.

With `--restore` the replicas store snapshots in a folder as in object storage, and at the end all
three are killed and their disks deleted:

- `stored`: from the start of the processes until the store has a snapshot and all segments.
- `restore`: `raftcron restore` onto the disk of one replica.
- `restored`: until the three, two of them with empty disks, have a leader that has read a task on
  disk again.

With `--in-memory` all are due within two hours, and no task goes to disk: it is the same question
about up to a million in memory.
Prints one JSON row.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.launches_cell import free_ports
from bench.processes import resident_bytes
from bench.trees import end_by_signals
from consensus.engine.seeding import seed
from consensus.leadership import Position
from cron.api import table
from cron.api.client import Client
from cron.api.members import StatusRow
from cron.api.tasks import SubmitRequest, TaskQuery, TaskSubmission
from cron.clock import SystemClock
from cron.config import load_replica_config
from cron.dev.cell import LocalCell
from cron.dev.child import Child
from cron.dev.files import write_cell
from cron.errors import CronError
from cron.limits import TASKS_SPILLED_MAX, TASKS_WAITING_MAX
from cron.scheduler.far_tasks import SEGMENT_ROWS
from cron.state import spilling, tasking
from cron.state import tasks as t
from cron.state.context import Context
from cron.state.imaging import Imaging
from cron.state.state import State
from cron.storage.folders import Folders
from launcher.protocol.work import Epoch

QUEUE: Final = "default/far"
HANDLER: Final = "far"
DAYS: Final = 30
PAYLOAD: Final = b'{"to":"somebody@example.org","template":"reminder","number":"%010d","note":"%s"}'
PAYLOAD_BYTES: Final = 100
WAIT_S: Final = 3_600.0
POLL_S: Final = 0.05
READS: Final = 100
STORE: Final = '[object_storage]\nurl = "{}"\n[snapshots]\ninterval_s = 10\n'


def made(count: int, now_ms: int, folders: Folders | None) -> State:
    """Return a State with so many tasks, written below `folders` where one is given; in segments as
    a leader makes them, of tasks that are due near each other."""
    state = State()
    state.at_ms, state.epoch = now_ms, Epoch(1, 1, "r1")
    state.queues[QUEUE] = t.QueueRecord(
        QUEUE, HANDLER, waiting_max=TASKS_WAITING_MAX + TASKS_SPILLED_MAX, waits_for_handler=True
    )
    rng = random.Random(7)
    span_ms = DAYS * 86_400_000
    for first in range(0, count, SEGMENT_ROWS):
        numbers = range(first, min(first + SEGMENT_ROWS, count))
        # Tasks that are due within two hours stay in memory.
        middle_ms = span_ms * first // count if folders is not None else 3_600_000
        width_ms = 6 * 3_600_000 if folders is not None else 3_400_000
        specs = tuple(
            t.TaskSpec(
                QUEUE,
                key_of(number),
                now_ms + max(middle_ms + rng.randrange(width_ms), 120_000),
                payload_of(number),
                number.to_bytes(16, "big"),
            )
            for number in numbers
        )
        context = _entry(state)
        tasking.submit(context, t.SubmitTasks(specs, "bench"))
        if folders is not None:
            context = _entry(state)
            spilling.spill(context, t.SpillTasks(tuple(state.tasks_by_number)))
            for sealed in context.sealed:
                folders.write(sealed)
    return state


def key_of(number: int) -> str:
    """Return the key of a task."""
    return f"reminder-{number:010d}"


def payload_of(number: int) -> bytes:
    """Return the payload of a task, 100 bytes."""
    rest = PAYLOAD_BYTES - len(PAYLOAD % (number, b""))
    return PAYLOAD % (number, b"x" * rest)


def _entry(state: State) -> Context:
    state.index += 1
    state.term = 1
    return Context(state, state.epoch, state.at_ms, state.index)


class Bench:
    """Three replicas in a folder, and what they are asked."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self._ports = free_ports()
        members = write_cell(folder, self._ports, executors=0, replica_extra=extra)
        self.config = load_replica_config(members[0].config)
        self.cell = LocalCell(members, lambda one: one.argv, SystemClock(), dict(os.environ))
        self.client = Client(self._ports.servers, timeout_ms=30_000)

    def child(self, name: str) -> Child:
        """Return the process of a replica."""
        return next(one for one in self.cell.children if one.member.id == name)

    def rows(self) -> dict[str, StatusRow]:
        """Return the replicas as they see each other; {} while nobody answers."""
        try:
            rows = self.client.ask(table.STATUS).rows
        except CronError:
            return {}
        return {row.id: row for row in rows if row.kind == "replica"}

    def leader(self) -> str:
        """Return who leads, "" for nobody."""
        return next((name for name, row in self.rows().items() if row.role == "leader"), "")

    def on_disk(self) -> int:
        """Return how many tasks are on disk."""
        return sum(one.on_disk for one in self.client.ask(table.LIST_QUEUES).queues)

    def submit(self, key: str) -> bool:
        """Submit a task; return whether it was taken."""
        task = TaskSubmission(key=key, queue="far", handler=HANDLER, delay_ms=30 * 86_400_000)
        try:
            (verdict,) = self.client.ask(table.SUBMIT, SubmitRequest(tasks=[task])).tasks
        except CronError:
            return False
        return verdict.error is None

    def can_read(self, name: str) -> bool:
        """Return whether a task is there."""
        try:
            return bool(self.client.ask(table.GET, TaskQuery(name=name)).task)
        except CronError:
            return False

    def reads_ms(self, count: int) -> list[float]:
        """Return how long reads of tasks by name take."""
        took, rng = list[float](), random.Random(8)
        for _ in range(READS):
            name = f"{QUEUE}:{key_of(rng.randrange(count // 10, count))}"
            began = time.perf_counter()
            self.client.ask(table.GET, TaskQuery(name=name))
            took.append(1_000 * (time.perf_counter() - began))
        return sorted(took)

    def close(self) -> None:
        """End all processes."""
        self.client.close()
        for child in self.cell.children:
            child.send(signal.SIGKILL)
        for child in self.cell.children:
            child.wait()


def until(is_so: Callable[[], object], what: str) -> float:
    """Return after how many seconds it is so. Raises TimeoutError."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > WAIT_S:
            raise TimeoutError(f"{what}: not so after {WAIT_S} s")
        time.sleep(POLL_S)
    return round(time.monotonic() - began, 1)


def measure(folder: Path, count: int, *, in_memory: bool, restore: bool = False) -> dict[str, Any]:
    """Return the row."""
    store = STORE.format((folder / "store").as_uri()) if restore else ""
    with ExitStack() as stack:
        bench = Bench(folder, store)
        stack.callback(bench.close)
        data, now_ms = Path(bench.config.data), int(time.time() * 1000)
        folders = Folders(data, bench.config.cell)
        folders.open()
        began = time.monotonic()
        state = made(count, now_ms, None if in_memory else folders)
        spilled = state.spilled.count
        position = Position(1, state.index)
        seed(data / "raft", bench.config.cell, "r1", position, Imaging.begin(state).pieces())
        row: dict[str, Any] = {
            "tasks": count,
            "on_disk": spilled,
            "made_s": round(time.monotonic() - began, 1),
            "segments": len(state.history.segments),
            "disk_mb": _megabytes(data / "segments"),
            "dump_mb": _megabytes(data / "raft"),
        }
        del state
        bench.cell.start()
        row["start_s"] = until(bench.leader, "a leader")
        if restore:
            return row | _restored(bench, count)
        row |= _lives(bench, count, spilled)
    return row


def _restored(bench: Bench, count: int) -> dict[str, Any]:
    """Return how long it takes to store all, and to restore it once all disks are lost."""
    row: dict[str, Any] = {"stored_s": until(lambda: _is_stored(bench), "all in the store")}
    folder = Path(bench.config.data).parent
    for child in bench.cell.children:
        child.send(signal.SIGKILL)
        child.wait()
        shutil.rmtree(folder / child.member.id)
    config = str(bench.cell.children[0].member.config)
    argv = [sys.executable, "-P", "-m", "cron.main", "restore", "--config", config, "--yes"]
    began = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    row["restore_s"] = round(time.monotonic() - began, 1)
    bench.cell.start()
    name = f"{QUEUE}:{key_of(count - 1)}"
    row["restored_s"] = until(lambda: bench.can_read(name), "a task on disk")
    row["on_disk_after"] = bench.on_disk()
    return row


def _is_stored(bench: Bench) -> bool:
    kept = [row.keeping for row in bench.rows().values() if row.role == "leader" and row.keeping]
    return bool(kept) and kept[0].stored_index > 0 and not kept[0].segments_waiting


def _lives(bench: Bench, count: int, spilled: int) -> dict[str, Any]:
    """Return what three replicas do with it."""
    row: dict[str, Any] = {}
    row["replaced_s"] = until(lambda: _are_whole(bench), "all segments on all replicas")
    row["hour_back_s"] = until(lambda: _is_settled(bench), "the first hour in memory")
    row["brought_back"] = spilled - (bench.on_disk() if spilled else 0)
    leader = bench.leader()
    follower = next(name for name in bench.rows() if name != leader)
    rss = {one.member.id: resident_bytes(one.pid) // 1_000_000 for one in bench.cell.children}
    row["rss_leader_mb"] = rss.pop(leader)
    row["rss_follower_mb"] = max(rss.values())
    if spilled:
        took = bench.reads_ms(count)
        row["get_p50_ms"], row["get_max_ms"] = round(took[READS // 2], 1), round(took[-1], 1)
    applied = bench.rows()[leader].applied
    row["restart_s"] = _restarted(bench, follower, applied)
    row["rss_restarted_mb"] = resident_bytes(bench.child(follower).pid) // 1_000_000
    bench.child(leader).send(signal.SIGKILL)
    numbers = iter(range(10**9))
    row["takeover_s"] = until(lambda: bench.submit(f"after-{next(numbers)}"), "a new leader")
    return row


def _restarted(bench: Bench, name: str, applied: int) -> float:
    child = bench.child(name)
    child.send(signal.SIGKILL)
    child.wait()
    child.start()
    return until(
        lambda: (row := bench.rows().get(name)) is not None and row.applied >= applied,
        f"{name} with the log",
    )


def _are_whole(bench: Bench) -> bool:
    rows = bench.rows()
    kept = [row.keeping for row in rows.values()]
    return len(kept) == 3 and all(one is not None and not one.segments_missing for one in kept)


def _is_settled(bench: Bench) -> bool:
    """Whether nothing came back from disk for two looks of the leader."""
    before = bench.on_disk()
    time.sleep(3)
    return bench.on_disk() == before


def _megabytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder)) // 1_000_000


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def main() -> int:
    """Measure and print the row."""
    parser = argparse.ArgumentParser(prog="bench.far_tasks", description="tasks that are far ahead")
    parser.add_argument("--tasks", type=int, default=TASKS_SPILLED_MAX - 100_000)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--in-memory", action="store_true")
    which.add_argument("--restore", action="store_true")
    options = parser.parse_args()
    most = TASKS_WAITING_MAX - 1_000 if options.in_memory else TASKS_SPILLED_MAX
    if not 1 <= options.tasks <= most:
        parser.error(f"--tasks is at most {most:,}")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    end_by_signals()
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as folder:
        kind = {"in_memory": options.in_memory, "restore": options.restore}
        print(json.dumps(measure(Path(folder), options.tasks, **kind)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
