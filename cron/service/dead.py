"""Dead letters as people ask for them: by filter, and the change that launches or forgets them."""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

import msgspec

from cron.api.dead import DEAD_MAX, DeadChange, DeadOutcome, DeadQuery, DeadReport
from cron.errors import LimitExceeded, NotFound
from cron.limits import ATTEMPTS_MAX
from cron.pace import in_turns
from cron.scheduler.admission import Admission
from cron.scheduler.job_filter import JobFilter, selector
from cron.service.launches import of_row
from cron.service.replica import Replica
from cron.state.commands import Command, Key
from cron.state.outcome import Verdict
from cron.state.pool import DropDead, Redrive
from cron.state.rows import Row
from cron.state.state import JobRecord, State
from launcher.protocol.names import LaunchName, parse_launch_name

Found: TypeAlias = tuple[Key, Row, JobRecord]

_WHY: Final = {
    Verdict.UNKNOWN_JOB: "its job was removed",
    Verdict.WRONG_ATTEMPT: "it has had as many attempts as a launch can have",
    Verdict.NOT_DEAD: "somebody has launched or forgotten it meanwhile",
}


async def listed(replica: Replica, query: DeadQuery) -> DeadReport:
    """Return the dead letters that fit, the oldest or the newest first.

    Raises:
        NotFound: a launch is named that is none.
    """
    found = await _find(replica.state, query)
    if query.is_newest:
        found.reverse()
    letters = [
        msgspec.structs.replace(
            of_row(letter), pool=record.job.pool if record.job is not None else ""
        )
        async for _, letter, record in in_turns(found[: query.limit])
    ]
    return DeadReport(letters=letters, total=len(found))


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
    found = await _find(replica.state, change.query)
    at_once = found[:DEAD_MAX]
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
        (str(LaunchName(record.name, key[1], key[2])), verdict)
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


async def _find(state: State, query: DeadQuery) -> list[Found]:
    """Return what fits; a hundred thousand are looked through beside the loop that ticks."""
    letters = state.dead
    if query.launch:
        key = state.key_of(parse_launch_name(query.launch))
        if key is None or key not in letters:
            hint = "`raftcron dead list` shows them; `raftcron show` tells of any launch"
            raise NotFound(f"launch {query.launch} is not a dead letter", hint)
        letters = {key: letters[key]}
    everything = [(key, letter, state.by_number[key[0]]) for key, letter in letters.items()]
    return await asyncio.to_thread(_fitting, query, everything)


def _fitting(query: DeadQuery, everything: list[Found]) -> list[Found]:
    within = tuple(query.within)
    wanted = JobFilter(query.jobs, query.tenant, query.pool, query.collection, within)
    fitting = selector(wanted)
    jobs = {record.number: record for _, _, record in everything}
    fits = {number for number, record in jobs.items() if fitting(record)}
    return [
        one
        for one in everything
        if one[0][0] in fits
        and query.reason in ("", one[1].reason.label or one[1].state.label)
        and one[1].ended_at_ms >= query.since_ms
        and (not query.until_ms or one[1].ended_at_ms < query.until_ms)
    ]


def _foreseen(found: Found) -> Verdict:
    """Return what applying would answer to a redrive."""
    _, letter, record = found
    if record.job is None:
        return Verdict.UNKNOWN_JOB
    return Verdict.WRONG_ATTEMPT if letter.attempt >= ATTEMPTS_MAX else Verdict.ACCEPTED
