"""Tasks over the death of the leader at each point between their submit and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from launcher.client.client import Client
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.test_failover_leader import POINTS
from tests.cluster.worker_rig import WITHIN_S, Shop

pytestmark = pytest.mark.timeout(240)

TASKS: Final = 30
AFTER_SUBMIT: Final = "after-submit"


class Mortal:
    """A shop whose leader dies once at a point, from `arm` on."""

    def __init__(self, make_cell: Callable[..., Cell], folder: Path, point: str) -> None:
        cell = make_cell(replica_extra=PATIENT)
        self.died = folder / "died"
        self.died.touch()
        for name in cell.replicas:
            cell.failpoints[name] = f"{point}=kill+file:{self.died}"
        self.shop = Shop(cell, folder)

    def serve(self) -> None:
        """Start a worker, and a queue that waits for it while its executor finds a new leader."""
        self.shop.serve()
        file = self.shop.make(
            "queues.toml", '[[queue]]\nname = "work"\nhandler = "work"\nunknown-handler = "wait"\n'
        )
        self.shop.cell.cli("queue", "apply", str(file))

    def arm(self) -> None:
        """Have the next leader that comes to the point die there."""
        self.died.unlink()

    def revive(self) -> None:
        """Start the leader again that died."""
        wait_until(self.died.exists, WITHIN_S, "the death of the leader")
        cell = self.shop.cell
        wait_until(lambda: any(map(cell.is_down, cell.replicas)), WITHIN_S, "its end")
        cell.start()

    def check(self, *keys: str) -> None:
        """Fail unless tasks of these keys, and no others, ran once and succeeded."""

        def ended() -> dict[str, str]:
            rows = self.shop.ask(lambda: self.shop.cell.rows("task", "list"))
            return {row["key"]: row["state"] for row in rows}

        wanted = dict.fromkeys(keys, "succeeded")
        wait_until(lambda: ended() == wanted, WITHIN_S, f"the ends of {len(keys)} tasks")
        ran = sorted(run.job for run in self.shop.runs())
        assert ran == sorted(f"default/work:{key}" for key in keys)
        assert self.shop.wrong() == []
        (audit,) = self.shop.cell.rows("audit")
        assert (audit["ok"], audit["tasks"], audit["tasks_ran"]) == (True, len(keys), len(keys))


@pytest.mark.parametrize("point", [*POINTS, AFTER_SUBMIT])
def test_tasks_run_once_where_the_leader_dies_at_any_step_of_them(
    make_cell: Callable[..., Cell], tmp_path: Path, point: str
) -> None:
    mortal = Mortal(make_cell, tmp_path, point)
    with mortal.shop as shop, Client(",".join(shop.cell.ports.servers), timeout=120) as client:
        mortal.serve()
        mortal.arm()
        items = [
            ("work", 0.01, {"key": f"k{n}", "delay": 0 if n % 2 else "1s"}) for n in range(TASKS)
        ]
        tasks = client.submit_many(items)
        mortal.revive()
        if point == AFTER_SUBMIT:
            assert not any(task.is_new for task in tasks), "the answer is that of a repeated call"
        assert all(client.wait(task, timeout=WITHIN_S).succeeded for task in tasks)
        mortal.check(*(f"k{n}" for n in range(TASKS)))


def test_a_program_that_dies_before_its_answer_has_submitted_its_task_once(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    mortal = Mortal(make_cell, tmp_path, AFTER_SUBMIT)
    with mortal.shop as shop:
        mortal.serve()
        mortal.arm()
        program = (
            "import sys\n"
            "from raftcron import Client\n"
            "task = Client(sys.argv[1], timeout=120).submit('work', 0.01, key='order-7')\n"
            "print(task.is_new)\n"
        )
        argv = [sys.executable, "-c", program, ",".join(shop.cell.ports.servers)]
        # Stopped as soon as the leader is dead, and killed: it never has an answer.
        doomed = subprocess.Popen(argv, stdout=subprocess.PIPE)
        wait_until(mortal.died.exists, WITHIN_S, "the death of the leader")
        os.kill(doomed.pid, signal.SIGKILL)
        said, _ = doomed.communicate()
        assert said == b"", "the leader died before it answered"
        mortal.revive()
        again = subprocess.run(argv, capture_output=True, timeout=180, check=True)
        assert again.stdout == b"False\n"
        mortal.check("order-7")
