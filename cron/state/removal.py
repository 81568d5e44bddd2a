"""Commands by which jobs of which much waits are removed: at once, but not all in one entry.

A removed job is not due again and begins nothing. What waits of it is ended, which takes each
replica some microseconds for each launch: 80,000 of them in one entry would hold all of them up for
a second. So a leader that removes so much says `Leave` first; from then on what waits is ended by
`Sweep`, a portion at a time, by this leader or by the next. Meanwhile no job of that name is added.

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
