"""Changes of many tasks by their names: calls of up to 1,000, and an outcome for each task.

A task that is refused stops no other one. A call that fails is the outcome of all its tasks, and
the calls after it are made. A task that is named twice is changed twice, in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from launcher.client.batching import CALL_BYTES_MAX
from launcher.client.core import Core, rescheduling
from launcher.client.errors import BadTask, NotAllChanged, TaskError, error_of
from launcher.client.messages import TASKS_MAX, TasksReport, TaskView
from launcher.client.options import name_of
from launcher.protocol.names import BadName, parse_task_name

NAMED_MAX: Final = 50
"""Tasks that one GetMany names: over HTTPS they are in the address of the request."""

Change: TypeAlias = Sequence[Any]
"""A task for `reschedule_many`: (task, changes)."""
_Outcome: TypeAlias = TaskView | TaskError


class _Asked(NamedTuple):
    """A task by its full name, and the request that changes it beside others, if it is one."""

    name: str
    request: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        """Return how many bytes of a call are its payload."""
        return len(self.request.get("payload", b"")) if self.request else 0


def change_all(core: Core, method: str, tasks: Iterable[Any]) -> list[TaskView]:
    """Make a change, Cancel or RunNow, of tasks by name; return each as it is then, in order.

    Raises:
        NotAllChanged: some were refused. BadTask: one is no task; calls before it were made.
    """
    return _changed(core, method, (_Asked(_full_name(one)) for one in tasks))


def reschedule_all(core: Core, changes: Iterable[Change]) -> list[TaskView]:
    """Reschedule tasks, each with its own changes; return each as it is then, in order.

    Raises:
        NotAllChanged: some were refused. BadTask: one is no task, or its changes are not valid;
            calls before it were made.
    """
    return _changed(core, "RescheduleMany", map(_rescheduled, changes))


def _rescheduled(change: Change) -> _Asked:
    is_pair = isinstance(change, Sequence) and not isinstance(change, str) and len(change) == 2
    if not is_pair or not isinstance(change[1], dict):
        hint = 'reschedule_many([(task, {"delay": "1h"}), (task, {"priority": 0})])'
        raise BadTask(f"{str(change)[:100]} is not (task, changes)", hint)
    name = _full_name(change[0])
    usual = {"delay": None, "at": None, "priority": None}
    request = rescheduling(name, usual | change[1])
    if request.keys() <= {"name", "revision"}:
        raise BadTask(f"{name}: nothing is to change", "say delay, at, priority or payload")
    return _Asked(name, request)


def _full_name(task: Any) -> str:
    try:
        return parse_task_name(name_of(task))
    except BadName as error:
        raise BadTask(str(error)) from error


def _changed(core: Core, method: str, asked: Iterable[_Asked]) -> list[TaskView]:
    outcomes: list[_Outcome] = []
    for portion in _portions(asked):
        outcomes += _outcomes(core, method, portion)
    views = [one for one in outcomes if isinstance(one, TaskView)]
    if len(views) < len(outcomes):
        raise NotAllChanged(outcomes)
    return views


def _portions(asked: Iterable[_Asked]) -> Iterator[list[_Asked]]:
    """Yield tasks call by call; no call has a task twice."""
    portion = dict[str, _Asked]()
    size = 0
    for one in asked:
        is_full = len(portion) >= TASKS_MAX or size + one.size > CALL_BYTES_MAX
        if portion and (is_full or one.name in portion):
            yield list(portion.values())
            portion, size = {}, 0
        portion[one.name] = one
        size += one.size
    if portion:
        yield list(portion.values())


def _outcomes(core: Core, method: str, portion: Sequence[_Asked]) -> list[_Outcome]:
    """Make one call, and return what became of each of its tasks."""
    names = [one.name for one in portion]
    each = [one.request for one in portion if one.request is not None]
    known = _answered(core, method, {"tasks": each} if each else {"names": names}, names)
    rest = [name for name in names if name not in known]  # they were cancelled before
    for at in range(0, len(rest), NAMED_MAX):
        some = rest[at : at + NAMED_MAX]
        known |= _answered(core, "GetMany", {"names": some}, some)
    return [known.get(name) or TaskError(f"{name}: the cell says nothing of it") for name in names]


def _answered(
    core: Core, method: str, request: dict[str, Any], names: Sequence[str]
) -> dict[str, _Outcome]:
    """Return what one call says of tasks, by name; its own error if it failed."""
    try:
        report = core.ask(method, request, TasksReport)
    except TaskError as error:
        return dict.fromkeys(names, error)
    known: dict[str, _Outcome] = {view.task: view for view in report.tasks}
    for one in report.errors:
        known[one.task] = error_of(one.error.code, one.error.message, one.error.hint)
    return known
