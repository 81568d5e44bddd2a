"""Places where a test can stop, slow or kill this process; off unless the environment arms them.

`RAFTCRON_FAILPOINTS=after-ledger=kill@3,before-report=sleep:200` kills the process with SIGKILL
when `after-ledger` is reached for the third time. Actions: `kill`, `stop` (SIGSTOP), `sleep:MS`
(the whole process), `error`. Without `@N` an action applies to every hit. With `+file:PATH` behind
it only while PATH does not exist, which is made first: so a process that is started again goes on.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from launcher.errors import BadConfig, FailpointHit

VARIABLE: Final = "RAFTCRON_FAILPOINTS"
NAMES: Final[dict[str, str]] = {
    "before-ledger": "a start has arrived, nothing is written",
    "after-ledger": "the row is durable, nothing is started",
    "after-start": "the command runs, its start is not yet recorded nor reported",
    "before-report": "the ledger knows, the leader does not",
}
"""Every failpoint of the executor and the state in which it is reached."""

_ACTION = re.compile(
    r"(?P<verb>kill|stop|error|sleep:(?P<ms>\d{1,6}))(?:@(?P<nth>[1-9]\d{0,6}))?"
    r"(?:\+file:(?P<file>.+))?"
)


class _Action(msgspec.Struct):
    verb: str
    sleep_ms: int
    nth: int
    file: str
    hits: int = 0


class Failpoints:
    """The failpoints of one kind of process, by name, and the armed actions."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._actions: dict[str, _Action] = {}

    def arm(self, text: str | None = None) -> None:
        """Replace the armed actions by those of `name=action[@N][+file:PATH],...`, or of the
        environment if `text` is None.

        An empty text arms nothing.

        Raises:
            BadConfig: a name or an action is not known; nothing changes.
        """
        text = os.environ.get(VARIABLE, "") if text is None else text
        armed: dict[str, _Action] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, _, wanted = item.partition("=")
            if name not in self._names:
                raise BadConfig(
                    f"{VARIABLE}: failpoint {name!r} does not exist",
                    f"there are {', '.join(self._names)}",
                )
            match = _ACTION.fullmatch(wanted)
            if match is None:
                raise BadConfig(
                    f"{VARIABLE}: action {wanted!r} of {name} cannot be read",
                    "write kill, stop, error or sleep:MS, then @N or +file:PATH",
                )
            verb = match["verb"].partition(":")[0]
            ms, nth = int(match["ms"] or 0), int(match["nth"] or 0)
            armed[name] = _Action(verb, ms, nth, match["file"] or "")
        self._actions.clear()
        self._actions.update(armed)

    def hit(self, name: str) -> None:
        """Run the action that is armed for `name`, if there is one.

        Raises:
            FailpointHit: the action is `error`.
        """
        if self._actions and (action := self._actions.get(name)) is not None:
            _act(name, action)


def _act(name: str, action: _Action) -> None:
    action.hits += 1
    if action.nth and action.hits != action.nth:
        return
    if action.file:
        try:
            os.close(os.open(action.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
    if action.verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action.verb == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action.verb == "sleep":
        time.sleep(action.sleep_ms / 1000)
    else:
        raise FailpointHit(f"failpoint {name} was reached")


_points = Failpoints(NAMES)
arm = _points.arm
hit = _points.hit
