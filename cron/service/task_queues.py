"""Queues of tasks: what a file declares, and what there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from cron.access import names_within
from cron.api.task_queues import (
    PutQueuesReport,
    PutQueuesRequest,
    QueueChange,
    TaskQueuesQuery,
    TaskQueuesReport,
    TaskQueueView,
)
from cron.errors import Conflict, LimitExceeded, NotAllowed
from cron.job import OnLost
from cron.service import applying
from cron.service.queue_file import DEFAULTS, read_queues
from cron.service.replica import Replica
from cron.state import tasks as t
from cron.state.letters import keeps_all
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.protocol.names import TASK_MARK, short_job_name, split_job_name

_WORDS: Final = {
    "waiting_max": "waiting",
    "rate_per_s": "rate",
    "remember_s": "remember",
    "waits_for_handler": "unknown-handler",
}


async def put(replica: Replica, request: PutQueuesRequest) -> PutQueuesReport:
    """Apply a file of queues: all of it, or nothing; or only say what would change.

    Raises:
        CrontabError, InvalidInput: the file has errors. Conflict: a queue is of another source.
        NotAllowed: a queue is not within what the caller may change.
    """
    read = read_queues(request.text, file=request.source)
    changes: list[QueueChange] = []

    def build() -> t.PutQueues | None:
        state = replica.state
        specs = [_resolved(spec, state.format) for spec in read]
        changes[:] = _changes(state, request, specs)
        _check(state, request, changes)
        changed = {one.queue for one in changes if one.action in ("added", "changed")}
        removed = tuple(one.queue for one in changes if one.action in ("removed", "kept"))
        if request.is_dry_run or not (changed or removed):
            return None
        put_specs = tuple(spec for spec in specs if spec.name in changed)
        return t.PutQueues(request.source, state.queues_revision, put_specs, removed, request.by)

    full = LimitExceeded("the cell has as many queues as it may have", "remove some")
    await applying.apply(replica, build, "queues", {Verdict.TOO_MANY: full})
    return PutQueuesReport(
        source=request.source,
        changes=sorted(changes, key=lambda one: one.queue),
        revision=replica.state.queues_revision,
        is_dry_run=request.is_dry_run,
    )


def _resolved(spec: t.QueueSpec, format_: int) -> t.QueueSpec:
    """Return a queue with all that its file leaves open, as the format of State says it."""
    usual = t.defaults_in(format_)
    if usual is None:
        return spec
    return msgspec.structs.replace(spec, defaults=t.with_defaults(spec.defaults, usual))


def _changes(
    state: State, request: PutQueuesRequest, specs: Sequence[t.QueueSpec]
) -> Iterator[QueueChange]:
    """Yield what a file changes; a queue that is removed is kept while it has tasks."""
    for spec in specs:
        known = state.queues.get(spec.name)
        if known is None:
            yield QueueChange("added", spec.name, spec.handler)
            continue
        what = [
            _WORDS.get(field, field)
            for field in t.DECLARED
            if getattr(known, field) != getattr(spec, field)
        ]
        if known.source != request.source:
            what.append("source")
        note = _changed_defaults(known.defaults, spec.defaults)
        yield QueueChange("changed" if what else "unchanged", spec.name, spec.handler, what, note)
    declared = {spec.name for spec in specs}
    for queue in state.queues.values() if request.prune else ():
        if queue.source == request.source and queue.name not in declared:
            if queue.tasks or queue.spilled:
                count = len(queue.tasks) + queue.spilled
                note = f"it goes once its {count:,} tasks are over and forgotten"
                yield QueueChange("kept", queue.name, queue.handler, [], note)
            else:
                yield QueueChange("removed", queue.name, queue.handler)


def _changed_defaults(before: t.TaskOptions, after: t.TaskOptions) -> str:
    """Return what tasks that say nothing do from now on, of all that changes, as the file says it.
    A queue of an older format has other defaults than a new one, until it is applied again."""
    old, new = (t.with_defaults(one, t.BEFORE) for one in (before, after))
    pairs = {key: (getattr(old, field), getattr(new, field)) for key, field in DEFAULTS.items()}
    return ", ".join(key for key, (was, will_be) in pairs.items() if was != will_be)


def _check(state: State, request: PutQueuesRequest, changes: Sequence[QueueChange]) -> None:
    within = names_within(request.within)
    for change in changes:
        short = short_job_name(change.queue)
        if within is not None and change.action != "unchanged" and not within(change.queue):
            text = f"queue {short} is not within {', '.join(request.within)}"
            raise NotAllowed(text, "an editor of its tenant may change it")
        known = state.queues.get(change.queue)
        if known is not None and known.source not in ("", request.source):
            hint = "name the same --source, or remove it from the other file first"
            raise Conflict(f"queue {short} is declared by {known.source}", hint)


async def listed(replica: Replica, query: TaskQueuesQuery) -> TaskQueuesReport:
    """Return the queues that a caller may see, by name."""
    within, dead = names_within(query.within), _dead(replica.state, query.tenant)
    found = [
        _view(replica, queue, dead[name])
        for name, queue in sorted(replica.state.queues.items())
        if query.queue in ("", name)
        and (not query.tenant or name.startswith(f"{query.tenant}/"))
        and (within is None or within(name))
    ]
    return TaskQueuesReport(queues=found)


def _dead(state: State, tenant: str) -> Counter[str]:
    """Return how many dead letters each queue of a tenant, or of all, has."""
    piles = [pile for name, pile in state.piles.items() if tenant in ("", name)]
    names = (state.by_number[key[0]].name for pile in piles for key in pile.letters)
    return Counter(name.partition(TASK_MARK)[0] for name in names)


def _view(replica: Replica, queue: t.QueueRecord, dead: int) -> TaskQueueView:
    defaults, notes, state = t.defaults_of(queue), [], replica.state
    if keeps_all(state) and state.piles.is_full(queue.tenant):
        notes.append(
            f"tenant {queue.tenant} has too many dead letters, and hands over no more tasks:"
            " redrive or drop some"
        )
    if replica.leader.epoch is not None and not replica.intake.serves(queue.handler):
        notes.append(f"no worker serves {queue.handler}")
    if queue.waiting >= queue.waiting_max:
        notes.append("it is full")
    return TaskQueueView.of(
        defaults,
        queue,
        queue=queue.name,
        tenant=split_job_name(queue.name)[0],
        on_lost=OnLost(defaults.on_lost).name.lower(),
        notes=notes,
        on_disk=queue.spilled,
        dead=dead,
    )
