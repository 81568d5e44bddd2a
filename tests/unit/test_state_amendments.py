"""Late reports of lost attempts (rule R9): what they amend, and what they leave as it is."""

from __future__ import annotations

from typing import Any

import pytest

from cron.job import Retry
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.rows import Row, RowKind
from launcher.protocol.status import Reason
from tests.unit import test_state_parts as several
from tests.unit.state_rig import T0, StateRig, with_job

S = LaunchState


def in_parts(**ends: str) -> StateRig:
    """A launch of three parts, which end like this, all others lost."""
    rig = several.begun()
    for part in (1, 2, 3):
        several.launched(rig, part)
    for part in (1, 2, 3):
        end = ends.get(f"p{part}", "lost")
        how: dict[str, Any] = {"lost": several.lost, "ok": several.ended, "bad": several.failed}
        how[end](rig, part)
    return rig


def amendments(rig: StateRig) -> list[Row]:
    return [row for row in rig.rows if row.kind is RowKind.AMENDMENT]


def test_a_launch_with_a_failed_part_is_not_amended_to_a_success() -> None:
    rig = in_parts(p1="bad")
    several.ended(rig, 2)
    several.ended(rig, 3)
    assert S.SUCCEEDED not in [row.state for row in amendments(rig)]
    assert amendments(rig)[-1].state is S.FAILED
    assert amendments(rig)[-1].exit_code == 3
    assert rig.reopen(60, int(S.FAILED), 1) is Verdict.ACCEPTED


def test_a_launch_is_lost_while_one_of_its_parts_is() -> None:
    rig = in_parts(p1="ok")
    assert several.ended(rig, 2) is Verdict.AMENDED
    assert [row.state for row in amendments(rig)] == [S.LOST]
    assert [part.state for part in amendments(rig)[0].parts] == [S.SUCCEEDED, S.SUCCEEDED, S.LOST]


def test_a_launch_all_of_whose_parts_succeeded_is_amended_to_that() -> None:
    rig = in_parts(p1="ok")
    several.ended(rig, 3)
    several.ended(rig, 2)
    last = amendments(rig)[-1]
    assert (last.state, last.reason) == (S.SUCCEEDED, Reason.NONE)
    assert several.ended(rig, 2) is Verdict.NOT_OPEN, "that is known by now"


def test_news_of_a_part_that_is_not_lost_are_none() -> None:
    rig = in_parts(p1="bad")
    assert several.ended(rig, 1) is Verdict.NOT_OPEN
    assert not amendments(rig)


def test_what_is_known_of_the_parts_outlives_a_restart() -> None:
    rig = in_parts(p1="ok", p2="ok")
    rig.machine = Machine(decode_state([encode_state(rig.state)]))
    several.ended(rig, 3)
    assert amendments(rig)[-1].state is S.SUCCEEDED


# ---- keys


def lost_and_amended() -> tuple[Row, Row]:
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    rig.launched(60)
    rig.lost(60)
    assert rig.finished(60) is Verdict.AMENDED
    before, after = rig.rows
    return before, after


def test_an_amendment_names_the_row_that_it_amends() -> None:
    before, after = lost_and_amended()
    assert after.amends == (before.ended_index, before.number)
    assert before.amends is None


def test_an_amendment_keeps_executor_and_term() -> None:
    before, after = lost_and_amended()
    assert (after.executor, after.ledger) == (before.executor, before.ledger) == ("e1", "l1")
    assert after.epoch == before.epoch


def test_no_two_rows_have_the_same_key() -> None:
    rig = with_job()
    rig.to(180).account(60, 120, 180)
    keys = [(1, T0 + second, 0) for second in (60, 120)]
    items = tuple(c.SkippedItem(key, Reason.DEADLINE) for key in keys)
    rig.append(c.Skip(items), c.Cancel((c.CancelItem((1, T0 + 180, 0), Reason.KILLED),)))
    assert [(row.ended_index - rig.state.index, row.number) for row in rig.rows] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]


# ---- attempts that never began


@pytest.mark.parametrize("reason", [Reason.PAUSED, Reason.DEADLINE])
def test_a_retry_that_was_skipped_has_its_own_number(reason: Reason) -> None:
    rig = with_job(retry=Retry(tries=3, backoff_ms=60_000))
    rig.to(60).account(60)
    rig.begin(60)
    rig.finished(60, state=S.FAILED, exit_code=1)
    rig.skip(60, reason)
    assert [(row.state, row.attempt) for row in rig.rows] == [(S.FAILED, 1), (S.SKIPPED, 2)]


def test_an_attempt_that_was_refused_and_not_begun_again_keeps_its_number() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    rig.refused(60)
    rig.skip(60)
    assert [(row.state, row.attempt) for row in rig.rows] == [(S.SKIPPED, 1)]
