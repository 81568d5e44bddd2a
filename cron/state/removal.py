"""Commands by which jobs are removed that have many waiting launches, and by which State forgets
what nobody needs of the past of jobs: a portion in an entry.

A removed job is not due again and begins nothing. What waits of it is ended, which takes each
replica some microseconds for each launch: 80,000 of them in one entry would hold all of them up for
a second. So a leader that removes so much says `Leave` first; from then on what waits is ended by
`Sweep`, a portion at a time, by this leader or by the next. Meanwhile no job of that name is added.

The record of a removed job, and the schedules that a job had before, are kept for history and for
audit. The leader knows how far back history goes, and which records are too many; it says `Forget`
for some jobs at a time. What State itself still needs of them it keeps.

Evolution: as in `commands.py`.
"""

from __future__ import annotations

import msgspec


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """What waits of the jobs that are removed further on in this entry is left for `Sweep`."""


class Sweep(msgspec.Struct, frozen=True, array_like=True, tag="sweep"):
    """Ends what waits of removed jobs, given by their numbers, in this order: `limit` launches at
    most."""

    numbers: tuple[int, ...]
    limit: int


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """History has no row of before `before_s`: of the jobs with these `numbers` the schedules that
    ended by then are forgotten, and the records of those that were removed by then. The records in
    `removed` are forgotten whatever history has."""

    numbers: tuple[int, ...]
    before_s: int
    removed: tuple[int, ...] = ()
