"""The judge on the pool: right is right, and wrong has its letter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cron.job import Retry
from cron.launch_state import LaunchState
from cron.state import begins
from cron.state import commands as c
from cron.state import pool as p
from launcher.protocol.status import Reason
from tests.batches import refused_item
from tests.simulation.bounds import UNSEEN_MS
from tests.simulation.mutants import (
    Mutant,
    endless_tries,
    first_failed_part_decides,
    no_budgets,
    no_dead_letters,
    no_rest,
    nothing_is_fatal,
)
from tests.simulation.test_judge import LEDGER, SECOND, Court
from tests.simulation.verdict import judge_rows
from tests.states import ended_rows

FAILED = LaunchState.FAILED
TWICE = Retry(2, 1_000)


class PoolCourt(Court):
    """A court with a second executor."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.write(c.ExecutorJoined("e2", LEDGER, 9))

    def begin_parts(self, key: c.Key) -> list[str]:
        """Begin a launch of two parts; the names of both."""
        row = self.judge.machine.state.due[key]
        self.write(c.Begin.of((c.BeginItem(key, 1, row.revision, 1, row.deadline_ms, (2,)),)))
        return list(self.judge.begun)[-2:]

    def run(self, name: str, executor: str, exit_code: int = 0) -> None:
        self.eyes.started(name, executor, LEDGER)
        self.eyes.ended(name, exit_code, 0)

    def finish_part(self, key: c.Key, part: int, exit_code: int = 0) -> None:
        state = FAILED if exit_code else LaunchState.SUCCEEDED
        item = c.AttemptItem(
            key, 1, state, Reason.NONE, exit_code, self.ms, self.ms, "", 0, 0, part
        )
        self.write(c.Report((item,)))

    def fail(self, key: c.Key, attempt: int) -> None:
        """An attempt fails, and the log says so."""
        row = self.judge.machine.state.due[key]
        begin = c.BeginItem(key, attempt, row.revision, 1, row.deadline_ms)
        self.write(c.Begin.of((begin,)))
        self.run(list(self.judge.begun)[-1], "e1", 7)
        end = c.AttemptItem(key, attempt, FAILED, Reason.NONE, 7, self.ms, self.ms)
        self.write(c.Report((end,)))

    def judge_all(self) -> str:
        state = self.judge.machine.state
        judge_rows(self.judge, state, ended_rows(state.history))
        self.judge.dead_letters()
        return self.letters


def test_both_parts_run_each_once_and_the_launch_succeeds() -> None:
    court = PoolCourt(parts=2)
    key = court.due(1)
    for part, name in enumerate(court.begin_parts(key), 1):
        court.run(name, f"e{part}")
    court.finish_part(key, 1)
    court.finish_part(key, 2)
    assert court.judge_all() == ""


def both_under_one_name(court: PoolCourt) -> None:
    first, _ = court.begin_parts(court.due(1))
    court.run(first, "e1")
    court.run(first, "e2")


def part_that_was_taken_back(court: PoolCourt) -> None:
    key = court.due(1)
    _, second = court.begin_parts(key)
    court.write(c.Report((refused_item(key, 1, "full", 2),)))
    court.run(second, "e2")


def part_that_never_ran(court: PoolCourt) -> None:
    key = court.due(1)
    first, _ = court.begin_parts(key)
    court.run(first, "e1")
    court.finish_part(key, 1)
    court.finish_part(key, 2)


@pytest.mark.parametrize(
    ("crime", "letter"),
    [(both_under_one_name, "a"), (part_that_was_taken_back, "c"), (part_that_never_ran, "h")],
)
def test_parts_are_judged_one_by_one(crime: Callable[[PoolCourt], None], letter: str) -> None:
    court = PoolCourt(parts=2)
    crime(court)
    assert letter in court.judge_all()


def test_a_row_that_is_not_what_its_parts_were_is_found() -> None:
    court = PoolCourt(parts=2)
    key = court.due(1)
    first, second = court.begin_parts(key)
    court.run(first, "e1")
    court.run(second, "e2", 7)
    court.finish_part(key, 1)
    court.finish_part(key, 2, 7)
    (row,) = [row for row in ended_rows(court.judge.machine.state.history) if row.parts]
    wrong = msgspec.structs.replace(row, state=LaunchState.SUCCEEDED)
    judge_rows(court.judge, court.judge.machine.state, [wrong])
    assert "p" in court.letters


def tried_twice(court: PoolCourt) -> None:
    key = court.due(1)
    court.fail(key, 1)
    court.ms += 1_200
    court.fail(key, 2)


def test_what_failed_for_the_last_time_is_a_dead_letter() -> None:
    court = PoolCourt(retry=TWICE)
    tried_twice(court)
    assert court.judge_all() == ""
    assert len(court.judge.machine.state.dead) == 1


@pytest.mark.parametrize("mutant", [endless_tries, no_rest, no_dead_letters])
def test_tries_rests_and_dead_letters_are_counted(mutant: Mutant) -> None:
    court = PoolCourt(retry=TWICE)
    with mutant():
        key = court.due(1)
        court.fail(key, 1)
        court.ms += 0 if mutant is no_rest else 1_200
        court.fail(key, 2)
    assert "r" in court.judge_all()


def over_a_tenants_limit(court: PoolCourt) -> None:
    court.write(p.SetLimits((p.LimitItem(("default", "", -1), p.Limits(concurrent=1)),)))
    court.ms += 2 * UNSEEN_MS
    court.begin(court.due(1))
    court.begin(court.due(2))


def through_a_gate(court: PoolCourt) -> None:
    court.write(p.CloseGate(p.Gate(0, p.GateAction.PAUSE, "", "", 0, jobs="default/*")))
    court.ms += 2 * UNSEEN_MS
    court.begin(court.due(1))


def on_what_is_drained(court: PoolCourt) -> None:
    court.write(p.Drain("e1", "olga"))
    court.ms += 2 * UNSEEN_MS
    court.begin(court.due(1))


@pytest.mark.parametrize("crime", [over_a_tenants_limit, through_a_gate, on_what_is_drained])
def test_what_must_not_begin_is_found(crime: Callable[[PoolCourt], None]) -> None:
    court = PoolCourt()
    crime(court)
    assert "m" in court.letters


def test_what_is_over_a_jobs_limit_is_found_where_state_does_not_refuse_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(begins, "_holds_all", lambda *_: False)
    court = PoolCourt(concurrency=1)
    court.begin(court.due(1))
    court.begin(court.due(2))
    assert "m" in court.letters


def test_who_cannot_have_heard_of_a_limit_is_not_blamed() -> None:
    court = PoolCourt()
    key, other = court.due(1), court.due(2)
    court.write(p.SetLimits((p.LimitItem(("default", "", -1), p.Limits(concurrent=1)),)))
    court.begin(key)
    court.begin(other)
    assert court.letters == ""


# ---- rates and reservations


class PacedCourt(PoolCourt):
    """A court with limits that everybody has heard of."""

    def __init__(self, scope: p.Scope, **limits: int) -> None:
        super().__init__()
        self.write(p.SetLimits((p.LimitItem(scope, p.Limits(**limits)),)))
        self.ms += 2 * UNSEEN_MS

    def begin_some(self, count: int, *, apart_ms: int = 0) -> None:
        """Begin so many launches, one after the other."""
        keys = [self.due(number) for number in range(1, count + 1)]
        for key in keys:
            self.ms += apart_ms
            self.begin(key)


@pytest.mark.parametrize("scope", [("", "", -1), ("", "command", 5), ("*", "", -1)])
def test_more_starts_than_a_rate_gives_are_found(scope: p.Scope) -> None:
    court = PacedCourt(scope, rate_milli=1_000)
    court.begin_some(2)
    assert "s" in court.letters


def test_starts_at_a_rate_are_right() -> None:
    court = PacedCourt(("", "", -1), rate_milli=500)
    court.begin_some(2, apart_ms=2_000)
    assert court.letters == ""


def test_each_leader_begins_with_a_full_bucket() -> None:
    court = PacedCourt(("", "", -1), rate_milli=500)
    first, second = court.due(1), court.due(2)
    court.begin(first)
    court.epoch = SECOND
    court.write(c.Claim(format=c.FORMAT))
    court.begin(second)
    assert court.letters == ""


@pytest.mark.parametrize(("reserved", "letters"), [(0, ""), (17, ""), (18, "v")])
def test_starts_on_slots_that_are_reserved_for_others_are_found(
    reserved: int, letters: str
) -> None:
    court = PacedCourt(("", "command", 2), reserved=reserved)
    court.begin_some(1)
    assert court.letters == letters, "two executors have nine slots each"


def test_a_start_on_its_own_reserved_slot_is_right() -> None:
    court = PacedCourt(("", "command", 5), reserved=99)
    court.begin_some(1)
    assert court.letters == ""


# ---- who may be tried again


def poor(court: PoolCourt) -> None:
    limits = p.Limits(retry_budget=1)
    court.write(p.SetLimits((p.LimitItem(("default", "", -1), limits),)))


@pytest.mark.parametrize(("mutant", "letters"), [(contextlib.nullcontext, ""), (no_budgets, "r")])
def test_retries_beyond_the_budget_of_a_tenant_are_found(mutant: Mutant, letters: str) -> None:
    court = PoolCourt(retry=Retry(3, 1_000))
    poor(court)
    with mutant():
        for number in (1, 2):
            court.fail(court.due(number), 1)
    assert "".join(sorted({*court.letters})) == letters


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize(
    ("mutant", "letters"),
    [(contextlib.nullcontext, ""), (first_failed_part_decides, "r"), (nothing_is_fatal, "r")],
)
def test_a_fatal_part_that_is_tried_again_is_found(
    first: int, mutant: Mutant, letters: str
) -> None:
    court = PoolCourt(parts=2, retry=Retry(2, 1_000, fatal_codes=(78,)))
    key = court.due(1)
    for part, name in enumerate(court.begin_parts(key), 1):
        court.run(name, f"e{part}", 74 + 2 * part)
    codes = {1: 76, 2: 78}
    with mutant():
        for part in (first, 3 - first):
            court.finish_part(key, part, codes[part])
    assert "".join(sorted({*court.letters})) == letters
