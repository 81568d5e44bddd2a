"""Acts on jobs: pause, resume, launch now, backfill."""

from __future__ import annotations

import secrets
from typing import Final

from cron.api import table as t
from cron.api.checks import named_pattern
from cron.api.jobs import PauseRequest, ResumeRequest
from cron.api.launches import BackfillRequest, TriggerRequest
from cron.web.console.page_request import PageRequest
from cron.web.console.plans import BY, Act, Plan, kept, names_in, plan_of, until, until_ms, utc_s
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


def _backfilled(asked: PageRequest, *, is_dry_run: bool) -> BackfillRequest:
    form = asked.form
    return BackfillRequest(
        job=form.get("job", ""),
        from_s=utc_s(form.get("from", ""), "from"),
        to_s=utc_s(form.get("to", ""), "to"),
        is_dry_run=is_dry_run,
        by=BY,
    )


async def _backfilling(asked: PageRequest) -> Plan:
    report = await asked.ask(t.BACKFILL, _backfilled(asked, is_dry_run=True))
    form = asked.form
    return Plan(
        title="Backfill",
        text=f"These launches of {form['job']} from {form['from']} until before {form['to']} UTC "
        "were skipped, lost or failed. They become due again.",
        button="Backfill",
        items=report.launches,
        count=len(report.launches),
        fields=kept(asked, "job", "from", "to"),
    )


async def _backfill(asked: PageRequest) -> tuple[int, str]:
    report = await asked.ask(t.BACKFILL, _backfilled(asked, is_dry_run=False))
    return len(report.launches), ""


ACTS: Final = {
    "pause": Act(_pausing, _pause, t.PAUSE, ("job was paused", "jobs were paused")),
    "resume": Act(_resuming, _resume, t.RESUME, ("job was resumed", "jobs were resumed")),
    "trigger": Act(_triggering, _trigger, t.TRIGGER, ("job was launched", "jobs were launched")),
    "backfill": Act(
        _backfilling, _backfill, t.BACKFILL, ("launch is due again", "launches are due again")
    ),
}
