"""A budget of retries delays launches, and never buries them."""

from __future__ import annotations

from typing import Any

import pytest

from cron.job import Retry
from cron.launch_state import LaunchState
from cron.state import pool, retries
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, with_job

HOUR_MS = 3_600_000
EACH = ("*", "", -1)
FAILED: Any = {"state": LaunchState.FAILED, "exit_code": 1}


def budget(rig: StateRig, number: int | None) -> None:
    limits = None if number is None else pool.Limits(retry_budget=number)
    rig.append(pool.SetLimits((pool.LimitItem(EACH, limits),)))


def failing(*seconds: int, log_format: int = 12, **fields: Any) -> StateRig:
    """A tenant with a budget of one retry, of which launches have failed at these seconds, one
    after the other: the first has taken the retry."""
    given: Any = {"retry": Retry(5, 10_000), "deadline_s": 30 * 86_400} | fields
    rig = with_job(log_format=log_format, **given)
    budget(rig, 1)
    for second in seconds:
        rig.account(second)
        rig.to(second)
        rig.begin(second)
        rig.finished(second, **FAILED)
    return rig


def succeed(rig: StateRig, *seconds: int) -> None:
    for second in seconds:
        rig.account(second)
        rig.to(max(second, rig.at_ms // 1000 - T0))
        assert rig.begin(second) is Verdict.ACCEPTED
        rig.finished(second)


def waiting(rig: StateRig) -> list[int]:
    """The seconds of launches that wait for a retry, in the order in which they get one."""
    keys = [key for mine in rig.state.unpaid.values() for _, key in mine]
    assert keys == [
        key for mine in decode_state([encode_state(rig.state)]).unpaid.values() for _, key in mine
    ]
    return [key[1] - T0 for key in keys]


def test_a_launch_without_a_retry_waits_and_is_no_dead_letter() -> None:
    rig = failing(60, 120)
    assert not rig.state.dead
    row = rig.row(120)
    assert row.state is LaunchState.DUE
    rested_ms = row.unpaid_ms
    assert rig.at_ms + 10_000 <= rested_ms <= rig.at_ms + 11_000
    assert row.not_before_ms == rested_ms + HOUR_MS
    assert waiting(rig) == [120]
    assert rig.row(60).unpaid_ms == 0, "which had a retry"


def test_in_format_11_it_is_a_dead_letter_as_before() -> None:
    rig = failing(60, 120, log_format=11)
    assert [letter.reason for letter in rig.state.dead.values()] == [Reason.BUDGET]
    assert waiting(rig) == []


def test_successes_give_it_a_retry_and_the_one_that_has_rested_first_goes_first() -> None:
    rig = failing(60, 120, 180)
    assert waiting(rig) == [120, 180]
    succeed(rig, *range(240, 240 + 9 * 60, 60))
    assert waiting(rig) == [120, 180], "nine successes earn no whole retry"
    succeed(rig, 1_200)
    assert waiting(rig) == [180]
    row = rig.row(120)
    assert row.unpaid_ms == 0
    assert row.not_before_ms <= rig.at_ms, "it has rested long ago"
    assert rig.begin(120, 2) is Verdict.ACCEPTED
    assert rig.state.budgets == {"default": 1_000}


@pytest.mark.parametrize("raised", [2, 0, None])
def test_a_larger_budget_or_none_lets_it_go_on_at_once(raised: int | None) -> None:
    rig = failing(60, 120, 180)
    budget(rig, raised)
    assert waiting(rig) == ([180] if raised else [])


def test_debts_that_are_forgotten_let_it_go_on() -> None:
    rig = failing(60, 120)
    rig.append(pool.SetLimits((pool.LimitItem(EACH),)), pool.ForgetDebts())
    assert waiting(rig) == []
    assert rig.state.budgets == {}


def test_where_nothing_succeeds_it_is_tried_after_an_hour_without_a_retry() -> None:
    rig = failing(60, 120)
    row: LaunchRow = rig.row(120)
    rig.at_ms = row.not_before_ms - 1
    assert rig.begin(120, 2) is Verdict.OVERLAP
    rig.at_ms = row.not_before_ms
    assert rig.begin(120, 2) is Verdict.ACCEPTED
    assert waiting(rig) == []
    assert rig.state.budgets == {"default": 1_000}, "it costs nothing"
    rig.finished(120, 2, **FAILED)
    assert waiting(rig) == [120]


def test_its_deadline_ends_the_wait() -> None:
    rig = failing(60, 120, deadline_s=300)
    row = rig.row(120)
    assert row.not_before_ms == row.deadline_ms
    rig.at_ms = row.deadline_ms
    assert rig.skip(120) is Verdict.ACCEPTED
    assert [letter.reason for letter in rig.state.dead.values()] == [Reason.DEADLINE]
    assert waiting(rig) == []


def test_a_person_may_end_the_wait() -> None:
    rig = failing(60, 120)
    assert rig.cancel(120) is Verdict.ACCEPTED
    assert waiting(rig) == []
    assert not rig.state.dead


def test_one_success_lets_a_bounded_number_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RELEASED_MAX", 2)
    rig = failing(60, 120, 180, 240)
    budget(rig, 0)
    assert waiting(rig) == [240]
    succeed(rig, 300)
    assert waiting(rig) == []
