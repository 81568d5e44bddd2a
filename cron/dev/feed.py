"""Applies the crontab of dev to its cell, and then asks twice a second what was launched.

This runs in a thread of its own, because the client blocks, and a replica that does not answer must
not keep dev from starting processes again or ending them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from cron.api import table
from cron.api.jobs import ApplyReport, ApplyRequest, SourceFile
from cron.api.rpc import Asks
from cron.cli.options import person
from cron.cli.render import visible
from cron.clock import Clock
from cron.dev.launches import LiveList
from cron.errors import NotNow, OutcomeUnknown, Unavailable

LOOK_S: Final = 0.5
RETRY_S: Final = 0.1
PATIENCE_MS: Final = 10_000
"""After this time without a leader, a line says that something is wrong."""


Connect = Callable[[list[str]], AbstractContextManager[Asks]]


class Feed:
    """Applies one crontab (or none) and shows launches, in a thread, until `stop`.

    `say` prints a line. `look` is called with the time before the crontab is applied, and twice a
    second; `check` raises if the crontab must not be applied to the cell that answers. All are
    called in the feed's thread. `failure` is the error that ended it, None while it runs.
    """

    def __init__(
        self,
        files: list[SourceFile],
        clock: Clock,
        say: Callable[[str], None],
        look: Callable[[Asks, int], None],
        check: Callable[[Asks], None] = lambda cell: None,
        *,
        system: bool = False,
    ) -> None:
        self._files = files
        self._clock = clock
        self._say = say
        self._look = look
        self._check = check
        self._system = system
        self._stopping = threading.Event()
        self.failure: Exception | None = None

    def start(
        self,
        connected: AbstractContextManager[Asks],
        ended: Callable[[], None],
        works: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin. `works` is called once the cell has a leader and the crontab, `ended` when the
        feed ends by itself."""

        def run() -> None:
            try:
                with connected as client:
                    self._run(client, works)
            except Exception as error:  # noqa: BLE001 - the end of a thread; `failure` has it
                self.failure = error
                ended()

        # A daemon thread: an answer that does not come must not hold up the end.
        threading.Thread(target=run, name="dev-feed", daemon=True).start()

    def stop(self) -> None:
        """End after the call that is under way."""
        self._stopping.set()

    def _run(self, client: Asks, works: Callable[[], None]) -> None:
        started_ms = self._clock.wall_ms()
        if self._files and (report := self._apply(client)) is not None:
            self._say(format_report(report, self._files[0].name))
            works()
        launches = LiveList(client, self._say, started_ms)
        while not self._stopping.wait(LOOK_S):
            try:
                self._look(client, self._clock.wall_ms())
                launches.run_once(self._clock.wall_ms())
            except (Unavailable, OutcomeUnknown):
                continue  # no leader for a moment: what happened meanwhile is shown afterwards
            works()

    def _apply(self, client: Asks) -> ApplyReport | None:
        request = ApplyRequest(
            files=self._files, system=self._system, prune=True, is_confirmed=True, by=person()
        )
        since_ms = self._clock.mono_ms()
        while not self._stopping.wait(RETRY_S):
            try:
                self._check(client)
                self._look(client, self._clock.wall_ms())
                return client.ask(table.PUT_JOBS, request)
            except (Unavailable, OutcomeUnknown, NotNow) as error:  # twice is as good as once
                if self._clock.mono_ms() - since_ms > PATIENCE_MS:
                    self._say(f"no leader yet: {visible(str(error))}; the processes' logs say why")
                    since_ms = self._clock.mono_ms()
        return None


def format_report(report: ApplyReport, name: str) -> str:
    """Return what an apply did: warnings first, then one line with what was counted."""
    counts: dict[str, int] = {}
    for change in report.changes:
        counts[change.action] = counts.get(change.action, 0) + 1
    what = ", ".join(f"{count} {action}" for action, count in counts.items()) or "no jobs"
    lines = [str(problem) for problem in report.problems]
    lines.append(f"applied {name}: {what}; default zone {report.zone}")
    return "\n".join(map(visible, lines))
