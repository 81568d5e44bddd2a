"""Timers of systemd with their services, as folders of unit files (`cron/crontab/systemd/`)."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from cron import limits
from cron.calendar.duration import format_duration
from cron.calendar.expression import parse
from cron.calendar.schedule import shortest_period_s
from cron.crontab.imported import Imported, Place, Treatment, exported, plain_name
from cron.crontab.systemd import commands
from cron.crontab.systemd.calendar import Calendar, calendar, may_meet, united
from cron.crontab.systemd.keys import SERVICE, TIMER, TIMES, found_keys
from cron.crontab.systemd.syntax import (
    Assignment,
    NotUnderstood,
    Unfit,
    boolean,
    time_span_us,
)
from cron.crontab.systemd.units import Folder, Unit, Units, is_name, specifiers, template_of
from cron.errors import InvalidInput, ScheduleError

_READ = TypeVar("_READ")
_TYPES: Final = ("oneshot", "simple", "exec", "idle")
"""Types of services whose run ends with their command."""
_RESTARTS: Final = ("on-failure", "on-abnormal", "on-abort", "on-watchdog")
_FIRST: Final = ("OnActiveSec", "OnBootSec", "OnStartupSec")
_USER: Final = re.compile("[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_UMASK: Final = re.compile("0*[0-7]{1,3}", re.ASCII)
_SECOND_US: Final = 1_000_000
_SHOWN_CHARS: Final = 120


class Origin(NamedTuple):
    """Whose units these are: those of the system, or of a user; the zone of the machine; and keys
    that a job may lose, though it means something else then."""

    is_of_user: bool = False
    zone: str | None = None
    given_up: frozenset[str] = frozenset()


_SYSTEM: Final = Origin()


def import_systemd(
    *folders: Folder, paths: Sequence[str] = (), origin: Origin = _SYSTEM
) -> Imported:
    """Return the timers of folders, of which the first one comes before the others. `paths` name
    the folders in notes.

    Raises:
        InvalidInput: there are none.
    """
    units, imported = Units(folders, paths), Imported()
    names = units.timers()
    if not names:
        raise InvalidInput("there is no .timer", "name a folder such as /etc/systemd/system")
    for name, place in units.strays():
        imported.leave_out(name, "its file is in none of the folders: name that folder, too", place)
    seen = set[str]()
    started: dict[str, list[_Timer]] = {}
    for name in names:
        timer = units.load(name)
        if timer is None:
            imported.leave_out(name, "its file is in none of the folders, or cannot be read")
        elif timer.name not in seen:
            seen.add(timer.name)
            one = _Timer(timer, units, origin, imported)
            one.read()
            one.keep_apart(started)
            one.add()
    return imported


class _Timer:
    """One timer with its service: what of it is carried over, and what is said of the rest."""

    def __init__(self, timer: Unit, units: Units, origin: Origin, imported: Imported) -> None:
        self._timer = timer
        self._units = units
        self._origin = origin
        self._imported = imported
        self._name = timer.name
        self._is_fit = True
        self._service_name = ""
        self._calendars: list[Calendar] = []
        self._jobs: list[tuple[dict[str, Any], Place]] = []

    def read(self) -> None:
        """Read the jobs of the timer, or say why there are none."""
        timer = self._timer
        if not is_name(timer.name):
            self._leave_out("systemd reads no unit that is called so", timer.place)
            return
        if timer.is_masked:
            self._leave_out("it is masked", timer.place)
            return
        if timer.name != template_of(timer.name) or "@." not in timer.name:
            self._read()
        else:
            self._leave_out("it is a template, and no instance of it is wanted here", timer.place)

    def _read(self) -> None:
        timer = self._timer
        self._note(timer, is_timer=True)
        if not any(one.section == "Install" for one in timer.assignments) and (
            not self._units.is_wanted(timer.name)
        ):
            what = "it has no [Install], and no unit here wants it: nothing starts it there"
            self._imported.note(self._name, what, timer.place)
        service = self._service()
        if service is None:
            return
        self._note(service, is_timer=False)
        kind = self._kind(service)
        schedules = self._schedules(service)
        self._service_name = service.name
        table = self._table(service, kind)
        self._jobs = self._drawn_up(schedules, table)

    def keep_apart(self, started: dict[str, list[_Timer]]) -> None:
        """Leave the jobs out if another timer may start the same service at the same time, which
        systemd does once."""
        others = started.setdefault(self._service_name, [])
        for other in others if self._is_fit else ():
            what = f"{other._name} starts {self._service_name}, too"
            if may_meet(other._calendars, self._calendars):
                self._leave_out(f"{what}: it starts once where both are due", self._timer.place)
            else:
                what += ", and their jobs do not await each other"
                self._imported.note(self._name, what, self._timer.place)
        if self._is_fit:
            others.append(self)

    def add(self) -> None:
        """Add the jobs, if nothing leaves them out."""
        for job, place in self._jobs if self._is_fit else ():
            self._imported.add(self._name, job, place)

    def _leave_out(self, why: str, place: Place) -> None:
        self._is_fit = False
        self._imported.leave_out(self._name, why, place)

    def _note(self, unit: Unit, *, is_timer: bool) -> None:
        """Note the lines of a unit that systemd ignores, and the keys that are not carried over."""
        for what, place, is_whole in unit.faults:
            if is_whole:
                self._leave_out(what, place)
            else:
                self._imported.note(self._name, what, place)
        table = {
            name: key._replace(treatment=Treatment.NOTED)
            if key.treatment is Treatment.LEAVES_OUT
            and name.partition(".")[2] in self._origin.given_up
            else key
            for name, key in (TIMER if is_timer else SERVICE).items()
        }
        if not self._imported.note_keys(self._name, table, found_keys(unit.assignments)):
            self._is_fit = False

    def _service(self) -> Unit | None:
        """Return the service that the timer starts, None after saying why there is none."""
        given = None
        for line in self._timer.assignments:
            if line.name == "Timer.Unit" and given is None and line.value:
                given = line
            elif line.name == "Timer.Unit":
                what = f"{line.shown[:_SHOWN_CHARS]}: systemd takes the first unit, and ignores it"
                self._imported.note(self._name, what, line.place)
        name = self._timer.name.removesuffix(".timer") + ".service"
        if given is not None:
            name = self._fitting(given, self._expand(self._timer, given.value)) or ""
        place = given.place if given else self._timer.place
        service = self._units.load(name) if name.endswith(".service") else None
        if service is None:
            self._leave_out(f"its unit {name[:80]} is in none of the folders", place)
        elif service.is_masked:
            self._leave_out(f"its unit {name} is masked", place)
        else:
            return service
        return None

    def _expand(self, unit: Unit, text: str) -> Callable[[], str]:
        replaced = specifiers(unit.name, is_of_user=self._origin.is_of_user)
        return lambda: replaced(text)

    def _fitting(self, line: Assignment, read: Callable[[], _READ]) -> _READ | None:
        """Return what is read of a line; if it cannot mean the same here, leave the job out, and
        return None."""
        try:
            return read()
        except Unfit as error:
            self._leave_out(f"{line.shown[:_SHOWN_CHARS]}: {error}", line.place)
            return None

    def _understood(
        self, unit: Unit, names: Sequence[str], read: Callable[[str], _READ], default: _READ
    ) -> tuple[_READ, Assignment | None]:
        """Return the value of keys of which the last one counts, and where it is. A value that is
        not understood is noted: systemd ignores it, also an empty one."""
        value, place = default, None
        for one in unit.assignments:
            if one.name in names:
                try:
                    value, place = read(one.value), one
                except NotUnderstood:
                    what = (
                        f"{one.shown[:_SHOWN_CHARS]}: it is not understood, and systemd ignores it"
                    )
                    self._imported.note(self._name, what, one.place)
        return value, place

    # ---- when

    def _schedules(self, service: Unit) -> list[tuple[str, str | None, Place]]:
        """Return schedules and zones of the timer; there may be several."""
        lines = self._timer.values(*TIMES)
        calendars = [one for one in lines if one.key == "OnCalendar"]
        periods = [one for one in lines if one.key == "OnUnitActiveSec"]
        if calendars and periods:
            why = f"{periods[0].shown}: it counts from the runs of {calendars[0].shown}, too"
            self._leave_out(why, periods[0].place)
        elif len(periods) > 1:
            self._leave_out("two periods are not one schedule", periods[1].place)
        elif calendars:
            return self._of_calendars(calendars)
        elif periods:
            is_begun = any(one.key in _FIRST for one in lines) or any(
                one.section == "Install" for one in service.assignments
            )
            if not is_begun:
                why = f"{periods[0].shown}: nothing starts the unit for the first time"
                self._leave_out(why, periods[0].place)
            return self._of_period(periods[0])
        else:
            self._leave_out("it has neither OnCalendar nor OnUnitActiveSec", self._timer.place)
        return []

    def _of_calendars(self, lines: list[Assignment]) -> list[tuple[str, str | None, Place]]:
        read = [self._fitting(line, functools.partial(self._calendar, line)) for line in lines]
        calendars = [one for one in read if one is not None]
        found = self._fitting(lines[-1], lambda: united(calendars)) or []
        if len(found) > 1:
            what = f"{lines[-1].shown}: its times are several jobs, which do not await each other"
            self._imported.note(self._name, what, lines[-1].place)
        self._calendars = found
        schedules = []
        for one in found:
            zone = one.zone or self._origin.zone
            self._imported.note_zone(self._name, one.schedule, zone, lines[0].place)
            schedules.append((one.schedule, zone, lines[0].place))
        return schedules

    def _calendar(self, line: Assignment) -> Calendar:
        return calendar(self._expand(self._timer, line.value)())

    def _of_period(self, line: Assignment) -> list[tuple[str, str | None, Place]]:
        def read() -> str:
            try:
                period_us = time_span_us(self._expand(self._timer, line.value)())
            except NotUnderstood:
                raise Unfit("it is not understood") from None
            if not period_us or period_us % _SECOND_US:
                raise Unfit("a period is a number of whole seconds")
            return f"@every {format_duration(period_us // _SECOND_US)}"

        schedule = self._fitting(line, read) or ""
        what = f"{line.shown} counts from 1970 here, not from the last run"
        self._imported.note(self._name, what, line.place)
        return [(schedule, None, line.place)]

    # ---- what

    def _kind(self, service: Unit) -> str:
        """Return the type of the service."""
        given, line = self._understood(service, ("Service.Type",), _filled, "simple")
        if given not in _TYPES and line is not None:
            why = f"{line.shown[:80]}: its run does not end with its command"
            self._leave_out(why, line.place)
        restart, line = self._understood(service, ("Service.Restart",), _filled, "no")
        if line is not None and restart in _RESTARTS:
            self._imported.note(self._name, f"{line.shown}: see retries= and backoff=", line.place)
        elif line is not None and restart != "no":
            why = f"{line.shown[:80]}: a job does not begin again by itself"
            self._leave_out(why, line.place)
        return given

    def _table(self, service: Unit, kind: str) -> dict[str, Any]:
        """Return what the jobs of all schedules have in common."""
        user = self._user(service)
        lines = service.values("Service.Environment")
        replaced = specifiers(service.name, is_of_user=self._origin.is_of_user)
        env: dict[str, str] = {}
        if lines:
            env = self._fitting(lines[-1], lambda: commands.environment(lines, replaced)) or {}
        env = {"PATH": commands.PATH, **env}
        is_known = user is not None and service.last("Service.User") is not None
        of_user = commands.OF_USER if is_known else ()
        is_root = user == "root" and not self._origin.is_of_user
        context = commands.Context(replaced, env, of_user, is_root)
        before, programs = self._steps(service, kind, context)
        cwd, change = self._folder(service, has_home=is_known and "HOME" not in env)
        exports, others = exported(env)
        parts = [*self._umask(service), *exports, *change, *before, *programs]
        persistent, _ = self._understood(self._timer, ("Timer.Persistent",), boolean, False)
        persistent = persistent and bool(self._calendars)  # it is not of periods
        return {
            "command": " && ".join(parts),
            "env": others,
            "user": user,
            "cwd": cwd,
            "timeout": self._timeout(service, kind, len(before) + len(programs)),
            "catchup": None if persistent else "none",
            # Such a timer starts its unit late, however late that is.
            "deadline": format_duration(limits.DEADLINE_S_MAX) if persistent else None,
            "overlap": "forbid",  # a unit that runs is not started again
        }

    def _user(self, service: Unit) -> str | None:
        line = service.last("Service.User")
        if line is None:
            return None if self._origin.is_of_user else "root"
        user = self._fitting(line, self._expand(service, line.value)) or ""
        if user and not _USER.fullmatch(user):
            self._leave_out(f"{line.shown[:80]}: write the user's name", line.place)
        return user

    def _folder(self, service: Unit, *, has_home: bool) -> tuple[str | None, list[str]]:
        """Return the working directory, and the command that changes it if it is there."""
        line = service.last("Service.WorkingDirectory")
        if line is None:
            return (None if self._origin.is_of_user else "/"), []
        text = self._fitting(line, self._expand(service, line.value)) or "/"
        is_optional, path = text.startswith("-"), text.removeprefix("-")
        if path == "~" and has_home:
            return None, []
        if not path.startswith("/"):
            self._leave_out(
                f"{line.shown[:_SHOWN_CHARS]}: it is not the same folder here", line.place
            )
        if not is_optional:
            return path, []
        return "/", [f"{{ cd -P {shlex.quote(path)} 2>/dev/null || true; }}"]

    def _umask(self, service: Unit) -> list[str]:
        mask, line = self._understood(service, ("Service.UMask",), _mask, "")
        return [f"umask {mask}"] if line is not None else []

    def _steps(
        self, service: Unit, kind: str, context: commands.Context
    ) -> tuple[list[str], list[str]]:
        """Return the commands before the service's own, and those with what follows them."""
        found: dict[str, list[str]] = {}
        for key in ("ExecStartPre", "ExecStart", "ExecStartPost"):
            found[key] = []
            for line in service.values(f"Service.{key}"):
                read = self._fitting(line, functools.partial(_listed, line, context)) or ()
                for step in map(str, read):
                    self._imported.note_background(self._name, step, line.place)
                    found[key].append(step)
        before, starts, after = found.values()
        lines = service.values("Service.ExecStart")
        if not starts and not lines:
            self._leave_out("its service has no ExecStart", service.place)
        elif kind != "oneshot" and len(starts) > 1:
            why = "systemd refuses several ExecStart without Type=oneshot"
            self._leave_out(why, lines[-1].place)
        if after and kind != "oneshot":
            post = service.values("Service.ExecStartPost")[0]
            self._leave_out(f"{post.shown[:_SHOWN_CHARS]}: it runs beside ExecStart", post.place)
        codes: list[int] = []
        for line in service.values("Service.SuccessExitStatus"):
            codes += self._fitting(line, functools.partial(commands.exit_codes, line.value)) or []
            if len(starts) != 1 or before or after:
                self._leave_out(f"{line.shown}: it is of several commands", line.place)
        starts = [commands.accepting(one, codes) for one in starts]
        return before, [*starts, *after]

    def _timeout(self, service: Unit, kind: str, count: int) -> str | None:
        """Return how long the service may run, if that bounds its only command."""
        starting = ("Service.TimeoutSec", "Service.TimeoutStartSec")
        start_us, start = self._understood(service, starting, time_span_us, None)
        run_us, run = self._understood(service, ("Service.RuntimeMaxSec",), time_span_us, None)
        is_oneshot = kind == "oneshot"
        if run is not None and is_oneshot:
            what = f"{run.shown}: it bounds no run of a oneshot, so there is no timeout"
            self._imported.note(self._name, what, run.place)
        if not is_oneshot and start is not None and count > 1:
            what = f"{start.shown}: it is of ExecStartPre, and not of ExecStart"
            self._imported.note(self._name, what, start.place)
        bound_us, line = (start_us, start) if is_oneshot else (run_us, run)
        if line is None or bound_us is None or (bound_us == 0 and is_oneshot):
            return None
        bound_s = -(-bound_us // _SECOND_US)
        if count > 1:
            what = f"{line.shown}: it bounds each command there, and timeout= all of them"
        elif not 0 < bound_s <= limits.TIMEOUT_S_MAX:
            what = f"{line.shown}: no timeout is as long"
        else:
            if bound_us % _SECOND_US:
                what = f"{line.shown}: rounded up to whole seconds"
                self._imported.note(self._name, what, line.place)
            return f"{bound_s}s"
        self._imported.note(self._name, what, line.place)
        return None

    def _drawn_up(
        self, schedules: list[tuple[str, str | None, Place]], table: dict[str, Any]
    ) -> list[tuple[dict[str, Any], Place]]:
        """Return a job for each schedule; the timer's random delay is their jitter, where it
        fits."""
        plain = plain_name(self._timer.name.removesuffix(".timer"))
        names = ("Timer.RandomizedDelaySec",)
        delay_us, line = self._understood(self._timer, names, time_span_us, None)
        delay_s = (delay_us or 0) // _SECOND_US
        is_whole = not (delay_us or 0) % _SECOND_US
        jobs, is_left = [], False
        for number, (schedule, zone, place) in enumerate(schedules, 1):
            own = plain if number == 1 else f"{plain}-{number}"
            fits = is_whole and delay_s and _fits(schedule, delay_s)
            is_left = is_left or bool(delay_us and not fits)
            jitter = {"jitter": f"{delay_s}s" if fits else None}
            job = {"name": own, "schedule": schedule, "zone": zone, **table, **jitter}
            jobs.append((job, place))
        if is_left and line is not None:
            what = f"{line.shown}: write ? for the minute, or jitter"
            self._imported.note(self._name, what, line.place)
        return jobs


def _listed(line: Assignment, context: commands.Context) -> list[commands.Step]:
    return list(commands.steps(line, context))


def _filled(text: str) -> str:
    if not text:
        raise NotUnderstood
    return text


def _mask(text: str) -> str:
    if not _UMASK.fullmatch(text):
        raise NotUnderstood
    return text.lstrip("0").rjust(4, "0")


def _fits(schedule: str, delay_s: int) -> bool:
    """Return whether a job with this schedule may have that jitter."""
    try:
        expression = parse(schedule)
    except ScheduleError:
        return False
    period_s = expression.every_s or shortest_period_s(expression.sample)
    return delay_s < period_s and delay_s <= limits.JITTER_S_MAX
