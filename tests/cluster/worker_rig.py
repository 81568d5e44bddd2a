"""A cell whose executors have workers of their own, and a witness of what handlers and commands do.

Handlers write the lines of `tests/cluster/witness.py`, so that its judge compares them with the
ledger. Beside it, each attempt holds a lock of its launch as long as its process lives, by whatever
it dies: an attempt that finds it taken writes down a clash. The kernel, and nothing of ours, says
that two attempts of a launch were alive at once.
"""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from cron.api import table
from cron.api.launches import LaunchView, ShowRequest, TriggerRequest
from cron.errors import OutcomeUnknown, Unavailable
from launcher.protocol.names import DEFAULT_TENANT
from tests.cluster.harness import Cell, is_gone, wait_until
from tests.cluster.witness import Run, read_runs

HOST: Final = "executor-1"
WITHIN_S: Final = 60.0
"""How long to wait for what takes a second or two on an idle machine."""
NEVER: Final = "0 0 29 2 *"
"""The schedule of jobs that are only triggered."""
PERIOD_S: Final = 0.04
"""Between two triggers of a Load: about half of what two busy processors bear."""
BETWEEN: Final = 25
"""Launches that a Load waits for, and runs that are seen, from one fault to the next."""

WITNESS: Final = """
import fcntl, os, threading, time
from pathlib import Path
from raftcron import Context, Fatal, Retry, handler

FOLDER = Path(os.environ["SHOP"])
CLOSED = threading.Event()

def write(name, line):
    fd = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (line + chr(10)).encode())
    os.close(fd)

def uptime():
    return Path("/proc/uptime").read_text().split()[0]

class Witnessed:
    def __init__(self, context):
        self.who = f"{context.launch} {context.attempt}"
        self.epoch = context.epoch
        self.lock = FOLDER / "locks" / context.launch.replace("/", "_")

    def __enter__(self):
        self.fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            write("clashes", self.who)
        write("witness", f"{self.who} start {uptime()} {self.epoch} {os.getpid()}")

    def __exit__(self, kind, error, trace):
        if kind is None:
            write("witness", f"{self.who} end {uptime()}")
        os.close(self.fd)

@handler("work")
def work(payload: float, context: Context):
    with Witnessed(context):
        if context.cancelled.wait(payload):
            raise Retry(reason="cancelled")

@handler("hold")
def hold(payload: str, context: Context):
    with Witnessed(context):
        context.log(f"waits for {payload}")
        while not (FOLDER / payload).exists():
            if context.cancelled.wait(0.01):
                raise Retry(reason="cancelled")
"""
"""The app `tasks`; a test adds handlers of its own."""

_WITH_US: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(9); os.execv(sys.argv[2], sys.argv[2:])"
)
"""Dies with the test's process, whatever ends that."""


class Worker:
    """A `raftcron worker` beside one executor."""

    def __init__(
        self, name: str, argv: list[str], folder: Path, log: Path, variables: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        wrapped = [sys.executable, "-c", _WITH_US, str(os.getpid()), sys.executable, *argv]
        with log.open("ab") as said:
            self.process = subprocess.Popen(
                wrapped,
                cwd=folder,
                env={
                    **os.environ,
                    "SHOP": str(folder),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    **variables,
                },
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def children(self) -> list[int]:
        """Return the process ids of those that run handlers, as they are now."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            return [pid for pid in map(int, path.read_text().split()) if not is_gone(pid)]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def end(self) -> int:
        """Send TERM, and return the exit code."""
        self.process.terminate()
        return self.process.wait(WITHIN_S)

    def close(self) -> None:
        """End it in any case; its children notice."""
        self.process.kill()
        self.process.wait(WITHIN_S)


class Shop:
    """A cell and its workers in a folder; use it in a `with`."""

    def __init__(self, cell: Cell, folder: Path, more: str = "") -> None:
        self.cell = cell
        self.folder = folder / "shop"
        (self.folder / "locks").mkdir(parents=True)
        (self.folder / "tasks.py").write_text(WITNESS + more)
        self.file = self.folder / "witness"
        self.workers: list[Worker] = []
        self._requests = itertools.count(1)

    def __enter__(self) -> Shop:
        self.cell.start()
        self.cell.leader()
        self.cell.wait_connected()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.close()
        for worker in self.workers if error is not None else ():
            print(f"---- end of {worker.log}\n{worker.log.read_text()[-2_000:]}")
        if error is not None:
            for name in self.cell.members:
                print(f"---- end of {name}.log\n{self.cell.log(name)[-2_000:]}")

    # ---- who works

    def serve(
        self, executor: str = HOST, processes: int = 1, threads: int = 4, more: Sequence[str] = ()
    ) -> Worker:
        """Start the app's worker beside an executor, of its release, and return once it is
        offered."""
        socket = self.cell.folder / executor / "workers.sock"
        numbers = ["--processes", str(processes), "--threads", str(threads), "--grace", "5s"]
        argv = [
            "-P",
            "-m",
            "cron.main",
            "worker",
            "tasks",
            *numbers,
            "--executor",
            str(socket),
            *more,
        ]
        log = self.folder / f"{executor}-worker.log"
        worker = Worker(executor, argv, self.folder, log, self.cell.variables.get(executor, {}))
        self.workers.append(worker)
        self.wait_served(executor)
        wait_until(lambda: len(worker.children()) == processes, WITHIN_S, "all its processes")
        return worker

    def wait_served(self, *executors: str) -> None:
        """Return once these executors offer handlers to the leader."""

        def served() -> bool:
            over = [one.name for one in self.workers if one.process.poll() is not None]
            assert not over, f"the worker of {over} has ended"
            rows = self.ask(lambda: self.cell.client.ask(table.EXECUTORS)).executors
            return set(executors) <= {row.id for row in rows if row.groups and row.gets_work}

        wait_until(served, WITHIN_S, f"workers of {executors}")

    # ---- what there is to do

    def apply(self, text: str, name: str = "jobs.toml") -> None:
        """Apply a job file."""
        self.cell.apply(text, name=name)

    def trigger(self, *jobs: str, times: int = 1) -> list[str]:
        """Trigger each of these jobs so often, in turns, also while a leader is missing; return the
        names of the launches."""
        names = []
        for _ in range(times):
            for job in jobs:
                request = f"shop-{next(self._requests)}"
                names.append(self.ask(self._triggering(job, request)).launch)
        return names

    def _triggering(self, job: str, request: str) -> Callable[[], LaunchView]:
        return lambda: self.cell.client.ask(
            table.TRIGGER, TriggerRequest(job=job, request_id=request, by="shop")
        )

    def make(self, name: str, text: str = "") -> Path:
        """Write a file that handlers look for."""
        path = self.folder / name
        path.write_text(text)
        return path

    # ---- what comes of it

    def ask(self, question: Callable[[], Any]) -> Any:
        """Return the answer to a question that is asked again while nobody leads."""

        def answer() -> list[Any]:
            try:
                return [question()]
            except (Unavailable, OutcomeUnknown):
                return []

        return wait_until(answer, WITHIN_S, "an answer")[0]

    def history(self, job: str = "") -> list[LaunchView]:
        """Rows of the ledger, newest first, without late report."""
        rows: list[LaunchView] = self.ask(lambda: self.cell.history(job))
        return [row for row in rows if row.kind != "amendment"]

    def attempts(self, launch: str) -> list[LaunchView]:
        """The rows of one launch, by attempt."""
        rows: list[LaunchView] = self.ask(
            lambda: self.cell.client.ask(table.SHOW, ShowRequest(launch=launch))
        )
        return rows

    def runs(self, jobs: Iterable[str] = ()) -> list[Run]:
        """What was witnessed, by first start; of these jobs alone if any are named."""
        wanted = {full_name(job) for job in jobs}
        runs = list(read_runs(self.file).values())
        return [run for run in runs if not wanted or run.job in wanted]

    def wait_runs(self, number: int, *jobs: str) -> list[Run]:
        """Return the witnessed runs once there are so many."""

        def enough() -> list[Run]:
            runs = self.runs(jobs)
            return runs if len(runs) >= number else []

        return list(wait_until(enough, WITHIN_S, f"{number} runs of {jobs or 'all'}"))

    def wait_running(self, *jobs: str, number: int = 1) -> None:
        """Return while so many runs of each of these jobs are under way."""

        def under_way() -> bool:
            now = Counter(run.job for run in self.runs() if run.end < 0 and not is_gone(run.pid))
            return all(now[full_name(job)] >= number for job in jobs)

        wait_until(under_way, WITHIN_S, f"{number} of each of {jobs} to run")

    def wait_row(self, launch: str, *states: str) -> LaunchView:
        """Return the newest row of a launch once it is in one of these states."""

        def row() -> LaunchView | None:
            rows = self.attempts(launch)
            return rows[-1] if rows and rows[-1].state in states else None

        found = wait_until(row, WITHIN_S, f"{launch} to be {' or '.join(states)}")
        assert isinstance(found, LaunchView)
        return found

    def wait_over(self) -> list[LaunchView]:
        """Return all rows once no launch is open."""
        wait_until(
            lambda: not any(row.is_open for row in self.history()),
            2 * WITHIN_S,
            "no launch to be open",
        )
        return self.history()

    def wrong(self, **expected: Any) -> list[str]:
        """Return what witness, ledger, audit and the kernel's locks have against each other; see
        `witness.judge`."""
        clashes = self.folder / "clashes"
        said = clashes.read_text().splitlines() if clashes.exists() else []
        found = self.ask(lambda: self.cell.judge(self.file, **expected))
        return [*found, *(f"{who} began while another attempt was alive" for who in said)]


class Load:
    """Triggers jobs in turns, again and again, inside a `with`; `names` were acknowledged."""

    def __init__(self, shop: Shop, *jobs: str) -> None:
        self._client = shop.cell.connect(timeout_ms=5_000)
        self._shop = shop
        self._jobs = jobs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.names: list[str] = []

    def _run(self) -> None:
        for number, job in enumerate(itertools.cycle(self._jobs)):
            while not self._stop.wait(PERIOD_S):
                try:
                    launch = self._client.ask(
                        table.TRIGGER,
                        TriggerRequest(job=job, request_id=f"load-{number}", by="load"),
                    ).launch
                except (Unavailable, OutcomeUnknown):
                    continue  # asked again: the same launch for the same request
                self.names.append(launch)
                break
            if self._stop.is_set():
                return

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WITHIN_S)
        self._client.close()

    def wait_more(self) -> None:
        """Return once some more were triggered, and some more ran."""
        names, ran = len(self.names), len(self._shop.runs())
        wait_until(lambda: len(self.names) >= names + BETWEEN, WITHIN_S, "more triggers")
        self._shop.wait_runs(ran + BETWEEN)


def full_name(job: str) -> str:
    """Return a job's name with its tenant."""
    return job if "/" in job else f"{DEFAULT_TENANT}/{job}"


def most_at_once(runs: Collection[Run]) -> int:
    """Return how many runs were under way at once, at most; one without an end still is."""
    steps = [(run.starts[0], 1) for run in runs if run.starts]
    steps += [(run.end, -1) for run in runs if run.end >= 0]
    return max(itertools.accumulate(step for _, step in sorted(steps)), default=0)


def handler_job(name: str, handler: str, *options: str, schedule: str = NEVER) -> str:
    """Return a job of a handler for a job file; options are lines of TOML."""
    lines = [f'name = "{name}"', f'schedule = "{schedule}"', f'handler = "{handler}"', *options]
    return "\n".join(["[[job]]", *lines, "", ""])


def command_job(name: str, folder: Path, body: str, *options: str) -> str:
    """Return a job of a command that the shop of `folder` witnesses; no % and no ' in `body`."""
    shop = shlex.quote(str(folder))
    who = "$RAFTCRON_LAUNCH $RAFTCRON_ATTEMPT"
    script = (
        f'cd {shop}; exec 9>>"locks/$(echo $RAFTCRON_LAUNCH | tr / _)"; '
        f'flock -n 9 || echo "{who}" >>clashes; read -r u _ </proc/uptime; '
        f'echo "{who} start $u $RAFTCRON_EPOCH $$" >>witness; {body}; '
        f'read -r u _ </proc/uptime; echo "{who} end $u" >>witness'
    )
    lines = [f'name = "{name}"', f'schedule = "{NEVER}"', f"command = '''{script}'''", *options]
    return "\n".join(["[[job]]", *lines, "", ""])


def send(number: signal.Signals, *pids: int) -> None:
    """Send a signal to processes that may be gone already."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def wait_exit_code(pid: int) -> int:
    """Return the exit code of a child of ours once it has ended by itself; it is not reaped."""

    def ended() -> os.waitid_result | None:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)

    found = wait_until(ended, WITHIN_S, f"the end of process {pid}")
    assert found.si_code == os.CLD_EXITED, f"process {pid} was killed"
    return int(found.si_status)
