"""What executors report, as commands: facts about open, lost, unknown attempts (R4, R7, R8, R9)."""

from __future__ import annotations

from typing import Any

import pytest

from consensus.limits import ENTRY_BYTES_MAX
from cron.launch_state import LaunchState
from cron.leader.resolving import ROWS_PER_ENTRY
from cron.limits import DETAIL_CHARS_MAX, RESULT_BYTES_MAX
from cron.scheduler.reports import ReportCommands, Source, digest
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.outcome import Verdict
from cron.state.rows import Part
from launcher.protocol.columns import differences
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.orders import FenceOrder
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch
from tests.batches import BeginItem, begin_of, lost_item
from tests.unit.state_rig import T0, StateRig, job, with_job

KEY = (1, T0 + 60, 0)
NAME = AttemptName(LaunchName("default/backup", T0 + 60))


def begun() -> StateRig:
    rig = with_job().to(60)
    rig.account(60)
    rig.begin(60)
    return rig


def told(
    rig: StateRig, status: Status, *more: Any, index: int = 0, row: int = 0, **fields: Any
) -> RowReport:
    """What is said of a row, of the newest entry if not told otherwise."""
    return RowReport(index or rig.state.index, row, status, *more, **fields)


def ended(index: int, rows: list[int], status: Status = Status.ENDED, **fields: Any) -> BatchReport:
    """The same as columns: each row began at its number and ended 10 ms later."""
    usual = {"reason": Reason.NONE, "exit_code": 0}
    finished_ms = differences([row + 10 for row in rows])
    times = {"started_ms": differences(rows), "finished_ms": finished_ms}
    return BatchReport(index=index, status=status, rows=differences(rows), **usual | times | fields)


def digested(
    rig: StateRig,
    *said: RowReport | BatchReport,
    source: Source = ("e1", "l1"),
    executor: bool = True,
) -> ReportCommands:
    """What it means that an executor says so; one that was let go if not `executor`."""
    into = ReportCommands()
    facts = tuple(one for one in said if isinstance(one, RowReport))
    batches = tuple(one for one in said if isinstance(one, BatchReport))
    record = rig.state.executor_of(*source) if executor else None
    digest(rig.state, record, (*map(RowReport.as_batch, facts), *batches), into, source)
    return into


def commit(rig: StateRig, into: ReportCommands) -> list[int]:
    """Append what the facts mean; all verdicts."""
    return [item for result in rig.append(*into.commands()).results for item in result.items]


@pytest.mark.parametrize("status", [Status.REFUSED, Status.FENCED])
def test_an_executor_that_contradicts_itself_proves_nothing(status: Status) -> None:  # fail closed
    rig = begun()
    fact = told(rig, status)
    rig.launched(60)
    commit(rig, digested(rig, fact))
    assert rig.rows[0].state is LaunchState.LOST


def test_an_unknown_start_is_fenced_and_concludes_nothing() -> None:
    rig = begun()
    into = digested(rig, told(rig, Status.UNKNOWN))
    assert into.commands() == []
    assert into.fences == [FenceOrder(rig.state.index, 0, NAME)]


def test_late_report_is_recorded_before_it_is_acknowledged() -> None:  # R9
    rig = begun()
    fact = told(rig, Status.ENDED)
    rig.lost(60)
    rig.answer(c.ExecutorLeft(1))
    into = digested(rig, fact)
    assert into.acks == {}
    assert into.ended_at == {(KEY, 1, 1): (fact.index, 0)}
    assert commit(rig, into) == [Verdict.AMENDED]
    again = digested(rig, fact)
    assert (again.commands(), again.acks) == ([], {fact.index: [0]})


@pytest.mark.parametrize("source", [("e2", "l1"), ("e1", "l2"), ("e2", "l2")])
def test_nobody_but_its_executor_and_ledger_amend_a_lost_attempt(source: tuple[str, str]) -> None:
    """Any executor could say that a lost launch of another had succeeded."""
    rig = begun()
    index = rig.state.index
    rig.lost(60)
    for status in Status:
        into = digested(rig, told(rig, status, index=index), source=source, executor=False)
        assert into.commands() == []
    fact = told(rig, Status.ENDED, index=index)
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
        rig.append(c.Report((lost_item(KEY, 1, 0, "silent", part),)))
    assert digested(rig, told(rig, Status.ENDED, index=index, row=1)).commands() == []
    into = digested(rig, told(rig, Status.ENDED, index=index), source=("e2", "l2"), executor=False)
    assert [end.number for _, _, end in into.items] == [2]
    assert commit(rig, into) == [Verdict.AMENDED]


def test_a_row_of_an_entry_that_is_not_there_yet_is_foreign() -> None:
    """What its executor says can only be wrong. It is acknowledged, so that it is not said again,
    and told to a person."""
    rig = begun()
    fact = told(rig, Status.ENDED, index=rig.state.index + 1)
    into = digested(rig, fact)
    assert (into.commands(), into.foreign) == ([], [(fact.index, 0)])
    assert into.acks == {fact.index: [0]}


@pytest.mark.parametrize(
    ("exit_code", "kept"), [(0, "ä" * 510 + "..."), (1, "ä" * DETAIL_CHARS_MAX)]
)
def test_a_result_is_kept_and_of_a_failure_its_beginning(exit_code: int, kept: str) -> None:
    rig = begun()
    commit(rig, digested(rig, told(rig, Status.ENDED, exit_code=exit_code, detail="ä" * 2_000)))
    assert rig.rows[0].detail == kept


def test_what_20_000_rows_say_fits_into_the_entries_that_it_takes() -> None:
    """A restored cell learns at once how all ended that was open in its snapshot."""
    item = (KEY, 1, Part(0, LaunchState.SUCCEEDED, detail="x" * RESULT_BYTES_MAX))
    reports = list(ReportCommands(items=[item] * 20_000).portions(ROWS_PER_ENTRY))
    sizes = [len(encode_entry(0, Epoch(), (one,))) for one in reports]
    assert sum(len(one.items) for one in reports) == 20_000
    assert len(sizes) == 20
    assert max(sizes) < ENTRY_BYTES_MAX / 4


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
        items.append(BeginItem(row.key, 1, rig.state.catalog, 1, row.deadline_ms))
    assert not any(rig.items(begin_of(items)))
    return rig


def test_rows_of_a_batch_start_and_end_by_columns() -> None:
    rig = many()
    index = rig.state.index
    into = digested(rig, ended(index, [0, 2, 3], Status.ACCEPTED, finished_ms=[0, 0, 0]))
    ((number, started),) = into.rows
    assert (number, started.status, started.rows) == (1, Status.ACCEPTED, [0, 2, 1])
    assert started.started_ms == [0, 2, 1]
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
