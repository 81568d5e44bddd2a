"""Time zones as integer minutes, from the pinned tzdata package and nothing else.

A zone is a sequence of segments: stretches of UTC with one offset. Only `utcoffset()` is used;
`dst()` is useless for zones with negative daylight saving time (Dublin, Casablanca). Segments are
found by probing, a year at a time and only for requested years, and end at the end of a year.
"""

from __future__ import annotations

import difflib
import importlib.resources
import zoneinfo
from bisect import bisect_right
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Final, NamedTuple

import tzdata  # type: ignore[import-untyped]  # it ships no types

from cron.calendar.days import DAY_MIN
from cron.errors import ScheduleError

_YEAR_MIN: Final = 366 * DAY_MIN
_PROBE_MIN: Final = 720
"""The probing interval, twice a day: no zone has changed back and forth within it since 1970."""
_LOOK_BACK_MIN: Final = 2 * DAY_MIN
"""How long after a transition local minutes may repeat: no clock was set back by over a day."""
_GAP_MAX_MIN: Final = DAY_MIN
"""A gap of a day or more is a date that never was (Apia 2011-12-30), not a late morning."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Segment(NamedTuple):
    """UTC minutes [start, end) in which the wall clock is UTC + `offset`.

    Local minutes [gap_from, start + offset) were skipped when the segment began; the range is empty
    if nothing was skipped. Local minutes before `fresh_from` already occurred in an earlier
    segment.
    """

    start: int
    end: int
    offset: int
    gap_from: int
    fresh_from: int


class Zone:
    """A time zone; `segment` caches its results."""

    __slots__ = ("_info", "_years", "name")

    def __init__(self, name: str, info: zoneinfo.ZoneInfo | timezone) -> None:
        self.name = name
        self._info = info
        self._years: dict[int, tuple[list[int], list[Segment]]] = {}

    def segment(self, minute: int) -> Segment:
        """Return the segment that contains the UTC minute."""
        year = minute // _YEAR_MIN
        known = self._years.get(year)
        if known is None:
            segments = self._find_segments(year * _YEAR_MIN, (year + 1) * _YEAR_MIN)
            known = self._years[year] = ([segment.start for segment in segments], segments)
        starts, segments = known
        return segments[bisect_right(starts, minute) - 1]

    def offset(self, minute: int) -> int:
        """Return local minus UTC at a UTC minute, in minutes (rounded before 1972)."""
        moment = _EPOCH + timedelta(minutes=minute)
        delta = moment.astimezone(self._info).utcoffset() or timedelta()
        return round(delta / timedelta(minutes=1))

    def instant(self, local: int) -> int:
        """Return the UTC minute at a local minute: the first of two, or the first after a gap."""
        earlier = local - max(self.offset(local - DAY_MIN), self.offset(local + DAY_MIN))
        later = local - min(self.offset(local - DAY_MIN), self.offset(local + DAY_MIN))
        for minute in (earlier, later):
            if minute + self.offset(minute) == local:
                return minute
        return self.segment(later).start

    def _find_segments(self, begin: int, end: int) -> list[Segment]:
        start = begin - _LOOK_BACK_MIN
        offset = self.offset(start)
        gap_from = fresh_from = start + offset
        found = []
        while start < end:
            change = self._next_change(start, offset, end)
            if change > begin:
                first = max(start, begin)
                gap = gap_from if first == start else first + offset
                found.append(Segment(first, change, offset, gap, fresh_from))
            fresh_from = max(fresh_from, change + offset)
            start = change
            before, offset = offset, self.offset(change)
            skipped = offset - before
            gap_from = change + offset
            if 0 < skipped < _GAP_MAX_MIN:
                gap_from = min(gap_from, fresh_from)
        return found

    def _next_change(self, start: int, offset: int, end: int) -> int:
        """Return the first minute after `start` with another offset; `end` if none is earlier."""
        same = start
        while same < end:
            probe = min(same + _PROBE_MIN, end)
            if self.offset(probe) == offset:
                same = probe
                continue
            while probe - same > 1:
                middle = (same + probe) // 2
                if self.offset(middle) == offset:
                    same = middle
                else:
                    probe = middle
            return probe
        return end


def pin() -> None:
    """Stop zoneinfo from using the machine's own zone files, in the whole process.

    `zone` never uses them; this is for all other code in the process.
    """
    zoneinfo.reset_tzpath(to=())


def tzdata_version() -> str:
    """Return the IANA version of the pinned data, for example `2026f` (rule R11)."""
    return str(tzdata.IANA_VERSION)


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Return every name that `zone` accepts."""
    listing = importlib.resources.files("tzdata").joinpath("zones").read_text("ascii")
    return frozenset(listing.split())


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """Return the zone of an IANA name, spelled exactly as IANA does.

    Raises:
        ScheduleError: no such zone; the hint names close ones.
    """
    if name not in zone_names():
        raise ScheduleError(f"time zone {name!r} is not known", 1, _suggestion(name))
    if name == "UTC":
        return Zone(name, UTC)
    # From the package, because zoneinfo's search path prefers the machine's files.
    place = importlib.resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with place.open("rb") as file:
        return Zone(name, zoneinfo.ZoneInfo.from_file(file, key=name))


def _suggestion(name: str) -> str:
    by_lower = {known.lower(): known for known in sorted(zone_names())}
    wanted = name.lower().replace(" ", "_")
    near = [known for lower, known in by_lower.items() if lower == wanted]
    near = near or [known for lower, known in by_lower.items() if lower.split("/")[-1] == wanted]
    if not near:
        near = [by_lower[lower] for lower in difflib.get_close_matches(wanted, by_lower, 3, 0.7)]
    if near:
        return f"did you mean {' or '.join(near[:3])}?"
    return "write an IANA name like Europe/Berlin, or UTC"
