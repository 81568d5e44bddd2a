"""The commands of this host: the order to the spawner for each one, and its control group.

A command whose job declares cpu or memory gets a control group (`cgroups.py`) before it is ordered.
The group is removed when the command is over: until then it shows whether the command was killed at
its memory limit.

A command does not inherit the executor's environment. It gets SHELL, PATH, HOME, LOGNAME and USER,
then the variables of the crontab, then those that describe the launch. Its directory is `cwd`, or
HOME, which the crontab may set (crontab(5)). If the directory does not exist, the launch fails, as
with Debian's cron.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from launcher import logs
from launcher.config import ExecutorConfig
from launcher.executor.attempt import Attempt
from launcher.executor.commands.cgroups import ControlGroups
from launcher.executor.commands.trees import LEDGER_MARK
from launcher.executor.outputs import Outputs
from launcher.executor.rows import ACCEPTED, ENDED, INTERRUPTED
from launcher.protocol.names import format_time
from launcher.protocol.status import Reason

log = logs.get()

PATH: Final = "/usr/bin:/bin"
ROOT: Final = "root"
"""What `users` of a configuration must list for commands with user id 0."""
_CANNOT_START = {int(Reason.USER): 126}
"""Exit codes of shells for a command that could not be started; 127 for any other reason."""


class Account(NamedTuple):
    """A user of this host."""

    name: str
    uid: int
    gid: int
    home: str


class UserRefused(Exception):
    """This executor must not, or cannot, run a command as that user; reason `user`."""

    reason = Reason.USER


@lru_cache(maxsize=256)
def account_of(name: str) -> Account:
    """Return the account `name`. Cached until the executor is restarted.

    Raises:
        UserRefused: there is none.
    """
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError) as error:
        raise UserRefused(f"user {name} does not exist on this host") from error
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


@lru_cache(maxsize=1)
def own_account() -> Account:
    """Return the account of this process, also if the host has no name for it."""
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, os.getgid(), "/")
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def choose_account(user: str, allowed: tuple[str, ...]) -> Account:
    """Return the account for work with this `user`, "" for the executor's own.

    Raises:
        UserRefused: the account is another one, and this executor is not root or does not allow it;
            or its user id is 0, and `allowed` does not list "root".
    """
    own = own_account()
    account = own
    if user not in ("", own.name):
        if own.uid != 0:
            text = f"user {user}: this executor runs as {own.name}; only root can switch"
            raise UserRefused(text)
        if user not in allowed:
            raise UserRefused(f"user {user} is not in `users` of this executor's configuration")
        account = account_of(user)
    if account.uid == 0 and ROOT not in allowed:
        text = f"user {user} is root, and" if user else "the job names no user, and"
        raise UserRefused(
            f"{text} this executor runs nothing as root: give the job another user=, or list root "
            "in `users` of the executor's configuration"
        )
    return account


def environment_of(attempt: Attempt, account: Account) -> dict[str, str]:
    """Return the environment of a command, complete and in order."""
    launch = attempt.name.partition("#")[0]
    scheduled_s, number, _, part = attempt.batch.tries(attempt.place)
    return {
        "SHELL": attempt.spec.argv[0],
        "PATH": PATH,
        "HOME": account.home,
        "LOGNAME": account.name,
        "USER": account.name,
        **dict(attempt.spec.env),
        "RAFTCRON_LAUNCH": launch,
        "RAFTCRON_JOB": launch.partition("@")[0],
        "RAFTCRON_SCHEDULED_TIME": format_time(scheduled_s),
        "RAFTCRON_ATTEMPT": str(number),
        "RAFTCRON_PART": str(part),
        "RAFTCRON_EPOCH": attempt.epoch,
        "RAFTCRON_FENCE": str(attempt.index),
    }


def order_of(attempt: Attempt, allowed: tuple[str, ...], ledger: str = "") -> dict[str, Any]:
    """Return the spawner's order for a command, without its output and control group. A relative
    `cwd` is below HOME. The UUID `ledger` of the executor's ledger is in the environment: by it, an
    executor finds what it started.

    Raises:
        UserRefused: it must not run as its user.
    """
    work = attempt.spec
    account = choose_account(work.user, allowed)
    environment = environment_of(attempt, account)
    if ledger:
        environment[LEDGER_MARK] = ledger
    home = os.path.join("/", environment["HOME"])
    is_self = account.uid == own_account().uid
    return {
        "name": attempt.name,
        "argv": list(work.argv),
        "env": environment,
        "cwd": os.path.join(home, work.cwd) if work.cwd else home,
        "stdin": work.stdin,
        "login": None if is_self else [account.name, account.uid, account.gid],
        "timeout_ms": work.timeout_ms,
        "guarded": work.guarded,
        "not_after_ms": attempt.not_after_ms,
    }


class Commands:
    """Commands that were ordered and whose end is not recorded yet, by name."""

    def __init__(
        self, config: ExecutorConfig, outputs: Outputs, groups: ControlGroups, ledger: str = ""
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._outputs = outputs
        self._control_groups = groups
        self._here: dict[str, Attempt] = {}
        self._groups: dict[str, str] = {}
        self._guarded: set[str] = set()
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, name: object) -> bool:
        return name in self._here

    @property
    def guarded(self) -> int:
        """How many of them must not outlive the executor's lease."""
        return len(self._guarded)

    def orders(
        self, some: Iterable[Attempt], changed: list[Attempt], wall_ms: int
    ) -> list[list[Any]]:
        """Return the orders to start for the spawner; `changed` gets what cannot start."""
        orders: list[list[Any]] = []
        for attempt in some:
            name = attempt.name
            if name in self._here:
                attempt.refuse("an attempt of this name is here")
                changed.append(attempt)
                continue
            self._here[name] = attempt
            if attempt.spec.guarded:
                self._guarded.add(name)
            try:
                orders.append(["start", self._order(attempt)])
            except UserRefused as error:
                _fail(attempt, int(Reason.USER), str(error), wall_ms)
                changed.append(attempt)
        return orders

    def _order(self, attempt: Attempt) -> dict[str, Any]:
        name = attempt.name
        order = order_of(attempt, self._config.users, self._ledger)
        order["output"] = self._outputs.stem(name)
        order["output_bytes_max"] = self._config.output_bytes_max
        order["term_grace_ms"] = self._config.term_grace_ms
        work = attempt.spec
        if work.cpu_milli or work.memory_bytes:
            group = self._control_groups.enter(name, work.cpu_milli, work.memory_bytes)
            if group is not None:
                order["cgroup"] = self._groups[name] = group
            elif self._control_groups.problem and not self._has_warned:
                self._has_warned = True
                log.warning("launch.unlimited", launch=name, error=self._control_groups.problem)
        return order

    def receive(self, events: Iterable[Sequence[Any]], wall_ms: int) -> list[Attempt]:
        """Return the attempts that the spawner's events change, with the usage that the control
        groups of ended ones measured. Events about other names are ignored."""
        changed: list[Attempt] = []
        for verb, name, *rest in events:
            attempt = self._here.get(name)
            if attempt is None or attempt.status != ACCEPTED:
                continue
            changed.append(attempt)
            if verb == "started":
                attempt.pid, attempt.ticks, attempt.started_ms = rest
                continue
            group = self._groups.pop(name, "")
            if verb == "refused":
                attempt.refuse(rest[0])
            elif verb == "failed":
                _fail(attempt, rest[0], rest[1], wall_ms)
            else:
                attempt.status = ENDED
                attempt.exit_code, attempt.reason, attempt.finished_ms = rest[:3]
                attempt.output_bytes, attempt.detail = rest[3:5]
                if group:
                    self._measure(attempt, group)
            if group and verb != "ended":
                self._control_groups.left(group)
        return changed

    def _measure(self, attempt: Attempt, group: str) -> None:
        usage = self._control_groups.left(group)
        # An earlier reason counts. So does a success, although a part of the command was killed
        # (kernels without memory.oom.group).
        if usage.oom_killed and attempt.exit_code and not attempt.reason:
            attempt.reason = int(Reason.MEMORY)
            limit = _size(attempt.spec.memory_bytes)
            attempt.detail = f"it was killed at its limit of memory, {limit}"
        attempt.cpu_ms = -(-usage.cpu_usec // 1_000)
        attempt.memory_peak_bytes = usage.memory_peak

    def recorded(self, attempt: Attempt) -> None:
        """Free the slot of a command whose end is recorded."""
        if self._here.get(attempt.name) is attempt:
            del self._here[attempt.name]
            self._guarded.discard(attempt.name)

    def clear(self) -> None:
        """End all commands, since their spawner is dead."""
        for group in self._groups.values():
            self._control_groups.left(group)
        for attempt in self._here.values():
            attempt.status = INTERRUPTED
        self._groups.clear()
        self._here.clear()
        self._guarded.clear()


def _fail(attempt: Attempt, reason: int, detail: str, wall_ms: int) -> None:
    """End an attempt that could not be started."""
    attempt.status = ENDED
    attempt.exit_code = _CANNOT_START.get(reason, 127)
    attempt.reason, attempt.detail, attempt.finished_ms = reason, detail, wall_ms


def _size(count: int) -> str:
    return f"{count / (1 << 20):.6g} MiB" if count >= 1 << 20 else f"{count} bytes"
