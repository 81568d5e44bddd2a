"""Declared jobs: names, defaults, and the WorkSpec of a command or handler."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from cron import limits
from cron.alert_rules import JobAlerts
from cron.calendar.expression import Expression, parse
from cron.calendar.misread import misread
from cron.calendar.schedule import check, shortest_period_s
from cron.crontab import background
from cron.crontab.bounds import bounds_error, bounds_of
from cron.crontab.conflicts import deadline_with_retries_s, retry_of
from cron.crontab.default_name import DefaultNames, Unnamed
from cron.crontab.environment import MAILTO, mail_addresses
from cron.crontab.options import KNOWN, Policies
from cron.crontab.reading import Problems
from cron.crontab.secretive import HINT, PAYLOAD_HINT, secret_in_payload, secret_in_text
from cron.errors import ScheduleError
from cron.job import Bounds, Job, OnLost, Schedule
from launcher.protocol.work import NO_TIMEOUT_MS, WorkSpec

_WORD = re.compile(r"[^ \t]+")
REBOOT_LEFT_OUT = (
    "@reboot has no instant here, the job is skipped",
    "start it with the machine's own init, for example a systemd unit",
)
"""Message and hint of the warning; not an error, because packages install such lines."""


class Declaration(msgspec.Struct):
    """One job as a file declares it. `command` is as written; `script` is passed to the shell.

    For a handler, `command` and `payload` are the handler's payload.
    """

    line: int
    expression: Expression
    zone: str
    policies: Policies
    command: str
    script: str
    stdin: str
    shell: str
    env: tuple[tuple[str, str], ...]
    payload: bytes = b""


class JobList:
    """The jobs of one file, in order, with unique names."""

    def __init__(self, tenant: str, problems: Problems) -> None:
        self.jobs: list[Job] = []
        self.paused: dict[str, str] = {}
        self.unnamed: dict[str, Unnamed] = {}
        self._names = DefaultNames(tenant)
        self._problems = problems
        self._lines: dict[str, int] = {}
        self._total_bytes = 0
        self._is_full = False

    def add(self, declared: Declaration) -> None:
        """Add a job; report a name that is already used."""
        values = declared.policies.values
        handler = values.get("handler", "")
        owner = f"{handler}()" if handler else values.get("user", "")
        if not (name := values.get("name", "")):
            name, names = self._names.name(owner, declared.command, handler)
            self.unnamed[name] = names
        if name in self._lines:
            option = declared.policies.given.get("name")
            self._problems.error(
                option.line if option else declared.line,
                option.value_column if option else 1,
                f"name {name} is already that of the job on line {self._lines[name]}",
                "give one of the two another name",
            )
            return
        self._lines[name] = declared.line
        key, *fault = bounds_error(values, declared.expression, declared.zone)
        if key:
            option = declared.policies.given[key]
            self._problems.error(option.line, option.value_column, *fault)
            return
        if jitter_s := values.get("jitter", 0):
            period_s = declared.expression.every_s or shortest_period_s(declared.expression.sample)
            if jitter_s >= period_s:
                option = declared.policies.given["jitter"]
                message = f"jitter is not shorter than the {period_s} s between two instants"
                hint = "make it shorter, so that a launch begins before the next one is due"
                self._problems.error(option.line, option.value_column, message, hint)
                return
        if self._has_room(declared):
            self.jobs.append(_job(name, declared))
            if reason := values.get("paused"):
                self.paused[name] = reason
            self._warn_of_secrets(declared)
            if how := background.background(declared.script, declared.shell):
                place = (declared.line, min(declared.line, 1))
                self._problems.warn(*place, background.message(how), background.HINT)

    def _warn_of_secrets(self, declared: Declaration) -> None:
        """Warn about secrets in clear, and variables that a secret sets although a line does."""
        values, line = declared.policies.values, declared.line
        is_handler = "handler" in values
        if is_handler and (found := secret_in_payload(declared.payload.decode(errors="replace"))):
            message = f"payload holds what looks like {found}"
            self._problems.warn(line, 1, message, PAYLOAD_HINT)
        elif not is_handler and (found := secret_in_text(f"{declared.script}\n{declared.stdin}")):
            message = f"command holds what looks like {found}"
            self._problems.warn(line, 1, message, HINT.format(name="VARIABLE"))
        both = {variable for variable, _ in values.get("secret", ())} & dict(declared.env).keys()
        for variable in sorted(both):
            option = declared.policies.given["secret"]
            message = f"{variable} is set by a line of the environment as well: the secret counts"
            self._problems.warn(option.line, option.value_column, message, "remove that line")

    def _has_room(self, declared: Declaration) -> bool:
        # It is the approximate size: characters, or bytes when it is near the limit.
        texts = [declared.script, declared.stdin, *(text for line in declared.env for text in line)]
        size = sum(map(len, texts)) + len(declared.payload)
        if size * 4 > limits.JOB_BYTES_MAX:
            size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
            size += len(declared.payload)
        self._total_bytes += size
        fault = ("", "")
        if size > limits.JOB_BYTES_MAX:
            fault = (
                f"job has {size} bytes of command, input and environment, "
                f"more than {limits.JOB_BYTES_MAX}",
                "put them into a script or a file that the job reads",
            )
        elif self._is_full:
            return False
        elif len(self.jobs) == limits.JOBS_MAX:
            fault = (f"more than {limits.JOBS_MAX} jobs are declared", "use several cells")
            self._is_full = True
        elif self._total_bytes > limits.JOBS_BYTES_MAX:
            fault = (
                f"jobs up to here take more than {limits.JOBS_BYTES_MAX} bytes, "
                "each with its environment",
                "set variables in a file that the jobs read",
            )
            self._is_full = True
        if fault[0]:
            self._problems.error(declared.line, 1, *fault)
        return not fault[0]


def is_reboot(text: str) -> bool:
    """Return whether a schedule is `@reboot`, which every kind of file skips."""
    return text.strip().lower() == "@reboot"


def _in_zone(hint: str, zone: str) -> str:
    """Return the hint with its `date` commands in the schedule's time zone, because commands run in
    the zone of their machine.
    """
    return hint if zone == "UTC" else hint.replace("LC_ALL=C date", f"TZ={zone} LC_ALL=C date")


def read_schedule(
    text: str, zone: str, place: tuple[int, int], problems: Problems, *, whole: str = ""
) -> Expression | None:
    """Return the schedule at `place` (line, column); None after reporting an error.

    `whole` is the schedule with the command behind it, for the analysis of an invalid schedule.
    """
    line, column = place
    try:
        expression = parse(text)
        resolved = "" if expression.every_s else expression.sample
        schedule = Schedule(expression.text, resolved, zone, expression.every_s)
        check(schedule, expression.columns)
    except ScheduleError as error:
        words = [(match.group(), match.start() + 1) for match in _WORD.finditer(whole)]
        if not problems.is_full:
            error = misread(words, has_command=True) or error
        hint = _in_zone(error.hint, zone)
        problems.error(line, column + max(error.column, 1) - 1, str(error), hint)
        return None
    for warning in expression.warnings:
        hint = _in_zone(warning.hint, zone)
        problems.warn(line, column + warning.column - 1, warning.message, hint)
    for note in expression.notes:
        problems.note(line, column + note.column - 1, note.message, note.hint)
    return expression


def default_deadline_s(expression: Expression) -> int:
    """Return one period, at least a minute and at most an hour."""
    period_s = expression.every_s or shortest_period_s(expression.sample)
    return min(max(period_s, limits.DEADLINE_S_DEFAULT_MIN), limits.DEADLINE_S_DEFAULT_MAX)


def _job(name: str, declared: Declaration) -> Job:
    """Return the job; without a deadline it gets one period and the time of all retries."""
    policies = declared.policies
    fields = policies.fields(Job) | {"name": name, "retry": retry_of(policies)}
    schedule = declared.expression.schedule(declared.zone)
    if bounds := bounds_of(policies.values, declared.zone):
        schedule = msgspec.structs.replace(schedule, bounds=bounds)
    # A handler's job has no MAILTO: a command alone prints something.
    mail_to = "" if "handler" in policies.values else dict(declared.env).get(MAILTO, "")
    alerts = JobAlerts(**policies.fields(JobAlerts), mail_to=mail_addresses(mail_to)[0])
    if alerts.conditions or alerts.mail_to:
        fields["alerts"] = alerts
    job = Job(schedule=schedule, work=_work(declared), line=declared.line, **fields)
    guarded = job.is_limited or job.on_lost is OnLost.RETRY
    work = msgspec.structs.replace(job.work, guarded=guarded)
    deadline_s = job.deadline_s
    if "deadline" not in policies.values:
        timeout_ms = work.timeout_ms if work.timeout_ms < NO_TIMEOUT_MS else 0
        period_s = default_deadline_s(declared.expression)
        deadline_s = deadline_with_retries_s(period_s, job.retry, timeout_ms, job.jitter_s)
    return msgspec.structs.replace(job, work=work, deadline_s=deadline_s)


def _work(declared: Declaration) -> WorkSpec:
    """Return the work of a job; a handler's work has no command, environment, input or user."""
    fields = declared.policies.fields(WorkSpec)
    if "handler" in fields:
        return WorkSpec(argv=(), payload=declared.payload, **(fields | {"user": ""}))
    if fields.get("timeout_ms") == NO_TIMEOUT_MS:
        del fields["timeout_ms"]
    argv = (declared.shell, "-c", declared.script)
    return WorkSpec(argv=argv, env=declared.env, stdin=declared.stdin, **fields)


_NAMES: Final = {(known.owner, known.field): key for key, known in KNOWN.items()} | {
    (WorkSpec, "env"): "environment",
    (JobAlerts, "mail_to"): MAILTO,
}
"""What a difference in a field is called."""
# Whether work is guarded follows from overlap, concurrency and on-lost.
_COMPARED_APART: Final = ("line", "schedule", "work", "retry", "alerts", "argv", "guarded")


def differences(before: Job, after: Job) -> list[str]:
    """Return what differs, each once; where a job stands in its file is no difference."""
    names = _of_schedule(before.schedule, after.schedule)
    if before.work.argv[:1] != after.work.argv[:1]:
        names.append("shell")
    if before.work.argv[1:] != after.work.argv[1:]:
        names.append("command")
    pairs: tuple[tuple[msgspec.Struct, msgspec.Struct], ...] = (
        (before.work, after.work),
        (before, after),
        (before.retry, after.retry),
        (before.alerts or JobAlerts(), after.alerts or JobAlerts()),
    )
    names += [
        _NAMES.get((type(was), field), field)
        for was, now in pairs
        for field in was.__struct_fields__
        if field not in _COMPARED_APART and getattr(was, field) != getattr(now, field)
    ]
    return names


def _of_schedule(before: Schedule, after: Schedule) -> list[str]:
    if before == after:
        return []
    names = []
    if before.text != after.text:
        names.append("schedule")
    if before.zone != after.zone:
        names.append("zone")
    was, now = before.bounds or Bounds(), after.bounds or Bounds()
    names += [
        _NAMES[Bounds, field]
        for field in ("start_s", "end_s")
        if getattr(was, field) != getattr(now, field)
    ]
    if (was.calendar, was.is_only) != (now.calendar, now.is_only):
        names.append("calendar")
    elif was.days != now.days:
        names.append("days of the calendar")
    return names or ["place"]
