"""Launches that somebody waits for: looked at until they are over, and what is said meanwhile."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cron.api import table
from cron.api.launches import LaunchView, ShowRequest
from cron.cli import exits, render
from cron.cli.options import Settings
from cron.cli.rows import launch_row
from cron.errors import OutcomeUnknown, Unavailable
from launcher.names import short_job_name

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from cron.api.client import Client

_POLL_S: Final = 0.1
_POLL_S_MAX: Final = 1.0
_MOMENT_MS: Final = 500
"""What a leader knows of a launch, it knows this soon: that it is skipped, or what it waits for."""
_LOST: Final = "lost"
_SUCCEEDED: Final = "succeeded"
_LOOKS_MAX: Final = 100
"""Launches that are looked at between two pauses, oldest first: they end about in that order."""


def wait_option(command: F) -> F:
    """Add --wait, for the launches that a command makes due again."""
    return click.option(
        "--wait", is_flag=True, help="Wait until all launches are over; exit with 1 if one failed."
    )(command)


class Watch:
    """Looks at a launch until there is enough to tell, and says meanwhile what it waits for."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._clock = settings.clock
        self._client = client
        self._wait_ms = settings.timeout_ms
        self._said = ""

    def until(self, view: LaunchView, *, is_end: bool) -> LaunchView:
        """Return the launch once it is over (`is_end`), or once it has begun or a moment is over;
        as it was last seen where --timeout is over first.

        A change of leader meanwhile is waited for, and with `is_end` also a cell without one: the
        launch goes on, whoever looks.
        """
        patience_ms = self._wait_ms if is_end else _MOMENT_MS
        end_ms = None if patience_ms is None else self._clock.mono_ms() + patience_ms
        pause_s = _POLL_S if is_end else _POLL_S / 2
        while view.is_open and (is_end or not view.attempt):
            left_ms = None if end_ms is None else end_ms - self._clock.mono_ms()
            if left_ms is not None and left_ms <= 0:
                break
            time.sleep(pause_s if left_ms is None else min(pause_s, left_ms / 1000))
            pause_s = min(2 * pause_s, _POLL_S_MAX)
            view = self._look(view, is_end=is_end)
        if not is_end:
            self._say(view.launch, _waits_for(view))
        return view

    def until_all(self, names: Sequence[str]) -> list[LaunchView]:
        """Return launches in the order of their names once all are over, or as they were last seen
        where --timeout is over first. Says on stderr how many are over, when that is news.

        A cell without a leader is waited for, as `until` does.
        """
        end_ms = None if self._wait_ms is None else self._clock.mono_ms() + self._wait_ms
        pause_s = _POLL_S
        seen: dict[str, LaunchView] = {}
        while True:
            waiting = [name for name in names if name not in seen or seen[name].is_open]
            for name in itertools.islice(waiting, _LOOKS_MAX):
                try:
                    seen[name] = self._client.ask(table.SHOW, ShowRequest(launch=name))[-1]
                except (Unavailable, OutcomeUnknown) as error:
                    self._say(name, str(error))
                    break
            over = [view for view in seen.values() if not view.is_open]
            left_ms = None if end_ms is None else end_ms - self._clock.mono_ms()
            if len(over) == len(names) or (left_ms is not None and left_ms <= 0):
                return [seen[name] for name in names if name in seen]
            self._say_progress(over, len(names))
            time.sleep(pause_s if left_ms is None else min(pause_s, left_ms / 1000))
            pause_s = min(2 * pause_s, _POLL_S_MAX)

    def _say_progress(self, over: list[LaunchView], count: int) -> None:
        bad = sum(view.state != _SUCCEEDED for view in over)
        news = f"{len(over):,} of {count:,} are over" + (f", {bad:,} not well" if bad else "")
        if over and news != self._said:
            render.line(f"raftcron: {news}", err=True)
            self._said = news

    def _look(self, view: LaunchView, *, is_end: bool) -> LaunchView:
        """Return the launch as it is now, or as it was where nobody can tell."""
        try:
            view = self._client.ask(table.SHOW, ShowRequest(launch=view.launch))[-1]
        except (Unavailable, OutcomeUnknown) as error:
            # What was asked for is committed: to end as if nothing had changed would be a lie.
            if is_end:
                self._say(view.launch, str(error))
            return view
        if is_end:
            self._say(view.launch, _waits_for(view))
        return view

    def _say(self, launch: str, news: str) -> None:
        """Say on stderr what the launch waits for, when that is news."""
        if news and news != self._said:
            render.line(f"raftcron: {short_job_name(launch)} waits: {news}", err=True)
        self._said = news


def _waits_for(view: LaunchView) -> str:
    """What an open launch waits for, "" if for nothing but its end."""
    if not view.is_open:
        return ""
    if not view.waiting and view.in_doubt:
        where = f"executor {view.executor}" if view.executor else "an executor of it"
        return f"{where} is not connected; it is over when that is back, or when its lease is over"
    return view.waiting


def is_lost(view: LaunchView) -> bool:
    """Whether the end of a launch, or of a part of it, was seen by nobody."""
    return view.state == _LOST or any(part.state == _LOST for part in view.parts)


def ending(view: LaunchView) -> str:
    """Return how a launch ended: its state, and why."""
    code = f", exit code {view.exit_code}" if view.exit_code else ""
    reason = f" ({view.reason})" if view.reason else ""
    detail = f": {view.detail}" if view.detail else ""
    return f"{view.state}{reason}{code}{detail}"


def wait_for_all(settings: Settings, client: Client, names: Sequence[str]) -> None:
    """Wait until launches are over and say how each ended: as one object a line, or as a line for
    each that did not succeed and a sum. The worst of them decides how the command ends.

    Raises:
        OutcomeUnknown: --timeout was over first. click's Exit: one of them did not succeed.
    """
    views = Watch(settings, client).until_all(names)
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
            f"within {(settings.timeout_ms or 0) / 1000:g} s",
            "they go on; `raftcron show` says what became of one",
        )
    if bad:
        raise click.exceptions.Exit(exits.FAILED)
