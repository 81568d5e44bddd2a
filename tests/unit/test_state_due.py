"""What is due stands in lines until it is something that a line cannot say."""

from __future__ import annotations

from cron.job import Schedule
from cron.state import commands as c
from cron.state.columns import deltas
from cron.state.due import Mark
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from launcher.launch import Reason
from tests.unit.state_rig import T0, StateRig, job, with_job

KEY = (1, T0 + 60, 0)


def many(count: int) -> StateRig:
    rig = StateRig()
    rig.put(*(job(f"j{number}", deadline_s=60 + number) for number in range(count)))
    rig.join()
    return rig


def line(rig: StateRig, *numbers: int, to_s: int = T0 + 60) -> c.AccountLine:
    jobs = deltas(numbers)
    return c.AccountLine(jobs, rig.state.catalog, T0, to_s, (c.DueItem(to_s),))


def test_one_line_makes_launches_of_many_jobs_due_and_keeps_no_row_of_any() -> None:
    rig = many(3)
    assert rig.item(c.Account((line(rig, 1, 2, 3),))) is Verdict.ACCEPTED
    assert [(row.key, row.deadline_ms) for row in rig.state.due.values()] == [
        ((number, T0 + 60, 0), (T0 + 60 + 59 + number) * 1000) for number in (1, 2, 3)
    ]
    assert not rig.state.due.odd
    assert not any(record.open for record in rig.state.by_number.values())


def test_a_line_is_refused_whole_if_one_of_its_jobs_is_elsewhere() -> None:  # R1
    rig = many(3)
    assert rig.account(30, number=2) is Verdict.ACCEPTED
    with rig.unchanged():
        assert rig.item(c.Account((line(rig, 1, 2, 3),))) is Verdict.WRONG_HORIZON
        assert rig.item(c.Account((line(rig, 1, 9),))) is Verdict.UNKNOWN_JOB


def test_a_line_is_refused_if_one_of_its_jobs_has_changed_and_not_if_another_has() -> None:  # R2
    rig = many(3)
    planned = line(rig, 1, 2)
    rig.put(job("j2", deadline_s=5))
    assert rig.item(c.Account((planned,))) is Verdict.ACCEPTED
    rig = many(3)
    planned = line(rig, 1, 2)
    rig.put(job("j1", deadline_s=5))
    with rig.unchanged():
        assert rig.item(c.Account((planned,))) is Verdict.STALE_REVISION


def test_a_line_that_names_a_job_twice_or_none_is_refused() -> None:
    rig = many(2)
    with rig.unchanged():
        for jobs in ((), (0,), (1, 0), (2, -1), (-1,)):
            one = c.AccountLine(jobs, rig.state.catalog, T0, T0 + 60)
            assert rig.item(c.Account((one,))) is Verdict.REPEATED


def test_a_line_by_a_catalog_that_is_not_yet_is_refused() -> None:
    rig = many(1)
    ahead = c.AccountLine((1,), rig.state.catalog + 1, T0, T0 + 60)
    with rig.unchanged():
        assert rig.item(c.Account((ahead,))) is Verdict.STALE_REVISION


def test_launches_leave_their_line_one_by_one_and_the_others_wait_on() -> None:
    rig = many(4)
    rig.append(c.Account((line(rig, 1, 2, 3, 4),)))
    assert rig.begin(60, number=2) is Verdict.ACCEPTED
    assert rig.skip(60, number=3) is Verdict.ACCEPTED
    assert rig.cancel(60, number=1, reason=Reason.KILLED) is Verdict.ACCEPTED
    assert list(rig.state.due) == [(4, T0 + 60, 0)]
    assert len(rig.state.due) == 1
    assert rig.begin(60, number=4) is Verdict.ACCEPTED
    assert not rig.state.due.lines


def test_a_launch_keeps_its_deadline_and_its_revision_when_its_job_changes() -> None:
    rig = with_job()
    rig.account(60)
    before = rig.state.due[KEY]
    rig.to(60).put(job(deadline_s=5, schedule=Schedule("*/5 * * * *", "*/5 * * * *")))
    assert rig.state.due[KEY] == before
    assert rig.state.due.odd[KEY] is rig.record().open[KEY[1:]]


def test_reading_a_launch_of_a_line_does_not_change_it() -> None:
    rig = with_job()
    rig.account(60)
    rig.state.due[KEY].deadline_ms = 0
    assert rig.state.due[KEY].deadline_ms == (T0 + 360) * 1000
    assert rig.state.open_of(rig.record())[KEY[1:]] == rig.state.due[KEY]


def test_lines_are_in_the_image_in_one_order_however_they_came() -> None:
    first, second = many(5), many(5)
    first.append(c.Account((line(first, 1, 4), line(first, 2, 3))))
    second.append(c.Account((line(second, 2, 3), line(second, 1, 4))))
    expected = [(T0 + 60, -1, False, (1, 1, 1, 1))]
    assert first.state.due.image() == second.state.due.image() == expected
    again = decode_state([encode_state(first.state)])
    assert again.due == first.state.due
    assert encode_state(again) == encode_state(first.state)


def test_launches_of_one_instant_keep_what_their_lines_said_of_them() -> None:
    rig = many(3)
    late = c.AccountLine((2,), rig.state.catalog, T0, T0 + 60, (c.DueItem(T0 + 60, 7, True),))
    rig.append(c.Account((line(rig, 1, 3), late)))
    assert rig.state.due.lines[T0 + 60] == {1: Mark(), 3: Mark(), 2: Mark(7, is_late=True)}
    again = decode_state([encode_state(rig.state)])
    assert again.due.lines == rig.state.due.lines
    assert again.due[2, T0 + 60, 0].local_min == 7
