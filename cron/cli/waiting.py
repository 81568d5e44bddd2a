"""How commands wait for what goes on in the cell: for launches, drains, snapshots, new disks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import click

from cron.api import table
from cron.api.launches import LaunchView, ShowRequest
from cron.cli import exits, render
from cron.cli.options import Settings
from cron.cli.rows import launch_row
from cron.errors import OutcomeUnknown, ReplicaFault, Unavailable
from launcher.protocol.names import short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client

T = TypeVar("T")

_POLL_S: Final = 0.1
_POLL_S_MAX: Final = 1.0
_MOMENT_MS: Final = 500
"""A leader knows this soon that a launch is skipped, or what it waits for."""
FAULTS_MAX: Final = 3
"""Answers in a row that say that a replica has a bug. Each was asked for again and again for the
time of a call: a replica that fails so often does so for ever."""
_LOST: Final = "lost"
_SUCCEEDED: Final = "succeeded"
_LOOKS_MAX: Final = 100
"""Launches that are looked at between two pauses, oldest first: they end about in that order."""

wait_option = click.option(
    "--wait", is_flag=True, help="Wait until all launches are over; exit with 1 if one failed."
)


class Wait:
    """Looks again and again, with growing pauses, at something that continues whoever looks.

    `wait_ms` ends the wait, None does not. `say` prints a line on stderr, or on stdout
    without `is_err`. With `renews` the time begins anew with each answer.
    """

    def __init__(
        self,
        settings: Settings,
        wait_ms: int | None,
        pause_s: float,
        *,
        is_err: bool = True,
        renews: bool = False,
    ) -> None:
        self._clock = settings.clock
        self._wait_ms = wait_ms
        self._pause_s = pause_s
        self._is_err = is_err
        self._renews = renews
        self._said = ""

    def say(self, line: str) -> None:
        """Print a line unless it was the last one. "" means that there is nothing to wait for."""
        if line and line != self._said:
            render.line(line, err=self._is_err)
        self._said = line

    def looks(
        self,
        ask: Callable[[], T],
        known: T | None = None,
        away: Callable[[str], None] = lambda error: None,
    ) -> Iterator[T]:
        """Yield what `ask` returns until the time is over. `known` is yielded first, if given.

        Where nobody can answer, a new leader may: `away` is called with the reason.

        Raises:
            OutcomeUnknown: the replicas answered with an error of their own, FAULTS_MAX times.
        """
        end_ms = None if self._wait_ms is None else self._clock.mono_ms() + self._wait_ms
        pause_s, faults = self._pause_s, 0
        while True:
            try:
                yield ask() if known is None else known
                faults = 0
                if self._renews and self._wait_ms is not None:
                    end_ms = self._clock.mono_ms() + self._wait_ms
            except ReplicaFault as error:
                faults += 1
                away(str(error))
                if faults == FAULTS_MAX:
                    text = f"nobody can say whether it is over: {error}"
                    hint = "what was asked for goes on; the log of that replica says more"
                    raise OutcomeUnknown(text, hint) from error
            except (Unavailable, OutcomeUnknown) as error:
                faults = 0
                away(str(error))
            known = None
            left_ms = None if end_ms is None else end_ms - self._clock.mono_ms()
            if left_ms is not None and left_ms <= 0:
                return
            time.sleep(pause_s if left_ms is None else min(pause_s, left_ms / 1000))
            pause_s = min(2 * pause_s, max(pause_s, _POLL_S_MAX))


def until_known(settings: Settings, client: Client, view: LaunchView) -> LaunchView:
    """Return a launch once it has begun or a moment is over, and say what it waits for."""
    wait = Wait(settings, _MOMENT_MS, _POLL_S / 2)
    seen = view
    for seen in wait.looks(lambda: _look(client, view.launch), view):
        if not seen.is_open or seen.attempt:
            break
    wait.say(_waits_line(seen))
    return seen


def until_over(settings: Settings, client: Client, view: LaunchView) -> LaunchView:
    """Return a launch once it is over, or as it was last seen where --timeout is over first. Says
    meanwhile what it waits for.

    A change of leader and a cell without a leader are waited for.
    """
    wait = Wait(settings, settings.timeout_ms, _POLL_S)

    def away(error: str) -> None:
        wait.say(f"raftcron: {short_job_name(view.launch)} waits: {error}")

    seen = view
    for seen in wait.looks(lambda: _look(client, view.launch), view, away):
        if seen is not view:
            wait.say(_waits_line(seen))
        if not seen.is_open:
            break
    return seen


def _look(client: Client, launch: str) -> LaunchView:
    """Return the newest attempt of a launch."""
    return client.ask(table.SHOW, ShowRequest(launch=launch))[-1]


def _waits_line(view: LaunchView) -> str:
    """Return the line that says what an open launch waits for, "" if for nothing but its end."""
    waiting = view.waiting
    if view.in_doubt and not waiting:
        where = f"executor {view.executor}" if view.executor else "an executor of it"
        waiting = (
            f"{where} is not connected; it is over when that is back, or when its lease is over"
        )
    if not view.is_open or not waiting:
        return ""
    return f"raftcron: {short_job_name(view.launch)} waits: {waiting}"


def wait_for_all(settings: Settings, client: Client, names: Sequence[str]) -> None:
    """Wait until launches are over and say how each ended: as one object a line, or as a line for
    each that did not succeed and a sum. The worst of them decides how the command ends.

    Raises:
        OutcomeUnknown: --timeout was over first. click's Exit: one of them did not succeed.
    """
    views = _until_all(settings, client, names)
    bad = [view for view in views if not view.is_open and view.state != _SUCCEEDED]
    open_count = len(names) - sum(not view.is_open for view in views)
    if settings.is_json:
        render.json_lines(map(launch_row, views))
    else:
        for view in bad:
            render.line(f"{short_job_name(view.launch)} {ending(view)}")
        render.line(f"{len(names) - open_count - len(bad):,} of {len(names):,} succeeded")
    if open_count:
        raise OutcomeUnknown(
            f"{open_count:,} of {render.number(len(names), 'launch', 'launches')} are not over "
            f"{settings.within}",
            "they go on; `raftcron show` says what became of one",
        )
    if bad:
        raise click.exceptions.Exit(exits.FAILED)


def _until_all(settings: Settings, client: Client, names: Sequence[str]) -> list[LaunchView]:
    """Return launches in the order of their names once all are over, or as they were last seen
    where --timeout is over first. Says on stderr how many are over."""
    wait = Wait(settings, settings.timeout_ms, _POLL_S)
    seen: dict[str, LaunchView] = {}

    def waiting() -> list[str]:
        return [name for name in names if name not in seen or seen[name].is_open]

    def ask() -> None:
        for name in waiting()[:_LOOKS_MAX]:
            seen[name] = _look(client, name)

    def away(error: str) -> None:
        wait.say(f"raftcron: {short_job_name(waiting()[0])} waits: {error}")

    for _ in wait.looks(ask, away=away):
        over = [view for view in seen.values() if not view.is_open]
        if len(over) == len(names):
            break
        bad = sum(view.state != _SUCCEEDED for view in over)
        more = f", {bad:,} not well" if bad else ""
        if over:
            wait.say(f"raftcron: {len(over):,} of {len(names):,} are over{more}")
    return [seen[name] for name in names if name in seen]


def is_lost(view: LaunchView) -> bool:
    """Return whether the end of a launch, or of a part of it, was seen by nobody."""
    return view.state == _LOST or any(part.state == _LOST for part in view.parts)


def ending(view: LaunchView) -> str:
    """Return how a launch ended: its state, and why."""
    code = f", exit code {view.exit_code}" if view.exit_code else ""
    reason = f" ({view.reason})" if view.reason else ""
    detail = f": {view.detail}" if view.detail else ""
    return f"{view.state}{reason}{code}{detail}"
