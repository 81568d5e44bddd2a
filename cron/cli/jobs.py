"""jobs, pause and resume."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import click
import msgspec

from cron.api import table
from cron.api.jobs import (
    JobsRequest,
    JobView,
    PauseReport,
    PauseRequest,
    PauseView,
    ResumeRequest,
)
from cron.api.rpc import Rpc
from cron.calendar.duration import format_duration
from cron.cli import render
from cron.cli.app import WithOthers
from cron.cli.options import (
    Settings,
    asks_cell,
    filter_options,
    first_option,
    jobs_option,
    not_empty,
    stale_option,
    until_options,
)
from cron.cli.rows import gate_row, job_keys, launch_row
from cron.cli.times import format_s, show_ms, show_s, show_utc
from cron.cli.values import show_cpu, show_size
from cron.errors import CronError, OutcomeUnknown
from cron.job import retries_of
from launcher.protocol.names import short_job_name
from launcher.protocol.work import HANDLER_TIMEOUT_MS, NO_TIMEOUT_MS

P = TypeVar("P", PauseRequest, ResumeRequest)

_JOB_KEYS: Final = (
    "job tenant schedule resolved? zone next overlap catchup on_lost deadline_s timeout_ms paused"
    " pause_reason? paused_by? held? paused_until@paused_until_ms source revision command user?"
    " running last full_name=name"
)
_NEEDS_KEYS: Final = (
    "handler? payload? priority collection? concurrency? where? cpu_milli? memory_bytes?"
    " heartbeat_ms? retries backoff_ms backoff_max_ms retry_on=retry_codes fatal_on=fatal_codes"
    " dead parts each? after after_any secrets"
)
_CHANGE_KEYS: Final = (
    "gate changed_by? changed_at@changed_ms start? end? calendar? pause_after failed_in_a_row"
    " jitter_s cwd?"
)


COMMAND_SHOWN: Final = 60
"""Characters of a command in the list; `--long` shows all."""
_OTHERS: Final = dict.fromkeys(
    ("show", "export", "remove", "diff", "rollback"), "cron.cli.job_revisions"
)


@click.command("jobs", cls=WithOthers, others=_OTHERS, takes_word=True)
@click.argument("pattern", default="", callback=not_empty)
@jobs_option("pattern")
@filter_options
@first_option
@click.option(
    "-l", "--long", "is_long", is_flag=True, help="Show all fields of each job, one per line."
)
@stale_option
@asks_cell
def jobs_command(settings: Settings, /, is_long: bool, **wanted: Any) -> None:
    """List all jobs, or those that PATTERN (such as 'billing*' or 'acme/*') matches.

    Further commands: raftcron jobs show, export, remove, diff and rollback. A job with such a name
    is listed with --job.

    HELD shows why a job is not launched: a pause, or the number of a gate.
    """
    views = settings.ask(table.JOBS, JobsRequest(**wanted))
    if is_long and views and not settings.is_json:
        for view in settings.first(views):
            render.pairs(short_job_name(view.name), job_pairs(view))
    else:
        settings.show(JOBS, views)


@click.command("pause")
@click.argument("pattern", default="", metavar="PATTERN", callback=not_empty)
@jobs_option("pattern", is_needed=True)
@click.option("--reason", default="", help="Shown with the job.")
@click.option("--next", "is_next", is_flag=True, help="Skip the next instant of each job alone.")
@until_options
@asks_cell
def pause_command(
    settings: Settings, pattern: str, reason: str, is_next: bool, until_ms: int
) -> None:
    """Pause the jobs that PATTERN matches; instants that fall due meanwhile are skipped."""
    if is_next and until_ms:
        raise click.UsageError("--next ends with the next instant: leave --until and --for out")
    request = PauseRequest(pattern=pattern, reason=reason, until_ms=until_ms, is_next=is_next)
    report = _in_portions(settings, table.PAUSE, request, "paused")
    _show(settings, report, "paused", _until(until_ms), "was paused already")


@click.command("resume")
@click.argument("pattern", default="", metavar="PATTERN", callback=not_empty)
@jobs_option("pattern", is_needed=True)
@asks_cell
def resume_command(settings: Settings, pattern: str) -> None:
    """Resume the jobs that PATTERN matches."""
    report = _in_portions(settings, table.RESUME, ResumeRequest(pattern=pattern), "resumed")
    _show(settings, report, "resumed", "", "was not paused")


def _in_portions(
    settings: Settings, rpc: Rpc[P, PauseReport], request: P, action: str
) -> PauseReport:
    """Return the report about all jobs of a request; of many, say on stderr after each portion how
    far it is.

    Raises:
        OutcomeUnknown: it is done for some jobs. Any error of a call: it is done for none.
    """
    changed: list[str] = []
    unchanged: list[str] = []
    pauses: list[PauseView] = []
    with settings.client() as client:
        while True:
            after = max([*changed[-1:], *unchanged[-1:]], default="")
            try:
                asked = msgspec.structs.replace(request, after=after, is_portion=True)
                report = client.ask(rpc, asked)
            except CronError as error:
                if not after:
                    raise
                text = f"{action} {len(changed) + len(unchanged):,} jobs, and then: {error}"
                raise OutcomeUnknown(text, "repeat it: what is done stays as it is") from error
            changed += report.changed
            unchanged += report.unchanged
            pauses += report.pauses
            if not report.left or not (report.changed or report.unchanged):
                return PauseReport(changed=changed, unchanged=unchanged, pauses=pauses)
            count = len(changed) + len(unchanged)
            settings.show_progress(f"{action} {count:,} of {count + report.left:,} jobs")


def _show(
    settings: Settings, report: PauseReport, action: str, until: str, unchanged_text: str
) -> None:
    if settings.is_json:
        names = [(name, True) for name in report.changed]
        names += [(name, False) for name in report.unchanged]
        render.json_lines(
            {**job_keys(name), "action": action, "changed": changed} for name, changed in names
        )
        return
    pauses = {pause.job: pause for pause in report.pauses}
    lines = []
    for name in report.changed:
        end = _until(pauses[name].until_ms) if name in pauses else until
        lines.append(f"{short_job_name(name)} {action}{end}")
    for name in report.unchanged:
        known = ""
        if (pause := pauses.get(name)) is not None:
            by = f" by {pause.by}" if pause.by else ""
            end = _until(pause.until_ms) or " until it is resumed"
            known = f"{by},{end}" + _why(pause.reason)
        lines.append(f"{short_job_name(name)} {unchanged_text}{known}")
    for line in render.first_of(lines, "job"):
        render.line(line)
    if len(lines) > render.ALL_MAX:
        render.line(f"{len(report.changed):,} in all {action}{until}")


def _until(until_ms: int) -> str:
    return f" until {show_ms(until_ms)}" if until_ms else ""


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""


def job_row(view: JobView) -> render.JsonRow:
    """Return a job as JSON."""
    needs = view.needs
    row = render.row_of(
        view,
        _JOB_KEYS,
        **job_keys(view.name),
        next=[format_s(at_s) for at_s in view.next_s],
        timeout_ms=view.timeout_ms if 0 < view.timeout_ms < NO_TIMEOUT_MS else None,
        last=launch_row(view.last) if view.last else None,
    )
    row |= render.row_of(needs, _NEEDS_KEYS, retries=retries_of(needs.tries))
    gate = gate_row(view.gate) if view.gate is not None else None
    bounds = {
        "start": format_s(view.start_s) if view.start_s else None,
        "end": format_s(view.end_s) if view.end_s else None,
    }
    return row | render.row_of(view, _CHANGE_KEYS, gate=gate, **bounds)


def _schedule(view: JobView) -> str:
    """Return the schedule as it was written; a `?` that was placed shows what it became."""
    is_placed = view.resolved and "?" in view.schedule
    return f"{view.schedule} = {view.resolved}" if is_placed else view.schedule


def _command(view: JobView) -> str:
    """Return the begin of the command; of a handler's job nothing, since its pool is shown."""
    text = " ".join(view.command.split())
    cut = text if len(text) <= COMMAND_SHOWN else f"{text[: COMMAND_SHOWN - 3]}..."
    return cut or "-"


def _held(view: JobView) -> str:
    """Return what keeps a job from being launched, in a few words."""
    gate = f"gate {view.gate.number}" if view.gate is not None else ""
    held = ("unreadable" if view.held else "", "paused" if view.paused else "", gate)
    return ", ".join(filter(None, held)) or "-"


def _notes(view: JobView) -> str:
    """Return why a job is not launched, until when and by whom that was said, and how many of its
    launches were given up."""
    notes = [f"held: {view.held}"] if view.held else []
    if view.paused:
        by = f" by {view.paused_by}" if view.paused_by else ""
        notes.append(f"paused{by}{_until(view.paused_until_ms)}{_why(view.pause_reason)}")
    if (gate := view.gate) is not None:
        does = "drops" if gate.action == "drop" else "holds"
        by = f" by {gate.by}" if gate.by else ""
        closed = f"closed{by}{_until(gate.until_ms)}"
        notes.append(f"gate {gate.number}, {closed}, {does} it{_why(gate.reason)}")
    if view.needs.dead:
        notes.append(render.number(view.needs.dead, "dead letter"))
    return ", ".join(notes)


def _last_utc(view: JobView) -> str:
    """Return the newest scheduled time that has a row."""
    return show_utc(max(view.last.scheduled_s, view.last.last_s) * 1000) if view.last else "-"


JOBS: Final = render.Listing[JobView](
    job_row,
    "job schedule zone next_utc last_utc state running held pool command note",
    {
        "job": lambda view: short_job_name(view.name),
        "schedule": _schedule,
        "next_utc": lambda view: show_utc(view.next_s[0] * 1000) if view.next_s else "-",
        "last_utc": _last_utc,
        "state": lambda view: view.last.state if view.last else "-",
        "held": _held,
        "pool": lambda view: view.needs.handler or "-",
        "command": _command,
        "note": _notes,
    },
    nothing="no jobs",
    narrow="running last_utc zone pool state command",
    spill="job",
)


def _timeout(view: JobView) -> str:
    """Return how long a launch may run; handlers have a default, and may have one of their own."""
    if view.timeout_ms >= NO_TIMEOUT_MS:
        return "none"
    if view.timeout_ms:
        return format_duration(view.timeout_ms // 1000)
    if not view.needs.handler:
        return ""
    return f"{format_duration(HANDLER_TIMEOUT_MS // 1000)}, unless the handler says otherwise"


def _pause_after(view: JobView) -> str:
    if not view.pause_after:
        return ""
    failures = render.number(view.pause_after, "failure")
    return f"{failures} in a row, {view.failed_in_a_row} now"


def job_pairs(view: JobView) -> list[tuple[str, str]]:
    """Return all that a job says, in the words of its options, for people."""
    needs = view.needs
    retried = needs.tries > 1
    return [
        ("schedule", f"{_schedule(view)} {view.zone}"),
        ("start", show_s(view.start_s) if view.start_s else ""),
        ("end", show_s(view.end_s) if view.end_s else ""),
        ("calendar", view.calendar),
        ("next", ", ".join(map(show_s, view.next_s))),
        ("command", view.command),
        ("handler", needs.handler),
        ("payload", "hidden" if needs.payload_hidden else needs.payload),
        ("user", view.user),
        ("cwd", view.cwd),
        ("secret", ", ".join(needs.secrets)),
        ("overlap", view.overlap),
        ("concurrency", str(needs.concurrency or "")),
        ("catchup", view.catchup),
        ("on-lost", view.on_lost),
        ("deadline", format_duration(view.deadline_s)),
        ("timeout", _timeout(view)),
        ("heartbeat", format_duration(needs.heartbeat_ms // 1000) if needs.heartbeat_ms else ""),
        ("jitter", format_duration(view.jitter_s) if view.jitter_s else ""),
        ("pause-after", _pause_after(view)),
        ("alerts", "; ".join(view.alerts)),
        ("retries", str(retries_of(needs.tries)) if retried else ""),
        ("backoff", format_duration(needs.backoff_ms // 1000) if retried else ""),
        ("backoff-max", format_duration(needs.backoff_max_ms // 1000) if retried else ""),
        ("retry-on", ",".join(map(str, needs.retry_codes))),
        ("fatal-on", ",".join(map(str, needs.fatal_codes))),
        ("priority", str(needs.priority)),
        ("after", ", ".join(map(short_job_name, needs.after))),
        ("after-any", ", ".join(map(short_job_name, needs.after_any))),
        ("collection", needs.collection),
        ("where", needs.where),
        ("parts", str(needs.parts) if needs.parts > 1 else ""),
        ("each", needs.each),
        ("cpu", show_cpu(needs.cpu_milli)),
        ("memory", show_size(needs.memory_bytes)),
        ("metrics", "yes" if needs.metrics else ""),
        ("running", str(view.running or "")),
        ("dead letters", str(needs.dead or "")),
        ("source", f"{view.source}, revision {view.revision}" if view.source else ""),
        ("changed", f"{show_ms(view.changed_ms)} by {view.changed_by}" if view.changed_by else ""),
    ]
