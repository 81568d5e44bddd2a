"""Errors of the pool, as the leader and the executors meet them.

PoolError
├ BadMessage(field)           an executor sent what cannot be meant; its stream ends
├ NoHello                     a stream ends before its first message
├ Refused                     an executor may not connect now
│ ├ NotLeading                this replica does not lead
│ ├ SeenNewerEpoch            the executor obeys a newer leader already
│ ├ HeldByAnother             another process is connected under this id
│ ├ NotItself                 its certificate is of another executor
│ └ PoolFull                  more executors than the bound
├ NotConnected                no such session, or it ended before it answered
├ OutputUnavailable(reason)   the executor has no such output, or may not be asked now
└ TimedOut                    the executor did not answer in time
"""

from __future__ import annotations


class PoolError(Exception):
    """Base of what the pool raises."""


class BadMessage(PoolError):
    """An executor's message cannot be meant. `field` names the place, as `reports[3].name`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class NoHello(PoolError):
    """A stream lost its turn before its Hello was there."""


class Refused(PoolError):
    """This executor may not connect now; the text says why and what to do."""


class NotLeading(Refused):
    """This replica does not lead; executors belong to the leader."""


class SeenNewerEpoch(Refused):
    """The executor has durably seen a higher epoch and would refuse every order of this one."""


class HeldByAnother(Refused):
    """A living process is connected under the same executor id."""


class NotItself(Refused):
    """The caller's certificate is not of the executor that it says it is."""


class PoolFull(Refused):
    """As many executors are connected as the pool takes."""


class NotConnected(PoolError):
    """The executor is not connected with that ledger, or its stream ended meanwhile."""


class OutputUnavailable(PoolError):
    """The executor cannot give this output; `reason` is its answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimedOut(PoolError):
    """The executor did not answer in time; it may be asked again."""
