"""Dead letters of a cell that was restored (rule R13)."""

from __future__ import annotations

from typing import Any

from cron.job import OnLost, Retry
from cron.launch_state import LaunchState
from cron.state import pool
from cron.state.outcome import Verdict
from tests.unit.restored_rig import RestoredRig
from tests.unit.state_rig import job
from tests.unit.tries_rig import (
    HANDLER,
    drop,
    key_of,
    kill,
    redrive,
    resting,
    seconds_of,
)


def restored() -> RestoredRig:
    rig = RestoredRig(job(work=HANDLER))
    kill(rig, 60)
    return rig.restore(300)


def test_a_cell_that_resolves_redrives_nothing() -> None:
    rig = restored()
    with rig.unchanged():
        result = rig.answer(pool.Redrive((key_of(60), key_of(61)), "bea"))
    assert result.verdict is Verdict.RESOLVING
    assert result.items == (Verdict.RESOLVING, Verdict.RESOLVING)


def test_it_may_drop_them() -> None:
    rig = restored()
    assert drop(rig, key_of(60)) == [Verdict.ACCEPTED]


def test_letters_outlive_a_restore() -> None:
    rig = restored()
    rig.remember(60, begun=1)  # from before the snapshot: nothing new
    rig.resolve()
    assert seconds_of(rig) == [60]
    assert redrive(rig, key_of(60)) == [Verdict.ACCEPTED]
    assert resting(rig).attempt == 1


def test_what_an_executor_remembers_to_have_run_since_is_dead_no_more() -> None:
    rig = restored()
    rig.remember(60, attempt=2)
    rig.resolve()
    assert seconds_of(rig) == []
    assert [(row.attempt, row.state.label) for row in rig.rows[:2]] == [
        (1, "failed"),
        (2, "succeeded"),
    ]


def test_what_failed_before_the_restore_is_dead_and_not_tried_again() -> None:
    # Whether the cell before tried it again where nobody remembers, nobody knows.
    rig = RestoredRig(job(retry=Retry(tries=3))).restore(300)
    rig.remember(60, exit_code=1)
    rig.remember(120, exit_code=0)
    rig.remember(180, exit_code=1)
    rig.remember(180, exit_code=0, attempt=2, executor=2)
    rig.resolve()
    assert seconds_of(rig) == [60]
    (found,) = rig.state.dead.values()
    assert (found.attempt, found.tries, found.exit_code) == (1, 1, 1)
    assert (found.state, found.executor) == (LaunchState.FAILED, "e1")
    assert not rig.state.due
    assert redrive(rig, key_of(60)) == [Verdict.ACCEPTED]
    assert resting(rig).attempt == 1


def test_what_would_rather_run_twice_is_tried_again_after_the_restore() -> None:
    given: Any = {"retry": Retry(tries=3), "on_lost": OnLost.RETRY, "deadline_s": 86_400}
    rig = RestoredRig(job(**given)).restore(300)
    rig.remember(60, exit_code=1)
    rig.resolve()
    assert seconds_of(rig) == []
    again = rig.row(60)
    assert (again.state, again.attempt, again.tries) == (LaunchState.DUE, 1, 1)


def test_what_fails_while_the_cell_resolves_is_dead_and_later_on_is_tried_again() -> None:
    # The life before may have tried it again, under the same name, where nobody remembers.
    rig = RestoredRig(job(retry=Retry(tries=3, backoff_ms=1_000), deadline_s=10_000))
    for second in (60, 120):
        rig.to(second).account(second)
        rig.begin(second)
        rig.launched(second)
    rig.restore(300)
    assert rig.finished(60, state=LaunchState.FAILED, exit_code=1) is Verdict.ACCEPTED
    assert seconds_of(rig) == [60]
    rig.resolve()
    assert rig.finished(120, state=LaunchState.FAILED, exit_code=1) is Verdict.ACCEPTED
    assert seconds_of(rig) == [60]
    assert (rig.row(120).state, rig.row(120).attempt) == (LaunchState.DUE, 1)
