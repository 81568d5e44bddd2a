"""One process of a local cell: started, watched, started again when it dies."""

from __future__ import annotations

import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from typing import Final

import cron.failpoints
import launcher.failpoints
from cron.cli.render import BREAKS, visible
from cron.clock import Clock
from cron.dev.files import EXECUTOR, REPLICA, Member
from cron.endings import REPLACED, SUPERSEDED, TOO_NEW
from cron.errors import ConfigError
from cron.parent import PARENT_VARIABLE
from launcher.private import umask_before

RESTART_MS_MIN: Final = 100
"""Also long enough to learn of a Ctrl-C that the process got a moment before us."""
RESTART_MS_MAX: Final = 900
"""With the time to notice it stays below a second."""
SHORT_LIFE_MS: Final = 3_000
"""A process that ends so soon after its start has a fault that a restart does not cure."""
SHORT_LIVES_MAX: Final = 3
TAIL_BYTES: Final = 2_000
PIDS_KEPT: Final = 4
"""Ids of its newest processes: what a replica said of itself may be a second old."""
LAST_WORDS: Final = 2
"""The last lines of a replica that ends by its own choice: the reason and the hint."""


class Child:
    """A member of the cell as an operating system process.

    It stays in this process group, so that a Ctrl-C reaches it, and dies with this process. `step`
    is called a few times a second.
    """

    def __init__(
        self, member: Member, argv: list[str], env: Mapping[str, str], clock: Clock
    ) -> None:
        self.member = member
        self._argv = argv
        self._env = dict(env)
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_ms = 0
        self._restart_at_ms: int | None = None
        self._short_lives = 0
        self.pids: deque[int] = deque(maxlen=PIDS_KEPT)
        self.died_ms = 0

    @property
    def pid(self) -> int:
        """Return the process id; 0 while the process is down."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start it; its output goes to the end of its log.

        Raises:
            OSError: the system would not.
        """
        with self.member.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                umask=umask_before(),
            )
        self.pids.append(self._process.pid)
        self._started_ms = self._clock.mono_ms()
        self._restart_at_ms = None

    def step(self, *, restart: bool) -> str:
        """Check the process, start it again if that is due, and return a line to print, or ""."""
        if self._process is None:
            at_ms = self._restart_at_ms
            is_due = at_ms is not None and self._clock.mono_ms() >= at_ms
            return self._start_again() if is_due else ""
        code = self._process.poll()
        return "" if code is None else self._note_end(self._process.pid, code, restart=restart)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless its exit status was collected."""
        if self._process is not None:
            self._process.send_signal(number)

    def is_over(self) -> bool:
        """Return whether the process is down; collect its exit status."""
        return self._process is None or self._process.poll() is not None

    def wait(self) -> None:
        """Return once it has ended."""
        if self._process is not None:
            self._process.wait()

    def _start_again(self) -> str:
        try:
            self.start()
        except OSError as error:  # no memory, no file: may be over in a moment
            self._restart_at_ms = self._clock.mono_ms() + RESTART_MS_MAX
            return f"{self.member.id} cannot be started: {error}; trying again in a second"
        is_reported = self._short_lives < SHORT_LIVES_MAX
        return f"{self.member.id} runs again (pid {self.pid})" if is_reported else ""

    def _note_end(self, pid: int, code: int, *, restart: bool) -> str:
        """Decide what happens after the end of a process, and return the line that says it."""
        self._process = None
        self.died_ms = self._clock.wall_ms()
        member, log = self.member, self.member.log
        ended = f"{member.id} (pid {pid}) {describe_exit(code)}"
        if member.kind == REPLICA and code == REPLACED:
            return (
                f"{ended}: its disk does not stand for it any more, so it is never started again; "
                f"end of {log}:\n{self._tail(LAST_WORDS)}\nstart its new one with: "
                f"raftcron replica --config {member.config} --join --data NEWDIR"
            )
        if member.kind == REPLICA and code == SUPERSEDED:
            return (
                f"{ended}: the cell was restored elsewhere, so it is never started again on this "
                f"data; end of {log}:\n{self._tail(LAST_WORDS)}"
            )
        if member.kind == REPLICA and code == TOO_NEW:
            return (
                f"{ended}: an older release wrote its data, so it stays down; "
                f"end of {log}:\n{self._tail(LAST_WORDS)}"
            )
        if member.kind == EXECUTOR and code == 0:  # it was drained, or a person sent a TERM
            return (
                f"{member.id} (pid {pid}) has left, as it was told to, and stays down; "
                f"to start it again: raftcron executor --config {member.config}"
            )
        if not restart:
            return f"{ended}; it stays down (--no-restart); log: {log}"
        lived_ms = self._clock.mono_ms() - self._started_ms
        self._short_lives = self._short_lives + 1 if lived_ms < SHORT_LIFE_MS else 0
        delay_ms = min(RESTART_MS_MIN << min(self._short_lives, 10), RESTART_MS_MAX)
        self._restart_at_ms = self._clock.mono_ms() + delay_ms
        if self._short_lives < SHORT_LIVES_MAX:
            return f"{ended}; starting it again"
        if self._short_lives > SHORT_LIVES_MAX:
            return ""  # it was said once
        return (
            f"{ended}, for the {SHORT_LIVES_MAX}rd time within {SHORT_LIFE_MS // 1000} s of its "
            f"start; trying again every second; end of {log}:\n{self._tail()}"
        )

    def _tail(self, lines_max: int = 12) -> str:
        try:
            content = self.member.log.read_bytes()[-TAIL_BYTES:]
        except OSError as error:
            return f"    {error}"
        lines = content.decode(errors="replace").splitlines()[-lines_max:]
        return "\n".join(f"    {visible(line, keep=BREAKS)}" for line in lines)


def describe_exit(code: int) -> str:
    """Return `ended with exit code 3` or `was killed by SIGKILL` for Popen's return code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


_VARIABLE = cron.failpoints.VARIABLE
_NAMES = {REPLICA: cron.failpoints.NAMES, EXECUTOR: launcher.failpoints.NAMES}


def child_environment(
    environment: Mapping[str, str], member: Member, parent: int, ids: list[str]
) -> dict[str, str]:
    """Return the environment of `member`, made from ours; `parent` is our pid.

    RAFTCRON_FAILPOINTS_R2 is for r2 alone and takes the place of RAFTCRON_FAILPOINTS, which is for
    everybody: replicas get the daemon's points of it, executors their own.

    Raises:
        ConfigError: a variable names a failpoint, or a process of `ids`, that does not exist.
    """
    known = {_VARIABLE, *(variable_of(name) for name in ids)}
    for variable in environment:
        if variable.startswith(_VARIABLE) and variable not in known:
            hint = f"the processes of this cell are {', '.join(ids)}"
            raise ConfigError(f"{variable}: no process has that name", hint)
    child = {k: v for k, v in environment.items() if not k.startswith(_VARIABLE)}
    child["PYTHONTZPATH"] = ""  # the tzdata package, pinned, and not what the host happens to have
    child[PARENT_VARIABLE] = str(parent)
    child["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    shared = _meant_for(member.kind, environment.get(_VARIABLE, ""))
    if points := environment.get(variable_of(member.id), shared):
        child[_VARIABLE] = points
    return child


def variable_of(name: str) -> str:
    """Return the variable with the failpoints of one process: RAFTCRON_FAILPOINTS_EXECUTOR_1."""
    return f"{_VARIABLE}_{name.upper().replace('-', '_')}"


def _meant_for(kind: str, text: str) -> str:
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    for piece in pieces:
        if not any(_name(piece) in names for names in _NAMES.values()):
            known = ", ".join(name for names in _NAMES.values() for name in names)
            raise ConfigError(
                f"{_VARIABLE}: {_name(piece)!r} is not a failpoint", f"there are {known}"
            )
    return ",".join(piece for piece in pieces if _name(piece) in _NAMES[kind])


def _name(piece: str) -> str:
    return piece.partition("=")[0]
