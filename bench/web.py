"""What do 200 parallel HTTP requests do to the leader? How late its launches begin meanwhile.

    python -m bench.web [--seconds 10] [--connections 200] [--readme]

Three replicas and one executor; twenty jobs launch a command each second. A client in a process of
its own keeps so many connections to the leader busy, with one kind of request after the other; in
between there are none. Requests to a follower show what the client's own use of the cores does.
Prints a row for each, and with `--readme` writes the table into README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.launches_cell import Running, Shape, apply, ask, running_cell
from bench.launches_tally import percentile
from bench.section import figure, write_section
from cron.api.launches import HistoryQuery
from cron.api.table import HISTORY, PUT_QUEUES, STATUS
from cron.api.task_queues import PutQueuesRequest
from cron.config import load_replica_config

README: Final = Path(__file__).resolve().parent / "README.md"
BEGIN: Final = "<!-- web: written by `python -m bench.web --readme` -->"
END: Final = "<!-- end of web -->"
JOBS: Final = 20
SETTLED_S: Final = 3
QUEUE: Final = '[[queue]]\nname = "bench"\nhandler = "bench"\nunknown-handler = "wait"\n'
FAR_MS: Final = 86_400_000
CUT_OFF: Final = 599
"""The status of a request whose connection ended without an answer."""

REQUESTS: Final[dict[str, tuple[str, int]]] = {
    "nothing": ("", 0),
    "GET /healthz of a follower": ("/healthz", 0),
    "GET /healthz": ("/healthz", 0),
    "GET /v1/jobs": ("/v1/jobs", 0),
    "GET /v1/history?limit=20": ("/v1/history?limit=20", 0),
    "POST /v1/tasks, one": ("/v1/tasks", 1),
}
"""By name: path, and how many tasks the body has."""


# ---- the client


def request_of(path: str, tasks: int, name: str) -> bytes:
    """Return the bytes of one request."""
    head = "Host: localhost\r\n"
    if not tasks:
        return f"GET {path} HTTP/1.1\r\n{head}\r\n".encode()
    listed = [
        {"queue": "bench", "key": f"{name}-{number}", "delay_ms": FAR_MS, "payload": "x" * 100}
        for number in range(tasks)
    ]
    body = json.dumps({"tasks": listed} if tasks > 1 else listed[0])
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"POST {path} HTTP/1.1\r\n{head}\r\n{body}".encode()


async def load(port: int, path: str, tasks: int, connections: int, seconds: float) -> list[Any]:
    """Return (status, seconds) of all requests that so many connections made."""
    end_s = time.monotonic() + seconds
    found: list[Any] = []
    begun = int(time.monotonic() * 1000)

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            writer.write(request_of(path, tasks, f"{begun}-{number}-{count}"))
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
            except asyncio.IncompleteReadError:
                found.append((CUT_OFF, time.monotonic() - began_s))
                return
            _, is_sized, rest = head.partition(b"content-length: ")
            if is_sized:
                await reader.readexactly(int(rest.split(b"\r\n")[0]))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            found.append((int(head.split(b" ")[1]), time.monotonic() - began_s))
            count += 1
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return found


# ---- the cell


def lateness(running: Running, from_s: float, to_s: float) -> list[int]:
    """Return how late launches began that were due in a time, in milliseconds."""
    query = HistoryQuery(limit=20_000, since_ms=int(from_s * 1000), until_ms=int(to_s * 1000))
    rows = running.client.ask(HISTORY, query)
    return sorted(row.lateness_ms for row in rows if row.lateness_ms is not None)


def measured(running: Running, port: int, name: str, connections: int, seconds: float) -> list[str]:
    """Return one row of the table."""
    path, tasks = REQUESTS[name]
    from_s = time.time()
    answers: list[Any] = []
    if path:
        said = [str(port), path, str(tasks), str(connections), str(seconds)]
        program = [sys.executable, "-m", "bench.web", "--client", *said]
        done = subprocess.run(program, capture_output=True, check=True, text=True)
        answers = json.loads(done.stdout)
    else:
        time.sleep(seconds)
    to_s = time.time()
    time.sleep(SETTLED_S)
    late = lateness(running, from_s, to_s)
    took = sorted(round(taken_s * 1000) for _, taken_s in answers)
    bad = sum(status >= 300 for status, _ in answers)
    figures = [
        f"{len(answers) / (to_s - from_s):,.0f}" if took else "-",
        *(figure(percentile(took, share)) for share in (50, 99)),
        str(bad) if took else "-",
        *(figure(percentile(late, share)) for share in (50, 95, 100)),
    ]
    return [name, *figures]


def run(connections: int, seconds: float) -> str:
    """Return the table of one cell's measurements."""
    columns = ["requests", "a second", "p50 ms", "p99 ms", "refused", "late p50 ms", "p95", "max"]
    lines = ["| " + " | ".join(columns) + " |", "| --- |" + " --: |" * (len(columns) - 1)]
    shape = Shape(kind="command", http=True)
    with tempfile.TemporaryDirectory() as name, running_cell(Path(name), shape) as running:
        jobs = "".join(f"#: name=j{number}\n@every 1s true\n" for number in range(JOBS))
        apply(running.client, jobs)
        running.client.ask(PUT_QUEUES, PutQueuesRequest(source="bench", text=QUEUE))
        time.sleep(SETTLED_S)
        leader = running.leader()
        follower = next(name for name in running.replicas if name != leader)
        terms = {row.term for row in ask(lambda: running.client.ask(STATUS)).rows if row.term}
        for kind in REQUESTS:
            asked = follower if kind.endswith("follower") else leader
            http = load_replica_config(running.folder / f"{asked}.toml").http
            port = int(http.rpartition(":")[2])
            row = measured(running, port, kind, connections, seconds)
            lines.append("| " + " | ".join(row) + " |")
            print(lines[-1], flush=True)
        after = {row.term for row in ask(lambda: running.client.ask(STATUS)).rows if row.term}
        print(f"terms before {sorted(terms)}, after {sorted(after)}")
    return "\n".join(lines)


def main() -> None:
    """Measure, or be the client."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        port, path, tasks, connections, seconds = options.client
        answers = asyncio.run(load(int(port), path, int(tasks), int(connections), float(seconds)))
        print(json.dumps(answers))
        return
    table = run(options.connections, options.seconds)
    if options.readme:
        write_section(README, BEGIN, END, table)


if __name__ == "__main__":
    main()
