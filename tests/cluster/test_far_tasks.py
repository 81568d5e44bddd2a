"""Tasks on disk with real processes: none is lost or doubled, whoever is killed around a spill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from cron.api import table
from cron.api.tasks import CancelRequest, SubmitRequest, TaskNames, TaskSubmission
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.test_restore import lose_disks, restore, stored, wait_resolved
from tests.cluster.test_tasks import states
from tests.cluster.worker_rig import HOST, WITHIN_S, Shop
from tests.fakes.s3_server import s3_server

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

IN_MEMORY = 20
TASKS = 60
"""Of each round; most go to disk, in segments of 20."""
FAR_MS = 5 * 3_600_000
WORK = msgspec.Raw(b"0.01")


def on_disk(shop: Shop) -> int:
    rows = shop.ask(lambda: shop.cell.rows("queue", "list"))
    return sum(row["on_disk"] for row in rows)


def goes_on(shop: Shop, before: int) -> bool:
    """Whether more tasks are on disk than before."""
    return on_disk(shop) > before


def victim(cell: Cell, kind: str) -> str:
    if kind == "leader":
        return cell.leader()
    return cell.follower() if kind == "follower" else cell.executors[0]


def named(number: int) -> list[str]:
    """The tasks of a round."""
    return [f"default/work:r{number}-{n}" for n in range(TASKS)]


def test_tasks_on_disk_run_once_whoever_is_killed_around_a_spill(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    extra = f"{PATIENT}tasks_in_memory = {IN_MEMORY}\n"
    with Shop(make_cell(replica_extra=extra), tmp_path) as shop:
        cell = shop.cell
        shop.serve()
        ran, cancelled = list[str](), list[str]()
        for number, kind in enumerate(("leader", "follower", "executor")):
            batch = [
                TaskSubmission(
                    key=f"r{number}-{n}", handler="work", payload=WORK, delay_ms=FAR_MS + n
                )
                for n in range(TASKS)
            ]
            request = SubmitRequest(tasks=batch)
            before = on_disk(shop) if number else 0
            shop.ask(lambda request=request: cell.client.ask(table.SUBMIT, request))
            # The leader spills from its next look on, once a second.
            name = victim(cell, kind)
            cell.kill(name)
            wait_until(partial(goes_on, shop, before), WITHIN_S, "tasks to go to disk")
            cell.start(name)
            shop.wait_served(HOST)
            now, never = named(number)[::3], named(number)[1::3]  # some of each are on disk
            shop.ask(lambda now=now: cell.client.ask(table.RUN_NOW, TaskNames(names=now)))
            again = victim(cell, kind)
            cell.kill(again)
            cancel = CancelRequest(names=never)
            shop.ask(lambda cancel=cancel: cell.client.ask(table.CANCEL, cancel))
            cell.start(again)
            shop.wait_served(HOST)
            ran += now
            cancelled += never
        # The two that were killed lead in turn, and read what is left from their own disks.
        for _ in range(2):
            first = cell.leader()
            cell.kill(first)
            cell.leader(but=first)
            cell.start(first)
        assert on_disk(shop) > 0
        names = [name for number in range(3) for name in named(number)[2::3]]
        shop.ask(lambda: cell.client.ask(table.RUN_NOW, TaskNames(names=names)))
        ran += names

        def all_over() -> bool:
            return {"waiting", "due", "running"}.isdisjoint(states(shop, "-n", "1000").values())

        wait_until(all_over, 2 * WITHIN_S, "all tasks to be over")
        found = states(shop, "-n", "1000")
        by_state = Counter(found.values())
        assert by_state["cancelled"] == len(cancelled), by_state
        lost = {f"default/work:{key}" for key, state in found.items() if state == "lost"}
        witnessed = Counter(run.job for run in shop.runs())
        assert max(witnessed.values()) == 1
        assert set(witnessed) | lost == set(ran)
        assert not set(witnessed) & set(cancelled)
        assert on_disk(shop) == 0
        (audit,) = cell.rows("audit")
        assert (audit["ok"], audit["tasks"], audit["tasks_open"]) == (True, 3 * TASKS, 0), audit
        assert shop.wrong() == []


def test_tasks_on_disk_are_restored_from_object_storage(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    """All disks are lost: those of the replicas, and what they had run since the snapshot."""
    with s3_server() as server:
        store = f'[object_storage]\nurl = "{server.url(prefix="far")}"\n'
        extra = f"{PATIENT}tasks_in_memory = {IN_MEMORY}\n{store}[snapshots]\ninterval_s = 2\n"
        with Shop(make_cell(replica_extra=extra), tmp_path) as shop:
            cell = shop.cell
            shop.serve()
            batch = [
                TaskSubmission(key=f"r0-{n}", handler="work", payload=WORK, delay_ms=FAR_MS + n)
                for n in range(TASKS)
            ]
            shop.ask(lambda: cell.client.ask(table.SUBMIT, SubmitRequest(tasks=batch)))
            wait_until(lambda: on_disk(shop) >= IN_MEMORY, WITHIN_S, "tasks to go to disk")
            (spilled,) = {row.applied for row in cell.status() if row.role == "leader"}
            wait_until(lambda: stored(cell) > spilled, WITHIN_S, "a snapshot of them")
            ran = named(0)[::3]
            shop.ask(lambda: cell.client.ask(table.RUN_NOW, TaskNames(names=ran)))
            shop.wait_runs(len(ran))
            lose_disks(cell)
            report = restore(cell)
            assert report["missing"] == []
            cell.start()
            wait_resolved(cell)
            shop.wait_served(HOST)
            assert on_disk(shop) > 0
            left = [name for name in named(0) if name not in ran]
            shop.ask(lambda: cell.client.ask(table.RUN_NOW, TaskNames(names=left)))

            def all_over() -> bool:
                return {"waiting", "due", "running"}.isdisjoint(states(shop, "-n", "100").values())

            wait_until(all_over, 2 * WITHIN_S, "all tasks to be over")
            assert set(states(shop, "-n", "100").values()) == {"succeeded"}
            assert Counter(run.job for run in shop.runs()) == dict.fromkeys(named(0), 1)
            assert shop.wrong() == []
