"""Conditions of alerts as people write them."""

from __future__ import annotations

import pytest

from cron.alert_rules import AlertKind, Condition
from cron.crontab.conditions import condition_text, parse_condition, parse_conditions
from cron.errors import CronError, InvalidInput
from cron.limits import CONDITIONS_MAX

READ = {
    "failed": Condition(AlertKind.FAILED, 1),
    "failed:2": Condition(AlertKind.FAILED, 2),
    "failed:3/10": Condition(AlertKind.FAILED, 3, 10),
    "failed:3/3": Condition(AlertKind.FAILED, 3),
    "missed": Condition(AlertKind.MISSED),
    "late:10m": Condition(AlertKind.LATE, after_s=600),
    "running:1h30m": Condition(AlertKind.RUNNING, after_s=5400),
    "no-success:1d": Condition(AlertKind.NO_SUCCESS, after_s=86_400),
    "dead": Condition(AlertKind.DEAD),
    "queue-older:5m": Condition(AlertKind.QUEUE_OLDER, after_s=300),
    "gate-open:2h": Condition(AlertKind.GATE_OPEN, after_s=7200),
    "backup-failing": Condition(AlertKind.BACKUP_FAILING, after_s=900),
    "replica-away:1m": Condition(AlertKind.REPLICA_AWAY, after_s=60),
    "clock-off": Condition(AlertKind.CLOCK_OFF, after_s=2),
    "certificate-ending:7d": Condition(AlertKind.CERTIFICATE_ENDING, after_s=604_800),
    "disk-filling:80%": Condition(AlertKind.DISK_FILLING, 80),
}


@pytest.mark.parametrize(("text", "condition"), READ.items())
def test_a_condition_is_read_and_written(text: str, condition: Condition) -> None:
    assert parse_condition(text) == condition
    assert parse_condition(condition_text(condition)) == condition


def test_every_kind_can_be_written() -> None:
    assert {parse_condition(text).kind for text in READ} == set(AlertKind)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("faild:2", "did you mean failed"),
        ("failed:0", "failed:2 for two in a row"),
        ("failed:4/3", "failed:3/10"),
        ("failed:3/0", "failed:3/10"),
        ("failed:2x", "failed:2 for two in a row"),
        ("failed:61", "60 at most"),
        ("late", "write late:10m"),
        ("late:", "write late:10m"),
        ("late:10", "10s for seconds"),
        ("late:400d", "choose one from"),
        ("missed:3", "write missed"),
        ("disk-filling:100%", "from 1% to 99%"),
        ("disk-filling:90", "from 1% to 99%"),
        ("", "known are failed:2"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_way_out(text: str, hint: str) -> None:
    with pytest.raises(CronError) as refusal:
        parse_condition(text)
    assert hint in f"{refusal.value.hint}"


def test_several_conditions_keep_their_order() -> None:
    said = "failed:2, late:10m,missed"
    found = [condition_text(one) for one in parse_conditions(said)]
    assert found == ["failed:2", "late:10m", "missed"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("missed,missed", "written twice"),
        ("late:60s,late:1m", "written twice"),
        ("missed,", "'' is not known"),
        (",".join(f"late:{n}m" for n in range(1, CONDITIONS_MAX + 2)), "more than 10"),
    ],
)
def test_a_wrong_list_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse_conditions(text)
