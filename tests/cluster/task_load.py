"""Tasks that a program hands over while something happens to its cell: chains and groups.

Each round is a chain of three tasks, a group of two, and the task that the close of the group
brings. Every call has the keys of its round, so one that got no answer is repeated.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from cron.api import table
from cron.api.client import Client
from cron.api.groups import CloseGroupRequest, GroupQuery
from cron.api.tasks import SubmitReport, SubmitRequest, TaskQuery, TaskSubmission
from cron.errors import OutcomeUnknown, Unavailable
from tests.cluster.harness import wait_until
from tests.cluster.witness import Run
from tests.cluster.worker_rig import WITHIN_S, Shop

HANDLER: Final = "work"
PAUSE_S: Final = 0.5
"""Between two rounds: half of what the machine bears is left to the other load."""
_PAYLOAD: Final = msgspec.Raw(b"0.05")


def keys_of(number: int) -> list[str]:
    """Return the keys of the tasks of one round: a chain, a group, and what follows the group."""
    group = f"g{number}"
    return [*(f"c{number}-{link}" for link in "abc"), f"{group}-a", f"{group}-b", f"{group}.done"]


def follows(number: int) -> list[tuple[str, str]]:
    """Return pairs of keys of one round: the second task waits for the end of the first one."""
    first, second, third, one, other, last = keys_of(number)
    return [(first, second), (second, third), (one, last), (other, last)]


class TaskLoad:
    """Hands over rounds of tasks, again and again, inside a `with`; `rounds` were acknowledged."""

    def __init__(self, shop: Shop, client: Client) -> None:
        self._shop = shop
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rounds = 0
        self.refused: list[str] = []

    def __enter__(self) -> TaskLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WITHIN_S)
        self._client.close()

    def _run(self) -> None:
        for number in itertools.count():
            while not self._stop.wait(PAUSE_S):
                try:
                    self._hand_over(number)
                except (Unavailable, OutcomeUnknown):
                    continue  # asked again, with the same keys
                self.rounds += 1
                break
            if self._stop.is_set():
                return

    def _hand_over(self, number: int) -> None:
        first, second, third, one, other, last = keys_of(number)
        group = f"g{number}"
        report: SubmitReport = self._client.ask(
            table.SUBMIT,
            SubmitRequest(
                tasks=[
                    _task(first),
                    _task(second, after=[f"{HANDLER}:{first}"]),
                    _task(third, after=[f"{HANDLER}:{second}"]),
                    _task(one, group=group),
                    _task(other, group=group),
                ]
            ),
        )
        errors = [task.error for task in report.tasks if task.error is not None]
        if any(error.code == "unavailable" for error in errors):
            raise Unavailable("a new leader does not know its executors yet")
        # A round that is repeated after its close has the same tasks: that is no error either.
        self.refused += [f"{error.code}: {error.message}" for error in errors]
        self._client.ask(table.CLOSE_GROUP, CloseGroupRequest(name=group, on_complete=_task(last)))

    def wait_more(self, rounds: int = 2) -> None:
        """Return once some more rounds were acknowledged."""
        before = self.rounds
        wait_until(lambda: self.rounds >= before + rounds, WITHIN_S, "more tasks")

    def wait_ran(self) -> None:
        """Return once every task of the acknowledged rounds began. The last one of a chain has no
        launch before the others are over, so a cell without open launches may still have it."""
        wanted = {f"{HANDLER}:{key}" for n in range(self.rounds) for key in keys_of(n)}

        def ran() -> bool:
            return wanted <= {run.job.partition("/")[2] for run in self._shop.runs()}

        wait_until(ran, WITHIN_S, "the last tasks of chains")

    def wrong(self, runs: Mapping[str, Run]) -> list[str]:
        """Return what is wrong with the tasks of acknowledged rounds; `runs` are those of tasks by
        key."""
        found = list(self.refused)
        for number in range(self.rounds):
            found += [self._told(key) for key in keys_of(number) if key not in runs]
            found += [
                f"{later} began before the end of {earlier}"
                for earlier, later in follows(number)
                if earlier in runs and later in runs
                if not 0 <= runs[earlier].end < runs[later].starts[0]
            ]
            view = self._shop.ask(
                lambda name=f"g{number}": self._shop.cell.client.ask(
                    table.GET_GROUP, GroupQuery(name=name)
                )
            )
            if (view.state, view.done, view.failed, view.dropped) != ("complete", 2, 0, 0):
                found.append(f"group g{number}: {view}")
        return found

    def _told(self, key: str) -> str:
        """Say what the cell knows of a task that never ran."""
        view = self._shop.ask(
            lambda: self._shop.cell.client.ask(table.GET, TaskQuery(name=f"{HANDLER}:{key}"))
        )
        return f"{key} never ran: {view}"


def _task(key: str, *, group: str = "", after: list[str] | None = None) -> TaskSubmission:
    return TaskSubmission(
        key=key,
        handler=HANDLER,
        payload=_PAYLOAD,
        group=group,
        after=after or [],
        on_lost="skip",
    )
