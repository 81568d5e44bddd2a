"""Dead letters as people ask for them: by filter, and the change that launches or forgets them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from cron.api.dead import (
    DEAD_MAX,
    DeadChange,
    DeadOutcome,
    DeadQuery,
    DeadReport,
    is_of_some,
    names_of,
)
from cron.api.launches import LaunchView
from cron.errors import LimitExceeded, NotFound
from cron.limits import ATTEMPTS_MAX
from cron.pace import in_turns
from cron.scheduler.admission import Admission
from cron.scheduler.job_filter import JobFilter, selector
from cron.service.launches import of_row
from cron.service.replica import Replica
from cron.state.alerts import is_own
from cron.state.commands import Command, Key
from cron.state.letters import find
from cron.state.outcome import Verdict
from cron.state.pool import DropDead, Redrive
from cron.state.rows import Row
from cron.state.state import JobRecord, State
from launcher.protocol.names import (
    TASK_MARK,
    LaunchName,
    format_time,
    parse_launch_name,
    short_job_name,
)

NOTES_MAX: Final = 20
"""Letters that stand for several launches and that one answer speaks of."""

Found: TypeAlias = tuple[Key, Row, JobRecord]

_WHY: Final = {
    Verdict.UNKNOWN_JOB: "its job was removed",
    Verdict.WRONG_ATTEMPT: "it has had as many attempts as a launch can have",
    Verdict.NOT_DEAD: "somebody has launched or forgotten it meanwhile",
}


async def listed(replica: Replica, query: DeadQuery) -> DeadReport:
    """Return the dead letters that fit, the oldest or the newest first.

    Raises:
        NotFound: a launch or task is named that has none.
    """
    fitting = await _find(replica.state, query)
    found = _meant(query, fitting)
    own = len(fitting) - len(found)
    if query.is_newest:
        found.reverse()
    letters = [_view_of(one) async for one in in_turns(found[: query.limit])]
    return DeadReport(letters=letters, total=len(found), own=own)


def _meant(query: DeadQuery, found: list[Found]) -> list[Found]:
    """Return those of the letters that fit that a query is about: without a name or a tenant, not
    those of the cell itself."""
    return found if is_of_some(query) else [one for one in found if not is_own(one[2].name)]


def _view_of(found: Found) -> LaunchView:
    key, letter, record = found
    view = of_row(letter)
    repeats = record.repeats.get(key[1:])
    if repeats is not None:
        first = (repeats.first_s, repeats.first_trigger)
        view = msgspec.structs.replace(
            view,
            count=repeats.count,
            first=_name(record, first),
            others=[_name(record, one.place) for one in repeats.others],
        )
    return msgspec.structs.replace(view, pool=record.job.pool if record.job is not None else "")


def _name(record: JobRecord, place: tuple[int, int]) -> str:
    return str(LaunchName(record.name, *place))


async def redrive(replica: Replica, change: DeadChange) -> DeadOutcome:
    """Make dead letters due again, DEAD_MAX at once, or say which would be.

    Letters for which the queues have no room are left.

    Raises:
        LimitExceeded: the queues have no room for any of them.
    """
    return await _change(replica, change, is_drop=False)


async def drop(replica: Replica, change: DeadChange) -> DeadOutcome:
    """Forget dead letters, DEAD_MAX at once, or say which would be."""
    return await _change(replica, change, is_drop=True)


async def _change(replica: Replica, change: DeadChange, *, is_drop: bool) -> DeadOutcome:
    found = _meant(change.query, await _find(replica.state, change.query, is_drop=is_drop))
    at_once = found[:DEAD_MAX]
    notes = list(_notes(at_once, is_drop=is_drop))
    if change.is_dry_run or not at_once:
        verdicts = [Verdict.ACCEPTED if is_drop else _foreseen(one) for one in at_once]
    else:
        by = change.by or "somebody"

        def build(_state: State, _now_ms: int) -> list[Command]:
            nonlocal at_once
            if not is_drop:
                at_once = _admitted(replica.leader.indexes.queues.admission, at_once)
            keys = tuple(key for key, _, _ in at_once)
            return [DropDead(keys, by) if is_drop else Redrive(keys, by)]

        _, results = await replica.leader.submit(build)
        verdicts = [Verdict(item) for item in results[0].items]
    outcomes = [
        (_name(record, key[1:]), verdict)
        for (key, _, record), verdict in zip(at_once, verdicts, strict=True)
    ]
    return DeadOutcome(
        launches=[name for name, verdict in outcomes if verdict is Verdict.ACCEPTED],
        kept=[
            f"{name}: {_WHY.get(verdict, verdict.label)}"
            for name, verdict in outcomes
            if verdict is not Verdict.ACCEPTED
        ],
        left=len(found) - len(at_once),
        is_dry_run=change.is_dry_run,
        collection=change.query.collection,
        notes=notes[:NOTES_MAX],
        names=names_of(change.query),
    )


def _notes(found: list[Found], *, is_drop: bool) -> Iterator[str]:
    """Yield what a change of letters of jobs that stand for several launches does not do."""
    for key, _, record in found:
        repeats = record.repeats.get(key[1:])
        if repeats is None:
            continue
        job = short_job_name(record.name)
        others = "1 more launch" if repeats.count == 2 else f"{repeats.count - 1} more launches"
        since = format_time(repeats.first_s)
        if is_drop:
            yield f"the letter of {job} stands for {others} since {since}"
        else:
            yield (
                f"the letter of {job} stands for {others} since {since}, which stay dead: `raftcron"
                f" backfill '{job}' --from {since} --to {format_time(key[1])}` launches them,"
                f" `raftcron dead drop '{job}'` forgets them"
            )


def _admitted(admission: Admission, letters: list[Found]) -> list[Found]:
    """Return the letters whose launches may wait, in their order; they count as waiting.

    Raises:
        LimitExceeded: none of them may.
    """
    admitted: list[Found] = []
    refusal: LimitExceeded | None = None
    for one in letters:
        record = one[2]
        try:
            if record.job is not None:
                admission.admit(record.name, record.job)
        except LimitExceeded as error:
            refusal = error
        else:
            admitted.append(one)
    if refusal is not None and not admitted:
        raise refusal
    return admitted


async def _find(state: State, query: DeadQuery, *, is_drop: bool = False) -> list[Found]:
    """Return what fits, that which died first at the front; a hundred thousand are looked through
    beside the loop that ticks."""
    letters = state.dead
    if query.launch:
        found = _one(state, parse_launch_name(query.launch), is_drop=is_drop)
        if found is None:
            raise _no_letter(f"launch {short_job_name(query.launch)}")
        return await asyncio.to_thread(_fitting, query, [found])
    if query.task:
        record = state.record_of(query.task)
        mine = record.dead if record is not None else {}
        if record is None or not mine:
            raise _no_letter(f"task {short_job_name(query.task)}")
        letters = {(record.number, *place): letter for place, letter in mine.items()}
    everything = [(key, letter, state.by_number[key[0]]) for key, letter in letters.items()]
    return await asyncio.to_thread(_fitting, query, everything)


def _one(state: State, name: LaunchName, *, is_drop: bool) -> Found | None:
    """Return the letter that stands for a launch: as that of the launch itself, which a redrive is
    about, or as it is, which goes as a whole."""
    key = state.key_of(name)
    record = state.by_number.get(key[0]) if key is not None else None
    known = find(record, key[1:]) if key is not None and record is not None else None
    if key is None or record is None or known is None:
        return None
    letter, attempt = known
    if is_drop:
        return (key[0], letter.scheduled_s, letter.trigger), letter, record
    place = {"scheduled_s": key[1], "trigger": key[2], "attempt": attempt}
    return key, msgspec.structs.replace(letter, **place), record


def _no_letter(what: str) -> NotFound:
    hint = (
        "`raftcron dead list` shows the dead letters; `raftcron backfill` launches an instant of a"
        " job again, `raftcron show` tells of any launch"
    )
    return NotFound(f"{what} is not a dead letter", hint)


def _fitting(query: DeadQuery, everything: list[Found]) -> list[Found]:
    within = tuple(query.within)
    wanted = JobFilter(query.jobs, query.tenant, query.pool, query.collection, within)
    fitting = selector(wanted)
    jobs = {record.number: record for _, _, record in everything}
    fits = {
        number
        for number, record in jobs.items()
        if fitting(record) and _is_of_task(query, record.name)
    }
    found = [
        one
        for one in everything
        if one[0][0] in fits
        and query.reason in ("", one[1].reason.label, one[1].state.label)
        and one[1].ended_at_ms >= query.since_ms
        and (not query.until_ms or one[1].ended_at_ms < query.until_ms)
    ]
    return sorted(found, key=_died)


def _died(found: Found) -> tuple[int, int, int]:
    _, letter, _ = found
    return letter.ended_at_ms, letter.ended_index, letter.number


def _is_of_task(query: DeadQuery, name: str) -> bool:
    """Return whether a job is that of a task of the queue and with the key that are asked for."""
    queue, mark, key = name.partition(TASK_MARK)
    return query.queue in ("", queue if mark else name) and query.key in ("", key)


def _foreseen(found: Found) -> Verdict:
    """Return what applying would answer to a redrive."""
    _, letter, record = found
    if record.job is None:
        return Verdict.UNKNOWN_JOB
    return Verdict.WRONG_ATTEMPT if letter.attempt >= ATTEMPTS_MAX else Verdict.ACCEPTED
