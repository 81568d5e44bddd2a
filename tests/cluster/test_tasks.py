"""Tasks with real processes: handed over, cancelled in time, and over the death of a leader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cron.api import table
from cron.api.tasks import SubmitRequest, TaskSubmission
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import WITHIN_S, Shop

pytestmark = pytest.mark.timeout(240)

TASKS = 20
HOUR_MS = 3_600_000


def states(shop: Shop, *arguments: str) -> dict[str, str]:
    """The states of tasks by key."""
    rows: list[dict[str, Any]] = shop.ask(lambda: shop.cell.rows("task", "list", *arguments))
    return {row["key"]: row["state"] for row in rows}


def test_tasks_run_once_over_the_death_of_a_leader_and_cancelled_ones_never(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        cell = shop.cell
        cell.cli("task", "submit", "--handler", "work", expect=3)  # no worker serves it yet
        shop.serve()
        done = cell.rows("task", "submit", "--handler", "work", "--payload", "0", "--wait")
        assert [row["state"] for row in done] == ["succeeded"], done
        # None begins before the leader's death, however slow the machine is.
        (gate,) = cell.rows("gate", "close", "--handler", "work", "--action", "pause")
        payload = msgspec.Raw(b"0.01")
        batch = [
            TaskSubmission(
                key=f"k{number}", handler="work", delay_ms=HOUR_MS * is_late, payload=payload
            )
            for number in range(TASKS)
            for is_late in [number % 4 == 0]
        ]
        late = {f"k{number}" for number in range(0, TASKS, 4)}
        report = cell.client.ask(table.SUBMIT, SubmitRequest(tasks=batch))
        assert all(one.is_new for one in report.tasks), report
        assert [one.state for one in report.tasks] == ["waiting", "due", "due", "due"] * 5, report
        cell.cli("task", "cancel", *(f"work:{key}" for key in sorted(late)))
        first = cell.leader()
        cell.kill(first)
        second = cell.leader(but=first)
        assert second != first
        # A client that saw no answer asks again: the new leader knows the key.
        again = shop.ask(lambda: cell.client.ask(table.SUBMIT, SubmitRequest(tasks=batch)))
        assert not any(one.is_new or one.error for one in again.tasks), again
        assert [one.state for one in again.tasks] == ["cancelled", "due", "due", "due"] * 5, again
        cell.cli("gate", "open", str(gate["gate"]))
        submit = ("task", "submit", "--handler", "work", "--key", "k1", "--payload", "2")
        cell.cli(*submit, expect=4)

        def all_over() -> bool:
            return set(states(shop, "--prefix", "k").values()) == {"succeeded", "cancelled"}

        wait_until(all_over, WITHIN_S, "all tasks to be over")
        found = states(shop, "--prefix", "k")
        assert {key for key, state in found.items() if state == "cancelled"} == late
        ran = [run.job for run in shop.runs() if ":k" in run.job]
        expected = {f"default/work:k{number}" for number in range(TASKS)}
        assert sorted(ran) == sorted(expected - {f"default/work:{key}" for key in late})
        cell.cli("task", "cancel", "work:k1", expect=4)
        (audit,) = cell.rows("audit")
        assert (audit["ok"], audit["tasks"], audit["tasks_open"]) == (True, TASKS + 1, 0), audit
        assert (audit["tasks_ran"], audit["tasks_dropped"]) == (TASKS + 1 - 5, 5), audit
        assert shop.wrong() == []
