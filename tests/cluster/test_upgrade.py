"""A whole cell goes from the previous release to this one under load, in the order of
docs/upgrade.md, with certificates and a token: no launch and no task is the worse, and both
releases have the same state.

A release that refuses the log or the disks of the one before it begins the chain of upgrades anew,
at `previous_release.PREVIOUS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cron.api import table
from cron.api.client import Client
from cron.api.tasks import SubmitRequest, TaskSubmission
from cron.state.commands import FORMAT
from launcher.tls import files_of, load_credentials
from tests.cluster.failover import PATIENT
from tests.cluster.harness import wait_until
from tests.cluster.previous_release import format_of, install_previous
from tests.cluster.secured_cell import Secured
from tests.cluster.task_load import HANDLER, TaskLoad
from tests.cluster.witness import witnessed
from tests.cluster.worker_rig import WITHIN_S, Load, Shop, command_job, handler_job, wait_exit_code

pytestmark = pytest.mark.timeout(600)

JOBS = ("handler", "command")
TAKES_S = 0.3
"""Long enough that each end of a process finds launches of both kinds under way."""
TICK = "tick"
"""A job with instants of its own, which must not overlap."""
PROGRAM = "shop"
"""Who hands over tasks: a person's certificate with no role, and a token."""
LATE = "late"
"""The key of a task that waits in the previous release, and runs in this one."""


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """Where the previous release is installed."""
    return install_previous(tmp_path)


@pytest.fixture
def secured(tmp_path: Path, previous: Path, monkeypatch: pytest.MonkeyPatch) -> Secured:
    """A cell of the previous release with certificates; nothing is started yet."""
    secured = Secured(tmp_path, executors=2, replica_extra=PATIENT)
    monkeypatch.setenv("RAFTCRON_TLS", str(secured.person))
    secured.cell.variables = {name: {"PYTHONPATH": str(previous)} for name in secured.cell.members}
    return secured


@pytest.fixture
def shop(tmp_path: Path, secured: Secured) -> Iterator[Shop]:
    """The cell with a worker beside each executor."""
    with secured.cell as cell, Shop(cell, tmp_path) as shop:
        yield shop


@pytest.fixture
def program(shop: Shop, secured: Secured) -> Client:
    """A program that may hand over tasks, because of a token of the previous release."""
    cell = shop.cell
    cell.cli("role", "grant", "ada", "admin")
    token = cell.cli("token", "create", PROGRAM, "--role", "submitter").stdout.strip()
    nobody = secured.certs.issued("person", "nobody", cell="default")
    shown = load_credentials(files_of(str(nobody)))
    assert cell.cli("jobs", "--tls", str(nobody), expect=7), "without the token it may nothing"
    return Client(cell.ports.servers, 5_000, shown, token=token)


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
    """What the replicas say that they can apply, oldest first."""
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


def tick_job(shop: Shop) -> str:
    """Return a job that is due each second, for a job file."""
    body = witnessed(shop.file, "sleep 0.1")
    options = 'name = "tick"\noverlap = "queue"\ncatchup = "all"'
    return f"[[job]]\n{options}\nschedule = \"@every 1s\"\ncommand = '''{body}'''\n\n"


def submit_late(shop: Shop, program: Client) -> None:
    """Hand over a task that is not due before all are of this release."""
    late = TaskSubmission(key=LATE, handler=HANDLER, payload=msgspec.Raw(b"0"), delay_ms=3_600_000)
    [verdict] = shop.ask(lambda: program.ask(table.SUBMIT, SubmitRequest(tasks=[late]))).tasks
    assert (verdict.state, verdict.error) == ("waiting", None)


def run_late(shop: Shop) -> None:
    """Run that task now."""
    task = f"{HANDLER}:{LATE}"
    assert [row["state"] for row in shop.cell.rows("task", "get", task)] == ["waiting"]
    shop.cell.cli("task", "run-now", task)


def upgrade(shop: Shop, load: Load, tasks: TaskLoad) -> set[str]:
    """Upgrade all processes one after the other, with some launches and tasks after each; return
    who led meanwhile."""
    leaders = set()

    def go_on() -> None:
        load.wait_more()
        tasks.wait_more()
        leaders.add(shop.cell.leader())

    for replica in shop.cell.replicas:
        go_on()
        upgrade_replica(shop, replica)
    for executor in shop.cell.executors:
        go_on()
        upgrade_executor(shop, executor)
    for executor in shop.cell.executors:
        go_on()
        upgrade_worker(shop, executor)
    go_on()
    return leaders


def test_a_cell_is_upgraded_from_the_previous_release_and_no_launch_is_the_worse(
    shop: Shop, program: Client, previous: Path
) -> None:
    cell = shop.cell
    assert format_of(previous) < FORMAT, "the chain of upgrades has begun anew"
    assert formats(shop) == [format_of(previous)] * 3, "all are of the previous release"
    for executor in cell.executors:
        shop.serve(executor)
    shop.apply(
        handler_job("handler", "work", f"payload = {TAKES_S}", 'deadline = "1h"')
        + command_job("command", shop.folder, f"sleep {TAKES_S}", 'deadline = "1h"')
        + tick_job(shop)
    )
    submit_late(shop, program)
    before = {name: cell.pid(name) for name in cell.members}
    with Load(shop, *JOBS) as load, TaskLoad(shop, program) as tasks:
        leaders = upgrade(shop, load, tasks)
    assert formats(shop) == [FORMAT] * 3, "all are of this release"
    assert all(cell.pid(name) != pid for name, pid in before.items()), "all are new"
    assert len(leaders) > 1, "leadership went from hand to hand"
    run_late(shop)
    shop.wait_runs(1, f"{HANDLER}:{LATE}")
    tasks.wait_ran()
    cell.cli("pause", TICK)
    # The pause skips what falls due in it. An attempt whose order never left for an executor that
    # goes away begins again as the next one.
    rows = [row for row in shop.wait_over() if row.reason != "paused"]
    ends = Counter((row.state, row.reason) for row in rows)
    assert ends == {("succeeded", ""): len(rows)}
    assert {row.launch for row in rows if row.job in JOBS} == set(load.names), "none is lost"
    runs = [run for run in shop.runs() if run.job in {f"default/{job}" for job in JOBS}]
    assert sorted(run.launch for run in runs) == sorted(load.names), "each ran once"
    assert tasks.wrong({run.job.partition(":")[2]: run for run in shop.runs()}) == []
    assert len(shop.runs()) == len({run.launch for run in shop.runs()}), "nothing ran twice"
    ticks = {"every_s": {f"default/{TICK}": 1}, "forbids": [f"default/{TICK}"]}
    assert shop.wrong(**ticks) == []
    assert cell.rows("token", "list")[0]["state"] == "live"
    wait_equal(shop)
