"""A cell in the caller's own process, for tests: `with testing.cell() as cell:`.

A submitted task that is due runs at once, in the thread that submitted it, and is over when
`submit` returns. Time stands still unless a test moves it. Keys, tries, delays and cancels work as
in a cell; queues have no limits, and priorities no effect.
"""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from launcher.client.errors import TaskError, TaskOver, UnknownTask
from launcher.client.messages import (
    Problem,
    Submission,
    SubmitReport,
    TasksReport,
    TaskView,
    Verdict,
)
from launcher.clock import wall_ms
from launcher.lengths import Length, length_ms
from launcher.worker.registry import REGISTRY, Registry
from launcher.worker.testing import Ran, run
from launcher.worker.wire import Result

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
RUNS_MAX: Final = 1_000
"""Attempts of one `advance`: more of them are a handler that submits itself for ever."""


class _Held(msgspec.Struct):
    """A task: as it was submitted, as it is shown, and its attempts so far."""

    submission: Submission
    view: TaskView
    due_ms: int
    tries: int = 0
    runs: list[Ran] = []


class LocalCell:
    """Runs tasks in process. `tasks` are by name, in the order of their submits; `now` is the time
    that the cell believes."""

    def __init__(self, registry: Registry = REGISTRY, now: datetime | None = None) -> None:
        self._registry = registry
        self._now_ms = wall_ms() if now is None else (now - _EPOCH) // timedelta(milliseconds=1)
        self._held: dict[str, _Held] = {}
        self._waits: dict[str, _Held] = {}
        self._revisions = itertools.count(1)

    @property
    def now(self) -> datetime:
        """Return the cell's time."""
        return _EPOCH + timedelta(milliseconds=self._now_ms)

    @property
    def tasks(self) -> dict[str, TaskView]:
        """Return all tasks by name, as they are now."""
        return {name: held.view for name, held in self._held.items()}

    def runs(self, task: Any) -> list[Ran]:
        """Return how each attempt of a task ended, as `testing.run` says it."""
        return list(self._known(getattr(task, "name", task)).runs)

    def advance(self, length: Length) -> None:
        """Let time pass, and run what becomes due in it, in the order of its times.

        Raises:
            RecursionError: tasks submit tasks without end.
        """
        self._run_until(self._now_ms + length_ms(length, days_max=36_500))

    def run_all(self) -> None:
        """Let time pass until no task waits.

        Raises:
            RecursionError: tasks submit tasks without end.
        """
        self._run_until(None)

    def _run_until(self, end_ms: int | None) -> None:
        """Run what is due until a time, None for all that waits."""
        for _ in range(RUNS_MAX):
            first = min(self._waits.values(), key=lambda held: held.due_ms, default=None)
            if first is None or (end_ms is not None and first.due_ms > end_ms):
                self._now_ms = max(self._now_ms, end_ms or 0)
                return
            self._now_ms = max(self._now_ms, first.due_ms)
            self._attempt(first)
        raise RecursionError(f"{RUNS_MAX:,} attempts, and tasks are still due")

    # ---- what a client calls

    def call(
        self, method: str, content: bytes, deadline_s: float, *, is_repeatable: bool = True
    ) -> bytes:
        """Return the answer to one call, as a cell would.

        Raises:
            TaskError: the call is refused.
        """
        request = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        answer = getattr(self, f"_on_{method.lower()}", None)
        if answer is None:
            raise TaskError(f"{method}: a cell in process does not know it")
        return msgspec.json.encode(answer(request))

    def close(self) -> None:
        """Do nothing: a client does not end it."""

    def _on_submit(self, request: dict[str, msgspec.Raw]) -> SubmitReport:
        each = msgspec.json.decode(request["tasks"], type=list[Submission])
        return SubmitReport([self._submitted(one) for one in each])

    def _submitted(self, one: Submission) -> Verdict:
        name = _full(one.task)
        if one.group or one.after or one.after_any:
            text = "a cell in process knows neither groups nor chains"
            return Verdict(name, error=Problem("invalid_input", text, "try them with raftcron dev"))
        known = self._held.get(name)
        if known is not None and _content(known.submission) != _content(one):
            return Verdict(name, error=Problem("other_content", f"key {one.key} is another task's"))
        is_new = known is None
        if known is None:
            if self._registry.get(one.handler) is None:
                text, hint = (
                    f"no worker serves {one.handler}",
                    "import the module that registers it",
                )
                return Verdict(name, error=Problem("unknown_handler", text, hint))
            known = self._new(name, one)
            if known.due_ms <= self._now_ms:
                self._run_until(self._now_ms)
        view = known.view
        at = str(view.scheduled_at)
        return Verdict(name, view.state, at, view.at_ms, is_new, view.revision)

    def _new(self, name: str, one: Submission) -> _Held:
        due_ms = max(self._now_ms, one.at_ms or self._now_ms + one.delay_ms)
        view = TaskView(
            task=name,
            queue=one.queue or one.handler,
            key=one.key,
            handler=one.handler,
            state="waiting",
            at_ms=due_ms,
            scheduled_at=_iso(due_ms),
            submitted_at=_iso(self._now_ms),
            revision=next(self._revisions),
            priority=one.priority,
            payload=msgspec.json.decode(one.payload),
        )
        self._held[name] = self._waits[name] = held = _Held(one, view, due_ms)
        return held

    def _on_get(self, request: dict[str, msgspec.Raw]) -> TaskView:
        return self._known(msgspec.json.decode(request["name"])).view

    def _on_cancel(self, request: dict[str, msgspec.Raw]) -> TasksReport:
        return self._changed(request, state="cancelled", ended_at=_iso(self._now_ms))

    def _on_runnow(self, request: dict[str, msgspec.Raw]) -> TasksReport:
        report = self._changed(request)
        for view in report.tasks:
            self._held[view.task].due_ms = self._now_ms
        self._run_until(self._now_ms)
        return TasksReport(report.count, [self._held[one.task].view for one in report.tasks])

    def _changed(self, request: dict[str, msgspec.Raw], **fields: Any) -> TasksReport:
        if "names" not in request:
            raise TaskError("a cell in process changes tasks by name alone")
        names = msgspec.json.decode(request["names"], type=list[str])
        changed = []
        for name in names:
            held = self._waiting(name)
            self._show(held, **fields)
            changed.append(held.view)
        return TasksReport(len(changed), changed)

    def _on_reschedule(self, request: dict[str, msgspec.Raw]) -> TaskView:
        said = {name: msgspec.json.decode(value) for name, value in request.items()}
        held = self._waiting(said["name"])
        if said.get("revision", held.view.revision) != held.view.revision:
            raise TaskError(f"{held.view.task} was changed since revision {said['revision']}")
        if "at_ms" in said or "delay_ms" in said:
            asked_ms = said.get("at_ms", self._now_ms + said.get("delay_ms", 0))
            held.due_ms = max(self._now_ms, asked_ms)
            self._show(held, at_ms=held.due_ms, scheduled_at=_iso(held.due_ms))
        if "priority" in said:
            self._show(held, priority=said["priority"])
        if "payload" in said:
            self._show(held, payload=said["payload"])
        self._run_until(self._now_ms)
        return held.view

    def _known(self, name: str) -> _Held:
        held = self._held.get(_full(name))
        if held is None:
            raise UnknownTask(f"there is no task {name}")
        return held

    def _waiting(self, name: str) -> _Held:
        held = self._known(name)
        if held.view.is_over:
            raise TaskOver(f"{name} is {held.view.state}")
        return held

    # ---- runs

    def _attempt(self, held: _Held) -> None:
        """Run a task once, and note what becomes of it."""
        one = held.submission
        self._show(held, state="running")
        held.tries += 1
        handler = self._registry.get(one.handler)
        ran = _ran(handler.function if handler else one.handler, held)
        held.runs = [*held.runs, ran]
        wait_ms = round((ran.after or 0) * 1000) or one.backoff_ms
        if ran.outcome is Result.SNOOZE:
            held.tries -= 1
        is_again = ran.outcome is Result.SNOOZE or (
            ran.outcome in (Result.RETRY, Result.RAISED) and held.tries < one.tries
        )
        if is_again:
            held.due_ms = self._now_ms + max(1, wait_ms)
            self._show(held, state="waiting")
        else:
            state = "succeeded" if ran.succeeded else "failed"
            fields = {"result": ran.detail} if ran.succeeded else {"reason": ran.detail}
            self._show(held, state=state, ended_at=_iso(self._now_ms), **fields)

    def _show(self, held: _Held, **fields: Any) -> None:
        held.view = msgspec.structs.replace(held.view, revision=next(self._revisions), **fields)
        if held.view.state == "waiting":
            self._waits[held.view.task] = held
        else:
            self._waits.pop(held.view.task, None)


def _ran(function: Any, held: _Held) -> Ran:
    """Run a handler, in a thread of its own: it may be async, and the caller in a loop."""
    payload = msgspec.json.encode(held.view.payload)
    scheduled = _EPOCH + timedelta(milliseconds=held.view.at_ms)
    ran: list[Ran] = []

    def call() -> None:
        ran.append(
            run(
                function,
                payload,
                attempt=len(held.runs) + 1,
                scheduled=scheduled,
                labels=held.submission.labels,
                traceparent=held.submission.traceparent,
            )
        )

    thread = threading.Thread(target=call, name="raftcron-local")
    thread.start()
    thread.join()
    return ran[0]


def _full(name: str) -> str:
    return name if "/" in name else f"default/{name}"


def _content(one: Submission) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(one))
    fields.pop("traceparent", None)
    return fields


def _iso(at_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=at_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
