"""Calendars over the API: applied, given to the jobs that use them, shown and removed."""

from __future__ import annotations

import pytest

from cron.api.access import ChangesQuery
from cron.api.calendars import ApplyCalendarRequest, CalendarsQuery, RemoveCalendarRequest
from cron.api.jobs import ApplyRequest, NextRequest, RemoveRequest, SourceFile
from cron.errors import Conflict, CrontabError, NotFound
from cron.history.audited import AuditedJob
from cron.service import access, calendars, catalog, jobs, removing
from cron.service.replica import Replica
from cron.state.codec import decode_entry, encode_entry
from cron.state.image import decode_state, encode_head
from launcher.protocol.names import format_time
from launcher.protocol.work import Epoch
from tests.unit.state_rig import T0
from tests.unit.tasks_world import TasksWorld

DAY_S = 86_400
TODAY = T0 // DAY_S * DAY_S
TAB = "#: name=mail calendar=hol:{use}\n0 9 * * * x\n"


def date(days: int) -> str:
    return format_time(TODAY + days * DAY_S)[:10]


async def apply(replica: Replica, *days: int, is_dry_run: bool = False):
    content = "\n".join(date(day) for day in days).encode()
    request = ApplyCalendarRequest(
        calendar="hol", file="hol.txt", content=content, is_dry_run=is_dry_run, by="ada"
    )
    return await calendars.put(replica, request)


async def apply_job(replica: Replica, text: str):
    return await catalog.put(
        replica, ApplyRequest(files=[SourceFile("tab", text.encode())], by="bob")
    )


async def next_days(replica: Replica) -> list[str]:
    view = await jobs.next_times_of(replica, NextRequest(job="default/mail", count=3))
    return [format_time(at_s)[:10] for at_s in view.times_s]


async def test_a_calendar_is_needed_first_and_leaves_its_days_out() -> None:
    replica = TasksWorld().cell.replica
    with pytest.raises(CrontabError, match="uses calendar hol, which does not exist") as caught:
        await apply_job(replica, TAB.format(use="skip"))
    assert "raftcron calendar apply hol FILE" in caught.value.problems[0].hint
    plan = await apply(replica, 2, 4, is_dry_run=True)
    assert (plan.action, plan.added, replica.state.calendars) == ("added", [date(2), date(4)], {})
    await apply(replica, 2, 4)
    await apply_job(replica, TAB.format(use="skip"))
    assert await next_days(replica) == [date(1), date(3), date(5)]
    with pytest.raises(CrontabError, match="holl, which does not exist") as caught:
        await apply_job(replica, TAB.format(use="skip").replace("hol:", "holl:"))
    assert caught.value.problems[0].hint == "did you mean hol?"


async def test_other_days_change_the_jobs_that_use_the_calendar() -> None:
    replica = TasksWorld().cell.replica
    await apply(replica, 2)
    await apply_job(replica, TAB.format(use="only") + "#: name=b\n@daily x\n")
    before = replica.state.jobs["default/mail"].revision
    report = await apply(replica, 2, 5)
    assert (report.action, report.added, report.removed, report.jobs) == (
        "changed", [date(5)], [], ["default/mail"],
    )  # fmt: skip
    record = replica.state.jobs["default/mail"]
    assert record.revision > before
    assert record.changed_by == "ada"
    assert replica.state.jobs["default/b"].revision == before
    assert record.job is not None
    mail = jobs.of_job(record, record.job, None, replica.clock.wall_ms())
    assert [format_time(at_s)[:10] for at_s in mail.next_s] == [date(2), date(5)]
    assert mail.calendar == "hol:only"
    again = await apply(replica, 5, 2)
    assert (again.action, again.jobs) == ("unchanged", [])
    assert replica.state.jobs["default/mail"].revision == record.revision
    # An apply of the same file keeps the days, and says that nothing changes.
    report = await apply_job(replica, TAB.format(use="only") + "#: name=b\n@daily x\n")
    assert {change.action for change in report.changes} == {"unchanged"}


async def test_instants_that_a_calendar_leaves_out_are_no_instants_of_their_time() -> None:
    # Of a time when the calendar was another one, its days of then hold.
    world = TasksWorld()
    replica = world.cell.replica
    await apply(replica, 1)
    await apply_job(replica, TAB.format(use="skip"))
    world.rig.at_ms += 3 * DAY_S * 1000
    await apply(replica, 1, 2, 5)
    record = replica.state.jobs["default/mail"]
    audited = AuditedJob(record.name, tuple(record.spans), record.horizon_s)
    found = [format_time(one.scheduled_s)[:10] for one in audited.instants(T0, T0 + 6 * DAY_S)]
    assert [day for day in found if day > date(0)] == [date(2), date(3), date(4), date(6)]


async def test_a_calendar_in_use_stays_and_one_that_is_not_goes() -> None:
    replica = TasksWorld().cell.replica
    await apply(replica, 1, 3)
    await apply_job(replica, TAB.format(use="skip"))
    with pytest.raises(Conflict, match="calendar hol is used by mail; nothing was changed"):
        await calendars.remove(replica, RemoveCalendarRequest(calendar="hol"))
    (view,) = (await calendars.listed(replica, CalendarsQuery(calendar="hol"))).calendars
    assert (view.days, view.jobs, view.by) == ([date(1), date(3)], ["default/mail"], "ada")
    await removing.remove(replica, RemoveRequest(jobs=["default/mail"]))
    gone = await calendars.remove(replica, RemoveCalendarRequest(calendar="hol", by="ada"))
    assert (gone.day_count, gone.first, gone.last) == (2, date(1), date(3))
    with pytest.raises(NotFound, match="there is no calendar hol"):
        await calendars.remove(replica, RemoveCalendarRequest(calendar="hol"))
    with pytest.raises(NotFound):
        await calendars.listed(replica, CalendarsQuery(calendar="hol"))
    assert (await calendars.listed(replica, CalendarsQuery())).calendars == []


async def test_changes_say_who_changed_a_calendar_and_the_bounds_of_a_job() -> None:
    replica = TasksWorld().cell.replica
    await apply(replica, 1)
    await apply_job(replica, TAB.format(use="skip"))
    await apply_job(replica, TAB.format(use="only").replace("mail ", "mail end=2030-01-31 "))
    report = await access.changes(replica, ChangesQuery())
    rows = [(one.by, one.action, one.object, one.after) for one in report.changes]
    assert rows[-1] == ("ada", "put-calendar", "hol", f"1 days, the last on {date(1)}")
    fields = {one.name: (one.before, one.after) for one in report.changes[0].fields}
    assert fields == {
        "end": ("", "2030-01-31T23:59:59Z"), "calendar": ("hol:skip", "hol:only")
    }  # fmt: skip


async def test_calendars_are_in_the_image_and_in_entries() -> None:
    replica = TasksWorld().cell.replica
    await apply(replica, 1, 400)
    image = decode_state([encode_head(replica.state)])
    assert image.calendars == replica.state.calendars
    command = calendars.PutCalendar("hol", (20_000, 3), "ada")
    entry = decode_entry(encode_entry(1, Epoch(), (command,)))
    assert entry.commands == (command,)
