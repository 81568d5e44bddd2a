"""Whom a restored cell waits for before it launches anything (rule R13)."""

from __future__ import annotations

from cron.leader.resolving import QUIET_MS, Resolving
from cron.state.pool import Drain
from launcher.pool.events import InventoryPage, Joined
from tests.unit import pool_rig
from tests.unit.restored_rig import RestoredRig


def told(executor: str, ledger: str) -> tuple[Joined, InventoryPage]:
    """An executor that joins and remembers nothing."""
    joined = pool_rig.joined(executor, ledger, can_inventory=True)
    return joined, InventoryPage(executor, ledger, (), is_last=True, watermark=0)


def test_a_drained_executor_that_does_not_come_back_is_waited_for_until_its_lease_is_over() -> None:
    rig = RestoredRig()
    rig.append(Drain("e2", "olga"))
    rig.restore(100)
    gone: list[tuple[str, str]] = []
    now_ms = [0]
    resolving = Resolving(lambda: now_ms[0], 1_000, lambda: gone)
    for event in told("e1", "l1"):
        resolving.receive(event)
    assert resolving.commands(rig.state, rig.at_ms) == []
    assert resolving.note == "waits for e2 to tell what ran"
    now_ms[0] = QUIET_MS
    assert resolving.commands(rig.state, rig.at_ms) == []
    gone.append(("e2", "l2"))
    assert resolving.commands(rig.state, rig.at_ms) != []
    assert "e2" in {record.executor for record in rig.state.executors.values()}
