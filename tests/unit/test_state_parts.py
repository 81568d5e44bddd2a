"""A launch of several parts in State: begun together, ended one by one, over when all are."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from cron.job import Overlap, Retry
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from tests.batches import AttemptItem, launched_item, lost_item, refused_item
from tests.unit.state_rig import T0, StateRig, job, open_on, said

KEY = (1, T0 + 60, 0)


def rig_of(executors: int = 3, **fields: Any) -> StateRig:
    """A job of three parts that is due, and executors 1 to 3."""
    rig = StateRig()
    usual: dict[str, Any] = {"parts": 3}
    assert rig.put(job(**usual | fields)).verdict is Verdict.ACCEPTED
    for number in range(1, executors + 1):
        rig.join(f"e{number}", f"l{number}")
    rig.to(60)
    rig.account(60)
    return rig


def begun(**fields: Any) -> StateRig:
    rig = rig_of(**fields)
    assert rig.begin(60, others=(2, 3)) is Verdict.ACCEPTED
    return rig


def launched(rig: StateRig, part: int) -> Verdict:
    return rig.item(c.Report((launched_item(KEY, 1, rig.at_ms, part),)))


def ended(rig: StateRig, part: int, **fields: Any) -> Verdict:
    usual: dict[str, Any] = {"state": LaunchState.SUCCEEDED, "reason": Reason.NONE}
    usual |= {"exit_code": 0, "started_ms": rig.at_ms, "finished_ms": rig.at_ms + part}
    return rig.item(c.Report((AttemptItem.of(KEY, 1, part=part, **usual | fields),)))


def failed(rig: StateRig, part: int, **fields: Any) -> Verdict:
    usual: dict[str, Any] = {"state": LaunchState.FAILED, "exit_code": 3}
    return ended(rig, part, **usual | fields)


def refused(rig: StateRig, part: int) -> Verdict:
    return rig.item(c.Report((refused_item(KEY, 1, "full", part),)))


def lost(rig: StateRig, part: int, held_until_s: int = 0) -> Verdict:
    held_until_ms = (T0 + held_until_s) * 1000
    return rig.item(c.Report((lost_item(KEY, 1, held_until_ms, "silent", part),)))


def active(rig: StateRig) -> LaunchRow:
    return rig.state.active[KEY]


def test_a_part_is_begun_on_each_executor() -> None:
    rig = begun()
    assert [part.executor for part in active(rig).parts] == [1, 2, 3]
    assert all(KEY in open_on(record) for record in rig.state.executors.values())
    starts = [(one.number, one.executor, one.state, one.row) for one in active(rig).starts()]
    assert starts == [(number, number, LaunchState.BEGUN, 0) for number in (1, 2, 3)]


def test_it_is_over_when_all_parts_are_and_has_one_row() -> None:
    rig = begun()
    assert [launched(rig, part) for part in (1, 2, 3)] == [Verdict.ACCEPTED] * 3
    assert launched(rig, 2) is Verdict.ALREADY
    assert ended(rig, 2, output_bytes=5) is Verdict.ACCEPTED
    assert KEY not in open_on(rig.state.executors[2])
    assert ended(rig, 2) is Verdict.NOT_OPEN
    assert ended(rig, 1, output_bytes=7) is Verdict.ACCEPTED
    assert not rig.rows
    assert ended(rig, 3) is Verdict.ACCEPTED
    (row,) = rig.rows
    assert (row.state, row.exit_code, row.output_bytes) == (LaunchState.SUCCEEDED, 0, 7)
    assert row.finished_ms == rig.at_ms + 3
    assert [(part.name, part.output_bytes) for part in row.parts] == [
        ("e1", 7), ("e2", 5), ("e3", 0),
    ]  # fmt: skip
    assert not rig.state.active
    assert not any(record.batches for record in rig.state.executors.values())


FATAL = Retry(3, backoff_ms=1_000, fatal_codes=(78,))
ENDS: dict[int, dict[str, Any]] = {1: {"exit_code": 75}, 2: {"exit_code": 78}, 3: {"exit_code": 9}}


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_a_fatal_part_decides_whatever_the_order_in_which_they_fail(order: tuple[int, ...]) -> None:
    rig = begun(retry=FATAL)
    for part in order:
        failed(rig, part, **ENDS[part])
    (row,) = rig.rows
    assert (row.state, row.exit_code, said(row)) == (LaunchState.FAILED, 78, "part 2 of 3 on e2")
    assert KEY not in rig.state.due
    letter = rig.state.dead[KEY]
    assert (letter.exit_code, letter.tries) == (78, 1)
    assert not letter.parts, "of a hundred parts it would be 28 KB in State"


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_parts_that_may_be_tried_again_rest_as_long_as_the_longest_asks(
    order: tuple[int, ...],
) -> None:
    rig = begun(retry=FATAL)
    asked = {1: 0, 2: 5_000, 3: 2_000}
    for part in order:
        failed(rig, part, reason=Reason.RETRY, retry_after_ms=asked[part])
    assert rig.state.due[KEY].not_before_ms == rig.at_ms + 5_000
    assert not rig.state.dead


def test_it_is_lost_if_any_part_is_and_holds_its_slot_as_long_as_that_may_run() -> None:  # R6
    rig = begun(overlap=Overlap.FORBID)
    for part in (1, 2, 3):
        launched(rig, part)
    lost(rig, 2, held_until_s=90)
    lost(rig, 1, held_until_s=80)
    failed(rig, 3)
    (row,) = rig.rows
    assert (row.state, row.reason) == (LaunchState.LOST, Reason.EXECUTOR_LOST)
    assert said(row) == "part 1 of 3 on e1: silent"
    assert rig.record().held_until_ms == (T0 + 90) * 1000
