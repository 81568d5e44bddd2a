"""The lines that dev prints of its cell: one for each launch, and who leads whenever it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import click

from cron.api.launches import HistoryQuery, LaunchView
from cron.api.members import StatusRow
from cron.api.rpc import Asks
from cron.api.table import HISTORY, STATUS
from cron.cli.render import visible
from cron.errors import ConfigError
from launcher.protocol.names import short_job_name

LIMIT: Final = 1_000
"""Rows asked for at once: what is beyond it costs the leader more than it is worth."""
SUMMED: Final = 100
"""Rows asked for while launches are summed up: every row costs the leader, whose time is short."""
LINES_PER_SECOND: Final = 20
LINES_AT_ONCE: Final = 60
"""More launches than that are summed up in one line a second."""
SUMMARY_MS: Final = 1_000
RUNNING_MS: Final = 2_000
"""A launch that runs longer is shown while it runs, and again when it is over."""
SEEN_MAX: Final = 100_000

_COLOURS: Final = {
    "succeeded": "green",
    "failed": "red",
    "lost": "magenta",
    "skipped": "yellow",
    "cancelled": "yellow",
}


class LiveList:
    """Shows every launch that ends after `since_ms` once, in the order of their scheduled times.

    A launch that runs for more than two seconds gets a line with `launched` before that. Above 20
    launches a second one line a second says how many ended how; of more than 100 it counts the
    newest 100.
    """

    def __init__(self, cell: Asks, show: Callable[[str], None], since_ms: int) -> None:
        self._cell = cell
        self._show = show
        self._since_ms = since_ms
        self._looked_ms = since_ms
        self._lines = LINES_AT_ONCE
        self._is_summing = False
        self._seen: dict[tuple[str, int, str], None] = {}

    def run_once(self, now_ms: int) -> int:
        """Show what is new and return how many launches that were."""
        passed_ms = now_ms - self._looked_ms
        if self._is_summing and passed_ms < SUMMARY_MS:
            return 0
        limit = SUMMED if self._is_summing else LIMIT
        rows = self._cell.ask(HISTORY, HistoryQuery(limit=limit))
        fresh = [row for row in rows if self._is_new(row, now_ms)]
        self._looked_ms = now_ms
        self._lines = min(LINES_AT_ONCE, self._lines + LINES_PER_SECOND * passed_ms // 1000)
        self._is_summing = len(fresh) > self._lines
        self._lines = max(0, self._lines - len(fresh))
        for row in fresh:
            self._seen[_key(row)] = None
        while len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        if self._is_summing:
            self._show(format_summary(fresh, now_ms, is_cut=len(fresh) == limit))
        else:
            for row in reversed(fresh):
                self._show(format_launch(row))
        return len(fresh)

    def _is_new(self, row: LaunchView, now_ms: int) -> bool:
        if _key(row) in self._seen:
            return False
        if row.is_open:
            return 0 < row.started_at_ms <= now_ms - RUNNING_MS
        return row.ended_at_ms >= self._since_ms


def _key(row: LaunchView) -> tuple[str, int, str]:
    return row.launch, row.attempt, f"{row.kind} {row.state}"


def format_launch(row: LaunchView) -> str:
    """Return one line: time of its end, launch, state, lateness, executor and what went wrong."""
    at_ms = row.finished_at_ms or row.ended_at_ms or row.started_at_ms
    state = click.style(f"{visible(row.state):<9}", fg=_COLOURS.get(row.state))
    attempt = f"#{row.attempt}" if row.attempt > 1 else ""
    name = f"{short_job_name(row.launch)}{attempt}"
    if row.count > 1:
        last = datetime.fromtimestamp(row.last_s, UTC).strftime("%H:%M:%SZ")
        name += f" and {row.count - 1} more until {last}"
    parts = [_clock(at_ms), visible(name), state]
    if row.lateness_ms is not None:
        parts.append(f"{row.lateness_ms:+d} ms")
    parts += [visible(one) for one in (row.executor, row.reason) if one]
    if row.exit_code:
        parts.append(f"exit code {row.exit_code}")
    if row.detail:
        parts.append(visible(row.detail))
    return "  ".join(parts)


def format_summary(rows: list[LaunchView], now_ms: int, *, is_cut: bool) -> str:
    """Return one line for many launches: how many ended how, and how late they began. `is_cut`
    says that there were more."""
    counts = Counter(row.state for row in rows)
    states = ", ".join(f"{count:,} {visible(state)}" for state, count in counts.most_common())
    late_ms = sorted(row.lateness_ms for row in rows if row.lateness_ms is not None)
    late = ""
    if late_ms:  # else nothing was started of all these
        late = f"; {late_ms[len(late_ms) // 2]:+d} ms median, {late_ms[-1]:+d} ms at most"
    number = f"more than {len(rows):,}" if is_cut else f"{len(rows):,}"
    return f"{_clock(now_ms)}  {number} launches: {states}{late}"


def _clock(at_ms: int) -> str:
    """Return the time of the day; the launch's name beside it has the date."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def refuse_strangers(cell: Asks, is_ours: Callable[[int], bool]) -> None:
    """Look who answers, before anything is applied: later a person may replace a replica. `is_ours`
    says whether this `dev` started a process.

    Raises:
        ConfigError: replicas of another cell answer where those of this one should.
    """
    for row in cell.ask(STATUS).rows:
        if row.kind == "replica" and row.pid and not is_ours(row.pid):
            what = f"{row.id} of another cell (pid {row.pid}) answers there"
            hint = "end that cell, or choose other ports with --port"
            raise ConfigError(f"{row.address}: {what}; nothing was applied", hint)


LOOK_MS: Final = 1_000


class Leaders:
    """Says `r2 leads now, term 2, 0.5 s after r1`, where r1 died, once for each new term.

    `died_ms` returns when a replica was last seen to die, by this process's wall clock; 0 if it
    never did. `wall_ms` is that clock; without one, a look's answer is of the time of the look.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        died_ms: Callable[[str], int],
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        self._say = say
        self._died_ms = died_ms
        self._wall_ms = wall_ms
        self._looked_ms = 0
        self._last: StatusRow | None = None
        self._last_ms = 0

    def look(self, cell: Asks, now_ms: int) -> None:
        """Ask who leads, at most once a second, and print it if that changed."""
        if now_ms - self._looked_ms < LOOK_MS:
            return
        rows = cell.ask(STATUS).rows
        self._looked_ms = now_ms
        if self._wall_ms is not None:
            now_ms = self._wall_ms()
        leader = next((row for row in rows if row.role == "leader"), None)
        if leader is None or (self._last is not None and leader.term <= self._last.term):
            return
        before, self._last, after = self._last, leader, ""
        if before is not None:
            died_ms = self._died_ms(before.id)
            # Both times by our own clock: those of the replicas may be wrong, which is no reason to
            # say that nobody was away, or for hours.
            began_ms, led_ms = _since_ms(before, self._last_ms), _since_ms(leader, now_ms)
            if began_ms < died_ms <= led_ms:
                after = f", {(led_ms - died_ms) / 1000:.1f} s after {before.id}"
            elif before.id != leader.id:
                after = f"; {before.id} led before"
        self._last_ms = now_ms
        self._say(f"{leader.id} leads now, term {leader.term}{after}")


def _since_ms(leader: StatusRow, now_ms: int) -> int:
    """Return since when a leader leads, by our clock: for how long, it says by its own."""
    if not leader.wall_ms:
        return leader.since_ms
    return now_ms - max(0, leader.wall_ms - leader.since_ms)
