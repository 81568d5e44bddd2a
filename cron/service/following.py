"""Jobs that follow other jobs, when files are applied and jobs removed: all errors, before anything
is changed, and an order in which each step leaves no job without what it follows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from operator import attrgetter
from typing import Final

import msgspec

from cron.crontab.reader import cycle_problem
from cron.crontab.reading import Problems
from cron.errors import Conflict, CrontabError, Problem
from cron.job import Job, cycle_of
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.known_ends import NO_ENDS
from cron.state.outcome import Verdict
from cron.state.rows import Row
from cron.state.state import State
from launcher.protocol.names import short_job_name

ROWS_READ: Final = 32
"""Rows of scheduled launches that are read of a job which others begin to follow."""
NOTED_AT_ONCE: Final = 1_000
"""Jobs whose ends one command notes: each takes 300 bytes at most."""
TRIES: Final = 5
_SHOWN: Final = 5


class Put(msgspec.Struct):
    """What becomes of a source: what it declares, the file of each job, and what it removes."""

    source: str
    jobs: Sequence[Job]
    files: Mapping[str, str]
    removed: Sequence[str] = ()


def in_order(
    puts: Sequence[Put],
    live: Mapping[str, tuple[str, ...]],
    is_seen: Callable[[str], bool] | None,
) -> list[int]:
    """Return the places of sources in an order in which they can be put one after the other.

    `live` says what each job follows that there is; `is_seen` whether the caller may see a job,
    None for all.

    Raises:
        CrontabError: jobs follow others that are not there, or each other, or others of which the
            caller may see nothing, or are followed and would be removed; all of them are in it.
        Conflict: sources need each other.
    """
    becomes = dict(live)
    for put in puts:
        for name in put.removed:
            becomes.pop(name, None)
    for put in puts:
        becomes.update((job.name, job.follows) for job in put.jobs)
    declared = {job.name for put in puts for job in put.jobs}

    def may(name: str) -> bool:
        return name in declared or is_seen is None or is_seen(name)

    problems = [problem for put in puts for problem in _unknown(put, becomes, may)]
    problems += _orphans(puts, becomes, declared)
    problems += _cycles(puts, becomes)
    if problems:
        raise CrontabError(problems)
    return _ordered(puts, dict(live))


def _unknown(
    put: Put, becomes: Mapping[str, object], is_seen: Callable[[str], bool]
) -> Iterable[Problem]:
    """Yield an error for each job that follows one that is not there, or that nobody may see."""
    for job in put.jobs:
        for name in job.follows:
            if name not in becomes or not is_seen(name):
                shown, mine = short_job_name(name), short_job_name(job.name)
                message = f"job {mine} follows {shown}, which does not exist or is not yours to see"
                hint = "apply the file that declares it first, or both together"
                yield _problem(put, job, message, hint)


def _orphans(
    puts: Sequence[Put], becomes: Mapping[str, tuple[str, ...]], declared: Iterable[str]
) -> Iterable[Problem]:
    """Yield an error for each removed job that a job follows of which no file says anything."""
    sources = {name: put.source for put in puts for name in put.removed if name not in becomes}
    for follower, follows in becomes.items() if sources else ():
        for name in follows:
            if name in sources and follower not in declared:
                message = (
                    f"job {short_job_name(name)} would be removed, and "
                    f"{short_job_name(follower)} follows it"
                )
                hint = "take it out of the other job's after first, or remove both"
                yield Problem(sources[name], 0, 0, message, hint)


def _cycles(puts: Sequence[Put], becomes: Mapping[str, tuple[str, ...]]) -> Iterable[Problem]:
    """Yield an error for a cycle, where the first of its jobs is declared."""
    followers = [job.name for put in puts for job in put.jobs if job.follows]
    cycle = cycle_of(followers, lambda name: becomes.get(name, ()))
    found = ((put, job) for put in puts for job in put.jobs if job.name in cycle)
    for put, job in [*found][:1]:
        yield _problem(put, job, *cycle_problem(cycle))


def _problem(put: Put, job: Job, message: str, hint: str) -> Problem:
    problems = Problems(put.files.get(job.name, put.source))
    problems.error(job.line, min(job.line, 1), message, hint)
    return problems.listed()[0]


def _ordered(puts: Sequence[Put], now: dict[str, tuple[str, ...]]) -> list[int]:
    """Return an order of sources in which each finds what its jobs follow, and removes nothing that
    is followed then."""
    followers: dict[str, list[str]] = {name: [] for put in puts for name in put.removed}
    for follower, follows in now.items() if followers else ():
        for name in filter(followers.__contains__, follows):
            followers[name].append(follower)
    order: list[int] = []
    left = dict(enumerate(puts))
    while left:
        place = next((place for place, put in left.items() if _fits(put, now, followers)), None)
        if place is None:
            names = ", ".join(put.source for put in left.values())
            hint = "apply their files as one source, with --source NAME"
            raise Conflict(f"sources {names} have jobs that follow each other's", hint)
        put = left.pop(place)
        order.append(place)
        for name in put.removed:
            now.pop(name, None)
        now.update((job.name, job.follows) for job in put.jobs)
    return order


def _fits(
    put: Put, now: Mapping[str, tuple[str, ...]], followers: Mapping[str, Sequence[str]]
) -> bool:
    """Return whether a source can be put while `now` are the jobs that there are."""
    own, gone = {job.name: job.follows for job in put.jobs}, dict.fromkeys(put.removed)
    is_found = all(
        (name in now or name in own) and name not in gone
        for follows in own.values()
        for name in follows
    )
    is_free = not any(
        name in now.get(follower, ()) and follower not in own and follower not in gone
        for name in put.removed
        for follower in followers[name]
    )
    return is_found and is_free


async def read_ends(replica: Replica, names: Iterable[str]) -> list[c.NoteEnds]:
    """Return commands that note how the newest launches of jobs ended which nothing has followed so
    far: what begins to follow them asks about these. Each is small enough for an entry."""
    state = replica.state
    records = [record for name in names if (record := state.jobs.get(name)) is not None]
    before = {one.name: (state.index, one.horizon_s) for one in records if one.ends is None}
    found: dict[str, list[Row]] = {}
    if before:
        store = replica.row_store
        found = await store.newest_of_each([*before], ROWS_READ, is_scheduled=True)
    items = []
    for name, rows in found.items():
        read_at, horizon_s = before[name]
        ends = NO_ENDS
        for row in sorted(rows, key=attrgetter("scheduled_s", "attempt", "ended_index")):
            if row.scheduled_s <= horizon_s:
                last_s = max(row.scheduled_s, row.last_s)
                ends = ends.with_end(row.scheduled_s, last_s, row.state)
        items.append(c.EndsItem(name, read_at, horizon_s, ends))
    return [
        c.NoteEnds(tuple(items[first : first + NOTED_AT_ONCE]))
        for first in range(0, len(items), NOTED_AT_ONCE)
    ]


async def note_ends(
    replica: Replica, names: Collection[str], left: Sequence[c.NoteEnds], *, is_stale: bool
) -> None:
    """Append what is left of the commands of `read_ends`. With `is_stale`, or if a launch has ended
    meanwhile, read again."""
    for _ in range(TRIES):
        for command in left:
            _, results = await replica.leader.append(command)
            is_stale = is_stale or Verdict.STALE_REVISION in results[0].items
        if not is_stale:
            return
        left, is_stale = await read_ends(replica, names), False


def check_removal(state: State, names: Iterable[str]) -> None:
    """Return if no job that stays follows one of these.

    Raises:
        Conflict: one does; nothing was removed.
    """
    gone = dict.fromkeys(names)
    for name in gone if state.followers else ():
        staying = [one for one in followers_of(state, name) if one not in gone]
        if staying:
            shown = ", ".join(map(short_job_name, staying[:_SHOWN]))
            more = f" and {len(staying) - _SHOWN} more" if len(staying) > _SHOWN else ""
            verb = "follows" if len(staying) == 1 else "follow"
            raise Conflict(
                f"{shown}{more} {verb} {short_job_name(name)}; nothing was removed",
                "take it out of their after first, or remove them with it",
            )


def followers_of(state: State, name: str) -> list[str]:
    """Return the jobs that follow a job."""
    return [state.by_number[number].name for number in state.followers.get(name, ())]


def followers_first(state: State, names: Sequence[str]) -> list[str]:
    """Return jobs in an order in which each comes after those that follow it."""
    if not state.followers:
        return [*names]
    graph = {name: followers_of(state, name) for name in names}
    chosen = dict.fromkeys(names)
    return [name for name in TopologicalSorter(graph).static_order() if name in chosen]


def removed_first(state: State, by_source: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """Return a source and its jobs that can be removed before those of the other sources."""
    for source, names in by_source.items():
        if all(follower in names for name in names for follower in followers_of(state, name)):
            return source, names
    return next(iter(by_source.items()))
