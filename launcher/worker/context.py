"""The interface of a running handler: its launch, its cancel flag, heartbeats and output.

`current()` returns the Context in code that a handler calls. It is a context variable: threads that
a handler starts do not inherit it, asyncio tasks do.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from launcher.clock import boot_ms
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.orders import StartBatch
from launcher.protocol.status import Reason
from launcher.worker.outcome import Cancelled
from launcher.worker.wire import TaskWork

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CURRENT: Final[ContextVar[Context | None]] = ContextVar("raftcron_context", default=None)


class Wire(Protocol):
    """Gets the heartbeats and the output of handlers, from any thread, without waiting."""

    def beat(self, number: int) -> None:
        """Report that a task is alive."""
        ...

    def write(self, number: int, text: str) -> None:
        """Add to a task's output."""
        ...


class Cancellation:
    """A flag that is set once, when the launch shall end; like `threading.Event`, and a bool.

    A plain handler checks it or waits for it. An async one need not: its next `await` raises
    asyncio.CancelledError.
    """

    __slots__ = ("_changed", "_is_set", "_reason")
    _making = threading.Lock()

    def __init__(self) -> None:
        self._is_set = False
        self._reason = ""
        self._changed: threading.Event | None = None

    def __bool__(self) -> bool:
        return self._is_set

    def is_set(self) -> bool:
        """Return whether the launch shall end."""
        return self._is_set

    @property
    def reason(self) -> str:
        """Why: `timeout`, `silent`, `killed`, `replaced` ...; empty while it is not set."""
        return self._reason

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; return whether it is."""
        with self._making:
            # Made at the first wait: few handlers wait, and each launch would pay for it.
            if self._changed is None:
                self._changed = threading.Event()
                if self._is_set:
                    self._changed.set()
        return self._changed.wait(timeout)

    def set(self, reason: str) -> None:
        """Set it. Not for handlers."""
        with self._making:
            self._reason = self._reason or reason
            self._is_set = True
            if self._changed is not None:
                self._changed.set()


class Context:
    """One attempt, as its handler sees it. What it says of its launch is computed when asked."""

    __slots__ = ("_ends_boot_ms", "_place", "_tasks", "_wire", "cancelled", "is_resumed", "work")

    def __init__(
        self, work: TaskWork, tasks: StartBatch[int], place: int, wire: Wire, ends_boot_ms: int
    ) -> None:
        self.work = work  # not for handlers
        self._tasks = tasks
        self._place = place
        self._wire = wire
        self._ends_boot_ms = ends_boot_ms  # 0: it may run for any time
        self.cancelled = Cancellation()
        self.is_resumed = False  # True: a worker had begun this attempt, and died

    def _of(self, column: Sequence[int]) -> int:
        """Return its value in a column of its tasks."""
        return column[self._place if len(column) > 1 else 0]

    @property
    def number(self) -> int:
        """The number of its task at this worker. Not for handlers."""
        return self._tasks.first + self._place

    @property
    def launch_name(self) -> LaunchName:
        """The name of the launch, with its parts. Not for handlers."""
        return LaunchName(self.work.job, self.scheduled_s, self.trigger)

    @property
    def launch(self) -> str:
        """The name of the launch, `tenant/job@2026-11-20T15:00:00Z`, the same in every attempt."""
        return str(self.launch_name)

    @property
    def name(self) -> str:
        """The name of this attempt and part, `tenant/job@2026-11-20T15:00:00Z#2/1`."""
        return str(AttemptName(self.launch_name, self.attempt, self.part))

    @property
    def tenant(self) -> str:
        """The tenant of the job."""
        return self.work.job.partition("/")[0]

    @property
    def job(self) -> str:
        """The name of the job, `tenant/job`."""
        return self.work.job

    @property
    def handler(self) -> str:
        """The name of this handler."""
        return self.work.handler

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._of(self._tasks.attempts)

    @property
    def part(self) -> int:
        """The number of this part of a launch of several parts, from 1."""
        return self._of(self._tasks.parts)

    @property
    def scheduled(self) -> datetime:
        """When the launch was due, UTC. Compute with this time rather than the clock."""
        return _EPOCH + timedelta(seconds=self.scheduled_s)

    @property
    def scheduled_s(self) -> int:
        """When the launch was due, in seconds since the epoch."""
        return self._of(self._tasks.scheduled_s)

    @property
    def trigger(self) -> int:
        """0 for a scheduled launch, N for the N-th manual trigger of that job and second."""
        return self._of(self._tasks.triggers)

    @property
    def epoch(self) -> str:
        """The leadership term under which this attempt was ordered, `GENERATION.TERM.REPLICA`."""
        return self._tasks.epoch

    @property
    def fence(self) -> int:
        """The fencing token of this attempt: the log index at which it was begun.

        A resource refuses a write with a smaller token than one that it has seen. A later attempt
        of a launch has a greater token, also after a restore. Launches that were begun together,
        and the parts of one attempt, have the same.
        """
        return self._tasks.index

    @property
    def priority(self) -> int:
        """From 0, first, to 9."""
        return self.work.priority

    @property
    def labels(self) -> dict[str, str]:
        """The labels that the task was submitted with; none for a job of a crontab."""
        return dict(self.work.labels)

    @property
    def traceparent(self) -> str:
        """The W3C trace context that the task was submitted with, or empty: pass it on as the
        parent of the handler's own span."""
        return self.work.traceparent

    @property
    def results(self) -> dict[str, str]:
        """What the tasks returned that this one came after, by their names `tenant/queue:key`.

        Only tasks that succeeded and returned a text have one. Of many only the first 64 KiB are
        there.
        """
        return dict(self.work.results)

    @property
    def remaining(self) -> float | None:
        """Seconds until it is cancelled for taking too long, not below 0; None for no bound."""
        if not self._ends_boot_ms:
            return None
        return max(0, self._ends_boot_ms - boot_ms()) / 1000

    def heartbeat(self, progress: object = None) -> None:
        """Report that the handler is alive; `progress`, if given, becomes a line of its output."""
        self._wire.beat(self.number)
        if progress is not None:
            self._wire.write(self.number, f"progress: {progress}\n")

    def log(self, text: object) -> None:
        """Write a line to the launch's output, which is kept and bounded like a command's."""
        self._wire.write(self.number, f"{text}\n")

    def check(self) -> None:
        """Raise Cancelled if the launch shall end: for loops that have nothing to clean up."""
        if self.cancelled:
            raise Cancelled(self.cancelled.reason)


def current() -> Context:
    """Return the Context of the handler that runs here.

    Raises:
        LookupError: none does; threads that a handler starts do not inherit it.
    """
    context = _CURRENT.get()
    if context is None:
        raise LookupError(
            "no handler runs in this thread; pass its Context to the threads that it starts"
        )
    return context


def enter(context: Context) -> None:
    """Make `context` the current one of this thread or asyncio task, until `leave`."""
    _CURRENT.set(context)


def leave() -> None:
    """Undo `enter`; log records from now on belong to no launch."""
    _CURRENT.set(None)


def reason_label(number: int) -> str:
    """Return the word for a `launcher.protocol.status.Reason`, also for an unknown one."""
    try:
        return Reason(number).label or "killed"
    except ValueError:
        return f"reason {number}"


_FORMAT = "%(levelname)s %(name)s: %(message)s"


class OutputHandler(logging.Handler):
    """Writes each log record to the output of the launch whose handler logged it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the output of the launch that runs here, if one does."""
        context = _CURRENT.get()
        if context is None:
            # Python prints warnings if nobody handles them; that must not end because of this one.
            last = logging.lastResort
            is_alone = logging.getLogger().handlers == [self]
            if is_alone and last is not None and record.levelno >= last.level:
                last.handle(record)
            return
        try:
            context.log(self.format(record))
        except Exception:  # noqa: BLE001 - as all handlers: logging must not end what logs
            self.handleError(record)


@contextlib.contextmanager
def logging_to_output() -> Iterator[None]:
    """While open, write log records of handlers to the outputs of their launches.

    The SDK is a guest: it changes no level, formatter or handler of the program.
    """
    root, added = logging.getLogger(), OutputHandler()
    root.addHandler(added)
    try:
        yield
    finally:
        root.removeHandler(added)
