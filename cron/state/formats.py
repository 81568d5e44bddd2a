"""The format of State that each command needs (DESIGN.md, "Formats").

A replica stops at a command that it does not know. So a leader appends no command before State has
the format of the first release that knew it. The same holds for fields that an older release would
ignore: its State would differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from cron.access import TOKEN_ROLES
from cron.job import Job
from cron.state import access, alerts, calendars, chains, groups, tasks
from cron.state import commands as c

_FOLLOWING: Final = "after= and after-any="
_GROUPS: Final = "groups of tasks and tasks that follow others"
_ON_DISK: Final = "tasks on disk"
_ROLES: Final = "roles and tokens"
_ALERTS: Final = "alerts"
_REMINDERS: Final = "reminders of alerts"
_CALENDARS: Final = "calendars"
_NOTES: Final = 11
"""The format that brought rows for changes of members and for restored cells."""
_EXECUTORS: Final = "grants of executors"
_DEFAULTS: Final = "what the log says of new queues"


class Needed(NamedTuple):
    """The oldest format of State in which a leader may append a command, and what needs it, as
    people call it; "" where every release knows the command."""

    format: int
    what: str = ""


COMMANDS: Final[dict[type[c.Command], Needed]] = {
    c.NoteEnds: Needed(9, _FOLLOWING),
    tasks.SpillTasks: Needed(9, _ON_DISK),
    tasks.LoadTasks: Needed(9, _ON_DISK),
    chains.ReleaseTasks: Needed(9, _GROUPS),
    groups.CloseGroups: Needed(9, _GROUPS),
    groups.ForgetGroups: Needed(9, _GROUPS),
    access.GrantRole: Needed(9, _ROLES),
    access.RevokeRole: Needed(9, _ROLES),
    access.CreateToken: Needed(9, _ROLES),
    access.RevokeTokens: Needed(9, _ROLES),
    access.CameFrom: Needed(9, "origins of changes"),
    alerts.ApplyAlerts: Needed(9, _ALERTS),
    alerts.MuteAlerts: Needed(9, _ALERTS),
    alerts.UnmuteAlerts: Needed(9, _ALERTS),
    alerts.TestAlert: Needed(9, _ALERTS),
    alerts.RaiseAlerts: Needed(9, _ALERTS),
    alerts.ResolveAlerts: Needed(9, _ALERTS),
    alerts.SendAlerts: Needed(9, _ALERTS),
    alerts.RemindAlerts: Needed(12, _REMINDERS),
    access.RevokeCertificates: Needed(10, "revoked certificates"),
    calendars.PutCalendar: Needed(10, _CALENDARS),
    calendars.RemoveCalendar: Needed(10, _CALENDARS),
    c.NoteChange: Needed(_NOTES, "rows of changes that have no other command"),
    access.GrantExecutor: Needed(11, _EXECUTORS),
    access.RevokeExecutor: Needed(11, _EXECUTORS),
}
"""Commands that came after LEAST_FORMAT, with what they need."""
_EVERYWHERE: Final = Needed(c.LEAST_FORMAT)
_BOUNDS: Final = 10
"""The format that brought start, end and calendars of jobs, and days such as `L` in schedules: an
older leader would not know when the job is due."""
_FIELDS: Final = 9
"""The format that brought the fields of jobs and tasks below. `TaskSpec.is_delay` is as new, but
only `ResetClock` looks at it: to refuse it would stop ordinary tasks during an upgrade."""


_NEWEST: Final = 11
"""The format that brought secrets, pauses after failures, and jitter of jobs. An older leader would
let executors of older releases start a job without its secrets, and begin launches at once."""
_MARKS: Final = 12
"""The format that brought marks of terms, and proofs of orders."""
_SPECIAL: Final = frozenset("LW#")


def needed(command: c.Command) -> Needed:
    """Return what a command needs."""
    if isinstance(command, c.PutJobs):
        found = (one for job in command.jobs if (one := _of_job(job)))
        return max(found, key=lambda one: one.format, default=_EVERYWHERE)
    if isinstance(command, tasks.SubmitTasks | groups.CloseGroups) and command.defaults:
        return Needed(tasks.RESOLVED_FORMAT, _DEFAULTS)
    if isinstance(command, tasks.SubmitTasks):
        is_new = any(task.group or task.after or task.after_any for task in command.tasks)
        return Needed(_FIELDS, _GROUPS) if is_new else _EVERYWHERE
    if isinstance(command, alerts.ApplyAlerts) and any(rule.remind_s for rule in command.rules):
        return COMMANDS[alerts.RemindAlerts]
    if isinstance(command, access.GrantRole | access.RevokeRole | access.CreateToken):
        # An older replica stops at a role that it does not know.
        is_new = command.role not in TOKEN_ROLES or bool(command.users)
        if isinstance(command, access.CreateToken):
            is_new = is_new or command.payloads
        if is_new:
            return Needed(11, "the roles run-as and see-payloads")
    return COMMANDS.get(type(command), _EVERYWHERE)


def _of_job(job: Job) -> Needed | None:
    """Return what a job needs because of its options, None if every release knows them."""
    if job.alerts is not None and job.alerts.remind_s:
        return Needed(12, f"remind= of job {job.name}")
    newest = {
        "secret=": bool(job.work.secrets),
        "pause-after=": job.pause_after > 0,
        "jitter=": job.jitter_s > 0,
    }
    if option := next((option for option, is_set in newest.items() if is_set), ""):
        return Needed(_NEWEST, f"{option} of job {job.name}")
    if job.schedule.bounds is not None:
        return Needed(_BOUNDS, f"start=, end= or calendar= of job {job.name}")
    if not _SPECIAL.isdisjoint(job.schedule.resolved):
        return Needed(_BOUNDS, f"the schedule {job.schedule.text} of job {job.name}")
    options = {
        _FOLLOWING: bool(job.after or job.after_any),
        "metrics=yes": job.metrics,
        "alert= and MAILTO": job.alerts is not None,
    }
    said = [option for option, is_set in options.items() if is_set]
    return Needed(_FIELDS, f"{said[0]} of job {job.name}") if said else None


def notes_restores(format_: int) -> bool:
    """Return whether State keeps a row of the changes for a cell that was restored."""
    return format_ >= _NOTES


def has_marks(format_: int) -> bool:
    """Return whether State keeps the marks of terms and the key of proofs, which Claim and
    RaiseFormat bring."""
    return format_ >= _MARKS


def known_in(commands: Iterable[c.Command], format_: int) -> list[c.Command]:
    """Return the commands that a leader may append in a format."""
    return [command for command in commands if needed(command).format <= format_]
