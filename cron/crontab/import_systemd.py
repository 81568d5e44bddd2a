"""Timers of systemd with their services, as texts of unit files by name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

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
_SPAN: Final = re.compile(r"([0-9]+) *([a-z]*)", re.ASCII)
_DIGITS_MAX: Final = 9
_UNIT_S: Final = {
    "": 1, "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60,
    "minutes": 60, "h": 3600, "hr": 3600, "hour": 3600, "hours": 3600, "d": 86_400, "day": 86_400,
    "days": 86_400, "w": 604_800, "week": 604_800, "weeks": 604_800,
}  # fmt: skip
_NTH: Final = {"1-7": 1, "8-14": 2, "15-21": 3, "22-28": 4}
_CARRIED: Final = frozenset(
    {
        *("ExecStart", "ExecStartPre", "Type", "User", "WorkingDirectory", "Environment"),
        *("TimeoutStartSec", "RuntimeMaxSec", "RemainAfterExit", "SyslogIdentifier"),
    }
)
_TIMED: Final = frozenset(
    {
        *("OnCalendar", "OnUnitActiveSec", "OnUnitInactiveSec", "Persistent", "Unit"),
        *("AccuracySec", "RandomizedDelaySec"),
    }
)
_HELD: Final = re.compile(
    r"Unit\.((?:Condition|Assert)\w+|Requires|Requisite|BindsTo|OnFailure|OnSuccess|Conflicts)"
)
"""What lets a unit run, or follows it."""
_DAY: Final = re.compile("[1-9][0-9]?", re.ASCII)
_MARKS: Final = "-@:+!|"
_WORD: Final = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""", re.DOTALL)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{[A-Za-z_]\w*\})", re.ASCII)
_DOLLARS: Final = re.compile(r'\$\$|\$\{[A-Za-z_]\w*\}|[$"\\`]', re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "s": " ", "r": "\r"}


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
        service = _last(timer, "Timer.Unit") or name.removesuffix(".timer") + ".service"
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


def _last(unit: Unit, key: str) -> str:
    """Return the value that counts of a setting, "" where none is left."""
    return (unit.get(key) or [""])[-1]


def _import(name: str, timer: Unit, service: Unit, imported: Imported) -> None:
    before, after = service.get("Service.ExecStartPre", []), service.get("Service.ExecStartPost")
    is_oneshot = _last(service, "Service.Type") == "oneshot"
    starts = service.get("Service.ExecStart", [])
    commands = [*before, *starts, *((after or []) if is_oneshot else [])]
    if not starts:
        imported.leave_out(name, "its service has no ExecStart")
        return
    if any(re.search(r"%[A-Za-z]", one.replace("%%", "")) for one in commands) or "@" in name:
        imported.leave_out(name, "its service has specifiers such as %i, which are not expanded")
        return
    schedules = [*_calendars(name, timer, imported), *_periods(name, timer, imported)]
    is_persistent = _last(timer, "Timer.Persistent").lower() in ("yes", "true", "1", "on")
    folder = _last(service, "Service.WorkingDirectory")
    timeout = _last(service, "Service.RuntimeMaxSec") or _last(service, "Service.TimeoutStartSec")
    timeout_s = _seconds(timeout)
    common = {
        "command": " && ".join(map(_command, commands)),
        "env": _environment(service) or None,
        "user": _last(service, "Service.User") or None,
        "cwd": folder if folder.startswith("/") else None,
        "timeout": f"{timeout_s}s" if timeout_s else None,
        "catchup": None if is_persistent else "none",
        "overlap": "forbid",  # a unit that runs is not started again
    }
    _add(name, schedules, common, _last(timer, "Timer.RandomizedDelaySec"), imported)
    if common["user"] is None:
        imported.note(name, "a unit of the system runs as root without User=: write user=root")
    carried = _CARRIED | {"ExecStartPost"} if is_oneshot else _CARRIED
    _note_left(name, timer, service, carried, imported)


def _add(
    name: str,
    schedules: list[tuple[str, str | None]],
    common: dict[str, Any],
    delay: str,
    imported: Imported,
) -> None:
    """Add a job for each schedule of a timer; its random delay is their jitter, where it fits."""
    plain = plain_name(name.removesuffix(".timer"))
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


def _note_left(
    name: str, timer: Unit, service: Unit, carried: frozenset[str], imported: Imported
) -> None:
    """Note what no job has of a timer and its service."""
    for key, values in timer.items():
        section, _, setting = key.partition(".")
        if section == "Timer" and setting not in _TIMED and values:
            imported.note(name, f"{setting}={values[-1]}")
    for what, unit in (("timer", timer), ("service", service)):
        held = sorted(match[1] for key in unit if unit[key] and (match := _HELD.fullmatch(key)))
        if held:
            imported.note(name, f"of its {what}: {', '.join(held)}")
    left = [
        key.partition(".")[2]
        for key in service
        if key.startswith("Service.") and key.partition(".")[2] not in carried
    ]
    if left:
        imported.note(name, f"of its service: {', '.join(sorted(left))}")


def _command(line: str) -> str:
    """Return a command line of a unit as one for a shell, which would expand more in it."""
    text = line.lstrip(_MARKS)
    marks, words = line[: len(line) - len(text)], _WORD.findall(text)
    if len(words) == 3 and _unquoted(words[0]) in ("/bin/sh", "/usr/bin/sh") and words[1] == "-c":
        found = _unquoted(words[2]).replace("$$", "$").replace("%%", "%")
    else:
        found = " ".join("&&" if word == ";" else _for_shell(word) for word in words)
    return f"{{ {found} || true; }}" if "-" in marks else found


def _unquoted(word: str) -> str:
    parts = re.findall(r"""\"(?:[^"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\\.|[^"'\\]+""", word, re.DOTALL)
    bare = (part[1:-1] if part[0] in "\"'" else part for part in parts)
    return "".join(_ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[1]), part) for part in bare)


def _for_shell(word: str) -> str:
    """Return a word quoted, but for its variables. One alone is several words, as it is there."""
    text = _unquoted(word).replace("%%", "%")
    alone = _VARIABLE.fullmatch(text)
    if _PLAIN.fullmatch(text) or (alone is not None and alone[1]):
        return text
    if "$" not in text:
        return shlex.quote(text)
    return f'"{_quoted(text)}"'


def _quoted(text: str) -> str:
    """Return a text as it stands in double quotes of a shell; `$$` is a dollar sign."""

    def part_of(match: re.Match[str]) -> str:
        part = match[0]
        return "\\$" if part == "$$" else part if len(part) > 1 else f"\\{part}"

    return _DOLLARS.sub(part_of, text)


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
        if unit not in _UNIT_S or len(number) > _DIGITS_MAX:
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
        if not _DAY.fullmatch(day):
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
