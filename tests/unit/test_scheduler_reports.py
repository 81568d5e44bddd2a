"""What executors report, as commands: facts about open, lost, unknown attempts (R4, R7, R8, R9)."""

from __future__ import annotations

from typing import Any

import pytest

from cron.scheduler.reports import ReportCommands, Source, digest
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.launch import LaunchState, Reason
from launcher.names import AttemptName, LaunchName
from launcher.pool.events import BatchFacts, Fact, Fate, alone
from launcher.pool.orders import FenceOrder, KillOrder
from tests.unit.state_rig import T0, StateRig, job, said, with_job

KEY = (1, T0 + 60, 0)
NAME = AttemptName(LaunchName("default/backup", T0 + 60))


def begun() -> StateRig:
    rig = with_job().to(60)
    rig.account(60)
    rig.begin(60)
    return rig


def told(
    rig: StateRig, fate: Fate, *more: Any, index: int = 0, row: int = 0, **fields: Any
) -> Fact:
    """What is said of a row, of the newest entry if not told otherwise."""
    return Fact(index or rig.state.index, row, fate, *more, **fields)


def ended(index: int, rows: list[int], fate: Fate = Fate.ENDED, **fields: Any) -> BatchFacts:
    """The same as columns: each row began at its number and ended 10 ms later."""
    usual = {"reason": Reason.NONE, "exit_code": 0, "output_bytes": [0] * len(rows)}
    times = {"started_ms": rows, "finished_ms": [row + 10 for row in rows]}
    return BatchFacts(index=index, fate=fate, rows=rows, **usual | times | fields)


def digested(
    rig: StateRig, *said: Fact | BatchFacts, source: Source = ("e1", "l1"), executor: bool = True
) -> ReportCommands:
    """What it means that an executor says so; one that was let go if not `executor`."""
    into = ReportCommands()
    facts = tuple(one for one in said if isinstance(one, Fact))
    batches = tuple(one for one in said if isinstance(one, BatchFacts))
    record = rig.state.executor_of(*source) if executor else None
    digest(rig.state, record, (*map(alone, facts), *batches), into, source)
    return into


def commit(rig: StateRig, into: ReportCommands) -> list[int]:
    """Append what the facts mean; all verdicts."""
    return [item for result in rig.append(*into.commands()).results for item in result.items]


def test_accepted_is_log_point_2() -> None:
    rig = begun()
    accepted = told(rig, Fate.ACCEPTED, started_ms=7)
    into = digested(rig, accepted)
    assert into.commands() == [c.Launched((), (c.Starts(accepted.index, 1, (0,), (7,)),))]
    commit(rig, into)
    assert digested(rig, accepted).commands() == []


def test_accepted_and_ended_in_one_report_make_one_entry() -> None:  # design 3
    rig = begun()
    facts = [told(rig, fate, started_ms=7) for fate in (Fate.ENDED, Fate.ACCEPTED)]
    assert commit(rig, digested(rig, *facts)) == [], "all are accepted"
    assert rig.rows[0].state is LaunchState.SUCCEEDED


@pytest.mark.parametrize(
    ("reason", "exit_code", "state"),
    [
        (Reason.NONE, 0, LaunchState.SUCCEEDED),
        (Reason.NONE, 1, LaunchState.FAILED),
        (Reason.TIMEOUT, 143, LaunchState.FAILED),
        (Reason.TIMEOUT, 0, LaunchState.FAILED),
        (Reason.USER, 0, LaunchState.FAILED),
        (Reason.KILLED, 143, LaunchState.CANCELLED),
        (Reason.REPLACED, 0, LaunchState.CANCELLED),
    ],
)
def test_an_end_is_what_its_reason_and_exit_code_say(
    reason: Reason, exit_code: int, state: LaunchState
) -> None:
    rig = begun()
    fact = told(rig, Fate.ENDED, reason, exit_code, 1, 2)
    assert commit(rig, digested(rig, fact)) == [], "all are accepted"
    assert (rig.rows[0].state, rig.rows[0].reason) == (state, reason)


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.FENCED])
def test_what_never_ran_is_due_again(fate: Fate) -> None:  # R7
    rig = begun()
    assert commit(rig, digested(rig, told(rig, fate))) == [], "all are accepted"
    assert (rig.row(60).state, said(rig.row(60))) == (LaunchState.DUE, fate.name.lower())


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.FENCED])
def test_an_executor_that_contradicts_itself_proves_nothing(fate: Fate) -> None:  # fail closed
    rig = begun()
    fact = told(rig, fate)
    rig.launched(60)
    commit(rig, digested(rig, fact))
    assert rig.rows[0].state is LaunchState.LOST


def test_what_an_executor_died_over_is_lost() -> None:  # R4
    rig = begun()
    commit(rig, digested(rig, told(rig, Fate.INTERRUPTED)))
    assert (rig.rows[0].state, said(rig.rows[0])) == (LaunchState.LOST, "its executor died")


def test_an_unknown_start_is_fenced_and_concludes_nothing() -> None:
    rig = begun()
    into = digested(rig, told(rig, Fate.UNKNOWN))
    assert into.commands() == []
    assert into.fences == [FenceOrder(rig.state.index, 0, NAME)]


def test_what_runs_though_it_is_cancelled_is_killed_again() -> None:  # R8
    rig = begun()
    fact = told(rig, Fate.ACCEPTED)
    rig.cancel(60)
    assert digested(rig, fact).kills == [KillOrder(fact.index, 0, Reason.KILLED)]
    batch = ended(fact.index, [0], Fate.ACCEPTED, finished_ms=[0])
    assert digested(rig, batch).kills == [KillOrder(fact.index, 0, Reason.KILLED)]


def test_another_executor_or_ledger_proves_nothing() -> None:  # R4
    rig = begun()
    index = rig.state.index
    rig.join("e1", "l2")
    for fate in Fate:
        into = digested(rig, told(rig, fate, index=index), source=("e1", "l2"))
        assert into.commands() == []
        assert (into.fences, into.kills) == ([], [])


def test_another_attempt_says_nothing_of_this_one() -> None:
    rig = begun()
    before = told(rig, Fate.ENDED)
    rig.refused(60)
    rig.begin(60, attempt=2)
    into = digested(rig, before)
    assert (into.commands(), into.acks) == ([], {before.index: [0]})


def test_late_news_is_recorded_before_it_is_acknowledged() -> None:  # R9
    rig = begun()
    fact = told(rig, Fate.ENDED)
    rig.lost(60)
    rig.answer(c.ExecutorLeft(1))
    into = digested(rig, fact)
    assert into.acks == {}
    assert into.ended_at == {(KEY, 1, 1): (fact.index, 0)}
    assert commit(rig, into) == [Verdict.AMENDED]
    again = digested(rig, fact)
    assert (again.commands(), again.acks) == ([], {fact.index: [0]})


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.FENCED, Fate.INTERRUPTED])
def test_what_tells_nothing_new_of_a_lost_attempt_is_acknowledged(fate: Fate) -> None:
    rig = begun()
    fact = told(rig, fate)
    rig.lost(60)
    into = digested(rig, fact)
    assert (into.commands(), into.acks) == ([], {fact.index: [0]})


@pytest.mark.parametrize("source", [("e2", "l1"), ("e1", "l2"), ("e2", "l2")])
def test_nobody_but_its_executor_and_ledger_amend_a_lost_attempt(source: tuple[str, str]) -> None:
    """Any executor could say that a lost launch of another had succeeded."""
    rig = begun()
    index = rig.state.index
    rig.lost(60)
    for fate in Fate:
        into = digested(rig, told(rig, fate, index=index), source=source, executor=False)
        assert into.commands() == []
    fact = told(rig, Fate.ENDED, index=index)
    assert commit(rig, digested(rig, fact, executor=False)) == [Verdict.AMENDED]


def test_of_several_parts_each_is_amended_by_its_own_executor() -> None:
    rig = StateRig()
    rig.put(job(parts=2))
    rig.join()
    rig.join("e2", "l2")
    rig.to(60).account(60)
    rig.begin(60, others=(2,))
    index = rig.state.index
    for part in (1, 2):
        rig.append(c.Lost((c.LostItem(KEY, 1, 0, "silent", part),)))
    assert digested(rig, told(rig, Fate.ENDED, index=index, row=1)).commands() == []
    into = digested(rig, told(rig, Fate.ENDED, index=index), source=("e2", "l2"), executor=False)
    assert [item.part for item in into.finished] == [2]
    assert commit(rig, into) == [Verdict.AMENDED]


def test_a_row_of_an_entry_that_is_not_there_yet_is_foreign() -> None:
    """What its executor says can only be wrong. It is acknowledged, so that it is not said again,
    and told to a person."""
    rig = begun()
    fact = told(rig, Fate.ENDED, index=rig.state.index + 1)
    into = digested(rig, fact)
    assert (into.commands(), into.foreign) == ([], [(fact.index, 0)])
    assert into.acks == {fact.index: [0]}


def test_what_nobody_knows_is_acknowledged_unless_it_runs() -> None:
    rig = begun()
    for index, row in ((rig.state.index, 7), (2, 0)):  # a row, and a batch, that never was
        ended = told(rig, Fate.ENDED, index=index, row=row)
        assert (digested(rig, ended).commands(), digested(rig, ended).acks) == ([], {index: [row]})
        runs = told(rig, Fate.ACCEPTED, index=index, row=row)
        assert (digested(rig, runs).commands(), digested(rig, runs).acks) == ([], {})


def test_a_part_is_spoken_of_by_the_executor_that_has_it_and_no_other() -> None:
    rig = StateRig()
    rig.put(job(parts=2))
    for number in (1, 2):
        rig.join(f"e{number}", f"l{number}")
    rig.to(60).account(60)
    rig.begin(60, others=(2,))
    index, second = rig.state.index, ("e2", "l2")
    into = digested(rig, told(rig, Fate.ACCEPTED, started_ms=7), source=second)
    assert into.commands() == [c.Launched((c.LaunchedItem(KEY, 1, 7, 2),))]
    into = digested(rig, told(rig, Fate.ENDED, exit_code=3))
    assert [(item.part, item.exit_code) for item in into.finished] == [(1, 3)]
    commit(rig, into)
    again = digested(rig, told(rig, Fate.ENDED, index=index, exit_code=3))
    assert again.acks == {index: [0]}, "it is over"
    commit(rig, digested(rig, told(rig, Fate.ENDED, index=index), source=second))
    assert rig.rows[0].state is LaunchState.FAILED


# ---- columns


def many(count: int = 4) -> StateRig:
    """Jobs 1, 2, ... begun by one entry on one executor: row n is of job n + 1."""
    rig = StateRig()
    rig.put(*(job(f"job-{i}") for i in range(count)))
    rig.join()
    rig.to(60)
    items = []
    for number in range(1, count + 1):
        rig.account(60, number=number)
    for number in range(1, count + 1):
        row = rig.row(60, number)
        items.append(c.BeginItem(row.key, 1, rig.state.catalog, 1, row.deadline_ms))
    assert not any(rig.items(c.Begin.of(items)))
    return rig


def test_rows_of_a_batch_start_and_end_by_columns() -> None:
    rig = many()
    index = rig.state.index
    into = digested(rig, ended(index, [0, 2, 3], Fate.ACCEPTED, finished_ms=[0, 0, 0]))
    assert into.commands() == [c.Launched((), (c.Starts(index, 1, (0, 2, 1), (0, 2, 1)),))]
    assert commit(rig, into) == []
    assert [row.state for row in rig.state.active.values()].count(LaunchState.LAUNCHED) == 3
    usage = {"cpu_ms": [8, 8], "memory_peak_bytes": [9, 10]}
    into = digested(rig, ended(index, [1, 3], exit_code=7, output_bytes=[5, 6], **usage))
    assert into.ended_at == {}
    assert commit(rig, into) == []
    assert [(row.cpu_ms, row.memory_peak_bytes) for row in rig.rows] == [(8, 9), (8, 10)]
    found = [(row.job, row.state, row.exit_code, row.started_ms, row.finished_ms, row.output_bytes)
             for row in rig.rows]  # fmt: skip
    assert found == [
        ("default/job-1", LaunchState.FAILED, 7, 1, 11, 5),
        ("default/job-3", LaunchState.FAILED, 7, 3, 13, 6),
    ]
    assert len(rig.state.active) == 2


def test_rows_that_want_to_be_tried_again_are_items_each_with_its_time() -> None:
    rig = many()
    wish = ended(rig.state.index, [0, 1], exit_code=1, reason=Reason.RETRY, retry_after_ms=[5, 6])
    [command] = digested(rig, wish).commands()
    assert isinstance(command, c.Finished)
    assert (command.ends, [one.retry_after_ms for one in command.items]) == ((), [5, 6])


def test_a_start_that_comes_twice_is_told_on_once() -> None:
    rig = many()
    accepted = ended(rig.state.index, [0, 1], Fate.ACCEPTED, finished_ms=[0, 0])
    commit(rig, digested(rig, accepted))
    assert digested(rig, accepted).commands() == []


def test_of_columns_that_come_twice_what_is_over_is_only_acknowledged() -> None:
    rig = many()
    index = rig.state.index
    commit(rig, digested(rig, ended(index, [0, 1])))
    into = digested(rig, ended(index, [0, 1, 2, 9], finished_ms=[9, 9, 9, 9]))
    assert [(one.begun_index, one.rows) for one in into.ends] == [(index, (2,))]
    assert into.acks == {index: [0, 1, 9]}


def test_columns_have_late_news_of_rows_that_are_lost() -> None:  # R9
    rig = many()
    index = rig.state.index
    for number in (1, 3):
        rig.lost(60, number=number)
    rig.finished(60, number=4)
    into = digested(rig, ended(index, [0, 1, 2, 3]))
    assert ([one.rows for one in into.ends], into.acks) == ([(1,)], {index: [3]})
    assert commit(rig, into) == [Verdict.AMENDED, Verdict.AMENDED]
    assert not rig.state.active


def test_rows_that_were_refused_alike_are_due_again() -> None:  # R7
    rig = many()
    index = rig.state.index
    batch = ended(index, [1, 2], Fate.REFUSED, detail="its lease is over")
    into = digested(rig, batch)
    assert into.commands() == [
        c.Refused((), (c.Rows(index, 1, (1, 1), None, "its lease is over"),))
    ]
    assert commit(rig, into) == []
    assert sorted(said(row) for row in rig.state.due.values()) == ["its lease is over"] * 2
    fenced = digested(rig, ended(index, [0], Fate.FENCED))
    assert commit(rig, fenced) == []
    assert {said(row) for row in rig.state.due.values()} == {"fenced", "its lease is over"}


def test_a_launch_of_several_parts_ends_by_columns_too() -> None:
    rig = StateRig()
    rig.put(job(parts=2))
    rig.join()
    rig.join("e2", "l2")
    rig.to(60).account(60)
    rig.begin(60, others=(2,))
    index = rig.state.index
    for source in (("e2", "l2"), ("e1", "l1")):
        commit(rig, digested(rig, ended(index, [0]), source=source))
    assert rig.rows[0].state is LaunchState.SUCCEEDED
