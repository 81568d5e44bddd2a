"""Chunks: ends of one batch that are alike, as columns (cron/state/rows.py)."""

from __future__ import annotations

from array import array
from typing import Any

from cron.launch_state import LaunchState
from cron.state.archive import History
from cron.state.context import Context
from cron.state.rows import Chunk, Row, RowKind, at, column
from cron.state.state import State
from launcher.protocol.status import Reason
from tests.states import ended_rows
from tests.unit.state_rig import FIRST, T0


def chunk(rows: int = 3, **fields: Any) -> Chunk:
    usual: dict[str, Any] = {
        "state": LaunchState.SUCCEEDED,
        "reason": Reason.NONE,
        "exit_code": 0,
        "ended_index": 9,
        "ended_at_ms": T0 * 1000 + 40,
        "begun_index": 7,
        "begun_at_ms": T0 * 1000,
        "epoch": FIRST,
        "executor": "e1",
        "ledger": "l1",
        "jobs": "\n".join(f"default/j{n}" for n in range(rows)),
        "revisions": 1,
        "scheduled_s": T0,
        "launched_index": 8,
        "launched_at_ms": T0 * 1000 + 10,
        "started_ms": column([T0 * 1000 + n for n in range(rows)]),
        "finished_ms": column([T0 * 1000 + 20 + n for n in range(rows)]),
    }
    return Chunk(**usual | fields)


def test_a_column_returns_its_integers() -> None:
    values = [0, -1, 2**62, -(2**63), 5]
    made = column(values)
    assert [at(made, number) for number in range(len(values))] == values
    assert column(array("q", values)) == made
    assert isinstance(made, bytes)


def test_a_column_holds_the_nearest_of_what_64_bits_do_not_hold() -> None:
    made = column([2**70, 0, -(2**63) - 1])
    assert [at(made, number) for number in range(3)] == [2**63 - 1, 0, -(2**63)]


def test_a_column_of_one_value_is_that_value() -> None:
    assert column([7, 7, 7]) == column([7]) == column(array("q", [7])) == 7
    assert [at(7, number) for number in range(3)] == [7, 7, 7]


def test_a_chunk_tells_its_rows() -> None:
    made = chunk(2, number=4, output_bytes=column([0, 12]), triggers=column([0, 1]))
    first, second = made.rows()
    assert (made.row(0), made.row(1, "default/j1")) == (first, second)
    assert first == Row(
        RowKind.ENDED, "default/j0", 1, T0, 0, 1, LaunchState.SUCCEEDED, Reason.NONE, 9,
        T0 * 1000 + 40, T0, begun_index=7, begun_at_ms=T0 * 1000, epoch=FIRST, executor="e1",
        ledger="l1", launched_index=8, launched_at_ms=T0 * 1000 + 10, started_ms=T0 * 1000,
        finished_ms=T0 * 1000 + 20, exit_code=0, number=4,
    )  # fmt: skip
    assert (second.job, second.number, second.trigger) == ("default/j1", 5, 1)
    assert (second.output_bytes, second.started_ms) == (12, T0 * 1000 + 1)


def test_history_keeps_chunks_and_rows_in_log_order() -> None:
    history = History()
    ended, later = chunk(2, number=0), chunk(1, number=2)
    single = later.row(0)
    history.append(ended)
    history.append(single)
    history.append(chunk(2, number=3))
    assert history.open_rows == 5
    assert [row.number for row in ended_rows(history)] == [0, 1, 2, 3, 4]
    assert ended_rows(history)[:3] == [ended.row(0), ended.row(1), single]


def test_rows_of_an_entry_are_numbered_across_chunks() -> None:
    context = Context(State(), FIRST, T0 * 1000, 9)
    context.record(chunk(1).row(0))
    context.record(chunk(2))
    context.record(chunk(1, state=LaunchState.FAILED))
    context.record(chunk(1).row(0))
    assert sorted(row.number for row in ended_rows(context.state.history)) == [0, 1, 2, 3, 4]
    failed = [row for row in ended_rows(context.state.history) if row.state is LaunchState.FAILED]
    assert [row.number for row in failed] == [3]
