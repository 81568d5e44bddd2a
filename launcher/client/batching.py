"""Many submits in few calls: those of concurrent threads, and of one program with many tasks.

Theory of operation. Each submit is an `Entry` in a queue. A few threads, started when there is work
for them, take entries and send them, up to 1,000 in one call. A lone submit is sent at once. While
a call is under way others gather: they are sent as soon as no call is under way, or 20 ms after the
first of them, or when a call is full. So the number of calls under way is bounded, and a program
that submits much makes larger calls, not more of them.

A task that found its queue full waits as long as the cell says, and up to half as long again, as
the clients of a full queue must not come back all at once. Then it is queued anew.

A task may follow another one that is on its way in another call, and overtake it. The cell does not
know that one yet; the task is sent again until the other one has its outcome.

If the cell refuses a whole call, the entries of each caller are sent by themselves: a fault of one
thread must not fail the tasks of another.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from launcher.client.cell import Calls, user_name
from launcher.client.errors import (
    BadTask,
    OutcomeUnknown,
    QueueFull,
    TaskError,
    Unavailable,
    error_of,
)
from launcher.client.front import local_cell
from launcher.client.messages import TASKS_MAX, Submission, SubmitReport, Verdict

GATHER_S: Final = 0.02
"""A second call under way costs the cell more than its tasks gain: with 5 ms, a thousand single
submits a second waited longer."""
CALL_BYTES_MAX: Final = 8 << 20
"""Tasks of one call, encoded: a replica decodes it within its tick."""
_WORTH_ASKING_S: Final = 0.3
"""With less time than this a task whose queue was full is not sent again: without an answer, what
was certain would become uncertain."""
_GRACE_S: Final = 0.5
"""How long a caller waits after its deadline for what the call knows by then."""
_IDLE_S: Final = 10.0
"""A sender without work for so long ends."""
_BUSY_MS: Final = 1_000
"""How long a task waits for a full queue if the cell did not say."""
_BEHIND_MS: Final = 50
"""How long a task waits for one that it follows, and that is on its way in another call."""
_FULL: Final = frozenset({"queue_full", "rate_exceeded"})

Outcome = Verdict | Exception


class Entry:
    """One task on its way. `outcome` is set before `parcel` learns of it."""

    __slots__ = (
        *("content", "follows", "is_behind", "outcome", "parcel", "refusal", "task", "was_sent"),
        "__weakref__",
    )

    def __init__(self, submission: Submission, parcel: Parcel) -> None:
        try:
            self.content = msgspec.json.encode(submission)
        except (OverflowError, ValueError) as error:
            raise BadTask(f"the task cannot be sent: {error}") from error
        self.task = submission.task
        self.follows = [
            name.removeprefix("default/") for name in (*submission.after, *submission.after_any)
        ]
        self.is_behind = False  # a task that it follows was on its way when it was sent
        self.parcel = parcel
        self.outcome: Outcome | None = None
        self.refusal: TaskError | None = None  # the newest
        self.was_sent = False


class Parcel:
    """What one caller waits for: some tasks with one deadline."""

    def __init__(
        self,
        submissions: Iterable[Submission],
        deadline_s: float,
        on_done: Callable[[], object] | None = None,
    ) -> None:
        """`on_done` is called once, in another thread, when all entries have their outcomes."""
        self.deadline_s = deadline_s
        self.entries = [Entry(one, self) for one in submissions]
        self._left = len(self.entries)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._on_done = on_done

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        """Note what became of an entry; the first outcome counts."""
        with self._lock:
            if entry.outcome is not None:
                return
            entry.outcome = outcome
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._done.set()
            if self._on_done is not None:
                self._on_done()

    def give_up(self) -> None:
        """Settle what has no outcome at the deadline."""
        for entry in self.entries:
            if entry.was_sent:
                hint = "submit it again with the same key, or look at it with `get`"
                self.settle(entry, OutcomeUnknown(f"{entry.task}: no answer in time", hint))
            else:
                late = Unavailable(f"{entry.task}: it was not sent in time")
                self.settle(entry, entry.refusal or late)

    def left_s(self) -> float:
        """Return how long to wait for the outcomes: the call says at the deadline what it knows."""
        return max(0.0, self.deadline_s + _GRACE_S - time.monotonic())

    def wait(self) -> list[Outcome]:
        """Return what became of each entry, soon after the deadline at the latest."""
        if not self._done.wait(self.left_s()):
            self.give_up()
        return self.outcomes()

    def outcomes(self) -> list[Outcome]:
        """Return what became of each entry; all are settled."""
        return [one.outcome for one in self.entries if one.outcome is not None]


class Batcher:
    """Sends entries to a cell, at most `calls_max` calls at a time."""

    def __init__(self, cell: Calls, calls_max: int) -> None:
        self._cell = cell
        self._calls_max = calls_max
        self._random = random.Random()  # noqa: S311 - jitter
        self._numbers = itertools.count()
        self._named: weakref.WeakValueDictionary[str, Entry] = weakref.WeakValueDictionary()
        self._is_closed = False
        self._start()
        _BATCHERS.add(self)

    def _start(self) -> None:
        self._changed = threading.Condition()
        self._ready: deque[tuple[float, Entry]] = deque()
        self._later: list[tuple[float, int, Entry]] = []
        self._senders = 0
        self._busy = 0

    def put(self, *parcels: Parcel) -> None:
        """Send the tasks of one caller, or of several.

        Raises:
            Unavailable: the client is closed.
        """
        if local_cell() is not None:
            for parcel in parcels:
                self._send(parcel.entries)  # in this thread: the tasks run in it
            return
        now_s = time.monotonic()
        with self._changed:
            if self._is_closed:
                raise Unavailable("the client is closed")
            self._named.update((one.task, one) for parcel in parcels for one in parcel.entries)
            self._ready.extend((now_s, entry) for one in parcels for entry in one.entries)
            self._changed.notify()
        self._add_sender()

    def _add_sender(self) -> None:
        """Start one more sender where all of them are busy, entries wait, and another may call."""
        with self._changed:
            if not self._ready or not self._busy == self._senders < self._calls_max:
                return
            self._senders += 1
        threading.Thread(target=self._run, name="raftcron-submit", daemon=True).start()

    def close(self) -> None:
        """Take no more tasks; those that wait are given up. Idempotent."""
        with self._changed:
            self._is_closed = True
            waiting = [entry for _, entry in self._ready] + [one[2] for one in self._later]
            self._ready.clear()
            self._later.clear()
            self._changed.notify_all()
        for entry in waiting:
            entry.parcel.settle(entry, _closed(entry))

    def forget_threads(self) -> None:
        """Begin anew in a child process, where no thread of the parent is."""
        self._start()

    def _run(self) -> None:
        while True:
            entries = self._next()
            if not entries:
                return
            self._add_sender()
            try:
                self._send(entries)
            except Exception as error:  # noqa: BLE001 - callers wait for an outcome, whatever it is
                for entry in entries:
                    entry.parcel.settle(entry, error)
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify()

    def _next(self) -> list[Entry]:
        """Return what to send now, counted as a call; nothing when this sender is to end."""
        idle_until_s = time.monotonic() + _IDLE_S
        with self._changed:
            while True:
                now_s = time.monotonic()
                while self._later and self._later[0][0] <= now_s:
                    self._ready.append((now_s, heapq.heappop(self._later)[2]))
                if self._ready and (
                    self._busy == 0
                    or len(self._ready) >= TASKS_MAX
                    or now_s >= self._ready[0][0] + GATHER_S
                ):
                    self._busy += 1
                    return self._taken()
                wake_s = idle_until_s
                if self._later:
                    wake_s = self._later[0][0]
                if self._ready:
                    wake_s = min(wake_s, self._ready[0][0] + GATHER_S)
                if self._is_closed or (wake_s <= now_s and not self._later):
                    self._senders -= 1
                    return []
                self._changed.wait(wake_s - now_s)

    def _taken(self) -> list[Entry]:
        taken: list[Entry] = []
        length = 0
        while self._ready and len(taken) < TASKS_MAX:
            entry = self._ready[0][1]
            length += len(entry.content)
            if taken and length > CALL_BYTES_MAX:
                break
            self._ready.popleft()
            taken.append(entry)
        return taken

    def _send(self, entries: Sequence[Entry]) -> None:
        """Submit some tasks, and settle each or queue it anew."""
        entries = [one for one in entries if one.outcome is None]  # others were given up
        if not entries:
            return
        deadline_s = max(one.parcel.deadline_s for one in entries)
        tasks = b",".join(one.content for one in entries)
        content = b'{"by":%b,"tasks":[%b]}' % (msgspec.json.encode(user_name()), tasks)
        for entry in entries:
            entry.was_sent = True
            entry.is_behind = any(map(self._is_on_its_way, entry.follows))
        try:
            answer = self._cell.call("Submit", content, deadline_s)
            verdicts = msgspec.json.decode(answer, type=SubmitReport).tasks
            if len(verdicts) != len(entries):
                raise OutcomeUnknown(f"{len(entries)} tasks got {len(verdicts)} verdicts")
        except msgspec.DecodeError as error:
            unknown = OutcomeUnknown(f"the answer is of another version: {error}")
            for entry in entries:
                entry.parcel.settle(entry, unknown)
        except TaskError as error:
            self._note_refusal(entries, error)
        else:
            for entry, verdict in zip(entries, verdicts, strict=True):
                self._note_verdict(entry, verdict)

    def _is_on_its_way(self, task: str) -> bool:
        entry = self._named.get(task)
        return entry is not None and entry.outcome is None

    def _note_refusal(self, entries: Sequence[Entry], error: TaskError) -> None:
        parcels = {id(one.parcel): one.parcel for one in entries}
        if len(parcels) == 1 or isinstance(error, Unavailable | OutcomeUnknown):
            for entry in entries:
                known = entry.refusal if isinstance(error, Unavailable) else None
                entry.parcel.settle(entry, known or error)
            return
        for parcel in parcels.values():
            self._send([one for one in entries if one.parcel is parcel])

    def _note_verdict(self, entry: Entry, verdict: Verdict) -> None:
        problem = verdict.error
        if problem is None:
            entry.parcel.settle(entry, verdict)
            return
        # Another call has the task that it follows; it may overtake that one.
        is_early = problem.code == "unknown_predecessor" and entry.is_behind
        error = error_of(problem.code, f"{entry.task}: {problem.message}", problem.hint)
        if not is_early and problem.code not in _FULL and not verdict.retry_after_ms:
            entry.parcel.settle(entry, error)
            return
        usual_ms = _BEHIND_MS if is_early else verdict.retry_after_ms or _BUSY_MS
        wait_ms = usual_ms * (1 + self._random.random() / 2)
        again_s = time.monotonic() + wait_ms / 1000
        entry.was_sent = False  # it was answered: it is not there
        entry.refusal = error if is_early else QueueFull(str(error), problem.hint)
        if again_s + _WORTH_ASKING_S >= entry.parcel.deadline_s:
            entry.parcel.settle(entry, entry.refusal)
            return
        with self._changed:
            is_closed = self._is_closed
            if not is_closed:
                heapq.heappush(self._later, (again_s, next(self._numbers), entry))
                self._changed.notify()
        if is_closed:
            entry.parcel.settle(entry, _closed(entry))


def _closed(entry: Entry) -> Unavailable:
    return Unavailable(f"{entry.task}: the client was closed before it was sent")


_BATCHERS: Final[weakref.WeakSet[Batcher]] = weakref.WeakSet()


def _begin_anew() -> None:
    for batcher in list(_BATCHERS):
        batcher.forget_threads()


os.register_at_fork(after_in_child=_begin_anew)
