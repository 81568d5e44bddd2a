"""`paused`: a job that is new in the cell arrives paused, and is never due before a resume."""

from __future__ import annotations

import pytest

from cron.api.jobs import ApplyRequest, ResumeRequest, SourceFile
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.reader import read_crontab
from cron.errors import LimitExceeded
from cron.service import arrivals, catalog, jobs
from cron.service.replica import Replica
from tests.unit.tasks_world import TasksWorld

TAB = '#: name=a paused="not before June"\n* * * * * {command}\n#: name=b\n* * * * * b\n'


async def apply(replica: Replica, text: str, source: str = "tab"):
    request = ApplyRequest(files=[SourceFile("tab", text.encode())], source=source, by="ada")
    return await catalog.put(replica, request)


async def test_a_new_job_arrives_paused_with_the_entry_that_adds_it() -> None:
    world = TasksWorld()
    replica = world.cell.replica
    report = await apply(replica, TAB.format(command="a"))
    added = {change.job: change for change in report.changes}
    assert added["default/a"].what == ["paused"]
    assert added["default/a"].next_after_s == []
    assert added["default/b"].what == []
    paused = replica.state.jobs["default/a"].paused
    assert paused is not None
    assert (paused.reason, paused.by, paused.until_ms) == ("not before June", "ada", 0)
    assert replica.state.jobs["default/b"].paused is None


async def test_a_job_that_somebody_resumed_is_not_paused_by_its_file_again() -> None:
    replica = TasksWorld().cell.replica
    await apply(replica, TAB.format(command="a"))
    await jobs.resume(replica, ResumeRequest(pattern="default/a"))
    report = await apply(replica, TAB.format(command="other"))
    assert [change.what for change in report.changes] == [["command"], []]
    assert replica.state.jobs["default/a"].paused is None


async def test_more_paused_jobs_than_an_entry_holds_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrivals, "PAUSED_AT_ONCE", 1)
    replica = TasksWorld().cell.replica
    text = TAB.format(command="a") + TAB.format(command="c").replace("name=", "name=x")
    with pytest.raises(LimitExceeded, match="more than 1 jobs arrive paused; nothing was changed"):
        await apply(replica, text)
    assert not replica.state.jobs


def test_a_job_file_says_why_and_nothing_else() -> None:
    table = '[[job]]\nname = "a"\nschedule = "@daily"\ncommand = "x"\npaused = {value}\n'
    reading = read_jobs_toml(table.format(value='"why not"').encode(), file="f")
    assert reading.paused == {"default/a": "why not"}
    for wrong in ("true", '""', '"a\\nb"', f'"{"x" * 501}"'):
        assert read_jobs_toml(table.format(value=wrong).encode(), file="f").errors, wrong
    assert read_crontab(b"#: name=a paused=\n@daily x\n", file="f").errors
