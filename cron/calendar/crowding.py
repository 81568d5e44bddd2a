"""The minute of the day in which most jobs of a file fall due, and what `?` would do about it.

Launches are counted as expected by the schedules, in the minutes of the zone that most jobs of the
file have, for the worst weekday and season (`load.py`). Launches of jobs that are due every minute
are the same in all minutes, so `?` cannot move them, and they do not make a minute crowded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from cron.calendar.days import DAY_MIN, LocalTimes
from cron.calendar.expression import parse
from cron.calendar.load import UNIT, Load
from cron.job import Job, Schedule

CROWDED_MIN: Final = 20
"""Launches in one minute of which nothing is said yet."""
SCHEDULES_MAX: Final = 2_000
"""Different schedules that are counted, those of most jobs: up to 0.4 ms each."""
SHARE: Final = 10
"""A file with less than a tenth of a crowded minute is not told of it."""
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


def crowding(mine: Iterable[Job], others: Iterable[Job] = ()) -> Crowding | None:
    """Return the minute that is most crowded of those in which jobs of a file are due, beside
    `others`, None if none is. Jobs whose `?` has no value yet do not count."""
    counts, texts = _counts(mine)
    if sum(counts.values()) < CROWDED_MIN:
        return None
    zones = Counter[str]()
    for (_, zone_name, _), count in counts.items():
        zones[zone_name] += count
    zone = zones.most_common(1)[0][0]
    own = _load_of(counts).top(zone)
    other_counts, _ = _counts(others)
    rest = _load_of(other_counts).top(zone)
    both = [a + b for a, b in zip(own, rest, strict=True)]
    base, own_base = min(both), min(own)
    # A minute that other files crowd hides none that this file crowds.
    crowded = [
        at
        for at, count in enumerate(both)
        if (count - base) // UNIT >= CROWDED_MIN
        and own[at] > own_base
        and own[at] // UNIT * SHARE >= count // UNIT
    ]
    if not crowded:
        return None
    # Of equal minutes the one with most of the file's own launches, then the earliest.
    minute = max(crowded, key=lambda at: (both[at], own[at]))
    launches, my_launches = both[minute] // UNIT, own[minute] // UNIT
    first = minute - minute % _HOUR_MIN
    hour = sum(both[first : first + _HOUR_MIN])
    schedule = _commonest(counts, texts, zone, minute)
    return Crowding(
        launches,
        my_launches,
        f"{minute // _HOUR_MIN:02}:{minute % _HOUR_MIN:02}",
        zone,
        schedule,
        with_question_mark(schedule),
        -(-hour // (_HOUR_MIN * UNIT)),
    )


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


def _load_of(counts: Counter[_Key]) -> Load:
    load = Load()
    for (resolved, zone, every_s), count in counts.items():
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
