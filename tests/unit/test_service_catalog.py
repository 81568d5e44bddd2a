"""Changes of jobs on their way into entries (rule R2)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cron.api.jobs import ApplyRequest, SourceFile
from cron.errors import CrontabError, LimitExceeded, NotLeader, OutcomeUnknown, Problem
from cron.launch_state import LaunchState
from cron.leader.leader import Leader
from cron.leader.requests import Build
from cron.limits import JOBS_PER_ENTRY_BYTES_MAX
from cron.scheduler.predecessors import in_the_way
from cron.service import catalog
from cron.service.catalog import (
    Declared,
    Diff,
    change_id,
    check_sources,
    compare,
    put,
    read_declared,
    split_jobs,
)
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.outcome import Result, Verdict
from cron.state.rows import Row
from cron.state.state import JobRecord
from launcher.protocol.work import WorkSpec
from tests.unit.alerts_rig import AlertsRig
from tests.unit.pool_people_rig import FakeClock, World
from tests.unit.state_rig import T0, StateRig, job


def served(rig: StateRig, leader: object = None) -> Replica:
    """Return a replica on a rig; without a leader it has no queues, and must commit nothing."""
    world: Any = SimpleNamespace(state=rig.state, wall_ms=lambda: rig.at_ms)
    without = SimpleNamespace(queues=None, pool=SimpleNamespace(sessions=list))
    return Replica(cast("Leader", leader or without), world, world, world)


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


class Committing(World):
    """A leader that commits changes of jobs too."""

    async def submit(self, build: Build, **_named: bool) -> tuple[int, tuple[Result, ...]]:
        return await super().submit(build)


class Remembers:
    """History with the rows of a rig. While it is read, `meanwhile` happens once."""

    def __init__(self, rig: StateRig, meanwhile: Callable[[], object] | None = None) -> None:
        self.rig = rig
        self.meanwhile = meanwhile

    async def newest_of_each(
        self, jobs: list[str], limit: int, *, is_scheduled: bool
    ) -> dict[str, list[Row]]:
        assert is_scheduled  # manual launches would take the place of those that are followed
        rows = [row for row in self.rig.rows if not row.trigger]
        found = {name: [row for row in rows if row.job == name] for name in jobs}
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return {name: rows[-limit:] for name, rows in found.items() if rows}


async def test_the_ends_of_many_jobs_are_noted_in_several_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cron.service.following.NOTED_AT_ONCE", 2)
    rig = StateRig()
    names = [f"first{number}" for number in range(5)]
    rig.put(*map(job, names))
    rig.join()
    rig.to(60)
    for number in range(1, 6):
        rig.account(60, number=number)
        rig.begin(60, number=number)
        rig.finished(60, number=number)
    world: Any = Committing(rig)
    history: Any = Remembers(rig)
    clock: Any = FakeClock(rig)
    entries = len(rig.log)
    tab = f"#: name=second after={','.join(names)}\n0 3 * * *  true\n".encode()
    request = ApplyRequest(files=[SourceFile("f", tab)], source="other")
    await put(Replica(world, world, history, clock), request)
    assert len(rig.log) == entries + 3
    follower = job("x", after=tuple(f"default/{name}" for name in names))
    assert in_the_way(rig.state, follower, T0 + 60) is None


@pytest.mark.parametrize("is_raced", [False, True])
async def test_a_job_that_begins_to_follow_another_knows_how_that_has_ended(
    is_raced: bool,
) -> None:
    rig = StateRig()
    rig.put(job("first"))
    rig.join()

    def ran(second: int, code: int) -> None:
        rig.to(second).account(second)
        rig.begin(second)
        state = LaunchState.FAILED if code else LaunchState.SUCCEEDED
        rig.finished(second, state=state, exit_code=code)

    ran(60, code=1)
    world: Any = Committing(rig)
    history: Any = Remembers(rig, lambda: ran(120, code=0) if is_raced else None)
    clock: Any = FakeClock(rig)
    replica = Replica(world, world, history, clock)
    tab = b"#: name=second after=first\n0 3 * * *  true\n"
    request = ApplyRequest(files=[SourceFile("f", tab)], source="other")
    report = await put(replica, request)
    assert report.applied
    newest = in_the_way(rig.state, job("x", after=("default/first",)), T0 + 60 * (1 + is_raced))
    assert (newest is None) == is_raced
    ends = rig.state.jobs["default/first"].ends
    assert ends is not None
    assert ends.at(T0 + 60) == LaunchState.FAILED


def test_what_lint_refuses_of_a_job_the_leader_refuses_too() -> None:
    content = b"#: handler=a heartbeat=10m timeout=5m\n@daily\n"
    with pytest.raises(CrontabError, match="heartbeat 10m is longer than timeout 5m"):
        read(("crontab", content))


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


def record(name: str, source: str, number: int = 1) -> JobRecord:
    one = job(name)
    return JobRecord(number, one.name, source, 1, T0, one, [])


def clashing(declared: list[Declared], *records: JobRecord, prune: bool = False) -> list[Problem]:
    with pytest.raises(CrontabError) as caught:
        check_sources(declared, records, prune=prune)
    return caught.value.problems


def test_so_many_jobs_may_have_metrics_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "JOBS_MEASURED_MAX", 2)
    text = b"#: name=a metrics=yes\n@daily x\n#: name=b metrics=yes\n@daily y\n"
    (declared,) = read(("two", text))
    assert len(compare(declared, [], 0, prune=False, now_s=T0).changed) == 2
    other = record("c", "one", 1)
    assert other.job is not None
    other.job = msgspec.structs.replace(other.job, metrics=True)
    with pytest.raises(LimitExceeded, match="3 jobs would have metrics=yes, and a cell has room"):
        compare(declared, [other], 0, prune=False, now_s=T0)
    plain = read(("two", text.replace(b" metrics=yes", b" metrics=no")))[0]
    assert len(compare(plain, [other], 0, prune=False, now_s=T0).changed) == 2


def test_all_jobs_of_another_source_are_named_with_their_places() -> None:
    text = b"#: name=a\n@daily x\n@daily y\n#: name=c\n@daily z\n"
    declared = read(("x/two", text), ("three", b"#: name=d\n@daily x\n"))
    others = [record(name, "one", number) for number, name in enumerate("acd")]
    found = clashing(declared, *others)
    assert [(problem.file, problem.line, problem.column) for problem in found] == [
        ("x/two", 2, 1),
        ("x/two", 5, 1),
        ("three", 2, 1),
    ]
    assert found[0].message == "job default/a belongs to source one, not to two"
    assert found[0].hint == "give it another name, remove it there, or apply it with --source one"
    with pytest.raises(CrontabError) as caught:
        compare(declared[0], others, 0, prune=False, now_s=T0)
    assert caught.value.problems == found[:2]


def test_the_same_line_without_a_name_in_another_source_asks_for_a_name() -> None:
    declared = read(("h2", b"@daily true\n"))
    name = declared[0].jobs[0].name.removeprefix("default/")
    (problem,) = clashing(declared, record(name, "h1"))
    assert problem.hint.startswith("give it a name of its own (equal commands without one are")
    assert problem.hint.endswith("apply it with --source h1")


def test_a_job_may_move_from_a_source_that_is_pruned_to_one_after_it() -> None:
    declared = read(("one", b"@daily x\n"), ("two", b"#: name=a\n@daily x\n"))
    moved = record("a", "one")
    check_sources(declared, [moved], prune=True)
    assert len(clashing(declared, moved)) == 1
    assert len(clashing(declared[::-1], moved, prune=True)) == 1


async def test_where_one_source_clashes_none_is_changed() -> None:
    """The first source was committed before the second was looked at."""
    rig = StateRig()
    change = c.PutJobs("other", 0, T0, (job("a"),), (), "anna", "1", 1, 1)
    assert rig.answer(change).verdict is Verdict.ACCEPTED
    files = [SourceFile("one", b"@daily x\n"), SourceFile("two", b"#: name=a\n@daily x\n")]
    with pytest.raises(CrontabError, match="belongs to source other, not to two"):
        await put(served(rig), ApplyRequest(files=files))


@pytest.mark.parametrize("is_dry_run", [True, False])
async def test_a_job_tells_channels_that_exist(is_dry_run: bool) -> None:
    rig = AlertsRig()
    assert rig.declare() is Verdict.ACCEPTED
    tab = b"#: name=a alert=failed:2 to=%s\n@daily x\n"
    for name, hint in (("beat", "alerts apply"), ("oops", "did you mean ops?")):
        file = SourceFile("one", tab % name.encode())
        with pytest.raises(CrontabError) as caught:
            await put(served(rig), ApplyRequest(files=[file], is_dry_run=is_dry_run))
        [problem] = caught.value.problems
        assert problem.message == f"job default/a tells channel {name}, which does not exist"
        assert problem.line == 2
        assert hint in problem.hint
    file = SourceFile("one", tab % b"ops")
    report = await put(served(rig), ApplyRequest(files=[file], is_dry_run=True))
    assert [change.action for change in report.changes] == ["added"]


@pytest.mark.parametrize("prune", [True, False])
async def test_a_dry_run_lets_jobs_move_between_sources_as_the_change_does(prune: bool) -> None:
    rig = StateRig()
    change = c.PutJobs("one", 0, T0, (job("a"),), (), "anna", "1", 1, 1)
    assert rig.answer(change).verdict is Verdict.ACCEPTED
    files = [SourceFile("one", b"@daily x\n"), SourceFile("two", b"#: name=a\n@daily x\n")]
    request = ApplyRequest(files=files, is_dry_run=True, prune=prune)
    if not prune:
        with pytest.raises(CrontabError, match="belongs to source one"):
            await put(served(rig), request)
        return
    report = await put(served(rig), request)
    actions = [(change.action, change.job) for change in report.changes]
    assert ("removed", "default/a") in actions
    assert ("added", "default/a") in actions


@pytest.mark.parametrize(("is_dry_run", "prune"), [(True, False), (False, False), (True, True)])
async def test_jobs_that_a_source_declares_no_more_are_told_unless_removed(
    is_dry_run: bool, prune: bool
) -> None:
    rig = StateRig()
    text = b"#: name=kept\n* * * * * kept\n"
    (declared,) = read(("tab", text))
    gone = [job(f"gone{number}") for number in range(7)]
    change = c.PutJobs("tab", 0, T0, (*declared.jobs, *gone), (), "anna", "1", 1, 1)
    assert rig.answer(change).verdict is Verdict.ACCEPTED
    request = ApplyRequest(files=[SourceFile("tab", text)], is_dry_run=is_dry_run, prune=prune)
    report = await put(served(rig), request)
    if prune:
        assert report.problems == []
        return
    (warning,) = report.problems
    assert str(warning) == (
        "tab: warning: 7 jobs of this source are no longer declared and still run: "
        "gone0, gone1, gone2, gone3, gone4 and 2 more"
    )
    assert "--prune" in warning.hint


async def test_jobs_without_a_name_keep_the_name_under_which_the_cell_has_them() -> None:
    rig = StateRig()
    text = b"@daily /opt/a.sh\n@hourly /opt/b.sh\n@daily /opt/b.sh\n"
    (declared,) = read(("tab", text))
    earlier = [declared.unnamed[one.name].earlier for one in declared.jobs]
    assert [name[:12] for name in earlier] == 3 * ["default/job-"]
    known = [msgspec.structs.replace(one, name=earlier[0]) for one in declared.jobs[:1]]
    known += [msgspec.structs.replace(one, name=earlier[2]) for one in declared.jobs[2:]]
    change = c.PutJobs("tab", 0, T0, tuple(known), (), "anna", "1", 1, 1)
    assert rig.answer(change).verdict is Verdict.ACCEPTED
    request = ApplyRequest(files=[SourceFile("tab", text)], is_dry_run=True)
    report = await put(served(rig), request)
    assert report.problems == []
    assert {one.job: one.action for one in report.changes} == {
        earlier[0]: "unchanged",
        declared.jobs[1].name: "added",
        earlier[2]: "unchanged",
    }


async def test_a_default_name_that_another_command_has_is_not_taken() -> None:
    text = b"@daily /opt/a.sh\n"
    (declared,) = read(("tab", text))
    names = declared.unnamed[declared.jobs[0].name]
    for source in ("other", "tab"):
        rig = StateRig()
        other = msgspec.structs.replace(job("a"), name=names.short)
        change = c.PutJobs(source, 0, T0, (other,), (), "anna", "1", 1, 1)
        assert rig.answer(change).verdict is Verdict.ACCEPTED
        request = ApplyRequest(files=[SourceFile("tab", text)], is_dry_run=True)
        report = await put(served(rig), request)
        assert [(one.job, one.action) for one in report.changes] == [(names.long, "added")]


@pytest.mark.parametrize("name", ["short", "long", "earlier"])
async def test_equal_commands_without_a_name_are_one_job_whichever_file_has_them(name: str) -> None:
    """A file that was renamed ran each of its unnamed jobs twice."""
    rig = StateRig()
    text = b"@daily /opt/billing --charge\n"
    (declared,) = read(("tab", text))
    names = declared.unnamed[declared.jobs[0].name]
    known = msgspec.structs.replace(declared.jobs[0], name=getattr(names, name))
    change = c.PutJobs("tab", 0, T0, (known,), (), "anna", "1", 1, 1)
    assert rig.answer(change).verdict is Verdict.ACCEPTED
    request = ApplyRequest(files=[SourceFile("renamed", text)], is_dry_run=True)
    with pytest.raises(CrontabError, match="belongs to source tab, not to renamed") as caught:
        await put(served(rig), request)
    assert "equal commands without one are one job" in str(caught.value.problems[0].hint)


async def test_two_lines_whose_short_names_are_alike_may_change_places() -> None:
    """Their digests agree in four digits: the second one of a file has a longer name."""
    lines = [f"@daily /usr/local/bin/sync.sh --customer {one}\n".encode() for one in (311, 429)]
    rig = StateRig()
    (declared,) = read(("tab", b"".join(lines)))
    least = len("default/sync-sh-")
    assert {len(one.name) - least for one in declared.jobs} == {4, 10}
    change = c.PutJobs("tab", 0, T0, tuple(declared.jobs), (), "anna", "1", 1, 1)
    assert rig.answer(change).verdict is Verdict.ACCEPTED
    for text in (b"".join(reversed(lines)), *lines):
        request = ApplyRequest(files=[SourceFile("tab", text)], is_dry_run=True)
        report = await put(served(rig), request)
        assert {one.action for one in report.changes} == {"unchanged"}


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


class LostHalfWay:
    """A leader that commits one change and then leads no more."""

    def __init__(self, rig: StateRig) -> None:
        self.rig = rig
        self.left = 1
        self.queues = self.pool = None

    async def submit(self, build: Build, **_named: bool) -> tuple[int, tuple[Result, ...]]:
        if not self.left:
            raise NotLeader(None)
        self.left -= 1
        outcome = self.rig.append(*build(self.rig.state, self.rig.at_ms))
        return self.rig.state.index, outcome.results


async def test_half_an_apply_is_never_told_as_nothing() -> None:
    """Leadership was lost between two sources; the answer was that nothing had happened."""
    rig = StateRig()
    files = [SourceFile("one", b"@daily a\n"), SourceFile("two", b"@daily b\n")]
    with pytest.raises(OutcomeUnknown, match="applied one, but not two"):
        await put(served(rig, LostHalfWay(rig)), ApplyRequest(files=files))
    assert [record.source for record in rig.state.jobs.values()] == ["one"]
