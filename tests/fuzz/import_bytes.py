"""What any bytes in the place of another scheduler's file may do: be left out, with the reason."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from typing import Final

from cron.crontab.import_crontab import Tab, import_crontabs
from cron.crontab.import_dkron import import_dkron
from cron.crontab.import_kubernetes import import_kubernetes
from cron.crontab.import_systemd import import_systemd
from cron.crontab.imported import Imported
from cron.crontab.jobfile import read_jobs_toml
from cron.errors import InvalidInput
from tests.fuzz.subject import Finding, Subject

_SERVICE: Final = "[Service]\nExecStart=/bin/true\n"


def dkron(content: bytes) -> bool:
    """As the answer of a dkron server."""
    with suppress(InvalidInput):
        return _reads(import_dkron(content))
    return False


def kubernetes(content: bytes) -> bool:
    """As documents of Kubernetes in JSON."""
    with suppress(InvalidInput):
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            return False
        return _reads(import_kubernetes([document]))
    return False


def cron_job(content: bytes) -> bool:
    """As the specification of one CronJob."""
    job = b'{"kind": "CronJob", "metadata": {"name": "a"}, "spec": %s}'
    return kubernetes(job % content)


def systemd(content: bytes) -> bool:
    """As a timer, as its service, and as a drop-in of that."""
    timer, _, rest = content.decode("utf-8", "surrogateescape").partition("\x1e")
    service, _, drop_in = rest.partition("\x1e")
    files = {"a.timer": timer, "a.service": service or _SERVICE, "a.service.d/a.conf": drop_in}
    with suppress(InvalidInput):
        return _reads(import_systemd(files))
    return False


def exec_start(content: bytes) -> bool:
    """As a command line of a service."""
    line = content.decode("utf-8", "surrogateescape")
    text = f"[Service]\nType=oneshot\nUser=a\nEnvironment='A=b c' B=\nExecStart={line}\n"
    timer = "[Timer]\nOnCalendar=03:00 UTC\n"
    imported = import_systemd({"a.timer": timer, "a.service": text})
    for one in imported.tables:
        try:
            shlex.split(one["command"])
        except ValueError as error:
            raise Finding(f"{one['command']!r} has an open quote") from error
    return _reads(imported)


def on_calendar(content: bytes) -> bool:
    """As the time of a timer."""
    text = content.decode("utf-8", "replace").replace("\n", " ")
    return systemd(f"[Timer]\nOnCalendar={text}\n".encode())


def crontab(content: bytes) -> bool:
    """As a crontab of a machine."""
    tabs = (
        Tab("root", content, "root"),
        Tab("/etc/crontab", content, "", "UTC", is_of_host=True),
        Tab("file", content, None),
    )
    return any([_reads(import_crontabs([tab])) for tab in tabs])


def _reads(imported: Imported) -> bool:
    """Return whether there are jobs; fail if the job file has others than were imported."""
    if not imported.tables:
        return False
    reading = read_jobs_toml(imported.text.encode(), file="imported.toml")
    if reading.errors or len(reading.jobs) != len(imported.tables):
        raise Finding(f"{imported.text}\nis refused: {reading.errors[:1]}")
    return True


SUBJECT: Final = Subject(
    (dkron, kubernetes, cron_job, systemd, exec_start, on_calendar, crontab),
    {
        "dkron": [
            b'[{"name": "a", "schedule": "0 */5 * * * *", "executor": "shell", "concurrency": '
            b'"forbid", "executor_config": {"command": "date", "env": "A=b", "timeout": "5m"}, '
            b'"tags": {"zone": "eu:2"}, "timezone": "Europe/Berlin"}]'
        ],
        "kubernetes": [
            b'{"items": [{"kind": "CronJob", "metadata": {"name": "a", "namespace": "b"}, "spec": '
            b'{"schedule": "TZ=UTC 0 4 * * *", "jobTemplate": {"spec": {"template": {"spec": '
            b'{"containers": [{"image": "busybox", "command": ["/bin/sh", "-c", "date"]}]}}}}}}]}'
        ],
        "cron_job": [
            b'{"schedule": "*/5 * * * *", "concurrencyPolicy": "Replace", "jobTemplate": {"spec": '
            b'{"backoffLimit": 2, "template": {"spec": {"containers": [{"command": ["a"], "env": '
            b'[{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": "100m", "memory": '
            b'"64Mi"}}}]}}}}}'
        ],
        "systemd": [
            b"[Timer]\nOnCalendar=Mon..Fri 09:30 Europe/Berlin\nPersistent=yes\n"
            b"\x1e[Service]\nExecStart=-/usr/bin/a $$HOME\nUser=www\nEnvironment='A=b c'\n\x1e"
            b"[Service]\nExecStart=\nExecStart=/b \\\n # c\n %n\n"
        ],
        "exec_start": [b"-/bin/a $A ${B}x '\\x20\\n' ; /b \\; %% %n"],
        "on_calendar": [
            b"*-*~02 04:00:00", b"Sat *-*-1..7 18:00", b"weekly", b"*-01,07-01 0/2:30"
        ],
        "crontab": [b"MAILTO=a@b.org\n5 4 * * sun root echo hello\n"],
    },
)  # fmt: skip
