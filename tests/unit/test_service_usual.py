"""How long launches usually take, by history, and what follows for the `?` of other jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.calendar.expression import parse
from cron.errors import Unavailable
from cron.job import Schedule
from cron.launch_state import LaunchState
from cron.service import usual
from cron.service.catalog import Declared, compare
from cron.service.usual import KEPT_MS, READ_ROWS, UsualTimes, run_min
from cron.state.rows import Row, RowKind
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, job

MINUTE_MS = 60_000


def wanted(text: str) -> Schedule:
    return parse(text).schedule("UTC")


def rows(*minutes: float, state: LaunchState = LaunchState.SUCCEEDED) -> list[Row]:
    first = Row(RowKind.ENDED, "a", 1, T0, 0, 1, state, Reason.NONE, 7, T0 * 1000, started_ms=T0)
    return [
        msgspec.structs.replace(first, finished_ms=T0 + int(one * MINUTE_MS)) for one in minutes
    ]


def test_the_median_of_launches_that_succeeded_counts_rounded_up() -> None:
    assert run_min([]) == 1
    assert run_min(rows(0.1)) == 1
    assert run_min(rows(29.5, 30, 31)) == 30
    assert run_min([*rows(2, 2, 3), *rows(600, 600, 600, 600, state=LaunchState.FAILED)]) == 2


class History:
    """Answers as history does, and counts what it is asked."""

    def __init__(self, **minutes: float) -> None:
        self.minutes = minutes
        self.asked: list[list[str]] = []
        self.is_away = False

    async def newest_of_each(self, names: list[str], limit: int) -> dict[str, list[Row]]:
        self.asked.append(names)
        if self.is_away:
            raise Unavailable("history is away")
        assert limit == READ_ROWS
        return {name: rows(self.minutes[name]) for name in names if name in self.minutes}


class Clock:
    """A clock in the hand of a test."""

    now_ms = 0

    def mono_ms(self) -> int:
        return self.now_ms


def times(history: History, clock: Clock) -> UsualTimes:
    of: Any = history
    at: Any = clock
    return UsualTimes(of, at)


async def test_each_job_is_read_once_a_day_and_a_bounded_number_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usual, "READ_MAX", 2)
    history, clock = History(a=30, c=0.5, d=7), Clock()
    known = times(history, clock)
    assert await known.of(["a", "b", "c", "d"]) == {"a": 30}
    assert await known.of(["a", "b", "c", "d"]) == {"a": 30, "d": 7}
    assert await known.of(["a", "b", "c", "d"]) == {"a": 30, "d": 7}
    assert history.asked == [["a", "b"], ["c", "d"]]
    clock.now_ms = KEPT_MS + 1
    await known.of(["a", "b", "c", "d"])
    assert history.asked[2:] == [["a", "b"]]


async def test_history_that_does_not_answer_leaves_a_minute_for_each() -> None:
    history = History(a=30)
    history.is_away = True
    known = times(history, Clock())
    assert await known.of(["a"]) == {}
    history.is_away = False
    assert await known.of(["a"]) == {"a": 30}


def test_a_new_job_keeps_clear_of_what_usually_runs_long_or_on_many_executors() -> None:
    rig = StateRig()
    rig.put(
        job("long", schedule=wanted("0 3 * * *")),
        job("wide", schedule=wanted("30-59 3 * * *"), parts=3),
    )
    records = list(rig.state.jobs.values())
    new = Declared("other", [job("new", schedule=wanted("? 3 * * *"))])

    def minute(run_min: dict[str, int]) -> int:
        diff = compare(new, records, 0, prune=False, now_s=T0, run_min=run_min)
        return int(diff.changed[0].schedule.resolved.split()[0])

    assert 1 <= minute({}) < 30
    assert 15 <= minute({"default/long": 15}) < 30
