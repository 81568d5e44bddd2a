"""What any bytes in the place of a file in TOML may do: be refused, with the place and a way out.

Some targets put the bytes behind a beginning that is right, so that more than syntax is reached.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from cron.config import parse_replica_config
from cron.crontab.alert_file import parse_alert_file
from cron.crontab.jobfile import read_jobs_toml
from cron.errors import InvalidInput, LimitExceeded
from cron.service.queue_file import read_queues
from launcher import config
from launcher.errors import BadConfig
from launcher.targets.config import EXAMPLE, TargetsConfig
from launcher.toml import parse_toml
from tests.fuzz.crontab_bytes import comes_back
from tests.fuzz.subject import Subject

_REFUSALS: Final = (InvalidInput, LimitExceeded)
_EXAMPLES: Final = Path(__file__).parents[2] / "examples"
_REPLICA: Final = (_EXAMPLES / "replica.toml").read_bytes()
_JOB: Final = b'[[job]]\nname = "a"\nschedule = "* * * * *"\ncommand = "true"\n'


def jobs(content: bytes) -> bool:
    """As a job file."""
    return comes_back(read_jobs_toml(content, file="jobs.toml"))


def options(content: bytes) -> bool:
    """As more keys of a job."""
    return comes_back(read_jobs_toml(_JOB + content, file="jobs.toml"))


def alerts(content: bytes) -> bool:
    """As the rules and channels of alerts."""
    with suppress(*_REFUSALS):
        found = parse_alert_file(content.decode("utf-8", "replace"))
        return bool(found.rules or found.channels)
    return False


def queues(content: bytes) -> bool:
    """As queues of tasks."""
    with suppress(*_REFUSALS):
        return bool(read_queues(content.decode("utf-8", "replace"), file="queues.toml"))
    return False


def replica(content: bytes) -> bool:
    """As the configuration of a replica."""
    with suppress(*_REFUSALS):
        parse_replica_config(content.decode("utf-8", "replace"), "replica.toml")
        return True
    return False


def more_of_a_replica(content: bytes) -> bool:
    """As the end of that configuration, about history."""
    return replica(_REPLICA.partition(b"[history]")[0] + content)


def executor(content: bytes) -> bool:
    """As the configuration of an executor."""
    with suppress(BadConfig):
        config.parse(content, Path("/etc/raftcron/executor.toml"))
        return True
    return False


def targets(content: bytes) -> bool:
    """As the configuration of targets."""
    with suppress(BadConfig):
        path = Path("/etc/raftcron/targets.toml")
        return bool(parse_toml(content, path, TargetsConfig, EXAMPLE))
    return False


def _example(name: str) -> bytes:
    return (_EXAMPLES / name).read_bytes()


SUBJECT: Final = Subject(
    (jobs, options, alerts, queues, replica, more_of_a_replica, executor, targets),
    {
        "jobs": [_example("jobs.toml")],
        "options": [b"retries = 2\nenv = { A = 'b' }\ntimeout = '5m'\nzone = 'Europe/Berlin'\n"],
        "alerts": [_example("alerts.toml")],
        "queues": [_example("queues.toml")],
        "replica": [_REPLICA],
        "more_of_a_replica": [b"[history]\nkeep_days = 9\n"],
        "executor": [_example("executor.toml")],
        "targets": [_example("targets.toml")],
    },
)
