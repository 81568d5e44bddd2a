"""Account gives every instant its row (rules R1, R2, R11)."""

from __future__ import annotations

import msgspec
import pytest

from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.rows import RowKind
from launcher.launch import LaunchState, Reason
from launcher.names import SCHEDULED_S_MAX
from tests.unit.state_rig import T0, job, skips, with_job


def test_an_accounted_instant_is_due_and_moves_the_horizon() -> None:  # R1
    rig = with_job(deadline_s=120)
    assert rig.account(60, to=70) is Verdict.ACCEPTED
    row = rig.row(60)
    assert row.state is LaunchState.DUE
    assert row.attempt == 0
    assert row.deadline_ms == (T0 + 180) * 1000
    assert rig.record().horizon_s == T0 + 70


def test_an_account_must_begin_at_the_horizon() -> None:  # R1
    rig = with_job()
    rig.account(60)
    with rig.unchanged():
        assert rig.account(120, from_s=T0) is Verdict.WRONG_HORIZON
        assert rig.account(180, from_s=T0 + 120) is Verdict.WRONG_HORIZON


def test_a_repeated_account_is_refused_and_changes_nothing() -> None:  # R1
    rig = with_job()
    item = c.Account((c.AccountLine((1,), 1, T0, T0 + 60, (c.DueItem(T0 + 60),)),))
    assert rig.item(item) is Verdict.ACCEPTED
    with rig.unchanged():
        assert rig.item(item) is Verdict.WRONG_HORIZON


def test_an_account_with_a_stale_revision_is_refused() -> None:  # R2
    rig = with_job()
    rig.put(job(deadline_s=30))
    with rig.unchanged():
        assert rig.account(60, catalog=1) is Verdict.STALE_REVISION


def test_an_account_of_an_unknown_or_removed_job_is_refused() -> None:
    rig = with_job()
    rig.put(removed=("default/backup",))
    with rig.unchanged():
        assert rig.account(60) is Verdict.UNKNOWN_JOB
        assert rig.account(60, number=99) is Verdict.UNKNOWN_JOB


def test_one_bad_item_does_not_stop_the_others_of_its_command() -> None:
    rig = with_job()
    rig.put(job("other"))
    good = c.AccountLine((2,), 2, T0, T0 + 60, (c.DueItem(T0 + 60),))
    bad = c.AccountLine((1,), 1, T0 + 1, T0 + 60, (c.DueItem(T0 + 60),))
    assert rig.items(c.Account((bad, good))) == [Verdict.WRONG_HORIZON, Verdict.ACCEPTED]
    assert list(rig.state.due) == [(2, T0 + 60, 0)]


@pytest.mark.parametrize(
    ("due", "skipped", "to"),
    [
        ((0,), (), 60),  # at the horizon
        ((61,), (), 60),  # behind the end
        ((60, 60), (), 60),  # twice
        ((), (), 0),  # nothing in between
        ((), (), -60),  # backwards
        ((10,), (skips(10, 10, 1),), 60),  # due and skipped
        ((30,), (skips(10, 50, 5),), 60),  # due inside a run
        ((), (skips(10, 40, 4), skips(40, 60, 3)), 60),  # runs that touch
        ((), (skips(0, 10, 2),), 60),
        ((), (skips(40, 61, 2),), 60),
        ((), (skips(40, 30, 2),), 60),
        ((), (skips(30, 40, 0),), 60),
        ((), (skips(30, 40, -1),), 60),
        ((), (skips(30, 40, 12),), 60),  # more instants than seconds
        ((), (skips(30, 40, 1),), 60),  # one instant cannot be two
        ((), (skips(30, 30, 2),), 60),
    ],
)
def test_rows_outside_their_period_or_over_each_other_are_refused(  # R1
    due: tuple[int, ...], skipped: tuple[c.SkipItem, ...], to: int
) -> None:
    rig = with_job()
    with rig.unchanged():
        assert rig.account(*due, skipped=skipped, to=to) is Verdict.BAD_TIMES


def test_a_horizon_ends_with_the_last_time_that_has_a_name() -> None:
    rig = with_job()
    with rig.unchanged():
        assert rig.account(60, to_s=SCHEDULED_S_MAX + 1) is Verdict.BAD_TIMES


def test_a_skipped_instant_becomes_a_row_at_once() -> None:  # R1
    rig = with_job()
    assert rig.account(to=60, skipped=(skips(60, 60, 1),)) is Verdict.ACCEPTED
    (row,) = rig.rows
    assert (row.kind, row.state, row.reason) == (
        RowKind.ENDED,
        LaunchState.SKIPPED,
        Reason.MISSED,
    )
    assert (row.scheduled_s, row.attempt, row.count) == (T0 + 60, 0, 1)
    assert row.ended_index == rig.state.index


def test_a_run_of_skipped_instants_is_one_range_row() -> None:  # R1
    rig = with_job()
    rig.account(300, to=300, skipped=(skips(60, 240, 4),))
    (row,) = rig.rows
    assert (row.kind, row.scheduled_s, row.last_s, row.count) == (
        RowKind.RANGE,
        T0 + 60,
        T0 + 240,
        4,
    )
    assert rig.record().counts == {LaunchState.SKIPPED: 4}


def test_an_accounted_local_time_is_refused_a_second_time() -> None:  # R11
    rig = with_job()
    rig.account(60, due=(c.DueItem(T0 + 60, local_min=100),))
    for again in (c.DueItem(T0 + 120, 100), c.DueItem(T0 + 120, 99)):
        with rig.unchanged():
            verdict = rig.account(120, due=(again,))
            assert verdict is Verdict.REPEATED_LOCAL_TIME
    assert rig.account(120, due=(c.DueItem(T0 + 120, 101),)) is Verdict.ACCEPTED


def test_a_skipped_local_time_is_not_launched_afterwards() -> None:  # R11
    rig = with_job()
    rig.account(to=60, skipped=(skips(60, 60, 1, local_min=100),))
    with rig.unchanged():
        due = (c.DueItem(T0 + 120, 100),)
        assert rig.account(120, due=due) is Verdict.REPEATED_LOCAL_TIME


def test_a_local_time_twice_in_one_item_is_refused() -> None:  # R11
    rig = with_job()
    twice = (c.DueItem(T0 + 60, 100), c.DueItem(T0 + 120, 100))
    with rig.unchanged():
        assert rig.account(120, due=twice) is Verdict.REPEATED_LOCAL_TIME


def test_a_new_zone_forgets_local_times_of_the_old_one() -> None:  # R11
    rig = with_job()
    rig.account(60, due=(c.DueItem(T0 + 60, local_min=100),))
    berlin = msgspec.structs.replace(job().schedule, zone="Europe/Berlin")
    assert rig.to(60).put(job(schedule=berlin)).verdict is Verdict.ACCEPTED
    assert rig.account(120, due=(c.DueItem(T0 + 120, 40),)) is Verdict.ACCEPTED


def test_an_edit_within_a_zone_keeps_its_local_times() -> None:  # R11
    rig = with_job()
    rig.account(60, due=(c.DueItem(T0 + 60, local_min=100),))
    rig.to(60).put(job(deadline_s=10))
    due = (c.DueItem(T0 + 120, 100),)
    assert rig.account(120, due=due) is Verdict.REPEATED_LOCAL_TIME
