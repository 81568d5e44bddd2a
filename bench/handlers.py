"""How many no-op handlers a second go through one child of a worker, and what each costs it.

`python -m bench.handlers` prints a table. The other end of the socket is a loop that keeps the
child full; so this is what the SDK costs, not what a cell bears.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from launcher.clock import boot_ms
from launcher.protocol.orders import StartBatch
from launcher.worker.options import ChildOptions, WorkerOptions
from launcher.worker.parent import start_child
from launcher.worker.wire import (
    Done,
    Result,
    Run,
    TaskWork,
    Welcome,
    encode,
    from_child,
)

APP: Final = """
from launcher.worker.facade import handler

@handler("plain")
def plain(payload: dict): pass

@handler("async")
async def of_async(payload: dict): pass
"""
CASES: Final = (("plain", 1, 1000), ("plain", 8, 1000), ("plain", 8, 32), ("async", 8, 1000))
JOBS: Final = 100
LEASE_MS: Final = 600_000


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def works(handler: str) -> list[TaskWork]:
    """Guarded work of jobs, with a payload as jobs have them."""
    payload = b'{"customer":"acme","cents":1250,"lines":[1,2,3]}'
    jobs = [(number, f"acme/job{number}") for number in range(JOBS)]
    return [TaskWork(*job, handler, payload, guarded=True) for job in jobs]


def run(first: int, count: int) -> Run:
    """So many tasks of one batch."""
    jobs = [number % JOBS for number in range(first, first + count)]
    tasks = StartBatch(
        first=first, index=88_141, epoch="0.7.r1", works=jobs,
        scheduled_s=[1_795_186_800], attempts=[1], triggers=[0], parts=[1],
    )  # fmt: skip
    return Run([tasks])


def drive(peer: socket.socket, handler: str, room: int, tasks: int) -> None:
    """Have so many tasks run, with as many as there is room for at the child at a time."""
    frames = from_child()
    sent = done = 0
    peer.sendall(encode(Run([], works(handler), forgets=True)))
    while done < tasks:
        more = min(room - (sent - done), tasks - sent)
        if more:
            peer.sendall(encode(run(sent + 1, more)))
            sent += more
        for message in frames.feed(peer.recv(1 << 18)):
            if isinstance(message, Done):
                done += sum(len(end.tasks) for end in message.ends)
                if any(end.result is not Result.OK for end in message.ends):
                    raise SystemExit(f"a handler failed: {message.ends[0]}")


def measure(handler: str, threads: int, buffer: int, tasks: int) -> tuple[float, float]:
    """Return handlers a second, and microseconds of the child's CPU for each."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        (Path(folder) / "bench_app.py").write_text(APP)
        path = f"{folder}/w.sock"
        listener.bind(path)
        listener.listen()
        os.environ["PYTHONPATH"] = f"{folder}:{Path(__file__).resolve().parents[1]}"
        worker = WorkerOptions(app="bench_app", executor=path, threads=threads, buffer=buffer)
        child = start_child(ChildOptions(worker=worker))
        peer, _ = listener.accept()
        peer.sendall(encode(Welcome(boot_ms() + LEASE_MS)))
        with peer:
            drive(peer, handler, threads + buffer, 2_000)
            begun, begun_cpu = time.perf_counter(), cpu_s(child.pid)
            drive(peer, handler, threads + buffer, tasks)
            took, took_cpu = time.perf_counter() - begun, cpu_s(child.pid) - begun_cpu
            child.terminate()
            child.wait()
    return tasks / took, took_cpu * 1e6 / tasks


def main() -> int:
    """Print one row a case: medians of several runs."""
    said = argparse.ArgumentParser(description=__doc__)
    said.add_argument("--tasks", type=int, default=100_000)
    said.add_argument("--runs", type=int, default=3)
    asked = said.parse_args()
    print("| handlers | threads | buffer | a second | CPU of the child, µs each |")
    print("| --- | --- | --- | --- | --- |")
    for handler, threads, buffer in CASES:
        runs = [measure(handler, threads, buffer, asked.tasks) for _ in range(asked.runs)]
        rate = statistics.median(run[0] for run in runs)
        cost = statistics.median(run[1] for run in runs)
        print(f"| {handler} | {threads} | {buffer} | {rate:,.0f} | {cost:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
