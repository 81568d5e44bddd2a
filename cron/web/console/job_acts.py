"""Acts on jobs: pause, resume, launch now, backfill."""

from __future__ import annotations

import secrets
from typing import Final

from cron.api import table as t
from cron.api.checks import named_pattern
from cron.api.jobs import ApplyReport, PauseRequest, ResumeRequest, RollBackRequest
from cron.api.launches import BackfillReport, BackfillRequest, TriggerRequest
from cron.web.console.page_request import PageRequest
from cron.web.console.plans import (
    BY,
    Act,
    Plan,
    kept,
    names_in,
    numbers_in,
    plan_of,
    until,
    until_ms,
    utc_s,
)
from cron.web.console.texts import launch_link

_ID_BYTES: Final = 8


async def _pausing(asked: PageRequest) -> Plan:
    names, reason = names_in(asked, "job"), asked.form.get("reason", "")
    lasts = until(until_ms(asked), "until somebody resumes them")
    return Plan(
        title="Pause jobs",
        text=f"These jobs are paused {lasts}. Instants that fall due meanwhile are skipped. "
        "Launches that run go on.",
        button="Pause",
        items=names,
        count=len(names),
        notes=[f"Reason: {reason}"] if reason else ["No reason is given."],
        fields=kept(asked, "job", "reason", "hours"),
    )


async def _pause(asked: PageRequest) -> tuple[int, str]:
    reason, ends_ms, count = asked.form.get("reason", ""), until_ms(asked), 0
    for name in names_in(asked, "job"):
        request = PauseRequest(pattern=named_pattern(name), reason=reason, until_ms=ends_ms, by=BY)
        count += len((await asked.ask(t.PAUSE, request)).changed)
    return count, ""


async def _resuming(asked: PageRequest) -> Plan:
    text = "These jobs are launched again from their next instant on."
    return plan_of(asked, "job", "Resume jobs", text, "Resume")


async def _resume(asked: PageRequest) -> tuple[int, str]:
    count = 0
    for name in names_in(asked, "job"):
        request = ResumeRequest(pattern=named_pattern(name), by=BY)
        count += len((await asked.ask(t.RESUME, request)).changed)
    return count, ""


async def _triggering(asked: PageRequest) -> Plan:
    names = names_in(asked, "job")
    drawn = secrets.token_hex(_ID_BYTES)
    return Plan(
        title="Launch now",
        text="Each of these jobs is launched once, now, besides its schedule. Limits and gates "
        "apply as always.",
        button="Launch",
        items=names,
        count=len(names),
        notes=["A form that is sent twice launches once."],
        fields=[*kept(asked, "job"), ("request", drawn)],
    )


async def _trigger(asked: PageRequest) -> tuple[int, str]:
    names, drawn, launch = names_in(asked, "job"), asked.form.get("request", ""), ""
    for number, name in enumerate(names):
        request = TriggerRequest(job=name, request_id=f"{drawn}-{number}", by=BY)
        launch = (await asked.ask(t.TRIGGER, request)).launch
    return len(names), launch_link(launch) if len(names) == 1 else ""


async def _backfilled(asked: PageRequest, *, is_dry_run: bool) -> list[BackfillReport]:
    """Backfill the jobs that were chosen, one after the other, or only find out which launches
    that is."""
    form, reports = asked.form, list[BackfillReport]()
    for job in names_in(asked, "job"):
        request = BackfillRequest(
            job=job,
            from_s=utc_s(form.get("from", ""), "from"),
            to_s=utc_s(form.get("to", ""), "to"),
            is_dry_run=is_dry_run,
            by=BY,
        )
        reports.append(await asked.ask(t.BACKFILL, request))
    return reports


async def _backfilling(asked: PageRequest) -> Plan:
    reports, form = await _backfilled(asked, is_dry_run=True), asked.form
    launches = [launch for report in reports for launch in report.launches]
    names, before = names_in(asked, "job"), sum(report.before for report in reports)
    older = f"{before:,} of these instants lie before the job was first applied."
    of = names[0] if len(names) == 1 else f"{len(names)} jobs"
    return Plan(
        title="Backfill",
        text=f"These launches of {of} from {form['from']} until before {form['to']} UTC "
        "were skipped, lost or failed, or are from before the job was there. They are due again.",
        button="Backfill",
        items=launches,
        count=len(launches),
        notes=[older] if before else [],
        fields=kept(asked, "job", "from", "to"),
    )


async def _backfill(asked: PageRequest) -> tuple[int, str]:
    reports = await _backfilled(asked, is_dry_run=False)
    return sum(len(report.launches) for report in reports), ""


async def _rolled_back(asked: PageRequest, *, is_dry_run: bool) -> ApplyReport:
    (job,), (revision,) = names_in(asked, "job"), numbers_in(asked, "revision")
    request = RollBackRequest(job=job, revision=revision, is_dry_run=is_dry_run, by=BY)
    return await asked.ask(t.ROLL_BACK, request)


async def _rolling_back(asked: PageRequest) -> Plan:
    report = await _rolled_back(asked, is_dry_run=True)
    changes = [one for one in report.changes if one.action != "unchanged"]
    notes = [f"{one.job}: {', '.join(one.what)} will change." for one in changes if one.what]
    return Plan(
        title="Go back to a revision",
        text=f"The job becomes what it was in revision {asked.form.get('revision', '')}. This is a "
        "new revision, from which one can go back as well.",
        button="Go back",
        items=[one.job for one in changes],
        count=len(changes),
        notes=notes,
        fields=kept(asked, "job", "revision"),
    )


async def _roll_back(asked: PageRequest) -> tuple[int, str]:
    report = await _rolled_back(asked, is_dry_run=False)
    return sum(one.action != "unchanged" for one in report.changes), ""


ACTS: Final = {
    "rollback": Act(
        _rolling_back,
        _roll_back,
        t.ROLL_BACK,
        ("job is what it was", "jobs are what they were"),
    ),
    "pause": Act(_pausing, _pause, t.PAUSE, ("job was paused", "jobs were paused")),
    "resume": Act(_resuming, _resume, t.RESUME, ("job was resumed", "jobs were resumed")),
    "trigger": Act(_triggering, _trigger, t.TRIGGER, ("job was launched", "jobs were launched")),
    "backfill": Act(
        _backfilling, _backfill, t.BACKFILL, ("launch is due again", "launches are due again")
    ),
}
