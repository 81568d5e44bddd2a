"""How the leader is set up: its times and paces."""

from __future__ import annotations

import msgspec

from cron.scheduler.plan import Settings


class LeaderSettings(msgspec.Struct, frozen=True):
    """What the operator may set, and the times of the loop.

    `append_timeout_ms`: an entry that takes longer has an unknown outcome. `turn_ms`: the shortest
    time between two entries, so that what comes together goes together. `gather_ms`: so long a
    leader that never rests gathers reports for the next entry, while nothing waits for them.
    `housekeeping_ms`: how often waiting and unanswered launches are looked at. `late_per_second`:
    pace of catch-up. `is_backed_up`: snapshots go to object storage, and executors remember what
    they may lack.
    """

    plan: Settings = Settings()
    append_timeout_ms: int = 10_000
    turn_ms: int = 10
    gather_ms: int = 30
    housekeeping_ms: int = 500
    late_per_second: int = 100
    jump_ms: int = 2_000
    floors_ms: int = 30_000
    is_backed_up: bool = False
