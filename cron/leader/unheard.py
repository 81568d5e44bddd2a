"""Names that nobody has: a limit or a gate may be for what is still to come, or be misspelt.

Both are taken as they are, since who prepares a job sets its limits first. But a limit that is
misspelt limits nothing, and a gate holds nothing, and neither would say so: the answer does.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from typing import Final

import msgspec

from cron.api.pattern import is_wild
from cron.job import COMMAND, Job
from cron.scopes import EACH_TENANT
from cron.state.state import JobRecord, State
from launcher.names import short_job_name, split_job_name
from launcher.pool.pool import Pool

GUESSED_MAX: Final = 100_000
"""Letters of all names that a misspelt one is compared with, at most 0.2 s of a thread; where there
are more there is no guess."""

_Live = tuple[JobRecord, Job]


class Named(msgspec.Struct, frozen=True):
    """What a limit or a gate names; "" and, for a priority, -1 is any."""

    tenant: str = ""
    pool: str = ""
    collection: str = ""
    jobs: str = ""
    priority: int = -1


class Unheard:
    """Says which names no job has, nor any worker that is connected."""

    def __init__(self, state: Callable[[], State], pool: Pool) -> None:
        self._state = state
        self._pool = pool

    async def notes(self, named: Named) -> list[str]:
        """Return a line for each name that nobody has, or one if no job has all of them together.
        A million jobs are looked through beside the loop that ticks."""
        records = list(self._state().jobs.values())
        notes = await asyncio.to_thread(_notes, named, records)
        if _HANDLER in notes:  # ten thousand executors are asked only where no job answers
            served = [
                handler
                for session in self._pool.sessions()
                for offer in session.offers
                for handler in offer.handlers
            ]
            notes = await asyncio.to_thread(_notes, named, records, served)
        return list(notes.values())


_HANDLER: Final = "handler"


def _notes(
    named: Named, records: Iterable[JobRecord], served: Sequence[str] = ()
) -> dict[str, str]:
    """Return the notes by what they are about. `served`: handlers of workers that are connected."""
    live = [(record, record.job) for record in records if record.job is not None]
    notes: dict[str, str] = {}
    for what, name, text, own in (
        ("tenant", named.tenant, "no job is of tenant {}", _tenant),
        (_HANDLER, named.pool, "no job names handler {}, and no worker serves it", _pool),
        ("collection", named.collection, "no job has collection {}", _collection),
    ):
        more = served if what == _HANDLER else ()
        if name in ("", EACH_TENANT, COMMAND, *more) or any(own(*one) == name for one in live):
            continue
        notes[what] = text.format(name) + _guess(name, [*(own(*one) for one in live), *more])
    if named.jobs and not any(map(_matching(named.jobs), live)):
        full_names = () if is_wild(named.jobs) else (record.name for record, _ in live)
        guess = _guess(named.jobs, full_names)
        notes["jobs"] = f"no job matches {short_job_name(named.jobs)}{guess}"
    if named.priority >= 0 and not any(job.work.priority == named.priority for _, job in live):
        notes["priority"] = f"no job has priority {named.priority}"
    if not notes and _is_several(named) and not any(map(_fitting(named), live)):
        notes["all"] = "no job has all of what is named"
    return notes


def _is_several(named: Named) -> bool:
    own = (named.tenant not in ("", EACH_TENANT), named.pool, named.collection, named.jobs)
    return sum(map(bool, own)) + (named.priority >= 0) > 1


def _tenant(record: JobRecord, _job: Job) -> str:
    return split_job_name(record.name)[0]


def _pool(_record: JobRecord, job: Job) -> str:
    return job.pool


def _collection(_record: JobRecord, job: Job) -> str:
    return job.collection


def _matching(pattern: str) -> Callable[[_Live], bool]:
    match = re.compile(translate(pattern)).match
    return lambda one: match(one[0].name) is not None


def _fitting(named: Named) -> Callable[[_Live], bool]:
    """Return whether a job has all that is named."""
    matches = _matching(named.jobs) if named.jobs else None

    def fits(one: _Live) -> bool:
        record, job = one
        return (
            named.tenant in ("", EACH_TENANT, _tenant(record, job))
            and named.pool in ("", job.pool)
            and named.collection in ("", job.collection)
            and named.priority in (-1, job.work.priority)
            and (matches is None or matches(one))
        )

    return fits


def _guess(name: str, known: Iterable[str]) -> str:
    """Return which of the known names may be meant, as the end of a note; "" if none is close."""
    different = dict.fromkeys(known)
    is_few = sum(map(len, different)) <= GUESSED_MAX
    near = difflib.get_close_matches(name, different, 1) if is_few else []
    return f"; did you mean {short_job_name(near[0])}?" if near else ""
