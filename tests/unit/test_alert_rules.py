"""Conditions of alert rules, as crontabs and files of rules write them."""

from __future__ import annotations

import pytest

from cron.alert_rules import (
    CELL_KINDS,
    CONDITIONS_MAX,
    JOB_KINDS,
    KINDS,
    QUEUE_KINDS,
    WAIT_S_MAX,
    Condition,
    parse_condition,
    parse_conditions,
)
from cron.errors import InvalidInput

GOOD = [
    ("failed:1", Condition("failed", count=1)),
    ("failed:2", Condition("failed", count=2)),
    ("failed:3/10", Condition("failed", count=3, window=10)),
    ("missed", Condition("missed")),
    ("late:10m", Condition("late", seconds=600)),
    ("running:1h30m", Condition("running", seconds=5_400)),
    ("no-success:1d", Condition("no-success", seconds=86_400)),
    ("dead", Condition("dead")),
    ("queue-older:5m", Condition("queue-older", seconds=300)),
    ("gate-open:2h", Condition("gate-open", seconds=7_200)),
    *((kind, Condition(kind)) for kind in sorted(CELL_KINDS)),
]


@pytest.mark.parametrize(("text", "condition"), GOOD)
def test_a_condition_is_read_and_written_back(text: str, condition: Condition) -> None:
    assert parse_condition(text) == condition
    assert str(condition) == text


def test_every_kind_is_read_and_belongs_to_one_group() -> None:
    assert {one.kind for _, one in GOOD} == set(KINDS)
    assert sorted([*JOB_KINDS, *QUEUE_KINDS, *CELL_KINDS]) == sorted(KINDS)


def test_failed_alone_is_the_first_failure() -> None:
    assert parse_condition("failed") == Condition("failed", count=1)


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("fialed:2", "'fialed:2' is not a condition", "did you mean failed?"),
        ("", "'' is not a condition", "there are failed, missed"),
        ("failed:", "is not a number of failures", "failed:3/10"),
        ("failed:0", "is not in 1 to 100", ""),
        ("failed:101", "is not in 1 to 100", ""),
        ("failed:1/101", "is not in 1 to 100", ""),
        ("failed:3/2", "can never be reached", "write failed:3"),
        ("failed:1/0", "can never be reached", "write failed:1"),
        ("failed:-1", "is not a number of failures", "two in a row"),
        ("late", "late has no duration", "late:10m"),
        ("late:", "late has no duration", "late:10m"),
        ("late:10", "late 10 has no unit", "10s"),
        ("late:0s", "late 0s is not in", "1s"),
        (f"late:{WAIT_S_MAX + 1}s", "is not in", "366d"),
        ("missed:3", "missed takes no value", "write missed"),
        ("replica-away:", "replica-away takes no value", "write replica-away"),
    ],
)
def test_what_is_no_condition_is_refused_with_a_way_out(text: str, problem: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_condition(text)
    assert problem in str(caught.value)
    assert hint in caught.value.hint


def test_several_conditions_keep_their_order() -> None:
    said = "failed:2, late:10m,missed"
    assert [str(one) for one in parse_conditions(said)] == ["failed:2", "late:10m", "missed"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("missed,missed", "written twice"),
        ("late:60s,late:1m", "written twice"),
        ("missed,", "'' is not a condition"),
        (",".join(f"late:{n}m" for n in range(1, CONDITIONS_MAX + 2)), "more than 20"),
    ],
)
def test_a_wrong_list_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse_conditions(text)
