"""The minute of the day in which most jobs of a file fall due, and what `?` would do about it.

Launches are counted on the days of the coming year, in the minutes of the zone that most jobs of
the file have; those of `@every` as they are expected (`load.py`). Launches of jobs that are due
every minute are the same in all minutes, so `?` cannot move them, and they do not make a minute
crowded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Final

import msgspec

from cron.calendar.days import DAY_MIN, LocalTimes
from cron.calendar.expression import parse
from cron.calendar.load import SEASONS, UNIT, Load, offsets
from cron.job import Job, Schedule

CROWDED_MIN: Final = 20
"""Launches in one minute of which nothing is said yet."""
SCHEDULES_MAX: Final = 2_000
"""Different schedules that are counted, those of most jobs: up to 0.4 ms each."""
DAYS: Final = 366
"""Days from today on that are looked at."""
LOOKS_MAX: Final = 5_000
"""Minutes whose days are looked at, those that may have most, each for each different set of days:
up to 0.1 ms."""
SHARE: Final = 10
"""A file with less than a tenth of a crowded minute is not told of it."""
_ALL: Final = ((1 << DAYS) - 1) << 1
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_HOUR_MIN: Final = 60
_MINUTE_S: Final = 60
_STEP: Final = re.compile(r"(?:\*|0-59)/(\d+)")
_Key = tuple[str, str, int]


class Crowding(msgspec.Struct, frozen=True):
    """A crowded minute: `launches` in it, `mine` of them of the file. `at` is a local time of
    `zone`. `schedule` is the one that most of the file's jobs have there, and `instead` the same
    with `?`, by which about `after` launches would be left in each minute of that hour; "" where a
    schedule has no minute that `?` could choose."""

    launches: int
    mine: int
    at: str
    zone: str
    schedule: str
    instead: str
    after: int

    def text(self, room: str = "") -> str:
        """Return what is crowded and what `?` would do about it, on one line. `room` says how many
        slots there are."""
        others = self.launches - self.mine
        beside = f", {others} of them of other files," if others else ""
        most = f" (most by `{self.schedule}`)" if self.schedule else ""
        what = f"{self.launches} launches{beside} fall due in one minute"
        instead = ""
        if self.instead:
            instead = f"`{self.instead}` would leave about {self.after} in each minute of that hour"
        return "; ".join(filter(None, (f"{what}, {self.at} {self.zone}{most}", room, instead)))

    def hint(self) -> str:
        """Return what a person can do."""
        if not self.instead:
            return "give the jobs different minutes"
        return "write `?`: the cell chooses a minute for each job once, where the load is lowest"


def crowding(mine: Iterable[Job], others: Iterable[Job] = (), *, today: int) -> Crowding | None:
    """Return the minute that is most crowded of those in which jobs of a file are due, beside
    `others`, None if none is. `today` is a day since 1970: launches of DAYS days from there on are
    counted. Jobs whose `?` has no value yet do not count."""
    counts, texts = _counts(mine)
    if sum(counts.values()) < CROWDED_MIN:
        return None
    zones = Counter[str]()
    for (_, zone_name, _), count in counts.items():
        zones[zone_name] += count
    zone = zones.most_common(1)[0][0]
    other_counts, _ = _counts(others)
    found: tuple[int, int, int, int, _Table] | None = None
    is_one = all(one[1] == zone for one in (*counts, *other_counts))
    for season in range(1 if is_one else len(SEASONS)):
        table = _Table(counts, other_counts, zone, season, today)
        if (one := table.worst()) is not None and (found is None or one > found[:4]):
            found = (*one, table)
    if found is None:
        return None
    launches, my_launches, late, day, table = found
    minute = -late
    first = minute - minute % _HOUR_MIN
    hour = sum(table.on(day, at)[0] for at in range(first, first + _HOUR_MIN))
    schedule = _commonest(counts, texts, zone, minute)
    clock = f"{minute // _HOUR_MIN:02}:{minute % _HOUR_MIN:02}"
    if not table.is_daily(minute):
        clock = f"{date.fromordinal(_EPOCH_DAY + today - 1 + day)} {clock}"
    return Crowding(
        launches // UNIT,
        my_launches // UNIT,
        clock,
        zone,
        schedule,
        with_question_mark(schedule),
        -(-hour // (_HOUR_MIN * UNIT)),
    )


class _Table:
    """The launches of each local minute of a zone, in UNITs, apart for each set of days on which
    schedules are due: the file's own (0) and all (1). It is of one season, since offsets of zones
    change. Days are bits, today the second: in a zone in the west, today began yesterday."""

    def __init__(
        self, mine: Counter[_Key], others: Counter[_Key], zone: str, season: int, today: int
    ) -> None:
        self._rows: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        self._even = [_every_of(counts).top(zone) for counts in (mine, others)]
        own_shift = offsets(zone)[season]
        for counts, tables in ((mine, (0, 1)), (others, (1,))):
            for (resolved, zone_name, every_s), count in counts.items():
                if every_s:
                    continue
                local = LocalTimes(parse(resolved).fields)
                days = local.days_from(today - 1, DAYS + 2)
                shift = own_shift - offsets(zone_name)[season]
                for number in tables:
                    self._enter(number, local.minutes, days, shift, count * UNIT)

    def _enter(self, number: int, minutes: Sequence[int], days: int, shift: int, load: int) -> None:
        rows = self._rows[number]
        for minute in minutes:
            later, cell = divmod(minute + shift, DAY_MIN)
            mask = days << later if later >= 0 else days >> -later
            row = rows.get(mask)
            if row is None:
                row = rows[mask] = [0] * DAY_MIN
            row[cell] += load

    def _bound(self, number: int, minute: int) -> int:
        """Return what a minute has at most on any day."""
        even = self._even[0][minute] + (self._even[1][minute] if number else 0)
        return even + sum(row[minute] for row in self._rows[number].values())

    def _least(self, number: int) -> int:
        """Return what each minute of each day has."""
        daily = [row for mask, row in self._rows[number].items() if mask & _ALL == _ALL]
        even = self._even if number else self._even[:1]
        return min(map(sum, zip(*even, *daily, strict=True)))

    def on(self, day: int, minute: int) -> tuple[int, int]:
        """Return what a minute of a day has, and what of it is the file's own."""
        own, both = (
            sum(row[minute] for mask, row in rows.items() if mask >> day & 1) for rows in self._rows
        )
        return both + self._even[0][minute] + self._even[1][minute], own + self._even[0][minute]

    def is_daily(self, minute: int) -> bool:
        """Return whether a minute has the same on each day."""
        return all(mask & _ALL == _ALL for mask, row in self._rows[1].items() if row[minute])

    def worst(self) -> tuple[int, int, int, int] | None:
        """Return what the most crowded minute has, what of it is the file's own, the minute as a
        negative number, since the earliest counts, and the day; None if none is crowded."""
        base, own_base = self._least(1), self._least(0)
        bounds = [
            (bound, minute)
            for minute in range(DAY_MIN)
            if self._bound(0, minute) > own_base
            if ((bound := self._bound(1, minute)) - base) // UNIT >= CROWDED_MIN
        ]
        bounds.sort(key=lambda one: (-one[0], one[1]))
        found: tuple[int, int, int, int] | None = None
        looks = 0
        for bound, minute in bounds:
            looks += sum(1 for row in self._rows[1].values() if row[minute])
            if (found is not None and found[0] > bound) or looks > LOOKS_MAX:
                break
            for day in self._days_of(minute):
                both, own = self.on(day, minute)
                is_crowded = (both - base) // UNIT >= CROWDED_MIN and own > own_base
                if is_crowded and own // UNIT * SHARE >= both // UNIT:
                    # Of equal minutes the one with most of the file's own launches counts.
                    one = (both, own, -minute, -day)
                    found = max(found, one) if found is not None else one
        return None if found is None else (*found[:3], -found[3])

    def _days_of(self, minute: int) -> list[int]:
        """Return a day for each different set of schedules that are due at a minute together."""
        masks = [mask for mask, row in self._rows[1].items() if row[minute]]
        known: dict[tuple[int, ...], int] = {}
        for day in range(1, DAYS + 1):
            known.setdefault(tuple(mask >> day & 1 for mask in masks), day)
        return list(known.values())


def with_question_mark(text: str) -> str:
    """Return a schedule with `?` in place of its minute, as often due as before; "" if there is no
    such one."""
    fields = text.split()
    if len(fields) != 5:
        return ""
    step = _STEP.fullmatch(fields[0])
    if step is None and not fields[0].isdecimal():
        return ""
    return " ".join((f"?/{step[1]}" if step is not None else "?", *fields[1:]))


def _counts(jobs: Iterable[Job]) -> tuple[Counter[_Key], dict[_Key, str]]:
    """Return how many launches the commonest schedules have at once, and a text of each."""
    counts, texts = Counter[_Key](), dict[_Key, str]()
    for job in jobs:
        schedule = job.schedule
        if schedule.is_placed and job.jitter_s < _MINUTE_S:  # jitter spreads its jobs itself
            key = (schedule.resolved, schedule.zone, schedule.every_s)
            counts[key] += max(1, job.parts)
            texts.setdefault(key, schedule.text)
    return Counter(dict(counts.most_common(SCHEDULES_MAX))), texts


def _every_of(counts: Counter[_Key]) -> Load:
    """Return the load of schedules that have a period: their minutes change from day to day."""
    load = Load()
    for (resolved, zone, every_s), count in counts.items():
        if every_s:
            load.add(Schedule(resolved, resolved, zone, every_s), count)
    return load


def _commonest(counts: Counter[_Key], texts: dict[_Key, str], zone: str, minute: int) -> str:
    """Return the text of the schedule that most jobs have which are due at a minute of a zone."""
    for (resolved, zone_name, every_s), _ in counts.most_common():
        if every_s or zone_name != zone:
            continue
        minutes = LocalTimes(parse(resolved).fields).minutes
        if minute in minutes and len(minutes) < DAY_MIN:
            text = texts[resolved, zone_name, every_s]
            return resolved if text.startswith("@") else text
    return ""
