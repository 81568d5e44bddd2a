"""Changes of jobs on their way into entries (rule R2)."""

from __future__ import annotations

import msgspec
import pytest

from cron.api.views import ApplyRequest, SourceFile
from cron.errors import CrontabError
from cron.leader.catalog import Declared, Diff, change_id, read_declared, split_jobs
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


def read(*files: tuple[str, bytes], source: str | None = None) -> list[Declared]:
    request = ApplyRequest(files=[SourceFile(*file) for file in files], source=source)
    return read_declared(request, "UTC")[0]


def test_a_source_is_the_base_name_of_its_file_unless_one_is_named() -> None:
    files = (("x/one", b"@daily a\n"), ("y/two", b"@daily b\n"))
    assert [declared.source for declared in read(*files)] == ["one", "two"]
    (declared,) = read(*files, source="s")
    assert (declared.source, len(declared.jobs)) == ("s", 2)
    assert list(declared.files.values()) == ["x/one", "y/two"]


@pytest.mark.parametrize(
    ("other", "message"),
    [("one", "file is given twice"), ("two", "stands in one, line 1 as well")],
)
def test_the_same_jobs_twice_in_one_request_are_refused(other: str, message: str) -> None:
    """`apply tab tab` told of eight changed jobs where there were four."""
    with pytest.raises(CrontabError, match=message):
        read(("one", b"@daily a\n"), (other, b"@daily a\n"))


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
