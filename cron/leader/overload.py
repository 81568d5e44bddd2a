"""Whether more falls due than can begin, since when, and how much was skipped for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from cron.api.members import OverloadView
from cron.scheduler.backlog import Line
from cron.state import commands as c
from cron.state.outcome import Result
from cron.state.state import State
from launcher.protocol.names import format_time
from launcher.protocol.status import Reason

_log = structlog.get_logger()

CALM_S: Final = 10
"""An overload is over when no line was behind for so long."""


class Overload:
    """The overload that one leader sees. `view` is for `status`, None while there is none."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._since_s = 0
        self._seen_s = 0
        self._skipped = 0
        self._unserved = ""
        self._unserved_skipped = 0
        self.view: OverloadView | None = None

    @property
    def note(self) -> str:
        """The overload, and what no executor can run, in sentences; "" if there is neither."""
        texts = []
        if self.view is not None:
            texts.append(
                f"overloaded since {format_time(self.view.since_s)}: more falls due than can begin "
                f"in {self.view.queue}; {self.view.skipped:,} instants are skipped/overload"
            )
        if self._unserved:
            skipped = f"{self._unserved_skipped:,} instants are skipped/no-executor"
            texts.append(f"{self._unserved}; {skipped}")
        return "; ".join(texts)

    def follow(self, command: c.Command, result: Result) -> None:
        """Count what an applied command has skipped."""
        if isinstance(command, c.Account):
            for line, verdict in zip(command.lines, result.items, strict=True):
                for run in () if verdict else line.skipped:
                    self._count(run.reason, run.count * len(line.jobs))
        elif isinstance(command, c.Skip):
            for item in command.items:
                self._count(item.reason, 1)

    def _count(self, reason: Reason, count: int) -> None:
        if reason is Reason.OVERLOAD:
            self._skipped += count
        elif reason is Reason.NO_EXECUTOR:
            self._unserved_skipped += count

    def look(self, lines: list[Line], now_s: int) -> None:
        """Note which lines are behind now."""
        unserved = [line for line in lines if line.why is Reason.NO_EXECUTOR]
        self._unserved = _unserved_text(_where(unserved)) if unserved else ""
        if not unserved:
            self._unserved_skipped = 0
        behind = [line for line in lines if line.why is not Reason.NO_EXECUTOR]
        if behind:
            self._seen_s = now_s
            if not self._since_s:
                self._since_s = min(line.since_s for line in behind)
                self._log(behind)
            self.view = OverloadView(
                since_s=self._since_s, queue=_where(behind), skipped=self._skipped
            )
        elif self._since_s and now_s - self._seen_s >= CALM_S:
            _log.info("overload.ended", replica=self._replica, count=self._skipped)
            self._since_s = self._skipped = 0
            self.view = None
        elif not self._since_s:
            self._skipped = 0

    def _log(self, behind: list[Line]) -> None:
        hint = "`raftcron status` says how much is skipped; add executors or slots, or launch less"
        error = f"more falls due than can begin in {_where(behind)}"
        _log.warning("overload.began", replica=self._replica, error=error, hint=hint)


def _where(behind: list[Line]) -> str:
    """Return the line in which most jobs wait, and how many others there are."""
    worst = max(behind, key=lambda line: len(line.numbers))
    more = f" and {len(behind) - 1} more" if len(behind) > 1 else ""
    return f"{_line_text(worst)}{more}"


def _unserved_text(where: str) -> str:
    return f"no executor can run what falls due in {where}"


def behind_text(line: Line) -> str:
    """Return why a line is behind, as text."""
    if line.why is Reason.NO_EXECUTOR:
        return _unserved_text(_line_text(line))
    return f"more falls due than can begin in {_line_text(line)}"


def _line_text(line: Line) -> str:
    """Return the name of a line: `queue command/5 of tenant acme`."""
    return f"queue {line.key.pool}/{line.key.priority} of tenant {line.key.tenant}"


def held_text(state: State, held: Mapping[int, str]) -> str:
    """Return which jobs get no rows, by number, and why; "" for none."""
    known = state.by_number  # one may be removed and forgotten since the turn
    named = [(known[number].name, why) for number, why in held.items() if number in known]
    if not named:
        return ""
    (name, why), more = named[0], f" and {len(named) - 1} more" if len(named) > 1 else ""
    return f"holds {name}{more}: {why}"
