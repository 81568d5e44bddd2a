"""Timers of systemd with their services, as texts of unit files by name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

from cron.calendar.duration import format_duration
from cron.calendar.expression import parse
from cron.calendar.schedule import shortest_period_s
from cron.crontab.imported import Imported, plain_name
from cron.errors import InvalidInput, ScheduleError
from cron.limits import JITTER_S_MAX

Unit = dict[str, list[str]]
"""The values of each `Section.Key`, in their order."""

_ALIASES: Final = {
    "minutely": "* * * * *", "hourly": "@hourly", "daily": "@daily", "weekly": "0 0 * * 1",
    "monthly": "@monthly", "yearly": "@yearly", "annually": "@yearly",
    "quarterly": "0 0 1 1,4,7,10 *", "semiannually": "0 0 1 1,7 *",
}  # fmt: skip
_WHEN: Final = re.compile(
    r"(?:(?P<dow>[A-Za-z][A-Za-z.,]*)(?: +|\Z))?(?:(?P<year>[^- ]+)-)?(?:(?P<month>[^-~ ]+)"
    r"(?P<last>[-~])(?P<day>[^ ]+) *)?"
    r"(?:(?P<hour>[^: ]+):(?P<minute>[^: ]+)(?::(?P<second>[^ ]+))?)?"
    r"(?: +(?P<zone>[A-Za-z][A-Za-z_/+0-9-]*))?"
)
_SPAN: Final = re.compile(r"([0-9]+) *([a-z]*)")
_UNIT_S: Final = {
    "": 1, "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60,
    "minutes": 60, "h": 3600, "hr": 3600, "hour": 3600, "hours": 3600, "d": 86_400, "day": 86_400,
    "days": 86_400, "w": 604_800, "week": 604_800, "weeks": 604_800,
}  # fmt: skip
_NTH: Final = {"1-7": 1, "8-14": 2, "15-21": 3, "22-28": 4}
_CARRIED: Final = frozenset(
    {
        *("ExecStart", "Type", "User", "WorkingDirectory", "Environment"),
        *("TimeoutStartSec", "RuntimeMaxSec"),
    }
)
_MARKS: Final = "-@:+!|"


def import_systemd(files: Mapping[str, str]) -> Imported:
    """Return the timers among unit files.

    Raises:
        InvalidInput: there are none.
    """
    timers = sorted(name for name in files if name.endswith(".timer"))
    if not timers:
        raise InvalidInput("there is no .timer", "name a folder such as /etc/systemd/system")
    imported = Imported()
    for name in timers:
        timer = _read(files[name])
        service = (timer.get("Timer.Unit") or [name.removesuffix(".timer") + ".service"])[-1]
        if service not in files:
            imported.leave_out(name, f"its unit {service} is not in the folder")
        else:
            _import(name, timer, _read(files[service]), imported)
    return imported


def _read(text: str) -> Unit:
    unit: Unit = {}
    section, whole = "", ""
    for line in text.splitlines():
        if whole == "" and line.lstrip()[:1] in ("#", ";"):
            continue
        whole += line.rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        line, whole = whole.strip(), ""
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            key = f"{section}.{key.strip()}"
            if value.strip():
                unit.setdefault(key, []).append(value.strip())
            else:
                unit[key] = []  # an empty value takes the earlier ones back
    return unit


def _import(name: str, timer: Unit, service: Unit, imported: Imported) -> None:
    command = _command(service.get("Service.ExecStart", []))
    if not command:
        imported.leave_out(name, "its service has no ExecStart")
        return
    if re.search(r"%[A-Za-z]", command) or "@" in name:
        imported.leave_out(name, "its service has specifiers such as %i, which are not expanded")
        return
    plain = plain_name(name.removesuffix(".timer"))
    schedules = [*_calendars(name, timer, imported), *_periods(name, timer, imported)]
    is_persistent = timer.get("Timer.Persistent", ["no"])[-1].lower() in ("yes", "true", "1", "on")
    folder = (service.get("Service.WorkingDirectory") or [""])[-1]
    timeout = service.get("Service.RuntimeMaxSec") or service.get("Service.TimeoutStartSec") or [""]
    timeout_s = _seconds(timeout[-1])
    common = {
        "command": command,
        "env": _environment(service) or None,
        "user": (service.get("Service.User") or [""])[-1] or None,
        "cwd": folder if folder.startswith("/") else None,
        "timeout": f"{timeout_s}s" if timeout_s else None,
        "catchup": None if is_persistent else "none",
        "overlap": "forbid",  # a unit that runs is not started again
    }
    delay = (timer.get("Timer.RandomizedDelaySec") or [""])[-1]
    delay_s = _seconds(delay)
    is_left = bool(delay) and not delay_s
    for number, (schedule, zone) in enumerate(schedules, 1):
        own = plain if number == 1 else f"{plain}-{number}"
        jitter_s = delay_s if delay_s and _fits(schedule, delay_s) else 0
        is_left = is_left or jitter_s != delay_s
        jitter = {"jitter": f"{jitter_s}s" if jitter_s else None}
        imported.add(name, {"name": own, "schedule": schedule, "zone": zone, **common, **jitter})
    if is_left:
        imported.note(name, f"RandomizedDelaySec={delay}: write ? for the minute, or jitter")
    for key in ("OnBootSec", "OnStartupSec", "OnActiveSec", "WakeSystem"):
        if timer.get(f"Timer.{key}"):
            imported.note(name, f"{key}={timer[f'Timer.{key}'][-1]}")
    left = [
        key.partition(".")[2]
        for key in service
        if key.startswith("Service.") and key.partition(".")[2] not in _CARRIED
    ]
    if left:
        imported.note(name, f"of its service: {', '.join(sorted(left))}")


def _command(lines: list[str]) -> str:
    commands = []
    for line in lines:
        marks = line[: len(line) - len(line.lstrip(_MARKS))]
        text = line[len(marks) :].replace("$$", "$").replace("%%", "%")
        commands.append(f"{{ {text} || true; }}" if "-" in marks else text)
    return " && ".join(commands)


def _environment(service: Unit) -> dict[str, str]:
    found = dict[str, str]()
    for line in service.get("Service.Environment", []):
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        found.update((key, value) for key, mark, value in (w.partition("=") for w in words) if mark)
    return found


def _seconds(text: str) -> int:
    """Return a time span such as `1h 30min` in seconds, 0 for none or one that is unknown."""
    total = 0
    for number, unit in _SPAN.findall(text):
        if unit not in _UNIT_S:
            return 0
        total += int(number) * _UNIT_S[unit]
    return total if _SPAN.sub("", text).strip() == "" else 0


def _periods(name: str, timer: Unit, imported: Imported) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for key in ("OnUnitActiveSec", "OnUnitInactiveSec"):
        for text in timer.get(f"Timer.{key}", []):
            if seconds := _seconds(text):
                found.append((f"@every {format_duration(seconds)}", None))
                imported.note(name, f"{key}={text} counts from 1970 here, not from the last run")
            else:
                imported.leave_out(name, f"{key}={text} is not understood")
    if not found and not timer.get("Timer.OnCalendar"):
        imported.leave_out(name, "it has neither OnCalendar nor OnUnitActiveSec")
    return found


def _calendars(name: str, timer: Unit, imported: Imported) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for text in timer.get("Timer.OnCalendar", []):
        schedule, zone, why = _calendar(text)
        if why:
            imported.leave_out(name, f"OnCalendar={text}: {why}")
        else:
            found.append((schedule, zone))
            if zone is None:
                imported.note(name, f"OnCalendar={text} is in UTC here, if no zone is written")
    return found


def _calendar(text: str) -> tuple[str, str | None, str]:
    """Return the schedule of five fields, the zone, and why there is none."""
    if text.lower() in _ALIASES:
        return _ALIASES[text.lower()], None, ""
    match = _WHEN.fullmatch(text.strip())
    if match is None or not any(match[key] for key in ("dow", "day", "hour")):
        return "", None, "it is not understood"
    if (match["year"] or "*") not in ("*", "1970/1"):
        return "", None, "it names a year"
    if (match["second"] or "00").strip("0") not in ("", "."):
        return "", None, "jobs here start at whole minutes"
    hour, minute = _field(match["hour"] or "0"), _field(match["minute"] or "0")
    month, day = _field(match["month"] or "*"), _field(match["day"] or "*")
    weekday = _field(match["dow"] or "*")
    if match["last"] == "~":
        if not day.isdigit() or not int(day):
            return "", None, "its days before the end of the month are more than one"
        day = f"L-{int(day) - 1}" if int(day) > 1 else "L"
    if weekday != "*" and day != "*":
        nth = _NTH.get(day)
        if nth is None or not weekday.isalpha():
            return "", None, "the day has to be both, and in five fields one is enough"
        weekday, day = f"{weekday[:3]}#{nth}", "*"
    return f"{minute} {hour} {day} {month} {weekday}", match["zone"], ""


def _field(text: str) -> str:
    """Return a part of OnCalendar as a field: ranges are `..`, numbers may begin with zeros."""
    text = re.sub(r"(?<![0-9])0+(?=[0-9])", "", text.replace("..", "-"))
    return re.sub(r"^0/", "*/", text)


def _fits(schedule: str, delay_s: int) -> bool:
    """Return whether a job with this schedule may have that jitter."""
    try:
        expression = parse(schedule)
    except ScheduleError:
        return False
    period_s = expression.every_s or shortest_period_s(expression.sample)
    return delay_s < period_s and delay_s <= JITTER_S_MAX
