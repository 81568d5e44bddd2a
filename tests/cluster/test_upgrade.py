"""A whole cell goes from the previous release to this one under load, in the order of
docs/upgrade.md and with certificates: no launch is the worse, and both releases have the same
state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.state.commands import FORMAT
from tests.cluster.failover import PATIENT
from tests.cluster.harness import wait_until
from tests.cluster.previous_release import install_previous
from tests.cluster.secured_cell import Secured
from tests.cluster.worker_rig import WITHIN_S, Load, Shop, command_job, handler_job, wait_exit_code

pytestmark = [
    pytest.mark.timeout(240),
    # The disks of executors and history changed once and for all: a directory of the release before
    # is refused. From the first release of this format on there is something to upgrade from.
    pytest.mark.skip(reason="no release of this format is there to upgrade from"),
]

JOBS = ("handler", "command")
TAKES_S = 0.3
"""Long enough that each end of a process finds launches of both kinds under way."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A cell of the previous release, with certificates and a worker beside each executor."""
    previous = install_previous(tmp_path)
    secured = Secured(tmp_path, executors=2, replica_extra=PATIENT)
    monkeypatch.setenv("RAFTCRON_TLS", str(secured.person))
    with secured.cell as cell:
        cell.variables = {name: {"PYTHONPATH": str(previous)} for name in cell.members}
        with Shop(cell, tmp_path) as shop:
            yield shop


def upgrade_replica(shop: Shop, replica: str) -> None:
    """Stop a replica with SIGTERM, start this release in its place, and return once it is level:
    before that the next one must not be stopped."""
    cell = shop.cell
    cell.terminate(replica)
    del cell.variables[replica]
    cell.start(replica)
    reached = max(row.applied for row in wait_until(cell.status, WITHIN_S, "an answer"))

    def is_level() -> bool:
        return any(
            row.id == replica and row.role in ("leader", "follower") and row.applied >= reached
            for row in cell.status()
        )

    wait_until(is_level, WITHIN_S, f"{replica} to be level")


def upgrade_executor(shop: Shop, executor: str) -> None:
    """Drain an executor, start this release in its place once it has left, and return once it
    serves."""
    cell = shop.cell
    cell.cli("executor", "drain", executor, "--wait")
    assert wait_exit_code(cell.pid(executor)) == 0
    del cell.variables[executor]
    cell.start(executor)
    shop.wait_served(executor)


def upgrade_worker(shop: Shop, executor: str) -> None:
    """End the worker beside an executor in an orderly way, and start one of this release."""
    [worker] = [one for one in shop.workers if one.name == executor]
    shop.workers.remove(worker)
    worker.end()
    shop.serve(executor)


def formats(shop: Shop) -> list[int]:
    """What the replicas say that they can apply, oldest first; the previous release says 0."""
    rows = wait_until(shop.cell.status, WITHIN_S, "an answer")
    return sorted(row.format for row in rows if row.kind == "replica")


def wait_equal(shop: Shop) -> None:
    """Return once all replicas were seen at one index, with one digest."""

    def seen() -> set[str]:
        rows = [row for row in shop.cell.status() if row.kind == "replica"]
        is_level = len(rows) == 3 and len({row.applied for row in rows}) == 1
        return {row.digest for row in rows} if is_level else set()

    digests = wait_until(seen, WITHIN_S, "all replicas at one index")
    assert len(digests) == 1, f"replicas of two releases have different states: {digests}"


def test_a_cell_is_upgraded_from_the_previous_release_and_no_launch_is_the_worse(
    shop: Shop,
) -> None:
    cell = shop.cell
    shop.apply(
        handler_job("handler", "work", f"payload = {TAKES_S}", 'deadline = "1h"')
        + command_job("command", shop.folder, f"sleep {TAKES_S}", 'deadline = "1h"')
    )
    for executor in cell.executors:
        shop.serve(executor)
    before = {name: cell.pid(name) for name in cell.members}
    assert formats(shop) == [0, 0, 0], "all are of the previous release"
    leaders = set()
    with Load(shop, *JOBS) as load:
        for replica in cell.replicas:
            load.wait_more()
            leaders.add(cell.leader())
            upgrade_replica(shop, replica)
        load.wait_more()
        leaders.add(cell.leader())
        for executor in cell.executors:
            upgrade_executor(shop, executor)
            load.wait_more()
        for executor in cell.executors:
            upgrade_worker(shop, executor)
        load.wait_more()
    rows = shop.wait_over()
    assert formats(shop) == [FORMAT] * 3, "all are of this release"
    assert all(cell.pid(name) != pid for name, pid in before.items()), "all are new"
    assert len(leaders) > 1, "leadership went from hand to hand"
    assert {row.launch for row in rows} == set(load.names), "none is lost"
    # An attempt whose order never left for an executor that goes away begins again as the next one.
    assert Counter(row.state for row in rows) == {"succeeded": len(load.names)}
    runs = [run.launch for run in shop.runs()]
    assert sorted(runs) == sorted(load.names), "each ran once"
    assert {run.job for run in shop.runs()} == {f"default/{job}" for job in JOBS}
    assert shop.wrong() == []
    wait_equal(shop)
