"""Chooses the value of a `?` that keeps the peak load lowest.

The algorithm is greedy. A launch counts in each minute in which it usually runs, once for each of
its parts (`load.py`). Of all options of a `?`, it takes the candidate whose busiest minute has the
lowest load, then the one with the lowest total load. Among equals it takes the one that people
rarely write themselves, then one in a quiet hour and a quiet ten minutes, then the first in an
order that halves gaps. A chosen value never changes. The leader chooses once and writes the choice
into the log with PLACEMENT_VERSION (SRE book ch. 24, "Running Large Cron"); it is never computed
again.

Day fields come first: if day of month, month or day of week is a `?`, the least used value is
taken; then minute and hour are chosen for those days.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import msgspec

from cron.calendar.days import DAY_MIN, minutes_of_day
from cron.calendar.expression import Expression, parse
from cron.calendar.fields import Field, Option
from cron.calendar.load import RUN_MIN_MAX, Load, running, weekday_loads
from cron.errors import ScheduleError
from cron.job import Schedule

PLACEMENT_VERSION: Final = 2
"""1: each launch counted once, in the minute in which it starts."""

_HOUR_MIN: Final = 60
_TEN_MIN: Final = 10


def place(schedule: Schedule, load: Load, run_min: int = 1) -> Schedule:
    """Return the schedule with a value for each `?`; the same schedule if it has no `?`. Its
    launches run for `run_min` minutes.

    `load` is not changed: the caller adds the result before it places the next schedule.

    Raises:
        ScheduleError: the text is not valid.
    """
    if schedule.is_placed:
        return schedule
    expression = parse(schedule.text)
    chosen = [option.text for option in _choose_days(expression, load)]
    days = parse(" ".join(("0", "0", *chosen))).fields[2:]
    run_min = min(max(run_min, 1), RUN_MIN_MAX)
    minute, hour = _choose_time((*expression.fields[:2], *days), schedule.zone, load, run_min)
    resolved = expression.choose((minute, hour, *chosen))
    return msgspec.structs.replace(schedule, resolved=resolved, placement=PLACEMENT_VERSION)


def place_all(
    schedules: Sequence[Schedule], load: Load, weights: Sequence[int] = ()
) -> list[Schedule]:
    """Return the schedules with values, chosen one after the other, and add all to `load`.
    `weights`: on how many executors launches of each run at once, one if left out.

    Schedules without `?` are added first, so that the others avoid them.
    """
    weighed = [*zip(schedules, weights or [1] * len(schedules), strict=True)]
    for schedule, weight in weighed:
        if schedule.is_placed:
            load.add(schedule, weight)
    placed = []
    for schedule, weight in weighed:
        if not schedule.is_placed:
            schedule = place(schedule, load)
            load.add(schedule, weight)
        placed.append(schedule)
    return placed


def keep(old: Schedule, new: Schedule) -> Schedule | None:
    """Return `new` with the values that `old` has; None if they must be chosen again.

    The values are kept if each `?` of the new text is in the same field of the old text, in the
    same form. Fields without `?` and the zone may differ, if the result is a valid schedule.
    """
    if new.is_placed or not old.placement or old.every_s:
        return None
    before, after = parse(old.text), parse(new.text)
    values = old.resolved.split(" ")
    for was, now, value in zip(before.fields, after.fields, values, strict=True):
        texts = [option.text for option in now.options]
        if texts and (was.text != now.text or value not in texts):
            return None
    resolved = after.choose(tuple(values))
    try:
        parse(resolved)
    except ScheduleError:
        return None
    return msgspec.structs.replace(new, resolved=resolved, placement=old.placement)


def _choose_days(expression: Expression, load: Load) -> list[Option]:
    """Return the values of day of month, month and day of week; unchanged without `?`."""
    chosen = []
    for number, field in enumerate(expression.fields[2:]):
        counts = load.days(number)

        def busyness(option: Option, counts: list[int] = counts) -> tuple[int, int]:
            values = [count for value, count in enumerate(counts) if option.mask >> value & 1]
            return max(values, default=0), sum(values)

        options = field.options or (Option(field.text, field.mask),)
        chosen.append(min(options, key=busyness))
    return chosen


def _choose_time(fields: tuple[Field, ...], zone: str, load: Load, run_min: int) -> tuple[str, str]:
    minute, hour = fields[:2]
    minutes = minute.options or (Option(minute.text, minute.mask),)
    hours = hour.options or (Option(hour.text, hour.mask),)
    if len(minutes) == len(hours) == 1:
        return minutes[0].text, hours[0].text
    by_weekday = weekday_loads(fields[2:])
    # A monthly job beside a weekly one counts for the weekday's row, not for all seven.
    weekdays = [day for day, count in enumerate(by_weekday) if 2 * count >= max(by_weekday)]
    row = load.top_of(weekdays, zone)
    candidates = _candidates(minutes, hours, run_min)
    number = _least(candidates, row)
    return minutes[number % len(minutes)].text, hours[number // len(minutes)].text


class _Candidates:
    """All pairs of a minute option and an hour option, with fast sums over their minutes."""

    def __init__(
        self, minutes: tuple[Option, ...], hours: tuple[Option, ...], run_min: int
    ) -> None:
        self.times = [
            minutes_of_day(hour.mask, minute.mask) for hour in hours for minute in minutes
        ]
        self.are_single = all(len(times) == 1 for times in self.times)
        self.round = [sum(_ROUNDNESS[time] for time in times) for times in self.times]
        self.hours = [_distinct(times, _HOUR_MIN) for times in self.times]
        self.tens = [_distinct(times, _TEN_MIN) for times in self.times]
        self._read_all = itemgetter(*(times[0] for times in self.times))
        self._running = self.times
        if run_min > 1:
            self._running = [
                tuple(minute % DAY_MIN for minute in running(times, run_min))
                for times in self.times
            ]
        self._is_short = self.are_single and run_min == 1
        self._readers: list[Callable[[list[int]], Any]] = (
            [] if self._is_short else [itemgetter(*times) for times in self._running]
        )

    def costs(self, row: list[int]) -> list[Any]:
        """Return each candidate's costs: the load of its busiest minute, then the total load."""
        if self._is_short:
            return list(self._read_all(row))
        found: list[Any] = []
        for reader, times in zip(self._readers, self._running, strict=True):
            counts = reader(row) if len(times) > 1 else (reader(row),)
            found.append((max(counts), sum(counts)))
        return found

    def peaks(
        self, numbers: list[int], stretches: list[tuple[int, ...]], loads: list[int]
    ) -> list[int]:
        """Return, for each of `numbers`, the greatest of `loads` in the stretches it overlaps."""
        if self.are_single:
            return [loads[stretches[number][0]] for number in numbers]
        return [max(map(loads.__getitem__, stretches[number])) for number in numbers]


def _distinct(times: tuple[int, ...], size_min: int) -> tuple[int, ...]:
    """Return the stretches of `size_min` that the times overlap."""
    return tuple(dict.fromkeys(time // size_min for time in times))


@lru_cache(maxsize=256)
def _candidates(
    minutes: tuple[Option, ...], hours: tuple[Option, ...], run_min: int
) -> _Candidates:
    return _Candidates(minutes, hours, run_min)


def _least(candidates: _Candidates, row: list[int]) -> int:
    """Return the number of the best candidate."""
    costs = candidates.costs(row)
    ties = _cheapest(range(len(costs)), costs)
    ties = _cheapest(ties, [candidates.round[number] for number in ties])
    if len(ties) > 1:
        loads = [sum(row[first : first + _HOUR_MIN]) for first in range(0, DAY_MIN, _HOUR_MIN)]
        ties = _cheapest(ties, candidates.peaks(ties, candidates.hours, loads))
    if len(ties) > 1:
        loads = [sum(row[first : first + _TEN_MIN]) for first in range(0, DAY_MIN, _TEN_MIN)]
        ties = _cheapest(ties, candidates.peaks(ties, candidates.tens, loads))
    return min(ties, key=lambda number: _REVERSED[candidates.times[number][0]])


def _cheapest(numbers: Sequence[int], costs: list[Any]) -> list[int]:
    """Return those of `numbers` with the lowest cost; `costs` has the same order."""
    least = min(costs)
    return [number for number, cost in zip(numbers, costs, strict=True) if cost == least]


def _roundness(minute: int) -> int:
    """Return how likely people are to write this minute of the day themselves."""
    if not minute:
        return 40
    for step, weight in ((60, 30), (30, 15), (15, 8), (10, 4), (5, 2)):
        if minute % step == 0:
            return weight
    return 0


_ROUNDNESS: Final = [_roundness(minute) for minute in range(DAY_MIN)]

_ELEVEN_BITS: Final = sorted(range(DAY_MIN), key=lambda minute: int(f"{minute:011b}"[::-1], 2))
_REVERSED: Final = [0] * DAY_MIN
"""Return the rank of each minute in bit-reversed order, in which each next one halves a gap."""
for _rank, _minute in enumerate(_ELEVEN_BITS):
    _REVERSED[_minute] = _rank
