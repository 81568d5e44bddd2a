"""What does one call of the command line cost, beside a Python that does nothing?

    python -m bench.cli_start [--pairs 21] [--base DIR] [-- COMMAND...]

Each round starts `python -c pass` and `raftcron COMMAND` (default: jobs), one after the other, and
the ratio is that of a round; the median of the ratios counts. With `--base` a second checkout of
raftcron, which has an environment `.venv`, takes part in each round. The replica that answers is a
server in a process of its own with ten jobs, and not counted. CPU time is that of the kernel
(wait4, user and system); wall time contains the server's answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
JOBS: Final = 10


class Cost(NamedTuple):
    """What one process took, in ms."""

    cpu_ms: float
    wall_ms: float


class Jobs:
    """A backend that knows ten jobs and answers nothing else."""

    async def answer(self, rpc: Any, request: Any) -> Any:
        """Return the ten."""
        from cron.api.jobs import JobView

        return [
            JobView(name=f"default/job-{n}", schedule="*/5 * * * *", command="/usr/bin/backup")
            for n in range(JOBS)
        ]


async def serve() -> None:
    """Answer on a free port, which is printed, until the parent goes."""
    from cron.api.listening import listen, make_server
    from cron.api.server import add_admin

    server = make_server("bench", None)
    add_admin(server, Jobs())
    print(listen(server, "127.0.0.1:0", None), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)


def cost(program: list[str], environment: dict[str, str]) -> Cost:
    """Run a program to its end and return what it took; its output goes nowhere.

    Raises:
        SystemExit: it failed.
    """
    nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    began_s = time.perf_counter()
    pid = os.posix_spawn(program[0], program, environment, file_actions=nowhere)
    _, status, used = os.wait4(pid, 0)
    wall_ms = (time.perf_counter() - began_s) * 1e3
    if status:
        raise SystemExit(f"{' '.join(program)} ended with {os.waitstatus_to_exitcode(status)}")
    return Cost((used.ru_utime + used.ru_stime) * 1e3, wall_ms)


def measure(programs: dict[str, list[str]], pairs: int, environment: dict[str, str]) -> None:
    """Run all programs in turns, print a line of JSON for each; the first one is the measure."""
    found: dict[str, list[Cost]] = {name: [] for name in programs}
    for program in programs.values():
        cost(program, environment)  # its bytecode is compiled now
    for number in range(pairs):
        names = list(programs) if number % 2 else list(programs)[::-1]
        for name in names:
            found[name].append(cost(programs[name], environment))
    one = found[next(iter(programs))]
    for name, costs in found.items():
        row: dict[str, Any] = {"program": name, "pairs": pairs}
        for field in Cost._fields:
            values = [getattr(each, field) for each in costs]
            ratios = [v / getattr(o, field) for v, o in zip(values, one, strict=True)]
            row[field] = round(statistics.median(values), 1)
            row[field.replace("_ms", "_ratio")] = round(statistics.median(ratios), 2)
        print(json.dumps(row))


def main() -> None:
    """Start the server and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--base", type=Path, action="append", default=[])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*", default=["jobs"])
    said = parser.parse_args()
    if said.serve:
        asyncio.run(serve())
        return
    programs = {"python -c pass": [sys.executable, "-c", "pass"]}
    for folder in (ROOT, *said.base):
        raftcron = str(folder.resolve() / ".venv" / "bin" / "raftcron")
        programs[f"{folder.name}: raftcron {' '.join(said.command)}"] = [raftcron, *said.command]
    itself = [sys.executable, "-m", "bench.cli_start", "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(itself, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as server:
        port = server.stdout.readline().strip() if server.stdout else ""
        address = {"RAFTCRON_SERVER": f"127.0.0.1:{port}"}
        measure(programs, said.pairs, {**os.environ, **address})
        server.communicate()


if __name__ == "__main__":
    main()
