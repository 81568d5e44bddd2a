"""The judge can tell right from wrong where no mutant shows it (`test_mutants.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from consensus.leadership import Position
from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.rows import Row, RowKind
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch, WorkSpec
from tests.batches import AttemptItem, BeginItem, begin_of, lost_item
from tests.simulation.checkers import Eyes, Judge
from tests.simulation.verdict import LONG_S, judge_liveness, judge_progress, judge_rows
from tests.states import ended_rows
from tests.unit.state_rig import T0, job

LEDGER = "0f0e0d0c-0b0a-4909-8807-060504030201"
FIRST, SECOND = Epoch(1, 1, "r1"), Epoch(1, 2, "r2")
PERIOD_S = 60


class Court:
    """A judge, a log that a test writes, and a clock that it turns."""

    def __init__(
        self, overlap: Overlap = Overlap.ALLOW, every_s: int = PERIOD_S, **fields: Any
    ) -> None:
        self.ms = T0 * 1000
        self.judge = Judge(lambda: self.ms, lambda _line: None)
        self.eyes = Eyes(self.judge)
        self.index = 0
        self.epoch = FIRST
        self.write(c.Claim(format=c.FORMAT))
        self.write(c.ExecutorJoined("e1", LEDGER, 9))
        every = msgspec.structs.replace(job().schedule, text=f"@every {every_s}s", every_s=every_s)
        declared = msgspec.structs.replace(
            job(overlap=overlap, deadline_s=90, **fields), schedule=every, name="default/j"
        )
        self.write(c.PutJobs("crontab", 0, T0, (declared,)))

    def write(self, *commands: c.Command) -> None:
        """Commit an entry of the present epoch."""
        self.index += 1
        entry = encode_entry(self.ms, self.epoch, commands)
        self.judge.committed(Position(self.epoch.term, self.index), entry)

    def due(self, number: int) -> c.Key:
        """Account for the `number`-th instant: it is due."""
        record = self.judge.machine.state.by_number[1]
        at_s = T0 + PERIOD_S * number
        self.ms = max(self.ms, at_s * 1000)
        due = (c.Instants(at_s),)
        self.write(c.Account((c.AccountLine((1,), 1, record.horizon_s, at_s, due),)))
        return (1, at_s, 0)

    def begin(self, key: c.Key, attempt: int = 1) -> str:
        """Begin it; the attempt's name."""
        row = self.judge.machine.state.due[key]
        self.write(begin_of((BeginItem(key, attempt, 1, 1, row.deadline_ms),)))
        return list(self.judge.begun)[-1]

    def start(self, name: str) -> None:
        self.eyes.started(name, "e1", LEDGER)

    def finish(self, key: c.Key, exit_code: int = 0) -> None:
        """The log says that it succeeded."""
        state = LaunchState.SUCCEEDED
        item = AttemptItem.of(key, 1, state, Reason.NONE, exit_code, self.ms, self.ms)
        self.write(c.Report((item,)))

    @property
    def letters(self) -> str:
        return "".join(problem[0] for problem in self.judge.problems)


def test_an_orderly_launch_is_right() -> None:
    court = Court(Overlap.FORBID)
    key = court.due(1)
    name = court.begin(key)
    court.start(name)
    court.eyes.ended(name, 0, 0)
    court.finish(key)
    state = court.judge.machine.state
    judge_rows(court.judge, state, ended_rows(state.history))
    judge_liveness(court.judge, state, court.ms, court.ms)
    assert court.judge.problems == []


def fenced_backwards(court: Court) -> None:
    court.eyes.fenced("default/j@2026-11-20T15:00:00Z#1", 70)
    court.eyes.fenced("default/j@2026-11-20T15:00:00Z#2", 70)


def two_attempts(court: Court) -> None:
    key = court.due(1)
    court.start(court.begin(key))
    court.judge.begun[next(iter(court.judge.begun))].guarded = True
    court.write(c.Report((lost_item(key, 1),)))
    index = court.judge.machine.state.index
    court.write(
        c.Reopen((c.ReopenItem(key, -1, int(LaunchState.LOST), 1),), read_at=index, by="anna")
    )
    court.start(court.begin(key, 2))


def succeeded_unseen(court: Court) -> None:
    key = court.due(1)
    court.begin(key)
    court.finish(key)


def other_exit(court: Court) -> None:
    key = court.due(1)
    name = court.begin(key)
    court.start(name)
    court.eyes.ended(name, 1, 0)
    court.finish(key)


@pytest.mark.parametrize(
    ("crime", "letter"),
    [
        (two_attempts, "b"),
        (fenced_backwards, "k"),
        (succeeded_unseen, "h"),
        (other_exit, "h"),
    ],
)
def test_what_is_wrong_is_called_by_its_letter(crime: Callable[[Court], None], letter: str) -> None:
    court = Court()
    crime(court)
    assert letter in court.letters


def test_an_instant_without_a_row_and_one_with_two_are_missed() -> None:
    court = Court()
    court.due(3)  # its account jumps over two instants
    state = court.judge.machine.state
    judge_rows(court.judge, state, [])
    assert court.letters.count("f") == 2
    twice = Row(
        RowKind.ENDED, "default/j", 1, T0 + PERIOD_S, 0, 0, LaunchState.SKIPPED, Reason.MISSED,
        state.index, court.ms, T0 + PERIOD_S,
    )  # fmt: skip
    other = Court()
    other.due(1)
    judge_rows(other.judge, other.judge.machine.state, [twice, twice])
    assert "f" in other.letters


def test_what_never_ends_and_what_stands_still_is_told() -> None:
    court = Court()
    court.begin(court.due(1))
    state, calm_ms = court.judge.machine.state, court.ms
    judge_liveness(court.judge, state, calm_ms, calm_ms + 30_000)
    assert court.letters == ""
    judge_liveness(court.judge, state, calm_ms, calm_ms + 300_000)
    assert any("is begun" in problem for problem in court.judge.problems)
    assert any("horizon" in problem for problem in court.judge.problems)


def progress(court: Court, calm_ms: int) -> list[str]:
    """What is said of progress two minutes after the faults, with that letter alone."""
    said = len(court.judge.problems)
    judge_progress(court.judge, court.judge.machine.state, calm_ms, calm_ms + 120_000)
    found = court.judge.problems[said:]
    assert all(problem.startswith("n: ") for problem in found)
    return [problem[3:].split(" in ")[0] for problem in found]


def test_a_cell_that_launches_nothing_is_told() -> None:
    court = Court(work=WorkSpec(("/bin/sh", "-c", "run 1")), every_s=LONG_S)
    calm_ms = court.ms + 1
    every = ["nothing was started at all", "nothing was started", "nothing succeeded"]
    assert progress(court, calm_ms) == every
    key = court.due(1)
    name = court.begin(key)
    court.start(name)
    assert progress(court, calm_ms) == every[2:]
    court.eyes.ended(name, 0, 0)
    court.finish(key)
    assert progress(court, calm_ms) == []
    assert progress(court, court.ms + 1) == every[1:]  # what was before the faults ended


@pytest.mark.parametrize("fields", [{"parts": 2}, {"work": WorkSpec((), handler="sim.nobody")}])
def test_of_what_may_find_no_executor_nobody_expects_progress_after_faults(
    fields: dict[str, Any],
) -> None:
    court = Court(**fields)
    assert progress(court, court.ms + 1) == ["nothing was started at all"]


def test_a_cell_whose_clock_was_ahead_may_wait_for_the_time_it_accounted_for() -> None:
    court = Court()
    calm_ms = court.ms + 1
    court.due(60)
    assert progress(court, calm_ms) == ["nothing was started at all"]
