"""Jobs that are removed at once, and whose waiting launches are ended a portion at a time."""

from __future__ import annotations

import pytest

from cron.job import Overlap
from cron.state import commands as c
from cron.state.codec import decode_entry, encode_entry
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.removal import Leave, Sweep
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import FIRST, T0, StateRig, job, said, with_job

BACKUP = "default/backup"


def remove(rig: StateRig, *names: str, by: str = "anna") -> Verdict:
    """Remove jobs that are accounted up to now, and leave what waits."""
    names = names or (BACKUP,)
    second = rig.at_ms // 1000
    put = c.PutJobs("crontab", rig.state.catalog, second, (), names, by)
    return rig.append(Leave(), put).results[-1].verdict


def waiting(*seconds: int, **fields: object) -> StateRig:
    """A job of which these instants wait, and which is removed in the last of them."""
    rig = with_job(**fields).to(seconds[-1])
    rig.account(*seconds)
    assert remove(rig) is Verdict.ACCEPTED
    return rig


def due(rig: StateRig) -> list[int]:
    return [key[1] - T0 for key in rig.state.due]


def swept(rig: StateRig, *numbers: int, limit: int = 100) -> int:
    """How many launches a sweep ended."""
    result = rig.answer(Sweep(numbers, limit))
    assert result.verdict is Verdict.ACCEPTED
    return result.number


def test_a_job_is_removed_at_once_and_what_waits_is_left() -> None:
    rig = waiting(1, 2, 3)
    record = rig.record()
    assert (record.job, record.revision, record.spans[-1].to_s) == (None, 2, T0 + 3)
    assert due(rig) == [1, 2, 3]
    assert not rig.rows
    assert list(rig.state.leaving) == [1]


def test_what_waits_is_ended_in_portions_the_oldest_first() -> None:
    rig = waiting(1, 2, 3)
    assert swept(rig, 1, limit=2) == 2
    assert (due(rig), list(rig.state.leaving)) == ([3], [1])
    assert swept(rig, 1, limit=2) == 1
    assert (due(rig), list(rig.state.leaving)) == ([], [])
    assert swept(rig, 1, limit=2) == 0


def test_the_rows_are_those_of_a_removal_in_one_entry() -> None:
    left, ended = waiting(1, 2), with_job().to(2)
    swept(left, 1)
    ended.account(1, 2)
    ended.put(removed=(BACKUP,))
    assert [(row.state, row.reason, row.by, said(row)) for row in left.rows] == [
        (LaunchState.CANCELLED, Reason.NONE, "anna", "the job was removed")
    ] * 2
    # But for the entry that ended them: one later.
    assert [row.scheduled_s for row in left.rows] == [row.scheduled_s for row in ended.rows]
    assert {row.ended_index for row in left.rows} == {left.state.index}


def test_nothing_of_a_removed_job_begins_while_it_waits() -> None:
    rig = waiting(1, 2)
    with rig.unchanged():
        assert rig.begin(1) is Verdict.UNKNOWN_JOB
        assert rig.account(3, number=1) is Verdict.UNKNOWN_JOB
        assert rig.trigger("q").verdict is Verdict.UNKNOWN_JOB
        assert rig.items(c.Pause((BACKUP,), "", 0, "anna")) == [Verdict.UNKNOWN_JOB]


def test_what_has_begun_goes_on_and_is_not_swept() -> None:
    rig = with_job().to(2)
    rig.account(1, 2)
    rig.begin(1)
    remove(rig)
    assert swept(rig, 1) == 1
    assert rig.row(1).state is LaunchState.BEGUN
    assert rig.finished(1) is Verdict.ACCEPTED


def test_what_has_begun_and_never_ran_is_cancelled_and_does_not_wait() -> None:
    rig = with_job().to(2)
    rig.account(1, 2)
    rig.begin(1)
    remove(rig)
    assert rig.refused(1) is Verdict.ACCEPTED
    assert due(rig) == [2]
    assert rig.rows[-1].state is LaunchState.CANCELLED


def test_a_sweep_of_jobs_that_are_there_or_never_were_changes_nothing() -> None:
    rig = with_job().to(1)
    rig.account(1)
    with rig.unchanged():
        assert swept(rig, 1, 0, -1, 99) == 0


@pytest.mark.parametrize("limit", [0, -1])
def test_a_sweep_of_nothing_changes_nothing(limit: int) -> None:
    rig = waiting(1)
    with rig.unchanged():
        assert swept(rig, 1, 1, limit=limit) == 0
    assert list(rig.state.leaving) == [1]


def test_a_sweep_goes_through_jobs_in_the_order_that_it_names() -> None:
    rig = StateRig()
    rig.put(job("a"), job("b"), job("c"))
    rig.to(2)
    for number in (1, 2, 3):
        rig.account(1, 2, number=number)
    remove(rig, "default/a", "default/c")
    assert swept(rig, 3, 3, 2, 1, limit=3) == 3
    assert [key[:2] for key in rig.state.due] == [(2, T0 + 1), (1, T0 + 2), (2, T0 + 2)]
    assert list(rig.state.leaving) == [1]


def test_a_job_comes_back_once_what_waited_of_it_is_ended() -> None:
    rig = waiting(1, 2)
    for source in ("crontab", "elsewhere"):
        with rig.unchanged():
            assert rig.put(job(), source=source).verdict is Verdict.LEAVING
    swept(rig, 1, limit=1)
    with rig.unchanged():
        assert rig.put(job("other"), job()).verdict is Verdict.LEAVING  # all or nothing
    swept(rig, 1, limit=1)
    assert rig.put(job()).verdict is Verdict.ACCEPTED
    assert rig.record().removed_by == ""
    rig.to(3).account(3)
    assert due(rig) == [3]
    with rig.unchanged():
        assert swept(rig, 1) == 0


def test_what_runs_of_a_removed_job_does_not_keep_it_from_coming_back() -> None:
    rig = with_job(overlap=Overlap.FORBID).to(1)
    rig.account(1)
    rig.begin(1)
    remove(rig)
    assert not rig.state.leaving
    assert rig.put(job(overlap=Overlap.FORBID)).verdict is Verdict.ACCEPTED


def test_what_waits_of_a_removed_job_may_be_killed_or_skipped() -> None:
    rig = waiting(1, 2, overlap=Overlap.QUEUE)
    assert rig.cancel(1) is Verdict.ACCEPTED
    assert rig.skip(2) is Verdict.ACCEPTED
    assert list(rig.state.leaving) == [1]  # of which a sweep finds nothing any more
    assert rig.put(job()).verdict is Verdict.ACCEPTED
    assert not rig.state.leaving


def test_only_removals_that_follow_in_the_same_entry_leave_what_waits() -> None:
    rig = StateRig()
    rig.put(job("a"), job("b"), job("c"))
    rig.to(1)
    for number in (1, 2, 3):
        rig.account(1, number=number)
    catalog, second = rig.state.catalog, rig.at_ms // 1000
    rig.append(
        c.PutJobs("crontab", catalog, second, (), ("default/a",)),
        Leave(),
        c.PutJobs("crontab", catalog + 1, second, (), ("default/b",)),
    )
    rig.put(removed=("default/c",))
    assert [key[0] for key in rig.state.due] == [2]


def test_the_image_in_the_middle_of_a_removal_goes_on_alike() -> None:
    rig = waiting(1, 2, 3)
    swept(rig, 1, limit=1)
    again = Machine(decode_state([encode_state(rig.state)]))
    assert list(again.state.leaving) == [1]
    entry = encode_entry(rig.at_ms, FIRST, (Sweep((1,), 1),))
    index = rig.state.index + 1
    outcomes = [one.apply(1, index, entry) for one in (rig.machine, again)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].rows[0].by == "anna"
    assert encode_state(again.state) == encode_state(rig.state)


def test_an_image_under_way_has_what_waited_when_it_began() -> None:
    rig = waiting(1, 2)
    before = encode_state(rig.state)
    imaging = Imaging.begin(rig.state)
    swept(rig, 1, limit=1)
    assert b"".join(imaging.pieces()) == before


def test_commands_of_a_removal_are_read_as_they_were_written() -> None:
    commands = (Leave(), Sweep((1, 2), 9))
    assert decode_entry(encode_entry(1, FIRST, commands)).commands == commands
