"""Errors of the pool, as the leader and the executors meet them."""

from __future__ import annotations


class Refused(Exception):
    """An executor may not connect now. The text says why and what to do; `code` is the name of the
    gRPC status that its stream ends with."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class NotLeading(Exception):
    """This replica does not lead; executors belong to the leader."""

    def __init__(self) -> None:
        super().__init__("this replica does not lead")


class NotConnected(Exception):
    """The executor is not connected with that journal, or its stream ended meanwhile."""


class OutputUnavailable(Exception):
    """The executor cannot give this output; `reason` is its answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimedOut(Exception):
    """The executor did not answer in time; it may be asked again."""
