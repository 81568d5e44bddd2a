"""A launch whose attempts fail: what tests of retries and dead letters begin with."""

from __future__ import annotations

from typing import Any

from cron.job import Retry
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import pool
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Verdict
from cron.state.rows import Row
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.state_rig import T0, StateRig, with_job

PATIENT = Retry(tries=3, backoff_ms=10_000, backoff_max_ms=15_000)
HANDLER = WorkSpec((), handler="billing.invoice")
KEY = (1, T0 + 60, 0)


def running(**fields: Any) -> StateRig:
    """A launch, due at 60, whose first attempt runs at 61."""
    rig = with_job(**{"retry": PATIENT} | fields)
    rig.to(60).account(60)
    start(rig.to(61))
    return rig


def start(rig: StateRig, attempt: int = 1) -> None:
    assert rig.begin(60, attempt) is Verdict.ACCEPTED
    rig.launched(60, attempt)


def fail(rig: StateRig, attempt: int = 1, **fields: Any) -> None:
    """End an attempt with exit code 1, or as `fields` say."""
    usual = {"state": LaunchState.FAILED, "exit_code": 1}
    assert rig.finished(60, attempt, **usual | fields) is Verdict.ACCEPTED


def snooze(rig: StateRig, attempt: int = 1, after_ms: int = 0) -> None:
    fail(
        rig,
        attempt,
        state=LaunchState.CANCELLED,
        reason=Reason.SNOOZE,
        exit_code=0,
        retry_after_ms=after_ms,
    )


def resting(rig: StateRig) -> LaunchRow:
    row = rig.row(60)
    assert row.state is LaunchState.DUE
    return row


def rest_ms(rig: StateRig) -> int:
    return resting(rig).not_before_ms - rig.at_ms


def letter(rig: StateRig) -> Row:
    assert rig.state.row(KEY) is None
    return rig.state.dead[KEY]


# ---- dead letters


def key_of(second: int, number: int = 1) -> c.Key:
    return (number, T0 + second, 0)


def kill(rig: StateRig, *seconds: int, number: int = 1) -> None:
    """Let launches of a handler's job fail so that nothing more is tried."""
    for second in seconds:
        rig.to(second).account(second, number=number)
        rig.begin(second, number=number)
        rig.launched(second, number=number)
        end = {"state": LaunchState.FAILED, "reason": Reason.FATAL, "exit_code": 1}
        rig.finished(second, number=number, **end)


def redrive(rig: StateRig, *keys: c.Key) -> list[Verdict]:
    return rig.items(pool.Redrive(keys, "bea"))


def drop(rig: StateRig, *keys: c.Key) -> list[Verdict]:
    return rig.items(pool.DropDead(keys, "bea"))


def seconds_of(rig: StateRig) -> list[int]:
    """The dead, in State's order; the jobs hold the same letters."""
    state = rig.state
    held = {
        (record.number, *place): one
        for record in state.by_number.values()
        for place, one in record.dead.items()
    }
    assert held == state.dead
    return [key[1] - T0 for key in state.dead]
