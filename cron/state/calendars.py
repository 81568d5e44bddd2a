"""Calendars: lists of days with names, and the commands that change them.

Jobs have copies of a calendar's days in their schedules (`cron.job.Bounds`), so that their instants
depend on their own revisions alone. Whoever changes a calendar also changes the jobs that use it
(`cron/service/calendars.py`).

Evolution: as in `commands.py`.
"""

from __future__ import annotations

import msgspec


class Calendar(msgspec.Struct, frozen=True, array_like=True):
    """A calendar's days, as in `cron.job.Bounds`; who changed it last, and when."""

    name: str
    days: tuple[int, ...]
    by: str = ""
    at_ms: int = 0


class PutCalendar(msgspec.Struct, frozen=True, array_like=True, tag="put-calendar"):
    """A calendar that is added or gets other days."""

    name: str
    days: tuple[int, ...]
    by: str = ""


class RemoveCalendar(msgspec.Struct, frozen=True, array_like=True, tag="remove-calendar"):
    """A calendar that no job uses any more."""

    name: str
    by: str = ""
