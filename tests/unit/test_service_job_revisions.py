"""Jobs as files, their earlier revisions, and the way back."""

from __future__ import annotations

import pytest

from cron.api.access import ChangesQuery
from cron.api.jobs import (
    ApplyRequest,
    ExportRequest,
    RemoveRequest,
    RevisionsQuery,
    RollBackRequest,
    SourceFile,
)
from cron.errors import CrontabError, NotFound, UnknownJob
from cron.limits import REVISIONS_OF_JOB
from cron.service import access, catalog, job_revisions, removing
from cron.service.replica import Replica
from cron.state import earlier
from cron.state.image import decode_state, encode_head, encode_record, encode_records
from cron.state.state import State
from tests.unit.tasks_world import TasksWorld

JOB = "default/a"


async def put(replica: Replica, text: str, name: str = "tab") -> None:
    file = SourceFile(name, text.encode())
    await catalog.put(replica, ApplyRequest(files=[file], by="bob", prune=True, is_confirmed=True))


async def story() -> Replica:
    """A job a with three revisions: 0 1, 0 2 with a timeout, 0 3; and a job of another source."""
    replica = TasksWorld().cell.replica
    await put(replica, "A=secret\n#: name=a\n0 1 * * * first")
    await put(replica, "A=other\n#: name=a timeout=5m\n0 2 * * * second")
    await put(replica, "#: name=a\n0 3 * * * third")
    await put(replica, "#: name=x/b\n? 4 * * * b %\n", "other")
    return replica


def schedule(replica: Replica) -> str:
    job = replica.state.jobs[JOB].job
    return job.schedule.text if job is not None else ""


async def test_revisions_are_listed_and_compared_without_secrets() -> None:
    replica = await story()
    report = await job_revisions.revisions(replica, RevisionsQuery(job=JOB))
    found = [(one.schedule, one.command, one.by, one.current) for one in report.revisions]
    assert found == [
        ("0 3 * * *", "third", "bob", True),
        ("0 2 * * *", "second", "bob", False),
        ("0 1 * * *", "first", "bob", False),
    ]
    assert report.revision == report.revisions[1].revision
    fields = {one.name: (one.before, one.after) for one in report.fields}
    assert fields["schedule"] == ("0 2 * * *", "0 3 * * *")
    assert fields["timeout_ms"] == ("300000", "0")
    assert fields["env.A"] == ("set", "")
    assert "secret" not in str(report)
    first = report.revisions[2].revision
    older = await job_revisions.revisions(replica, RevisionsQuery(job=JOB, revision=first))
    assert {one.name: one.before for one in older.fields}["command"] == "first"
    with pytest.raises(NotFound, match="revision 99 of a is not kept"):
        await job_revisions.revisions(replica, RevisionsQuery(job=JOB, revision=99))
    with pytest.raises(UnknownJob):
        await job_revisions.revisions(replica, RevisionsQuery(job="default/none"))


async def test_a_job_goes_back_to_a_revision_and_the_way_is_a_revision_too() -> None:
    replica = await story()
    revision = replica.state.jobs[JOB].earlier[0].revision
    asked = RollBackRequest(job=JOB, revision=revision, is_dry_run=True, by="ada")
    plan = await job_revisions.roll_back(replica, asked)
    assert [(one.action, one.job) for one in plan.changes] == [("changed", JOB)]
    assert (plan.source, plan.problems, schedule(replica)) == ("tab", [], "0 3 * * *")
    asked = RollBackRequest(job=JOB, revision=revision, by="ada")
    await job_revisions.roll_back(replica, asked)
    record = replica.state.jobs[JOB]
    assert record.job is not None
    assert record.job == record.earlier[0].job
    assert (record.changed_by, record.source, schedule(replica)) == ("ada", "tab", "0 1 * * *")
    assert record.revision == replica.state.catalog
    changes = await access.changes(replica, ChangesQuery(job=JOB))
    assert (changes.changes[0].by, changes.changes[0].action) == ("ada", "put")


async def test_a_job_that_was_removed_comes_back() -> None:
    replica = await story()
    await removing.remove(replica, RemoveRequest(jobs=[JOB], by="eve"))
    report = await job_revisions.revisions(replica, RevisionsQuery(job=JOB))
    assert [one.current for one in report.revisions] == [False] * 3
    revision = report.revisions[0].revision
    await job_revisions.roll_back(replica, RollBackRequest(job=JOB, revision=revision))
    assert schedule(replica) == "0 3 * * *"


async def test_a_revision_that_names_what_is_gone_is_refused() -> None:
    replica = TasksWorld().cell.replica
    await put(replica, "#: name=b\n@daily b\n#: name=a after=b\n0 1 * * * first")
    await put(replica, "#: name=a\n0 2 * * * second")
    revision = replica.state.jobs[JOB].earlier[0].revision
    with pytest.raises(CrontabError, match="job a follows b, which does not exist"):
        await job_revisions.roll_back(replica, RollBackRequest(job=JOB, revision=revision))
    assert schedule(replica) == "0 2 * * *"


async def test_jobs_are_exported_by_source_and_apply_back_without_a_change() -> None:
    replica = await story()
    found = await job_revisions.export(replica, ExportRequest())
    assert [(one.source, one.job) for one in found] == [("other", "x/b"), ("tab", JOB)]
    for one in found:
        request = ApplyRequest(
            files=[SourceFile("jobs.toml", one.text.encode())], source=one.source, prune=True
        )
        report = await catalog.put(replica, request)
        assert [change.action for change in report.changes] == ["unchanged"]
    (alone,) = await job_revisions.export(replica, ExportRequest(tenant="x"))
    assert alone.job == "x/b"
    (within,) = await job_revisions.export(replica, ExportRequest(within=["default/*"]))
    assert within.job == JOB
    assert await job_revisions.export(replica, ExportRequest(source="none")) == []


# ---- bounds


async def test_of_each_job_the_newest_revisions_are_kept() -> None:
    replica = TasksWorld().cell.replica
    for minute in range(REVISIONS_OF_JOB + 3):
        await put(replica, f"#: name=a\n{minute} 1 * * * x")
    record = replica.state.jobs[JOB]
    assert len(record.earlier) == REVISIONS_OF_JOB
    assert record.earlier[0].job.schedule.text == "2 1 * * *"
    check_counts(replica.state)


async def test_of_all_jobs_the_oldest_go_where_there_are_too_many_bytes(monkeypatch) -> None:
    replica = TasksWorld().cell.replica
    await put(replica, "#: name=a\n1 1 * * * a\n#: name=b\n1 1 * * * b")
    size = len(earlier._encoder.encode(replica.state.jobs[JOB].job))
    monkeypatch.setattr(earlier, "EARLIER_BYTES_MAX", 3 * size)
    for minute in (2, 3, 4):
        await put(replica, f"#: name=a\n{minute} 1 * * * a\n#: name=b\n{minute} 1 * * * b")
    state = replica.state
    kept = [
        (name, one.job.schedule.text)
        for name in (JOB, "default/b")
        for one in state.jobs[name].earlier
    ]
    # Of two that were followed at the same time, that of the lower number goes first.
    assert kept == [(JOB, "3 1 * * *"), ("default/b", "2 1 * * *"), ("default/b", "3 1 * * *")]
    check_counts(state)


def check_counts(state: State) -> None:
    """What State counts is what an image of it counts."""
    records = encode_records([encode_record(one) for one in state.by_number.values()])
    image = decode_state([encode_head(state), records])
    assert image.earlier_bytes == state.earlier_bytes > 0
    live = {(one.until, job.number) for job in state.jobs.values() for one in job.earlier}
    assert live == {*image.earlier_order} <= {*state.earlier_order}
    assert [one.earlier for one in image.jobs.values()] == [
        one.earlier for one in state.jobs.values()
    ]


async def test_the_heap_of_revisions_does_not_grow_with_what_is_gone(monkeypatch) -> None:
    monkeypatch.setattr(earlier, "_SPARE", 10)
    replica = TasksWorld().cell.replica
    for minute in range(59):
        await put(replica, f"#: name=a\n{minute} 1 * * * x")
    assert len(replica.state.earlier_order) <= 2 * REVISIONS_OF_JOB + 10
    check_counts(replica.state)


async def test_a_cell_of_an_older_format_keeps_none() -> None:
    replica = TasksWorld().cell.replica
    replica.state.format = earlier.FORMAT - 1
    await put(replica, "#: name=a\n1 1 * * * x")
    await put(replica, "#: name=a\n2 1 * * * x")
    assert replica.state.jobs[JOB].earlier == []
