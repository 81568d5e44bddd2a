"""The status of an attempt in its executor's journal, and the reasons for a launch's state."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """The status of a row in an executor's journal. The numbers are those of pool.proto."""

    ACCEPTED = 1  # the row is durable and was started, or is about to be
    REFUSED = 2  # durably refused: it never ran and never will
    ENDED = 3  # it ran and is over
    INTERRUPTED = 4  # it was started, then the executor died: its end is unknown
    FENCED = 5  # a tombstone forbids it: it never ran and never will
    UNKNOWN = 6  # the journal has no such row


class Reason(enum.IntEnum):
    """Why a launch is in its state. The numbers are in the log: append, never renumber."""

    NONE = 0
    MISSED = 1
    OVERLAP = 2
    PAUSED = 3
    GATED = 4
    DEADLINE = 5
    TIMEOUT = 6
    KILLED = 7
    REPLACED = 8
    FENCED = 9
    EXECUTOR_LOST = 10
    RESTORED = 11
    USER = 12
    SPAWN = 13  # the operating system would not start it: no such shell, directory, memory
    RETRY = 14  # it asked to be tried again: an exit code, or a handler's word
    FATAL = 15  # it said that trying again is of no use
    SNOOZE = 16  # a handler asked for another time, which is no failure
    RAISED = 17  # a handler raised what nobody expected
    SILENT = 18  # a handler did not say in time that it is alive
    WORKER_DIED = 19  # the process that ran the handler is gone, and the handler with it
    MEMORY = 20  # it took more memory than its job may
    BUDGET = 21  # it would be tried again, but its tenant has no retries left
    FULL = 22  # its queue takes no more
    OVERLOAD = 23  # more fell due than could begin, and others went before it
    NO_EXECUTOR = 24  # more fell due than could begin, since no executor could run any of it
    PREDECESSOR = 25  # what it follows did not succeed
    CANCELLED = 26  # a task was cancelled while it waited: it never had a launch
    SECRET = 27  # a secret that it names could not be read: its command was not started

    @property
    def label(self) -> str:
        """The word that people and programs see; empty for none."""
        return "" if self is Reason.NONE else self.name.lower().replace("_", "-")


class Limiting(enum.IntEnum):
    """How an executor keeps launches within the cpu or memory that they declare. The numbers are
    those of pool.proto."""

    UNKNOWN = 0  # an older executor does not say
    KERNEL = 1  # by control groups
    WATCHED = 2  # their processes are measured each second, and killed above it
    NONE = 3  # it is counted when they are placed, and not held

    @property
    def label(self) -> str:
        """The word that people and programs see; empty where it is not known."""
        return "" if self is Limiting.UNKNOWN else self.name.lower()
