"""The format of State that each command needs (DESIGN.md, "Formats").

A replica stops at a command that it does not know. So a leader appends no command before State has
the format of the first release that knew it. The same holds for fields that an older release would
ignore: its State would differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cron.job import Job
from cron.state import access, alerts, chains, groups, tasks
from cron.state import commands as c

COMMANDS: Final[dict[type[c.Command], int]] = {
    c.NoteEnds: 9,
    tasks.SpillTasks: 9,
    tasks.LoadTasks: 9,
    chains.ReleaseTasks: 9,
    groups.CloseGroups: 9,
    groups.ForgetGroups: 9,
    access.GrantRole: 9,
    access.RevokeRole: 9,
    access.CreateToken: 9,
    access.RevokeTokens: 9,
    access.CameFrom: 9,
    alerts.ApplyAlerts: 9,
    alerts.MuteAlerts: 9,
    alerts.UnmuteAlerts: 9,
    alerts.TestAlert: 9,
    alerts.RaiseAlerts: 9,
    alerts.ResolveAlerts: 9,
    alerts.SendAlerts: 9,
    access.RevokeCertificates: 10,
}
"""Commands that came after LEAST_FORMAT, with the format that brought them."""
_FIELDS: Final = 9
"""The format that brought the fields of jobs and tasks below. `TaskSpec.is_delay` is as new, but
only `ResetClock` looks at it: to refuse it would stop ordinary tasks during an upgrade."""


def least_format(command: c.Command) -> int:
    """Return the oldest format of State in which a leader may append a command."""
    known = COMMANDS.get(type(command), c.LEAST_FORMAT)
    if isinstance(command, c.PutJobs) and any(map(_is_new_job, command.jobs)):
        return _FIELDS
    if isinstance(command, tasks.SubmitTasks) and any(map(_is_new_task, command.tasks)):
        return _FIELDS
    return known


def _is_new_job(job: Job) -> bool:
    return bool(job.after or job.after_any or job.metrics or job.alerts is not None)


def _is_new_task(task: tasks.TaskSpec) -> bool:
    return bool(task.group or task.after or task.after_any)


def known_in(commands: Iterable[c.Command], format_: int) -> list[c.Command]:
    """Return the commands that a leader may append in a format."""
    return [command for command in commands if least_format(command) <= format_]
