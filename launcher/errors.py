"""Errors of an executor and of the pool, and what they tell an operator.

LauncherError                 .code (stable, snake_case)   .hint (what the operator can do, or "")
├ BadConfig                   a configuration file or option is wrong; the executor does not start
├ DirectoryInUse              another executor has this directory
├ LedgerDamaged               what was started here cannot be read; the executor does not start
├ LedgerForeign               what was started here was started by another executor
├ LedgerOld                   what was started here was written by a version before the journal
├ LedgerStuck                 what is started can no longer be written down; the executor stops
├ SpawnerDied                 the process that starts commands is gone
└ FailpointHit                a failpoint with the action `error`; only in tests
InvariantViolated(Exception)  a bug. Not a LauncherError, never caught: the executor stops

Messages: lower case, no full stop, the thing first.
"""

from __future__ import annotations


class LauncherError(Exception):
    """Base of what a user may be told."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # a traceback shows it, as an author's test prints one


class BadConfig(LauncherError):
    """A configuration file or option is wrong; nothing was started."""

    code = "config"


class DirectoryInUse(LauncherError):
    """Another process has the directory; two executors must never share a ledger."""

    code = "directory_in_use"


class LedgerDamaged(LauncherError):
    """The ledger cannot be read, so nobody knows what was started here (rule R4)."""

    code = "ledger_damaged"


class LedgerForeign(LauncherError):
    """The ledger is another executor's: a copy of it would answer for what it never started."""

    code = "ledger_foreign"


class LedgerOld(LauncherError):
    """The ledger is of a version that this one cannot read."""

    code = "ledger_old"


class LedgerStuck(LauncherError):
    """The ledger takes no more writes; an executor that goes on would start what it forgets."""

    code = "ledger_stuck"


class SpawnerDied(LauncherError):
    """The process that starts commands ended although nobody asked it to."""

    code = "spawner_died"


class FailpointHit(LauncherError):
    """A failpoint with the action `error` was reached."""

    code = "failpoint"


class InvariantViolated(Exception):
    """Something that cannot be, is. The executor stops."""


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)
