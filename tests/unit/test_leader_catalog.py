"""Changes of jobs on their way into entries (rule R2)."""

from __future__ import annotations

import msgspec

from cron.leader.catalog import Diff, change_id, split_jobs
from cron.limits import JOBS_PER_ENTRY_BYTES_MAX
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.work import WorkSpec
from tests.unit.state_rig import T0, StateRig, job


def diff_of(*jobs: c.Job) -> Diff:
    return Diff("crontab", 0, list(jobs), [], [])


def test_two_changes_at_once_are_not_mixed() -> None:
    """Both had the id that source, base and person gave: the first half of one and the second
    half of the other made a crontab that nobody had written."""
    one, other = diff_of(job("a"), job("b")), diff_of(job("c"), job("d"))
    ids = [change_id(one, "anna"), change_id(other, "anna")]
    assert ids[0] != ids[1]
    rig = StateRig()
    for diff, change in ((one, ids[0]), (other, ids[1])):
        first = c.PutJobs("crontab", 0, 0, (diff.changed[0],), (), "anna", change, 1, 2)
        assert rig.answer(first).verdict is Verdict.ACCEPTED
    last = c.PutJobs("crontab", 0, T0, (one.changed[1],), (), "anna", ids[0], 2, 2)
    assert rig.answer(last).verdict is Verdict.INCOMPLETE
    assert not rig.state.jobs


def test_the_same_change_has_the_same_id() -> None:
    assert change_id(diff_of(job("a")), "anna") == change_id(diff_of(job("a")), "anna")
    assert change_id(diff_of(job("a")), "anna") != change_id(diff_of(job("a")), "bert")


def test_a_change_without_jobs_is_one_empty_part() -> None:
    assert split_jobs([]) == [()]


def test_a_large_change_is_split_and_keeps_its_order() -> None:
    long = WorkSpec(("/bin/sh", "-c", "x" * (JOBS_PER_ENTRY_BYTES_MAX // 3)))
    jobs = [msgspec.structs.replace(job(f"j{n}"), work=long) for n in range(7)]
    parts = split_jobs(jobs)
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert [one for part in parts for one in part] == jobs


def test_a_job_larger_than_a_part_is_a_part_of_its_own() -> None:
    huge = WorkSpec(("x" * (JOBS_PER_ENTRY_BYTES_MAX + 1),))
    jobs = [job("a"), msgspec.structs.replace(job("b"), work=huge), job("d")]
    assert [len(part) for part in split_jobs(jobs)] == [1, 1, 1]
