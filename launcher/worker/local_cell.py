"""A cell in the caller's own process, for tests: `with testing.cell() as cell:`.

A submitted task that is due runs at once, in the thread that submitted it, and is over when
`submit` returns. Time stands still unless a test moves it. Keys, tries, delays, cancels, chains and
groups work as in a cell; queues have no limits, and priorities no effect.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from launcher.client.errors import TaskError, TaskOver, UnknownTask, error_of
from launcher.client.messages import (
    GroupView,
    Problem,
    RefusedTask,
    Submission,
    SubmitReport,
    TaskChange,
    TaskPage,
    TasksReport,
    TaskView,
    Verdict,
)
from launcher.client.options import TRIES_UNLIMITED
from launcher.clock import wall_ms
from launcher.lengths import Length, length_ms
from launcher.worker.local_chains import Chains, full_name, group_of, in_order
from launcher.worker.registry import REGISTRY, Registry
from launcher.worker.testing import Ran, run
from launcher.worker.wire import Result

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BACKOFF_MS: Final = 1_000
_BACKOFF_MS_MAX: Final = 3_600_000
_DEADLINE_MS: Final = 31 * 86_400_000
"""As a queue of a cell has them: a task is tried until it succeeds, fails for good, or its deadline
is over, after a second, then twice as long each time, up to an hour."""
RUNS_MAX: Final = 10_000
"""Attempts of one `advance`: more of them are a handler that submits itself for ever."""
CHANGES_KEPT: Final = 100_000
"""Changes that `watch` can tell of."""


class _Changes:
    """The newest changes of tasks, by number."""

    def __init__(self) -> None:
        self.last = 0
        self._kept: deque[tuple[int, TaskView]] = deque(maxlen=CHANGES_KEPT)

    def note(self, view: TaskView) -> None:
        """Add a change."""
        self.last += 1
        self._kept.append((self.last, view))

    def after(self, number: int) -> list[tuple[int, TaskView]]:
        """Return the changes after one."""
        return [one for one in self._kept if one[0] > number]


class _Held(msgspec.Struct):
    """A task: as it was submitted, as it is shown, and its attempts so far."""

    submission: Submission
    view: TaskView
    due_ms: int
    tries: int = 0
    runs: list[Ran] = []
    redriven_ms: int = 0


class LocalCell:
    """Runs tasks in process. `tasks` are by name, in the order of their submits; `now` is the time
    that the cell believes."""

    def __init__(self, registry: Registry = REGISTRY, now: datetime | None = None) -> None:
        self._registry = registry
        self._now_ms = wall_ms() if now is None else (now - _EPOCH) // timedelta(milliseconds=1)
        self._views: dict[str, TaskView] = {}
        self._chains = Chains(self._views)
        self._held: dict[str, _Held] = {}
        self._waits: dict[str, _Held] = {}
        self._revisions = itertools.count(1)
        self._changes = _Changes()

    @property
    def now(self) -> datetime:
        """Return the cell's time."""
        return _EPOCH + timedelta(milliseconds=self._now_ms)

    @property
    def tasks(self) -> dict[str, TaskView]:
        """Return all tasks by name, as they are now."""
        return dict(self._views)

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
            ready = (held for held in self._waits.values() if not held.view.waits_for)
            first = min(ready, key=lambda held: held.due_ms, default=None)
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

    def rows(self, method: str, content: bytes, deadline_s: float) -> list[bytes]:
        """Return the changes after a position; nothing where nothing has changed.

        Raises:
            TaskError: it is another call.
        """
        if method != "Watch":
            raise TaskError(f"{method}: a cell in process does not know it")
        request = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        wanted = msgspec.json.decode(request["filter"], type=_Wanted)
        said = msgspec.json.decode(request["position"], type=str)
        if not said:
            return [msgspec.json.encode(TaskChange(str(self._changes.last)))]
        changes = [
            TaskChange(str(number), view)
            for number, view in self._changes.after(int(said))
            if wanted.has(view)
        ]
        return [msgspec.json.encode(one) for one in changes]

    def close(self) -> None:
        """Do nothing: a client does not end it."""

    def _on_submit(self, request: dict[str, msgspec.Raw]) -> SubmitReport:
        each = msgspec.json.decode(request["tasks"], type=list[Submission])
        ordered, circle = in_order(each)
        verdicts = {id(one): self._submitted(one, circle) for one in ordered}
        return SubmitReport([verdicts[id(one)] for one in each])

    def _submitted(self, one: Submission, circle: Sequence[str] = ()) -> Verdict:
        name = full_name(one.task)
        known = self._held.get(name)
        if known is not None and _content(known.submission) != _content(one):
            return Verdict(name, error=Problem("other_content", f"key {one.key} is another task's"))
        is_new = known is None
        if known is None:
            problem = self._refusal(one, name, circle)
            if problem is not None:
                return Verdict(name, error=problem)
            known = self._new(name, one)
            self._settle([known])
            self._run_until(self._now_ms)
        view = known.view
        at = str(view.scheduled_at)
        return Verdict(name, view.state, at, view.at_ms, is_new, view.revision)

    def _refusal(self, one: Submission, name: str, circle: Sequence[str]) -> Problem | None:
        if self._registry.get(one.handler) is None:
            text, hint = f"no worker serves {one.handler}", "import the module that registers it"
            return Problem("unknown_handler", text, hint)
        if name in circle:
            return Problem("invalid_input", f"the tasks wait for each other: {', '.join(circle)}")
        return self._chains.refusal(one)

    def _new(self, name: str, one: Submission) -> _Held:
        due_ms = max(self._now_ms, one.at_ms or self._now_ms + one.delay_ms)
        self._views[name] = view = TaskView(
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
            collection=one.collection,
            labels=one.labels,
            group=group_of(one),
            after=[full_name(other) for other in one.after],
            after_any=[full_name(other) for other in one.after_any],
            waits_for=self._chains.left(one),
            tries=one.tries or TRIES_UNLIMITED,
            backoff_ms=one.backoff_ms or _BACKOFF_MS,
            deadline_ms=one.deadline_ms or _DEADLINE_MS,
            timeout_ms=one.timeout_ms,
            on_lost=one.on_lost or "retry",
        )
        self._held[name] = self._waits[name] = held = _Held(one, view, due_ms)
        self._changes.note(view)
        self._chains.join(one, name, _iso(self._now_ms))
        return held

    def _settle(self, some: Iterable[_Held]) -> None:
        """Let go of tasks that wait for others, as far as these are over, and cancel those of which
        one has failed."""
        for held in some:
            one, view = held.submission, held.view
            if view.is_over or not (one.after or one.after_any):
                continue
            if failed := self._chains.failure(one):
                before = self._views.get(failed)  # None: a group
                is_dead = before is None or before.is_dead
                reason = {"reason": "predecessor", "ended_at": _iso(self._now_ms)}
                self._show(held, state="cancelled", waits_for=0, is_dead=is_dead, **reason)
                self._ended()
            elif view.waits_for and not (left := self._chains.left(one)):
                held.due_ms = max(held.due_ms, self._now_ms)
                at = {"at_ms": held.due_ms, "scheduled_at": _iso(held.due_ms)}
                self._show(held, waits_for=left, **at)
            elif view.waits_for:
                self._show(held, waits_for=left)

    def _ended(self) -> None:
        """Act on a task that is over, or a group that is closed."""
        self._chains.complete(_iso(self._now_ms))
        self._settle([held for held in self._waits.values() if held.view.waits_for])

    # ---- groups

    def _on_getgroup(self, request: dict[str, msgspec.Raw]) -> GroupView:
        return self._chains.view(self._chains.group(msgspec.json.decode(request["name"])))

    def _on_closegroup(self, request: dict[str, msgspec.Raw]) -> GroupView:
        group = self._chains.group(msgspec.json.decode(request["name"]))
        if "on_complete" in request:
            hook = msgspec.json.decode(request["on_complete"], type=Submission)
            hook.after_any = [*hook.after_any, group.name]
            was_closed, group.is_closed = group.is_closed, True
            if group.hook is not None and _content(group.hook) != _content(hook):
                raise error_of("other_content", f"another task follows group {group.name}")
            problem = self._submitted(hook).error
            if problem is not None:
                group.is_closed = was_closed
                raise error_of(problem.code, problem.message, problem.hint)
            group.hook = hook
        group.is_closed = True
        self._ended()
        self._run_until(self._now_ms)
        return self._chains.view(group)

    def _on_cancelgroup(self, request: dict[str, msgspec.Raw]) -> TasksReport:
        group = self._chains.group(msgspec.json.decode(request["name"]))
        open_ = [one for one in group.members if not self._views[one].is_over]
        group.is_closed = True
        for name in open_:
            self._show(self._held[name], state="cancelled", ended_at=_iso(self._now_ms))
        self._ended()
        self._run_until(self._now_ms)
        return TasksReport(len(open_), [self._views[name] for name in open_])

    # ---- tasks

    def _on_list(self, request: dict[str, msgspec.Raw]) -> TaskPage:
        wanted = msgspec.json.decode(request["filter"], type=_Wanted)
        found = [one for one in reversed(self._views.values()) if wanted.has(one)]
        return TaskPage(tasks=found)

    def _on_get(self, request: dict[str, msgspec.Raw]) -> TaskView:
        return self._known(msgspec.json.decode(request["name"])).view

    def _on_cancel(self, request: dict[str, msgspec.Raw]) -> TasksReport:
        if "filter" in request:
            found = [one for one in self._on_list(request).tasks if not one.is_over]
            if msgspec.json.decode(request["is_dry_run"]):
                return TasksReport(len(found), found)
            request = {"names": msgspec.Raw(msgspec.json.encode([one.task for one in found]))}
        names = msgspec.json.decode(request["names"], type=list[str])
        other = [name for name in names if not self._is_cancelled(name)]
        report = self._changed(other, state="cancelled", ended_at=_iso(self._now_ms))
        self._ended()
        self._run_until(self._now_ms)
        return report  # of one that is cancelled already it says nothing, as a cell does

    def _is_cancelled(self, name: str) -> bool:
        held = self._held.get(full_name(name))
        return held is not None and held.view.state == "cancelled"

    def _on_runnow(self, request: dict[str, msgspec.Raw]) -> TasksReport:
        report = self._changed(msgspec.json.decode(request["names"], type=list[str]))
        for view in report.tasks:
            self._held[view.task].due_ms = self._now_ms
        return self._run_due(report)

    def _run_due(self, report: TasksReport) -> TasksReport:
        """Run what is due; return the report with the tasks as they are then."""
        self._run_until(self._now_ms)
        views = [self._held[one.task].view for one in report.tasks]
        return msgspec.structs.replace(report, tasks=views)

    def _changed(self, names: Sequence[str], **fields: Any) -> TasksReport:
        def change(name: str) -> None:
            self._show(self._waiting(name), **fields)

        return self._each(dict.fromkeys(names, change))

    def _each(self, changes: Mapping[str, Callable[[str], object]]) -> TasksReport:
        """Make changes of tasks by name; those that are refused beside others are errors.

        Raises:
            TaskError: the only one is refused.
        """
        report = TasksReport()
        for name, change in changes.items():
            try:
                change(name)
                report.tasks.append(self._known(name).view)
            except TaskError as error:
                if len(changes) == 1:
                    raise
                problem = Problem(error.code, str(error), error.hint)
                report.errors.append(RefusedTask(full_name(name), problem))
        report.count = len(report.tasks)
        return report

    def _on_getmany(self, request: dict[str, msgspec.Raw]) -> TasksReport:
        names = msgspec.json.decode(request["names"], type=list[str])
        return self._each(dict.fromkeys(names, self._known))

    def _on_reschedulemany(self, request: dict[str, msgspec.Raw]) -> TasksReport:
        each = msgspec.json.decode(request["tasks"], type=list[dict[str, Any]])
        return self._run_due(self._each({said["name"]: partial(self._move, said) for said in each}))

    def _on_reschedule(self, request: dict[str, msgspec.Raw]) -> TaskView:
        said = {name: msgspec.json.decode(value) for name, value in request.items()}
        self._move(said, said["name"])
        self._run_until(self._now_ms)
        return self._known(said["name"]).view

    def _move(self, said: dict[str, Any], name: str) -> None:
        """Give a task another time, priority or payload."""
        held = self._waiting(name)
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

    def _known(self, name: str) -> _Held:
        held = self._held.get(full_name(name))
        if held is None:
            raise UnknownTask(f"there is no task {name}")
        return held

    def _waiting(self, name: str) -> _Held:
        held = self._known(name)
        if held.view.is_over:
            hint = "it is a dead letter: client.redrive(task) runs it" if held.view.is_dead else ""
            raise TaskOver(f"{name} is {held.view.state}", hint)
        return held

    # ---- dead letters

    def _on_dead(self, request: dict[str, msgspec.Raw]) -> dict[str, Any]:
        letters = [_letter(held) for held in self._letters(request)]
        return {"letters": letters, "total": len(letters)}

    def _on_redrive(self, request: dict[str, msgspec.Raw]) -> dict[str, Any]:
        found = self._letters(msgspec.json.decode(request["query"], type=dict[str, msgspec.Raw]))
        for held in found:
            held.tries, held.due_ms, held.redriven_ms = 0, self._now_ms, self._now_ms
            fields = {"reason": None, "ended_at": None, "is_dead": False}
            self._show(held, state="waiting", **fields)
        self._run_until(self._now_ms)
        return {"launches": [_letter(held)["launch"] for held in found]}

    def _on_dropdead(self, request: dict[str, msgspec.Raw]) -> dict[str, Any]:
        found = self._letters(msgspec.json.decode(request["query"], type=dict[str, msgspec.Raw]))
        for held in found:
            self._show(held, is_dead=False)
        return {"launches": [_letter(held)["launch"] for held in found]}

    def _letters(self, query: dict[str, msgspec.Raw]) -> list[_Held]:
        """Return the dead letters that a query means.

        Raises:
            TaskError: the task that it names is no dead letter.
        """
        said = {name: msgspec.json.decode(value) for name, value in query.items()}
        dead = [held for held in self._held.values() if held.view.is_dead]
        if task := said.get("task"):
            dead = [held for held in dead if held.view.task == full_name(task)]
            if not dead:
                raise error_of("not_found", f"task {task} is not a dead letter")
        wanted = _Wanted(said.get("queue", ""), said.get("tenant", ""))
        return [
            held
            for held in dead
            if wanted.has(held.view)
            and said.get("key") in (None, held.view.key)
            and said.get("pool") in (None, held.view.handler)
            and said.get("reason") in (None, held.view.state)
        ]

    # ---- runs

    def _attempt(self, held: _Held) -> None:
        """Run a task once, and note what becomes of it."""
        one = held.submission
        self._show(held, state="running")
        held.tries += 1
        handler = self._registry.get(one.handler)
        results = self._chains.results(one)
        ran = _ran(handler.function if handler else one.handler, held, results)
        held.runs = [*held.runs, ran]
        view = held.view
        rest_ms = min(view.backoff_ms << min(held.tries - 1, 32), _BACKOFF_MS_MAX)
        wait_ms = round((ran.after or 0) * 1000) or rest_ms
        if ran.outcome is Result.SNOOZE:
            held.tries -= 1
        is_again = ran.outcome is Result.SNOOZE or (
            ran.outcome in (Result.RETRY, Result.RAISED) and held.tries < view.tries
        )
        again_ms = self._now_ms + max(1, wait_ms)
        if is_again and again_ms < max(view.at_ms, held.redriven_ms) + view.deadline_ms:
            held.due_ms = again_ms
            self._show(held, state="waiting")
        else:
            state = "succeeded" if ran.succeeded else "failed"
            fields = {"result": ran.detail} if ran.succeeded else {"reason": ran.detail}
            is_dead = not ran.succeeded
            self._show(held, state=state, is_dead=is_dead, ended_at=_iso(self._now_ms), **fields)
            self._ended()

    def _show(self, held: _Held, **fields: Any) -> None:
        held.view = msgspec.structs.replace(held.view, revision=next(self._revisions), **fields)
        self._views[held.view.task] = held.view
        self._changes.note(held.view)
        if held.view.state == "waiting":
            self._waits[held.view.task] = held
        else:
            self._waits.pop(held.view.task, None)


def _letter(held: _Held) -> dict[str, Any]:
    """Return the dead letter of a task as a cell shows it."""
    view = held.view
    return {
        "launch": f"{view.task}@{view.scheduled_at}",
        "pool": view.handler,
        "state": view.state,
        "detail": view.reason,
        "attempt": len(held.runs),
        "tries": held.tries,
    }


class _Wanted(msgspec.Struct):
    """The filter of a list, as `cron.api.tasks.TaskFilter`."""

    queue: str = ""
    tenant: str = ""
    group: str = ""
    collection: str = ""
    state: str = ""
    from_ms: int = 0
    to_ms: int = 0
    prefix: str = ""

    def has(self, view: TaskView) -> bool:
        """Return whether a task fits."""
        queue = view.task.rpartition(":")[0]
        return (
            (not self.queue or queue == full_name(self.queue))
            and (not self.tenant or queue.startswith(f"{self.tenant}/"))
            and (not self.group or view.group == full_name(self.group))
            and self.collection in ("", view.collection)
            and self.state in ("", view.state)
            and view.at_ms >= self.from_ms
            and (not self.to_ms or view.at_ms < self.to_ms)
            and view.key.startswith(self.prefix)
        )


def _ran(function: Any, held: _Held, results: dict[str, str]) -> Ran:
    """Run a handler, in a thread of its own: it may be async, and the caller in a loop."""
    payload = msgspec.json.encode(held.view.payload)
    scheduled = _EPOCH + timedelta(milliseconds=held.view.at_ms)
    with ThreadPoolExecutor(1, thread_name_prefix="raftcron-local") as thread:
        return thread.submit(
            run,
            function,
            payload,
            attempt=len(held.runs) + 1,
            scheduled=scheduled,
            labels=held.submission.labels,
            traceparent=held.submission.traceparent,
            results=results,
        ).result()


def _content(one: Submission) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(one))
    fields.pop("traceparent", None)
    return fields


def _iso(at_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=at_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
