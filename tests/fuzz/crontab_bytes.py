"""What any bytes in the place of a crontab, a schedule or an option may do: be refused."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Final

import msgspec

from cron.calendar import expression
from cron.calendar.duration import format_duration, parse_duration
from cron.calendar.schedule import compile as ticks_of
from cron.calendar.schedule import next_times
from cron.crontab.bounds import bounds_of, calendar_text, parse_calendar, parse_moment
from cron.crontab.conditions import condition_text, parse_conditions
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.payload import read_payload
from cron.crontab.reader import read_crontab, split_percent
from cron.crontab.reading import Reading
from cron.crontab.written import job_text
from cron.errors import InvalidInput, LimitExceeded
from tests.fuzz.subject import Finding, Subject, check_same

_ZONES: Final = ("UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Antarctica/Troll")
_NOW_S: Final = 1_795_186_800
_TIMES: Final = 20
_REFUSALS: Final = (InvalidInput, LimitExceeded)


def crontab(content: bytes) -> bool:
    """As a person's crontab: its jobs as a job file are the same jobs."""
    return comes_back(read_crontab(content, file="tab"))


def system_crontab(content: bytes) -> bool:
    """As a crontab with a user in each line."""
    return comes_back(read_crontab(content, file="tab", system=True, tenant="shop"))


def comes_back(reading: Reading) -> bool:
    if reading.errors:
        return False
    for job in reading.jobs:
        text = job_text(job)
        again = read_jobs_toml(text.encode(), file="file")
        if again.errors or len(again.jobs) != 1:
            raise Finding(f"{text} is refused: {again.errors[:1]}")
        check_same(job, msgspec.structs.replace(again.jobs[0], line=job.line), text)
    return bool(reading.jobs)


def schedule(content: bytes) -> bool:
    """As a schedule in some zone: its times ascend, and the same way leads back."""
    zone, text = _ZONES[(content or b"\0")[0] % len(_ZONES)], _text(content[1:])
    with suppress(*_REFUSALS):
        parsed = expression.parse(text)
        if parsed.has_any:
            parsed = expression.parse(parsed.sample)
        found = parsed.schedule(zone)
        times = next_times(found, _NOW_S, _TIMES)
        if any(one >= other for one, other in pairwise(times)):
            raise Finding(f"{text} in {zone}: {times} do not ascend")
        ticks = ticks_of(found)
        for one, other in pairwise(times):
            check_same(one, ticks.previous(other), f"the time before {other} of {text} in {zone}")
        if times:
            check_same(len(times), ticks.count(_NOW_S, times[-1]), f"{text} in {zone}: the count")
        return bool(times)
    return False


def conditions(content: bytes) -> bool:
    """As conditions of an alert."""
    with suppress(*_REFUSALS):
        found = parse_conditions(_text(content))
        text = ",".join(map(condition_text, found))
        check_same(found, parse_conditions(text), text)
        return True
    return False


def duration(content: bytes) -> bool:
    """As a length of time."""
    with suppress(*_REFUSALS):
        seconds = parse_duration(_text(content), what="it", least_s=1, most_s=1 << 40)
        text = format_duration(seconds)
        check_same(seconds, parse_duration(text, what="it", least_s=1, most_s=1 << 40), text)
        return True
    return False


def moment(content: bytes) -> bool:
    """As the start or the end of a job, and as its calendar."""
    zone, text = _ZONES[(content or b"\0")[0] % len(_ZONES)], _text(content[1:])
    is_good = False
    with suppress(*_REFUSALS):
        at = parse_moment("start", text)
        if not at.first_s(zone) <= at.last_s(zone):
            raise Finding(f"{text} in {zone} ends before it begins")
        is_good = True
    with suppress(*_REFUSALS):
        use = parse_calendar("calendar", text)
        found = bounds_of({"calendar": use}, zone)
        check_same(use, parse_calendar("calendar", calendar_text(found)), text)
        is_good = True
    return is_good


def payload(content: bytes) -> bool:
    """As the payload of a handler, and as a command with an input."""
    text = _text(content)
    split_percent(text)
    with suppress(*_REFUSALS):
        read = read_payload(text)
        check_same(read, read_payload(read.decode()), "a payload")
        return bool(read)
    return False


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


SUBJECT: Final = Subject(
    (crontab, system_crontab, schedule, conditions, duration, moment, payload),
    {
        "crontab": [
            b"CRON_TZ=Europe/Berlin\nMAILTO=ops@example.org\nPATH=/bin\n"
            b"#: name=billing/close timeout=5m overlap=queue retries=3 backoff=10s\n"
            b"#: alert=failed:2 to=ops\n"
            b"30 ?(2-6) L * * close --day=%F\n@daily backup.sh%first%second\n",
            b"#: name=shop/mail handler=mail priority=2 where='zone=eu|us, !small' parts=3\n"
            b'*/5 9-17 * * mon-fri {"to": "all"}\n',
            b"#: name=a start=2026-01-01 end=2026-12-31T18:00Z calendar=de:skip\n"
            b"0 9 15W jan,jul fri#2 true\n@every 90s echo x\n@reboot echo no\n",
        ],
        "system_crontab": [
            b"SHELL=/bin/sh\n17 *\t* * *\troot\tcd / && run-parts /etc/cron.hourly\n"
        ],
        "schedule": [
            b"\x01*/15 9-17 * * 1-5", b"\x020 2 L * *", b"\x00@every 1h30m", b"\x031 1 29 2 *"
        ],
        "conditions": [b"failed:2/5,late:10m", b"disk-filling:95%", b"missed"],
        "duration": [b"1d2h3m4s", b"90s"],
        "moment": [b"\x012026-10-25T02:30", b"\x002026-12-31T23:59:59Z", b"\x02de-holidays:only"],
        "payload": [b'{"a": [1, 2.5, null, "\xc3\xa4"]}', b"echo one%two\\%three"],
    },
)  # fmt: skip
