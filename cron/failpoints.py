"""Named points of the daemon at which a test may stop, slow or kill it.

Off unless RAFTCRON_FAILPOINTS names them: `before-begin=kill,after-claim=sleep:500`. An action is
`kill` (SIGKILL to itself), `stop` (SIGSTOP), `sleep:MS` (the whole event loop stands still) or
`error`. Behind it may stand `@N`, the N-th hit only, and `+file:PATH`: only while PATH does not
exist, which is created first, so that the process does not die again after its restart.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Final

from cron.errors import ConfigError

VARIABLE: Final = "RAFTCRON_FAILPOINTS"

NAMES: Final = {
    "before-begin": "the plan is made, its Begin not appended",
    "after-begin": "the Begin is applied on the leader, nothing dispatched",
    "after-dispatch": "the start is sent to the executor, its Launched not appended",
    "after-launched": "the Launched is applied, the Finished not appended",
    "before-claim": "elected, the Claim not appended",
    "after-claim": "the Claim is applied, nothing settled",
}

_SPEC = re.compile(
    r"(?P<name>[a-z-]+)=(?P<action>kill|stop|error|sleep:(?P<ms>\d{1,9}))"
    r"(?:@(?P<nth>[1-9]\d{0,8}))?(?:\+file:(?P<file>.+))?"
)


class FailpointError(Exception):
    """The action `error` of a failpoint."""


class _Point:
    """One armed point: what to do, at which hit, and the file that says it is done."""

    def __init__(self, name: str, action: Callable[[], None], nth: int, file: str) -> None:
        self.name = name
        self._action = action
        self._nth = nth
        self._file = file
        self._hits = 0

    def hit(self) -> None:
        """Count, and act if this is the hit."""
        self._hits += 1
        if self._nth and self._hits != self._nth:
            return
        if self._file and not _first(self._file):
            return
        self._action()


def _first(file: str) -> bool:
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def parse_failpoints(text: str) -> dict[str, _Point]:
    """Return the points of `name=action[@N][+file:PATH],...`; names of others are left out.

    Raises:
        ConfigError: a piece of the text is no failpoint.
    """
    points: dict[str, _Point] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        match = _SPEC.fullmatch(piece)
        if match is None:
            hint = "write name=kill|stop|error|sleep:MS, then @N or +file:PATH"
            raise ConfigError(f"{VARIABLE}: {piece!r} is not a failpoint", hint)
        name = match["name"]
        if name in NAMES:
            points[name] = _Point(
                name, _action(name, match), int(match["nth"] or 0), match["file"] or ""
            )
    return points


def _action(name: str, match: re.Match[str]) -> Callable[[], None]:
    def fail() -> None:
        raise FailpointError(f"failpoint {name}")

    actions: dict[str, Callable[[], None]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "error": fail,
    }
    return actions.get(match["action"]) or (lambda: time.sleep(int(match["ms"]) / 1000))


_armed: dict[str, _Point] = {}


def arm(text: str | None = None) -> None:
    """Replace what is armed by the failpoints of `text`, or of the environment; once at start.

    Raises:
        ConfigError: it is malformed; nothing changes, and the daemon must not start.
    """
    points = parse_failpoints(os.environ.get(VARIABLE, "") if text is None else text)
    _armed.clear()
    _armed.update(points)


def hit(name: str) -> None:
    """Do what RAFTCRON_FAILPOINTS says about `name`, one of NAMES; nothing when it is off.

    Raises:
        FailpointError: the action is `error`.
    """
    if _armed and (point := _armed.get(name)):
        point.hit()
