"""Audit of what began in one life of a cell and ended in the next, whoever ended it (rule R13)."""

from __future__ import annotations

import pytest

from cron.history.audited import FindingKind
from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.limits import LIFE_ENTRIES
from cron.state.rows import RESTORED_BY
from launcher.protocol.status import Reason
from tests.unit.history_rig import open_row
from tests.unit.test_history_audit import find, job, kinds, ran

K = FindingKind
COMMON = {"attempt": 1, "state": LaunchState.LAUNCHED}
KILLED = {"state": LaunchState.CANCELLED, "reason": Reason.KILLED, "exit_code": 137}
NEXT = {"launched_index": LIFE_ENTRIES + 10, "ended_index": LIFE_ENTRIES + 20}


@pytest.mark.parametrize("by", [RESTORED_BY, "anna", "a newer launch", ""])
def test_what_ran_on_a_schedule_that_is_lost_is_explained_whoever_ended_it(by: str) -> None:
    row = ran(97, 30, by=by, **KILLED, **NEXT)
    on_schedule = [ran(at_s, 10 + 3 * at_s // 60) for at_s in (60, 120, 180)]
    assert kinds(find([*on_schedule, row])) == [K.RESTORED]


def test_what_ran_on_no_schedule_in_this_life_is_not() -> None:
    on_schedule = [ran(at_s, 10 + 3 * at_s // 60) for at_s in (60, 120, 180)]
    of_now = {"launched_index": LIFE_ENTRIES + 10, "ended_index": LIFE_ENTRIES + 20}
    strange = ran(97, LIFE_ENTRIES + 5, by="anna", **KILLED, **of_now)
    assert kinds(find([*on_schedule, strange])) == [K.NO_INSTANT]
    never_begun = ran(97, 0, attempt=0, **KILLED, launched_index=0, ended_index=LIFE_ENTRIES + 20,
                      started_ms=0, finished_ms=0)  # fmt: skip
    assert kinds(find([*on_schedule, never_begun])) == [K.NO_INSTANT]


def test_what_is_open_still_and_to_be_killed_is_explained_as_well() -> None:
    on_schedule = [ran(at_s, 10 + 3 * at_s // 60) for at_s in (60, 120, 180)]
    row = open_row(97, 0, 1, LaunchState.LAUNCHED, 30, 1, LIFE_ENTRIES + 10, 97_010, by="anna")
    assert kinds(find(on_schedule, [row])) == [K.RESTORED]


def test_an_attempt_that_was_taken_in_and_killed_follows_one_that_was_recorded_later() -> None:
    lost = ran(60, 30, state=LaunchState.FAILED, exit_code=1, by=RESTORED_BY,
               launched_index=LIFE_ENTRIES + 10, ended_index=LIFE_ENTRIES + 10)  # fmt: skip
    killed = ran(60, 40, attempt=2, by="anna", **KILLED, **NEXT)
    others = [ran(at_s, LIFE_ENTRIES + at_s) for at_s in (120, 180)]
    assert kinds(find([lost, killed, *others])) == []


def test_what_ran_at_once_in_a_life_before_is_not_held_against_this_one() -> None:
    first = ran(60, 30, finished_ms=130_000, by=RESTORED_BY, **NEXT)
    second = ran(120, 33, finished_ms=140_000, by="anna", **(KILLED | NEXT))
    third = ran(180, LIFE_ENTRIES + 30)
    strict = job(Overlap.FORBID)
    assert kinds(find([first, second, third], of=strict)) == []
    here = [ran(60, 30, finished_ms=130_000, ended_index=60), ran(120, 40), ran(180, 70)]
    assert kinds(find(here, of=strict)) == [K.OVERLAP]


def test_attempts_that_a_restore_recorded_at_once_come_in_any_order() -> None:
    """Failures are in a stream of their own, and are read after what went well."""
    first = ran(60, 30, state=LaunchState.FAILED, exit_code=1, by=RESTORED_BY,
                launched_index=LIFE_ENTRIES + 10, ended_index=LIFE_ENTRIES + 10)  # fmt: skip
    second = ran(60, 40, attempt=2, by=RESTORED_BY,
                 launched_index=LIFE_ENTRIES + 10, ended_index=LIFE_ENTRIES + 10)  # fmt: skip
    others = [ran(at_s, LIFE_ENTRIES + at_s) for at_s in (120, 180)]
    for rows in ([first, second], [second, first]):
        assert kinds(find([*rows, *others])) == []
