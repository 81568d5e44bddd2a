"""What changed in a job is told in the words of crontabs, and nothing that changed is left out."""

from __future__ import annotations

import msgspec
import pytest

from cron.alert_rules import JobAlerts
from cron.crontab.jobs import differences
from cron.crontab.reader import read_crontab
from cron.job import Job, Retry, Schedule
from launcher.protocol.work import WorkSpec


def one(text: str) -> Job:
    reading = read_crontab(text.encode(), file="tab")
    assert reading.errors == []
    return reading.jobs[0]


BEFORE = one("#: name=a\n@daily run\n")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("#: name=a\n@daily run\n", []),
        ("\n\n#: name=a\n@daily run\n", []),
        ("#: name=a\n@daily walk\n", ["command"]),
        ("#: name=a\n@daily run%now\n", ["stdin"]),
        ("#: name=a timeout=5m\n@daily run\n", ["timeout"]),
        ("#: name=a user=www-data cwd=/srv\n@daily run\n", ["user", "cwd"]),
        ("A=b\n#: name=a\n@daily run\n", ["environment"]),
        ("SHELL=/bin/bash\n#: name=a\n@daily run\n", ["shell", "environment"]),
        ("CRON_TZ=Europe/Riga\n#: name=a\n@daily run\n", ["zone"]),
        ("#: name=a deadline=1h\n0 1 * * * run\n", ["schedule"]),
        ("#: name=a overlap=forbid\n@daily run\n", ["overlap"]),
        ("#: name=a alert=dead to=ops\n@daily run\n", ["alert", "to"]),
        ("MAILTO=root\n#: name=a\n@daily run\n", ["environment", "MAILTO"]),
        ("#: name=a catchup=all on-lost=skip deadline=5m\n@daily run\n", ["catchup", "deadline"]),
    ],
)
def test_a_difference_has_the_name_of_its_option(text: str, what: list[str]) -> None:
    assert differences(BEFORE, one(text)) == what


def test_a_question_mark_that_moved_is_another_place() -> None:
    jobs = [
        msgspec.structs.replace(BEFORE, schedule=Schedule("? 3 * * *", resolved, placement=1))
        for resolved in ("7 3 * * *", "9 3 * * *")
    ]
    assert differences(*jobs) == ["place"]


OTHER = {str: "x", int: 7, bool: True, bytes: b"x", tuple: (7,)}


@pytest.mark.parametrize("kind", [Job, WorkSpec, Retry, JobAlerts])
def test_no_field_can_change_unseen(kind: type[msgspec.Struct]) -> None:
    name = {Job: "", WorkSpec: "work", Retry: "retry", JobAlerts: "alerts"}[kind]
    part = (getattr(BEFORE, name) or kind()) if name else BEFORE
    left_out = {"line", "schedule", "work", "retry", "alerts", "argv", "env", "guarded"}
    for field in set(kind.__struct_fields__) - left_out:
        value = getattr(part, field)
        other = OTHER[type(value)] if type(value) in OTHER else list(type(value))[-1]
        changed = msgspec.structs.replace(part, **{field: other})
        after = msgspec.structs.replace(BEFORE, **{name: changed}) if name else changed
        assert len(differences(BEFORE, after)) == 1, field
