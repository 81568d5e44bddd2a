"""Minutes in which many jobs fall due, and what `?` would do about them."""

from __future__ import annotations

from typing import Any

import pytest

from cron.calendar.crowding import CROWDED_MIN, Crowding, with_question_mark
from cron.calendar.crowding import crowding as crowding_from
from cron.calendar.expression import parse
from cron.job import Job
from tests.unit.state_rig import T0, job

TODAY = T0 // 86_400
"""2026-11-20, a Friday."""


def crowding(mine: list[Job], others: list[Job] | tuple[()] = ()) -> Crowding | None:
    return crowding_from(mine, others, today=TODAY)


def jobs(count: int, text: str, zone: str = "UTC", **fields: Any) -> list[Job]:
    schedule = parse(text).schedule(zone)
    return [job(f"j{number}", schedule=schedule, **fields) for number in range(count)]


def test_three_hundred_jobs_at_midnight_are_one_crowded_minute() -> None:
    found = crowding(jobs(300, "0 0 * * *"))
    assert found == Crowding(300, 300, "00:00", "UTC", "0 0 * * *", "? 0 * * *", 5)
    assert found.text("the executors have 64 slots for them") == (
        "300 launches fall due in one minute, 00:00 UTC (most by `0 0 * * *`); the executors have "
        "64 slots for them; `? 0 * * *` would leave about 5 in each minute of that hour"
    )


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (jobs(60, "@daily"), (60, "00:00", "UTC", "? 0 * * *", 1)),
        (jobs(60, "30 2 * * *", "Europe/Berlin"), (60, "02:30", "Europe/Berlin", "? 2 * * *", 1)),
        (
            jobs(60, "0 6 * * 1-5", "Asia/Tokyo"),
            (60, "2026-11-20 06:00", "Asia/Tokyo", "? 6 * * 1-5", 1),
        ),
        (jobs(120, "*/5 * * * *"), (120, "00:00", "UTC", "?/5 * * * *", 24)),
        (jobs(60, "0,30 4 * * *"), (60, "04:00", "UTC", "", 2)),
        (jobs(60, "@every 1h"), (60, "00:00", "UTC", "", 1)),
        (jobs(30, "0 0 * * *", parts=4), (120, "00:00", "UTC", "? 0 * * *", 2)),
        (
            # Every minute has the fifty; they are in the way, and `?` cannot move them.
            jobs(50, "* * * * *") + jobs(30, "15 9 * * *"),
            (80, "09:15", "UTC", "? 9 * * *", 51),
        ),
    ],
)
def test_the_minute_is_named_in_the_zone_of_most_jobs(
    declared: list[Job], expected: tuple[int, str, str, str, int]
) -> None:
    found = crowding(declared)
    assert found is not None
    assert (found.launches, found.at, found.zone, found.instead, found.after) == expected


@pytest.mark.parametrize(
    "declared",
    [
        [],
        jobs(CROWDED_MIN - 1, "0 0 * * *"),
        jobs(500, "* * * * *"),
        jobs(500, "@every 7s"),
        jobs(500, "? 0 * * *"),  # no value yet: a cell chooses it
        jobs(500, "0 0 * * *", jitter_s=3600),
        [one for day in range(7) for one in jobs(15, f"0 0 * * {day}")],
    ],
)
def test_nothing_is_said_of_what_is_not_crowded_or_cannot_be_moved(declared: list[Job]) -> None:
    assert crowding(declared) is None


def test_jobs_of_other_files_count_and_a_small_share_is_not_told_of_them() -> None:
    found = crowding(jobs(40, "0 0 * * *"), jobs(260, "0 0 * * *"))
    assert found is not None
    assert (found.launches, found.mine) == (300, 40)
    assert "300 launches, 260 of them of other files, fall due" in found.text()
    assert crowding(jobs(25, "0 0 * * *"), jobs(275, "0 0 * * *")) is None


def test_a_minute_that_another_file_crowds_hides_none_that_this_file_crowds() -> None:
    mine = jobs(300, "0 3 * * *") + jobs(1, "0 0 * * *")
    found = crowding(mine, jobs(5_000, "0 0 * * *"))
    assert found is not None
    assert (found.launches, found.mine, found.at) == (300, 300, "03:00")


def test_what_the_suggestion_chooses_is_due_as_often_as_before() -> None:
    texts = {
        "0 0 * * *": "? 0 * * *",
        "7 */2 1 * *": "? */2 1 * *",
        "*/5 * * * *": "?/5 * * * *",
        "0-59/10 3 * * *": "?/10 3 * * *",
        "0,30 * * * *": "",
        "10-20 * * * *": "",
        "@every 5m": "",
    }
    assert {text: with_question_mark(text) for text in texts} == texts
    for text in filter(None, texts.values()):
        assert parse(text)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (jobs(300, "0 0 1 * *"), (300, "2026-12-01 00:00")),
        (jobs(700, "0 3 15 * *"), (700, "2026-12-15 03:00")),
        (jobs(300, "0 4 1 1 *"), (300, "2027-01-01 04:00")),
        (jobs(30, "0 4 * * 1"), (30, "2026-11-23 04:00")),
        (jobs(30, "0 4 29 2 *"), (0, "")),  # not within a year
        # On one day of the year both fall together: a Monday that is the first of a month.
        (jobs(30, "0 4 1 * *") + jobs(40, "0 4 * * 1"), (70, "2027-02-01 04:00")),
        (jobs(30, "0 4 1 * *") + jobs(40, "0 4 2 * *"), (40, "2026-12-02 04:00")),
        (jobs(30, "0 4 1 * *") + jobs(40, "0 4 * * *"), (70, "2026-12-01 04:00")),
        (jobs(30, "30 0 1 * *", "Asia/Tokyo"), (30, "2026-12-01 00:30")),
        # 00:30 of the first in Tokyo is 15:30 of the day before in UTC.
        (jobs(30, "30 15 * * *") + jobs(25, "30 0 1 * *", "Asia/Tokyo"), (55, "2026-11-30 15:30")),
    ],
)
def test_launches_of_certain_days_are_counted_on_these(
    declared: list[Job], expected: tuple[int, str]
) -> None:
    """700 jobs on the first of a month were 21 launches, as many as there are on a mean day."""
    found = crowding(declared)
    assert (found.launches, found.at) == expected if found else expected == (0, "")


def test_many_different_days_take_a_bounded_number_of_looks() -> None:
    declared = [
        one
        for day in range(1, 29)
        for month in range(1, 13)
        for one in jobs(25, f"0 {day % 24} {day} {month} *")
    ]
    found = crowding(declared)
    assert found is not None
    assert found.launches == 25
