"""Errors of an executor, with hints for operators.

LauncherError                 .code (stable, snake_case)   .hint (what the operator can do, or "")
├ BadConfig                   a configuration file or option is wrong; the executor does not start
├ DirectoryInUse              another executor has this directory
├ LedgerDamaged               the journal cannot be read; the executor does not start
├ LedgerForeign               the journal is another executor's
├ LedgerOld                   the ledger was written by a version that had no journal
├ LedgerStuck                 the journal cannot be written; the executor stops
├ SpawnerDied                 the process that starts commands is gone
└ FailpointHit                a failpoint with the action `error`; only in tests
InvariantViolated(Exception)  a bug. Not a LauncherError, never caught: the executor stops

Messages: lower case, no full stop, the thing first.
"""

from __future__ import annotations


class LauncherError(Exception):
    """Base of the errors that a user may see."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # a traceback shows it, in an author's test say


class BadConfig(LauncherError):
    """A configuration file or option is wrong; nothing was started."""

    code = "config"


class DirectoryInUse(LauncherError):
    """Another process has the directory; two executors must never share a journal."""

    code = "directory_in_use"


class LedgerDamaged(LauncherError):
    """The journal cannot be read, so it is unknown what was started here (rule R4)."""

    code = "ledger_damaged"


class LedgerForeign(LauncherError):
    """The journal is another executor's: this one never started what it has."""

    code = "ledger_foreign"


class LedgerOld(LauncherError):
    """The ledger is of a version that this one cannot read."""

    code = "ledger_old"


class LedgerStuck(LauncherError):
    """The journal cannot be written; an executor that goes on would forget what it starts."""

    code = "ledger_stuck"


class SpawnerDied(LauncherError):
    """The process that starts commands ended unexpectedly."""

    code = "spawner_died"


class FailpointHit(LauncherError):
    """A failpoint with the action `error` was reached."""

    code = "failpoint"


class InvariantViolated(Exception):
    """An invariant does not hold: a bug. The executor stops."""


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)
