"""What tests of workers stand on: an executor's end of the socket, and real child processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.clock import boot_ms
from launcher.protocol.names import parse_attempt_name
from launcher.worker.options import ChildOptions, WorkerOptions
from launcher.worker.parent import start_child
from launcher.worker.wire import (
    VERSION,
    Beat,
    Cancel,
    Done,
    FromChild,
    Hello,
    Leaving,
    Output,
    Result,
    Run,
    Started,
    TaskWork,
    ToChild,
    Welcome,
    encode,
    from_child,
)
from tests.sent_tasks import tasks_of

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
LEASE_MS = 60_000
M = TypeVar("M")


class Task(msgspec.Struct, frozen=True):
    """An attempt for a child, by its name."""

    name: str
    handler: str
    payload: bytes = b""
    timeout_ms: int = 0
    guarded: bool = False
    epoch: str = "0.1.r1"


class Outcome(msgspec.Struct, frozen=True):
    """How a task ended."""

    name: str
    result: Result
    after_ms: int
    detail: str
    started_ms: int
    finished_ms: int


def task(
    number: int, handler: str, payload: bytes = b"", *, attempt: int = 1, **more: object
) -> Task:
    """An attempt of its own for each number."""
    name = f"acme/job{number}@2025-11-20T15:00:00Z#{attempt}"
    return Task(name, handler, payload, **more)  # type: ignore[arg-type]


class Peer:
    """A connected child, as its executor sees it."""

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._frames = from_child()
        self._names: list[str] = []  # of its tasks, which have the numbers from 1 on
        self.said: list[FromChild] = []
        self._outcomes: dict[str, Outcome] = {}
        self._read = 0  # so many of `said` are in `_outcomes`
        self.is_closed = False
        pid, _, _ = struct.unpack(
            "3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        self.pid: int = pid

    def send(self, *messages: ToChild) -> None:
        self._socket.sendall(b"".join(encode(message) for message in messages))

    def send_bytes(self, some: bytes) -> None:
        self._socket.sendall(some)

    def run(self, *tasks: Task, is_resumed: bool = False) -> None:
        works, sent, first = [], [], len(self._names) + 1
        for one in tasks:
            number, name = len(self._names), parse_attempt_name(one.name)
            self._names.append(one.name)
            bounds = (one.timeout_ms, 0, one.guarded)
            works.append(TaskWork(number, name.launch.job, one.handler, one.payload, *bounds))
            times = ([name.launch.scheduled_s], [name.attempt], [0], [name.part])
            sent.append(tasks_of(number + 1, 7, one.epoch, [number], *times))
        resumed = list(range(first, first + len(tasks))) if is_resumed else []
        self.send(Run(sent, works, False, resumed))

    def cancel(self, *some: tuple[str, int]) -> None:
        """Cancel tasks by name, each for a reason; one that it never got has another number."""
        numbers = {name: number for number, name in enumerate(self._names, 1)}
        self.send(Cancel([(numbers.get(name, 1 << 40), reason) for name, reason in some]))

    def name(self, number: int) -> str:
        return self._names[number - 1]

    def close(self) -> None:
        self._socket.close()

    def read(self, seconds: float) -> None:
        """Take in what arrives next, within so many seconds."""
        readable, _, _ = select.select([self._socket], [], [], max(0.0, seconds))
        if not readable:
            return
        try:
            received = self._socket.recv(1 << 18)
        except ConnectionResetError:
            received = b""
        self.is_closed = not received
        self.said += self._frames.feed(received)

    def until(self, is_so: Callable[[], M | None], what: str = "what it waits for") -> M:
        """Read until `is_so` is true, and return what it is."""
        deadline = time.monotonic() + WITHIN_S
        while not (seen := is_so()):
            left = deadline - time.monotonic()
            assert left > 0, f"{what} did not come; heard {self.said}"
            assert not self.is_closed, f"closed before {what}; heard {self.said}"
            self.read(left)
        return seen

    def all(self, kind: type[M]) -> list[M]:
        return [message for message in self.said if isinstance(message, kind)]

    @property
    def hello(self) -> Hello:
        return self.until(lambda: self.all(Hello), "Hello")[0]

    @property
    def outcomes(self) -> dict[str, Outcome]:
        for message in self.said[self._read :]:
            for end in message.ends if isinstance(message, Done) else ():
                for number, *times in end.tasks:
                    name = self.name(number)
                    ended = Outcome(name, end.result, end.after_ms, end.detail, *times)
                    self._outcomes[name] = ended
        self._read = len(self.said)
        return self._outcomes

    @property
    def started(self) -> list[str]:
        return [self.name(one) for message in self.all(Started) for one in message.tasks]

    @property
    def beats(self) -> list[str]:
        return [self.name(one) for message in self.all(Beat) for one in message.tasks]

    @property
    def returned(self) -> list[str]:
        return [self.name(one) for message in self.all(Leaving) for one in message.returned]

    def output(self, of: Task) -> str:
        pieces = [one.piece for one in self.all(Output) if self.name(one.task) == of.name]
        return b"".join(pieces).decode()

    def outcome(self, of: Task) -> Outcome:
        """Wait for the end of a task."""
        return self.until(lambda: self.outcomes.get(of.name), f"the end of {of.name}")

    def outcome_of(self, sent: Task) -> Outcome:
        """Send a task and wait for its end."""
        self.run(sent)
        return self.outcome(sent)

    def wait_started(self, of: Task) -> None:
        self.until(lambda: of.name in self.started, f"the start of {of.name}")

    def wait_output(self, of: Task, text: str) -> None:
        self.until(lambda: text in self.output(of), f"{text!r} of {of.name}")

    def wait_closed(self) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not self.is_closed:
            left = deadline - time.monotonic()
            assert left > 0, "the child keeps its connection"
            self.read(left)


class Hub:
    """Listens where an executor would, and welcomes who comes."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(path.parent, os.O_PATH)
        self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        self._listener.listen(64)
        self._listener.settimeout(WITHIN_S)
        self.peers: list[Peer] = []

    def accept(self) -> Peer:
        """Take in the next child, and say nothing."""
        accepted, _ = self._listener.accept()
        peer = Peer(accepted)
        self.peers.append(peer)
        return peer

    def welcome(self, lease_ms: int = LEASE_MS) -> Peer:
        """Take in the next child, and have it begin."""
        peer = self.accept()
        assert peer.hello.version == VERSION
        peer.send(Welcome(boot_ms() + lease_ms if lease_ms else 0))
        return peer

    def close(self) -> None:
        self._listener.close()
        for peer in self.peers:
            peer.close()


APP = """
from __future__ import annotations
import asyncio, logging, os, signal, subprocess, sys, threading, time
import msgspec
from launcher.worker.facade import Context, Fatal, Retry, Snooze, current, handler
from launcher.worker.registry import REGISTRY, describe

class Invoice(msgspec.Struct):
    customer: str
    cents: int

@handler("ok")
def ok(payload): return payload if isinstance(payload, str) else None

@handler("noop")
def noop(): pass

@handler("anoop")
async def anoop(): pass

@handler("invoice")
def invoice(payload: Invoice, context: Context): return f"{payload.customer} {payload.cents}"

@handler("retry")
def retry(payload: int): raise Retry(after=payload, reason="not yet")

@handler("fatal")
def fatal(): return Fatal("never")

@handler("snooze")
async def snooze(): raise Snooze("1h", "later")

@handler("raise")
def raises(): raise ValueError("so not")

@handler("araise")
async def araises(): raise ValueError("so not")

@handler("leave")
def leave(): sys.exit(7)

@handler("until_cancelled")
def until_cancelled(payload, context: Context):
    context.log("begun")
    context.cancelled.wait()
    context.log(f"told: {context.cancelled.reason}")

def look_up(payload, context: Context):
    context.log(f"resumed: {context.is_resumed}")
    context.cancelled.wait()

REGISTRY.add(describe(look_up, "look_up", resumes=True))

@handler("async_until_cancelled")
async def async_until_cancelled(payload, context: Context):
    context.log("begun")
    try:
        await asyncio.Event().wait()
    finally:
        context.log(f"told: {context.cancelled.reason}")

@handler("until_file")
def until_file(payload: str, context: Context):
    context.log("begun")
    while not os.path.exists(payload):
        time.sleep(0.005)
    return "seen"

@handler("beat")
def beat(payload, context: Context):
    context.heartbeat("half")
    context.heartbeat()

@handler("talk")
def talk(payload, context: Context):
    current().log("said")
    logging.getLogger("shop").warning("logged %d", 7)
    threading.Thread(target=lambda: logging.warning("elsewhere")).start()

@handler("flood")
def flood(payload: int, context: Context):
    for n in range(payload): context.log("x" * 1000)

@handler("crash")
def crash(): os.kill(os.getpid(), signal.SIGKILL)

@handler("freeze")
def freeze(payload, context: Context):
    context.log("begun")
    os.kill(os.getpid(), signal.SIGSTOP)

@handler("leave_behind")
def leave_behind(payload: str):
    started = subprocess.Popen(["sleep", "1000"])
    return str(started.pid)

@handler("fork")
def fork():
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    return str(pid)

@handler("leave_thread")
def leave_thread(): threading.Thread(target=time.sleep, args=(1000,)).start()

@handler("stop_loop")
async def stop_loop(): asyncio.get_running_loop().stop()

@handler("exit_loop")
async def exit_loop(): asyncio.get_running_loop().call_soon(sys.exit, 3)

@handler("whoami")
def whoami(): return str(os.getpid())

@handler("context")
def of_context(payload, context: Context):
    return (f"{context.launch} {context.job} {context.attempt} {context.part} {context.tenant} "
            f"{context.scheduled.isoformat()} {context.epoch} {context.remaining is not None}")
"""


def write_app(folder: Path, text: str = APP, name: str = "shop") -> Path:
    """Write a module that children started in `folder` can import."""
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Work in a folder, with this repository where Python finds it."""
    before, path = Path.cwd(), os.environ.get("PYTHONPATH")
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("PYTHONPATH")
        if path is not None:
            os.environ["PYTHONPATH"] = path


class Rig:
    """A folder with an app and a hub; what is started here is ended here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_app(folder)
        self.hub = Hub(folder / "w.sock")
        self.processes: list[subprocess.Popen[bytes]] = []

    def options(self, **more: object) -> WorkerOptions:
        said: dict[str, object] = {"app": "shop", "executor": self.hub.path, "threads": 2}
        return WorkerOptions(**(said | more))  # type: ignore[arg-type]

    def child(self, **more: object) -> subprocess.Popen[bytes]:
        """Start a child without a parent."""
        with in_folder(self.folder):
            started = start_child(ChildOptions(worker=self.options(**more)))
        self.processes.append(started)
        return started

    def peer(self, **more: object) -> Peer:
        """Start a child and take it in."""
        self.child(**more)
        return self.hub.welcome()

    def parent(self, options: WorkerOptions) -> subprocess.Popen[bytes]:
        """Start `raftcron worker`, with what it says in a pipe."""
        command = [sys.executable, "-m", "launcher.worker", msgspec.json.encode(options).decode()]
        with in_folder(self.folder):
            started = subprocess.Popen(command, stderr=subprocess.PIPE)
        self.processes.append(started)
        return started

    def close(self) -> None:
        self.hub.close()
        for started in self.processes:
            if started.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    started.send_signal(signal.SIGKILL)
                started.wait()
            if started.stderr is not None:
                started.stderr.close()


def wait_until(is_so: Callable[[], bool], what: str = "it") -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.005)


def exit_code(started: subprocess.Popen[bytes]) -> int:
    """Wait for a process to end."""
    return started.wait(WITHIN_S)


def wait_gone(pid: int) -> None:
    """Wait until there is no such process, or only its shell."""
    wait_until(lambda: not lives(pid), f"the end of process {pid}")


def state(pid: int) -> str:
    """The letter that the kernel shows for a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def lives(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")
