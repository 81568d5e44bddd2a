"""What any bytes in the place of another scheduler's file may do: be left out, with the reason."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final

from cron.crontab.import_crontab import import_crontabs
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
    """As a timer, and as its service."""
    timer, _, service = content.decode("utf-8", "replace").partition("\0")
    with suppress(InvalidInput):
        return _reads(import_systemd({"a.timer": timer, "a.service": service or _SERVICE}))
    return False


def on_calendar(content: bytes) -> bool:
    """As the time of a timer."""
    text = content.decode("utf-8", "replace").replace("\n", " ")
    return systemd(f"[Timer]\nOnCalendar={text}\n".encode())


def crontab(content: bytes) -> bool:
    """As a crontab of a machine."""
    return _reads(import_crontabs([("root", content, "root"), ("/etc/crontab", content, "")]))


def _reads(imported: Imported) -> bool:
    """Return whether there are jobs; fail if the job file has others than were imported."""
    if not imported.tables:
        return False
    reading = read_jobs_toml(imported.text.encode(), file="imported.toml")
    if reading.errors or len(reading.jobs) != len(imported.tables):
        raise Finding(f"{imported.text}\nis refused: {reading.errors[:1]}")
    return True


SUBJECT: Final = Subject(
    (dkron, kubernetes, cron_job, systemd, on_calendar, crontab),
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
            b"[Timer]\nOnCalendar=Mon..Fri 09:30 Europe/Berlin\nPersistent=yes\nOnUnitActiveSec=1h"
            b"\n\0[Service]\nExecStart=-/usr/bin/a $$HOME\nUser=www\nEnvironment='A=b c'\n"
        ],
        "on_calendar": [
            b"*-*~02 04:00:00", b"Sat *-*-1..7 18:00", b"weekly", b"*-01,07-01 0/2:30"
        ],
        "crontab": [b"MAILTO=a@b.org\n5 4 * * sun root echo hello\n"],
    },
)  # fmt: skip
