"""A worker in this process: each child of `raftcron worker` is one, and a program may embed one.

The process ends at once, without cleaning up, when the connection to the executor ends, and is
killed when guarded work outlives the executor's lease. So its handlers never run unwatched.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Final

from launcher.clock import boot_ms
from launcher.worker.context import logging_to_output
from launcher.worker.errors import BadFrame, NoExecutor
from launcher.worker.lease import LeasePage, Watchdog, kill_group, kill_self, make_lease_page
from launcher.worker.options import (
    EXIT_BUG,
    EXIT_LOST,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_STUCK,
    SOCKET_VARIABLE,
    ChildOptions,
    buffer_of,
    say,
    socket_path,
    token_of,
    worker_options,
)
from launcher.worker.registry import REGISTRY, Registry, load
from launcher.worker.serving import Link, LinkLost, ParentLost, Serving, StillRunning
from launcher.worker.wire import PULSE_MS, VERSION, Hello
from launcher.worker.work import WakeUp

CONNECT_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts to connect; the last one is repeated."""
CONNECT_S: Final = 5.0
SAY_EVERY_MS: Final = 10_000
"""How often a worker that waits for its executor says so."""


class Worker:
    """Runs handlers in this process, in threads and, async ones, in a loop of a thread of its own.

    `handlers` is a Registry, or a module to import; all that is registered, if left out. `executor`
    is the path of the executor's socket; `group` names processes that serve the same handlers.
    `token_file` has what grants them, if the executor asks for that.
    """

    def __init__(
        self,
        handlers: Registry | str | None = None,
        *,
        executor: str = "",
        group: str = "",
        threads: int = 8,
        buffer: int = 0,
        grace_ms: int = 30_000,
        token_file: str = "",
    ) -> None:
        options = worker_options(
            handlers if isinstance(handlers, str) else "",
            threads=threads,
            group=group,
            executor=executor,
            buffer=buffer,
            grace_ms=grace_ms,
            token_file=token_file,
        )
        self._options = ChildOptions(worker=options)
        self._registry = handlers if isinstance(handlers, Registry) else None

    def run(self) -> int:
        """Serve until SIGTERM and return 0; call it in the main thread.

        Raises:
            BadApp, BadHandler: there is nothing to serve.
            NoExecutor: the executor refused this worker.
        """
        if self._registry is None and self._options.worker.app:
            self._registry = load(self._options.worker.app)
        registry = self._registry or REGISTRY
        registry.check()
        return serve(registry, self._options)


def serve(registry: Registry, options: ChildOptions) -> int:
    """Wait for the executor, serve it until SIGTERM or its Drain, and return the exit code 0.

    It does not return if the connection is lost or invalid, or a drain takes too long: then the
    process ends.

    Raises:
        NoExecutor: the executor refused this worker.
    """
    wake_up = WakeUp()
    stop = _Stop(wake_up)
    with stop.caught(), logging_to_output():
        connected = _connect(options, stop)
        if connected is not None:
            _serve(connected, registry, options, stop)
    return EXIT_OK


def _serve(
    connected: socket.socket, registry: Registry, options: ChildOptions, stop: _Stop
) -> None:
    chosen, has_parent = options.worker, options.parent_fd >= 0
    lease_page = LeasePage(
        options.lease_page_fd if options.lease_page_fd >= 0 else make_lease_page()
    )
    watchdog = Watchdog(lease_page, kill_group if has_parent else kill_self)
    watchdog.start()
    link = Link(connected)
    # A process that a handler forks must not keep the connection open after this process.
    os.register_at_fork(after_in_child=link.close)
    hello = Hello(
        VERSION,
        chosen.group or chosen.app.replace(":", ".") or "embedded",
        [one.served for one in registry],
        chosen.threads,
        buffer_of(chosen),
        os.getpid(),
        os.getppid() if has_parent else 0,
        chosen.memory_max_bytes,
        PULSE_MS,
        token_of(chosen.token_file),
    )

    def welcomed(executor: str) -> None:
        if options.number == 1:  # one process of the worker says it
            path = socket_path(chosen.executor)
            say(f"connected to {executor or 'the executor'} at {path}")

    serving = Serving(link, stop.wake_up, registry, hello, watchdog, welcomed)
    stop.serving = serving
    if stop.is_asked:
        serving.drain()
    try:
        serving.run(options.parent_fd, chosen.grace_ms, chosen.cancelled_grace_ms)
    except NoExecutor:
        raise
    except ParentLost:
        kill_group()
    except LinkLost as lost:
        _die(f"ends with its executor's connection: {lost}", EXIT_LOST)
    except StillRunning:
        _die("ends although handlers run: they had their time and were cancelled", EXIT_STUCK)
    except BadFrame as error:
        _die(f"does not understand its executor: {error}", EXIT_REFUSED)
    except BaseException:  # noqa: BLE001 - a bug: no handler may go on without this thread
        _die(f"has a bug: {traceback.format_exc()}", EXIT_BUG)
    link.close()


class _Stop:
    """SIGTERM, which asks for a drain. A terminal sends SIGINT to all processes; parents pass it on
    as SIGTERM."""

    def __init__(self, wake_up: WakeUp) -> None:
        self.wake_up = wake_up
        self.is_asked = False
        self.serving: Serving | None = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Catch the signals while it is open."""
        number = signal.SIGTERM
        before = signal.signal(number, self._asked)
        try:
            yield
        finally:
            signal.signal(number, before)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
        if self.serving is not None:
            self.serving.drain()
        self.wake_up.ring()


def _connect(options: ChildOptions, stop: _Stop) -> socket.socket | None:
    """Return a connection to the executor's socket once it listens; None if asked to stop."""
    path = socket_path(options.worker.executor)
    tries = noted_ms = 0
    while not stop.is_asked:
        try:
            return _connected(path)
        except OSError as error:
            if options.number == 1 and (not tries or boot_ms() >= noted_ms + SAY_EVERY_MS):
                why = (error.strerror or str(error)).lower()
                way = f"--executor or ${SOCKET_VARIABLE} name another socket"
                say(f"waits for an executor at {path}: {why}; {way}")
                noted_ms = boot_ms()
        tries += 1
        awaited = select.poll()  # select() takes no descriptor above 1,023
        for fd in (stop.wake_up.fd, options.parent_fd):
            if fd >= 0:
                awaited.register(fd, select.POLLIN)
        pause_s = CONNECT_PAUSES_S[min(tries, len(CONNECT_PAUSES_S)) - 1]
        readable = [fd for fd, _ in awaited.poll(pause_s * 1000)]
        if options.parent_fd in readable:
            os._exit(EXIT_LOST)
        stop.wake_up.reset()
    return None


def _connected(path: str) -> socket.socket:
    folder, name = os.path.split(path)
    # Through the folder's descriptor: an address has 108 bytes at most, a path has not.
    opened = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.settimeout(CONNECT_S)
        end.connect(f"/proc/self/fd/{opened}/{name}")
    except BaseException:
        end.close()
        raise
    finally:
        os.close(opened)
    return end


def _die(text: str, code: int) -> None:
    """End this process now: no handler may go on while threads and exit hooks are waited for."""
    with contextlib.suppress(OSError, ValueError):
        say(text)
    os._exit(code)
