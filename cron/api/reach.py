"""What a request is about, as scopes of `cron.access`: the column `reach` of `cron.api.table`.

A function here returns the scopes that a caller's role has to cover, all of them. A list has none:
the guard writes the scopes that its caller may see into the request's field `within`, and the
answer is of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from cron.access import CELL
from cron.api.checks import is_wild
from cron.api.tasks import TaskSubmission, predecessor
from cron.errors import InvalidInput
from cron.scopes import EACH_TENANT
from launcher.protocol.names import parse_launch_name


def anything(_request: Any) -> tuple[str, ...]:
    """Of a call for which a role in any scope will do."""
    return ()


def cell(_request: Any) -> tuple[str, ...]:
    """Of a call about the whole cell, or about what belongs to no tenant."""
    return (CELL,)


def job(request: Any) -> tuple[str, ...]:
    """Of a call about one job, or about a task in its queue; about the cell where it names none."""
    return (_queue_of(request.job) or CELL,)


def jobs(request: Any) -> tuple[str, ...]:
    """Of a call about several jobs, by their names."""
    return tuple(request.jobs)


def launch(request: Any) -> tuple[str, ...]:
    """Of a call about one launch."""
    return (_job_of(request.launch),)


def pattern(request: Any) -> tuple[str, ...]:
    """Of a change of all jobs that match a pattern."""
    return (request.pattern,)


def tenant(request: Any) -> tuple[str, ...]:
    """Of a call about the limits of a tenant; about the cell where it is of all or of each."""
    is_one = request.tenant not in (CELL, EACH_TENANT)
    return (f"{request.tenant}/*",) if is_one else (CELL,)


def gate(request: Any) -> tuple[str, ...]:
    """Of a gate, which holds what fits all that it names."""
    if not request.tenant:
        return (request.jobs or CELL,)
    within, _, name = request.jobs.partition("/")
    is_plain = name and "[" not in within  # a class may match the slash
    return (f"{request.tenant}/{name if is_plain else '*'}",)


def listed(request: Any) -> tuple[str, ...]:
    """Of a list: nothing, or the one launch or job that it names."""
    if getattr(request, "launch", ""):
        return (_job_of(request.launch),)
    for field in ("job", "jobs", "pattern"):
        named = getattr(request, field, "")
        if named and not is_wild(named):
            return (_queue_of(named),)
    return ()


def dead(request: Any) -> tuple[str, ...]:
    """Of a question about dead letters: the launch, job, task and queue that it names, or
    nothing."""
    named = [_queue_of(request.task)] if request.task else []
    named += [request.queue] if request.queue else []
    return (*listed(request), *named)


def letters(request: Any) -> tuple[str, ...]:
    """Of a change of the dead letters that a query chooses."""
    return dead(request.query)


def submissions(request: Any) -> tuple[str, ...]:
    """Of tasks that are handed over: their queues and groups, and those of what they come after,
    whose results their handlers get."""
    return tuple(sorted({scope for one in request.tasks for scope in _of_submission(one)}))


def group(request: Any) -> tuple[str, ...]:
    """Of a call about one group, whose name counts as that of a queue; and of the task that is to
    follow it."""
    hook = getattr(request, "on_complete", None)
    return (request.name, *(_of_submission(hook) if hook is not None else ()))


def task(request: Any) -> tuple[str, ...]:
    """Of a call about one task: its queue."""
    return (_queue_of(request.name),)


def tasks(request: Any) -> tuple[str, ...]:
    """Of a call about tasks: the queues of those that it names, and the queue of its filter."""
    found = {_queue_of(name) for name in getattr(request, "names", ())}
    chosen = getattr(request, "filter", None)
    if chosen is not None:
        found.update(queues(chosen))
    return tuple(sorted(found))


def queues(request: Any) -> tuple[str, ...]:
    """Of a question about queues: the one that it names, or nothing."""
    return (request.queue,) if request.queue else ()


def _of_submission(one: TaskSubmission) -> Iterator[str]:
    yield _queue_of(one.name)
    if one.group:
        yield one.full_group
    for name in one.follows:
        with suppress(InvalidInput):  # the task is refused for it
            yield _queue_of(predecessor(name))


def _queue_of(name: str) -> str:
    return name.partition(":")[0]


def _job_of(name: str) -> str:
    """The job of a launch; of a task's launch its queue."""
    return _queue_of(parse_launch_name(name).job)
