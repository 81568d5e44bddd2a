"""Explanations of what a restored cell knows from an executor's memory alone."""

from __future__ import annotations

import msgspec

from cron.history.why import Explanation, explain
from cron.launch_state import LaunchState
from cron.limits import LIFE_ENTRIES
from cron.service.launches import of_open, of_row
from cron.state.rows import RESTORED_BY, Row
from cron.state.state import LeaderTerm
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.unit.history_rig import open_row
from tests.unit.state_rig import T0, with_job
from tests.unit.test_history_why import AT_S, job, ran, unbegun

S = LaunchState
DUE_MS = AT_S * 1000
AGAIN = LIFE_ENTRIES + 7
"""Where the restored cell recorded what it was told."""
MEMORY = "worker-7 remembers it: the cell was restored since, and its log points are lost"
LEADER_TERMS = (
    LeaderTerm(3, DUE_MS - 60_000, Epoch(0, 4, "r1")),
    LeaderTerm(AGAIN - 2, DUE_MS + 90_000, Epoch()),
)


def remembered(**fields: object) -> Row:
    recorded_ms = DUE_MS + 100_000
    known: dict[str, object] = {
        "by": RESTORED_BY, "launched_index": AGAIN, "launched_at_ms": recorded_ms,
        "ended_index": AGAIN, "ended_at_ms": recorded_ms,
    }  # fmt: skip
    return ran(**(known | fields))


def why(rows: list[Row], open_row: Row | None = None) -> Explanation:
    return explain(job(), AT_S, rows, open_row, AT_S + 120, LEADER_TERMS)


def texts(told: Explanation) -> str:
    return "\n".join(text for _, text in told.story)


def test_what_a_restore_found_in_an_executors_memory_ran_and_was_not_launched_again() -> None:
    told = why([remembered()])
    assert told.verdict == f"it ran on worker-7, 41 ms late, and succeeded; {MEMORY}"
    assert told.story == [
        (DUE_MS + 41, "started on worker-7, 41 ms late"),
        (DUE_MS + 3241, "exit code 0 after 3.2 s"),
        (DUE_MS + 100_000, f"attempt 1: {MEMORY}; recorded at index {AGAIN}"),
        (DUE_MS + 100_000, f"succeeded; recorded at index {AGAIN}"),
    ]


def test_how_it_failed_is_nobodys_doing() -> None:
    told = why([remembered(state=S.CANCELLED, reason=Reason.KILLED)])
    assert "restore)" not in told.verdict + texts(told)
    assert MEMORY in told.verdict


def test_what_still_runs_after_the_restore_is_told_so() -> None:
    running = open_row(
        AT_S, 0, 1, S.LAUNCHED, 100, DUE_MS + 41, AGAIN, DUE_MS + 41, DUE_MS + 100_000,
        executor="worker-7", by=RESTORED_BY,
    )  # fmt: skip
    told = why([], running)
    assert told.verdict.endswith(f"for 1 min 59 s so far; {MEMORY}")
    assert "launched again" not in texts(told)


def test_an_attempt_that_the_restored_cell_began_itself_has_its_log_points() -> None:
    lost = remembered(state=S.LOST, reason=Reason.EXECUTOR_LOST, finished_ms=0)
    again = remembered(
        attempt=2, begun_index=AGAIN + 5, launched_index=AGAIN + 6, ended_index=AGAIN + 9
    )
    told = why([lost, again])
    assert "remembers" not in told.verdict
    assert "backfill" not in told.verdict
    assert f"attempt 2: log point 1 committed at index {AGAIN + 5}" in texts(told)
    assert f"attempt 1: {MEMORY}" in texts(told)


def test_of_what_nobody_remembers_it_is_not_said_that_it_did_not_run() -> None:
    told = why([unbegun(state=S.LOST, reason=Reason.RESTORED)])
    assert told.verdict == (
        "nobody knows whether it ran, it was lost: the cell was restored from a backup that does "
        "not know its end"
    )


def test_nobody_triggered_what_is_only_remembered() -> None:
    told = why([remembered(trigger=1)])
    assert "triggered" not in texts(told)


def test_it_is_shown_as_asked_for_by_nobody_and_says_whose_word_it_is() -> None:
    view = of_row(remembered())
    assert (view.by, view.detail) == ("", MEMORY)
    assert of_row(remembered(detail="no space left")).detail == f"no space left; {MEMORY}"
    own = msgspec.structs.replace(remembered(), begun_index=AGAIN - 1)
    assert (of_row(own).by, of_row(own).detail) == ("", "")
    assert of_row(ran(by="ann")).by == "ann"


def test_so_is_what_still_runs() -> None:
    rig = with_job().to(60)
    rig.account(60)
    rig.begin(60)
    (row,) = rig.state.open_rows()
    row.by, row.launched_index = RESTORED_BY, AGAIN
    view = of_open(rig.state, row, frozenset(), (T0 + 61) * 1000)
    assert view.by == ""
    assert view.detail.endswith("and its log points are lost")
    row.launched_index = row.begun_index + 1
    assert of_open(rig.state, row, frozenset(), (T0 + 61) * 1000).detail == ""
