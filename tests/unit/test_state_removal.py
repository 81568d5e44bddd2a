"""Jobs that are removed at once, and whose due launches are cancelled a portion at a time."""

from __future__ import annotations

import pytest

from cron.job import Overlap
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import FIRST, T0, StateRig, job, said, with_job

BACKUP = "default/backup"


def remove(rig: StateRig, *names: str) -> Verdict:
    """Remove jobs that are accounted up to now."""
    second = rig.at_ms // 1000
    put = c.PutJobs("crontab", rig.state.catalog, second, (), names or (BACKUP,), "anna")
    return rig.append(put).results[-1].verdict


def waiting(*seconds: int, **fields: object) -> StateRig:
    """A job of which these instants wait, and which is removed in the last of them."""
    rig = with_job(**fields).to(seconds[-1])
    rig.account(*seconds)
    assert remove(rig) is Verdict.ACCEPTED
    return rig


def due(rig: StateRig) -> list[int]:
    return [key[1] - T0 for key in rig.state.due]


def of_removed(*seconds: int, number: int = 1) -> c.Cancel:
    """What a leader appends for these launches of a removed job."""
    keys = [(number, T0 + second, 0) for second in seconds]
    return c.Cancel(tuple(c.CancelItem(key, Reason.NONE, "anna") for key in keys))


def test_a_job_is_removed_at_once_and_its_due_launches_wait_on() -> None:
    rig = waiting(1, 2, 3)
    record = rig.record()
    assert (record.job, record.revision, record.spans[-1].to_s) == (None, 2, T0 + 3)
    assert record.removed_by == "anna"
    assert due(rig) == [1, 2, 3]
    assert not rig.rows


def test_its_due_launches_are_cancelled_in_portions() -> None:
    rig = waiting(1, 2, 3)
    assert rig.items(of_removed(1, 2)) == [Verdict.ACCEPTED] * 2
    assert due(rig) == [3]
    assert [(row.state, row.reason, row.by, said(row)) for row in rig.rows] == [
        (LaunchState.CANCELLED, Reason.NONE, "anna", "the job was removed")
    ] * 2
    assert rig.items(of_removed(2, 3)) == [Verdict.NOT_OPEN, Verdict.ACCEPTED]
    assert due(rig) == []


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_launch_is_not_cancelled_without_a_reason_while_its_job_is_there(is_begun: bool) -> None:
    rig = with_job().to(1)
    rig.account(1)
    if is_begun:
        rig.begin(1)
    with rig.unchanged():
        assert rig.items(of_removed(1)) == [Verdict.WRONG_STATE]


def test_nothing_of_a_removed_job_begins_while_it_waits() -> None:
    rig = waiting(1, 2)
    with rig.unchanged():
        assert rig.begin(1) is Verdict.UNKNOWN_JOB
        assert rig.account(3, number=1) is Verdict.UNKNOWN_JOB
        assert rig.trigger("q").verdict is Verdict.UNKNOWN_JOB
        assert rig.items(c.Pause((BACKUP,), "", 0, "anna")) == [Verdict.UNKNOWN_JOB]


def test_what_has_begun_goes_on_and_is_not_cancelled() -> None:
    rig = with_job().to(2)
    rig.account(1, 2)
    rig.begin(1)
    remove(rig)
    assert rig.items(of_removed(1, 2)) == [Verdict.WRONG_STATE, Verdict.ACCEPTED]
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


def test_a_job_comes_back_once_what_waited_of_it_is_cancelled() -> None:
    rig = waiting(1, 2)
    for source in ("crontab", "elsewhere"):
        with rig.unchanged():
            assert rig.put(job(), source=source).verdict is Verdict.LEAVING
    rig.append(of_removed(1))
    with rig.unchanged():
        assert rig.put(job("other"), job()).verdict is Verdict.LEAVING  # all or nothing
    rig.append(of_removed(2))
    assert rig.put(job()).verdict is Verdict.ACCEPTED
    assert rig.record().removed_by == ""
    rig.to(3).account(3)
    with rig.unchanged():
        assert rig.items(of_removed(3)) == [Verdict.WRONG_STATE]


def test_what_runs_of_a_removed_job_does_not_keep_it_from_coming_back() -> None:
    rig = with_job(overlap=Overlap.FORBID).to(1)
    rig.account(1)
    rig.begin(1)
    remove(rig)
    assert rig.put(job(overlap=Overlap.FORBID)).verdict is Verdict.ACCEPTED


def test_what_waits_of_a_removed_job_may_be_killed_or_skipped() -> None:
    rig = waiting(1, 2, overlap=Overlap.QUEUE)
    assert rig.cancel(1) is Verdict.ACCEPTED
    assert rig.rows[-1].reason is Reason.KILLED
    assert rig.skip(2) is Verdict.ACCEPTED
    assert rig.put(job()).verdict is Verdict.ACCEPTED


def test_the_image_in_the_middle_of_a_removal_goes_on_alike() -> None:
    rig = waiting(1, 2, 3)
    rig.append(of_removed(1))
    again = Machine(decode_state([encode_state(rig.state)]))
    entry = encode_entry(rig.at_ms, FIRST, (of_removed(2),))
    index = rig.state.index + 1
    outcomes = [one.apply(1, index, entry) for one in (rig.machine, again)]
    assert outcomes[0] == outcomes[1]
    assert again.state.jobs[BACKUP].removed_by == "anna"
    assert encode_state(again.state) == encode_state(rig.state)


def test_an_image_under_way_has_what_waited_when_it_began() -> None:
    rig = waiting(1, 2)
    before = encode_state(rig.state)
    imaging = Imaging.begin(rig.state)
    rig.append(of_removed(1))
    assert b"".join(imaging.pieces()) == before
