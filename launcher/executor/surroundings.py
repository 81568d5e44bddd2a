"""What a command finds around it: user, environment, directory. Never the executor's own.

The environment is SHELL, PATH, HOME, LOGNAME and USER, then the lines of the crontab, then what
raftcron says of the launch. The directory is `cwd`, else HOME, which the crontab may set, as
crontab(5) has it. A directory that is not there fails the launch, as with Debian's cron.
"""

from __future__ import annotations

import os
import pwd
from functools import lru_cache
from typing import Any, Final, NamedTuple

from launcher.executor.attempt import Attempt
from launcher.executor.trees import LEDGER_MARK
from launcher.launch import Reason
from launcher.names import format_time

PATH: Final = "/usr/bin:/bin"
ROOT: Final = "root"
"""What `users` of a configuration must have for anything to run with user id 0."""


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
    """Return the account `name`. Remembered until the executor is started anew.

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
    """Return the account that this process runs as, also where the host has no name for it."""
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, os.getgid(), "/")
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def choose_account(user: str, allowed: tuple[str, ...]) -> Account:
    """Return the account for work that asks for `user`; empty for the executor's own.

    Raises:
        UserRefused: it is another one, and this executor is not root or does not allow it; or it
            is root by whatever name, and `allowed` does not list "root".
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
    job = attempt.batch.jobs[attempt.place].name
    return {
        "SHELL": attempt.spec.argv[0],
        "PATH": PATH,
        "HOME": account.home,
        "LOGNAME": account.name,
        "USER": account.name,
        **dict(attempt.spec.env),
        "RAFTCRON_LAUNCH": attempt.launch,
        "RAFTCRON_JOB": job,
        "RAFTCRON_SCHEDULED_TIME": format_time(attempt.scheduled_s),
        "RAFTCRON_ATTEMPT": str(attempt.number),
        "RAFTCRON_PART": str(attempt.part),
        "RAFTCRON_EPOCH": attempt.batch.epoch,
        "RAFTCRON_FENCE": str(attempt.index),
    }


def directory_of(attempt: Attempt, environment: dict[str, str]) -> str:
    """Return the directory of a command; a relative `cwd` is below HOME."""
    home = os.path.join("/", environment["HOME"])
    return os.path.join(home, attempt.spec.cwd) if attempt.spec.cwd else home


def order_of(attempt: Attempt, allowed: tuple[str, ...], ledger: str = "") -> dict[str, Any]:
    """Return what the spawner has to know of the command itself, which gets the UUID `ledger` of
    this executor's ledger into its environment: by it an executor finds what it started.

    Raises:
        UserRefused: it must not run as the user it asks for.
    """
    work = attempt.spec
    account = choose_account(work.user, allowed)
    environment = environment_of(attempt, account)
    if ledger:
        environment[LEDGER_MARK] = ledger
    is_self = account.uid == own_account().uid
    return {
        "name": attempt.name,
        "argv": list(work.argv),
        "env": environment,
        "cwd": directory_of(attempt, environment),
        "stdin": work.stdin,
        "login": None if is_self else [account.name, account.uid, account.gid],
        "timeout_ms": work.timeout_ms,
        "guarded": work.guarded,
        "not_after_ms": attempt.not_after_ms,
    }
