"""What dev asks of its cell: to take the crontab, and then, twice a second, what was launched.

It has a thread of its own, because the client waits, and a replica that does not answer must not
keep anybody from being started again or ended.
"""

from __future__ import annotations

import getpass
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from cron.api import table
from cron.api.jobs import ApplyReport, ApplyRequest, SourceFile
from cron.api.rpc import Asks
from cron.cli.render import visible
from cron.clock import Clock
from cron.dev.launches import LiveList
from cron.errors import ConfigError, CronError, CrontabError, NotNow, OutcomeUnknown, Unavailable
from cron.limits import CRONTAB_BYTES_MAX

LOOK_S: Final = 0.5
RETRY_S: Final = 0.1
PATIENCE_MS: Final = 10_000
"""After this long without a leader a person is told that something is wrong."""


Connect = Callable[[list[str]], AbstractContextManager[Asks]]


class Feed:
    """Applies one crontab (or none) and shows launches, in a thread, until `stop`.

    `failure` is the error that ended it, None while it runs. `ended` is called in its thread when
    it ends by itself.
    """

    def __init__(self, connect: Connect, files: list[SourceFile], *, system: bool = False) -> None:
        self._connect = connect
        self._files = files
        self._system = system
        self._stopping = threading.Event()
        self.failure: Exception | None = None

    def start(
        self,
        servers: list[str],
        clock: Clock,
        say: Callable[[str], None],
        look: Callable[[Asks, int], None],
        ended: Callable[[], None],
        works: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin; from now on `say` is called in the feed's thread, `look` before the crontab is
        applied and twice a second with the time, and `works` once the cell has a leader and the
        crontab."""

        def run() -> None:
            try:
                with self._connect(servers) as client:
                    self._run(client, clock, say, look, works)
            except Exception as error:  # noqa: BLE001 - the end of a thread: told by whoever waits
                self.failure = error
                ended()

        # A daemon thread: an answer that does not come must not hold up the end.
        threading.Thread(target=run, name="dev-feed", daemon=True).start()

    def stop(self) -> None:
        """Have it end after the call that is under way."""
        self._stopping.set()

    def _run(
        self,
        client: Asks,
        clock: Clock,
        say: Callable[[str], None],
        look: Callable[[Asks, int], None],
        works: Callable[[], None],
    ) -> None:
        started_ms = clock.wall_ms()
        if self._files and (report := self._apply(client, clock, say, look)) is not None:
            say(format_report(report, self._files[0].name))
            works()
        launches = LiveList(client, say, started_ms)
        while not self._stopping.wait(LOOK_S):
            try:
                look(client, clock.wall_ms())
                launches.run_once(clock.wall_ms())
            except (Unavailable, OutcomeUnknown):
                continue  # no leader for a moment: what happened meanwhile is shown afterwards
            works()

    def _apply(
        self,
        client: Asks,
        clock: Clock,
        say: Callable[[str], None],
        look: Callable[[Asks, int], None],
    ) -> ApplyReport | None:
        request = ApplyRequest(
            files=self._files, system=self._system, prune=True, is_confirmed=True, by=_user()
        )
        since_ms = clock.mono_ms()
        while not self._stopping.wait(RETRY_S):
            try:
                look(client, clock.wall_ms())  # first: it may be another cell that answers
                return client.ask(table.PUT_JOBS, request)
            except (Unavailable, OutcomeUnknown, NotNow) as error:  # twice is as good as once
                if clock.mono_ms() - since_ms > PATIENCE_MS:
                    say(f"no leader yet: {visible(str(error))}; the processes' logs say why")
                    since_ms = clock.mono_ms()
        return None


def read_crontab(name: str) -> SourceFile:
    """Return the file with what it contains.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with Path(name).open("rb") as file:
            content = file.read(CRONTAB_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise ConfigError(f"{name}: {reason}", "name a crontab or a TOML job file") from error
    return SourceFile(Path(name).name, content)


def refuse_errors(file: SourceFile, *, system: bool) -> None:
    """Return if the cell would take the file by itself: a cell takes seconds to say that it won't.

    Raises:
        CrontabError: with all errors of the file.
    """
    from cron.crontab.reader import read_file  # it costs time that `--help` need not wait for

    read_file(file.name, file.content, system=system).raise_for_errors()


def format_report(report: ApplyReport, name: str) -> str:
    """Return what an apply did: warnings first, then one line with what was counted."""
    counts: dict[str, int] = {}
    for change in report.changes:
        counts[change.action] = counts.get(change.action, 0) + 1
    what = ", ".join(f"{count} {action}" for action, count in counts.items()) or "no jobs"
    told = [str(problem) for problem in report.problems]
    told.append(f"applied {name}: {what}; default zone {report.zone}")
    return "\n".join(map(visible, told))


def format_error(error: CronError) -> str:
    """Return what a person is told: all problems with their hints, or the message and its hint."""
    if isinstance(error, CrontabError):
        rows = [(str(problem), problem.hint) for problem in error.problems]
    else:
        rows = [(str(error), error.hint)]
    return "\n".join(
        visible(message) + (f"\n  hint: {visible(hint)}" if hint else "") for message, hint in rows
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return str(os.getuid())
