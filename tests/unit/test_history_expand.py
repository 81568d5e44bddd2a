"""Ranges of skipped instants, shown one by one."""

from __future__ import annotations

from cron.history.order import expand
from cron.job import Schedule
from cron.launch_state import LaunchState
from cron.state.rows import Row, RowKind
from launcher.protocol.status import Reason

EVERY_MINUTE = Schedule("@every 60s", every_s=60)
NIGHTLY = Schedule("30 2 * * *", "30 2 * * *", "Europe/Berlin")


def row(kind: RowKind, first_s: int, last_s: int = 0, count: int = 1, **fields: object) -> Row:
    return Row(
        kind, "default/backup", 1, first_s, 0, 0, LaunchState.SKIPPED, Reason.PAUSED, 5, 9,
        last_s=last_s, count=count, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


RANGE = row(RowKind.RANGE, 60, 600, 10, detail="holidays")


def test_a_range_becomes_a_row_for_each_of_its_instants_newest_first() -> None:
    rows = expand(RANGE, EVERY_MINUTE, 100)
    assert [r.scheduled_s for r in rows] == list(range(600, 0, -60))
    assert rows[-1] == row(RowKind.ENDED, 60, 60, detail="holidays")


def test_the_limit_keeps_the_newest() -> None:
    assert [r.scheduled_s for r in expand(RANGE, EVERY_MINUTE, 3)] == [600, 540, 480]


def test_only_instants_of_the_period_are_shown() -> None:
    rows = expand(RANGE, EVERY_MINUTE, 100, since_s=120, until_s=200)
    assert [r.scheduled_s for r in rows] == [180, 120]
    assert expand(RANGE, EVERY_MINUTE, 100, since_s=121, until_s=150) == []


def test_other_rows_stay_as_they_are() -> None:
    ended = row(RowKind.ENDED, 60)
    assert expand(ended, EVERY_MINUTE, 1) == [ended]
    news = row(RowKind.AMENDMENT, 60)
    assert expand(news, EVERY_MINUTE, 1) == [news]


def test_a_range_that_cannot_be_expanded_does_not_disappear() -> None:
    assert expand(RANGE, None, 100) == [RANGE]
    assert expand(RANGE, Schedule("@every 1d", every_s=86_400), 100) == [RANGE]


def test_the_nominal_local_time_is_computed_again() -> None:
    first_s = 1_774_661_400  # 2026-03-28 01:30 UTC, 02:30 in Berlin
    last_s = 1_774_746_000  # 2026-03-29 01:00 UTC: 02:30 did not exist that day
    rows = expand(row(RowKind.RANGE, first_s, last_s, 2), NIGHTLY, 10)
    assert [r.scheduled_s for r in rows] == [last_s, first_s]
    assert [r.local_min % 1440 for r in rows] == [150, 150]
