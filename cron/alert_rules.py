"""Rules and channels of alerts, as alerts.toml and crontabs declare them.

These structs are in the log and in snapshots. Append fields at the end with a default; never
reorder them, change a meaning or reuse a position.
"""

from __future__ import annotations

import enum

import msgspec


class AlertKind(enum.IntEnum):
    """What a rule watches. In the log: append, never renumber. Kinds from BACKUP_FAILING on are
    about the cell itself."""

    FAILED = 1  # launches of a job failed: so many in a row, or of the newest ones
    MISSED = 2  # an instant had no launch, because of a deadline or a cell that was away
    LATE = 3  # a launch begins, or waits, longer than this after its instant
    RUNNING = 4  # a launch runs for longer than this
    NO_SUCCESS = 5  # no launch of a job has succeeded for so long
    DEAD = 6  # a job, or a queue of tasks, has dead letters
    QUEUE_OLDER = 7  # a task that is due waits in its queue for longer than this
    GATE_OPEN = 8  # a gate has held launches for longer than this
    BACKUP_FAILING = 16
    REPLICA_AWAY = 17
    CLOCK_OFF = 18
    CERTIFICATE_ENDING = 19
    DISK_FILLING = 20

    @property
    def label(self) -> str:
        """The word that people write."""
        return self.name.lower().replace("_", "-")

    @property
    def is_of_cell(self) -> bool:
        """Whether it is about the cell, and not about jobs, queues or gates."""
        return self >= AlertKind.BACKUP_FAILING


class ChannelKind(enum.IntEnum):
    """How a channel delivers. In the log: append, never renumber."""

    MAIL = 0
    WEBHOOK = 1
    HEARTBEAT = 2  # a URL that the cell calls each minute, whatever happens

    @property
    def label(self) -> str:
        """The word that people write."""
        return self.name.lower()


class Condition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a rule fires. `count` launches failed in a row, or of the newest `of` ones if that is
    not 0; or `count` percent of a disk are used. `after_s` is the length of time of kinds that have
    one."""

    kind: AlertKind
    count: int = 0
    of: int = 0
    after_s: int = 0


class Channel(msgspec.Struct, frozen=True, array_like=True):
    """A destination of alerts. `to` has the addresses if it is mail. URLs and secrets are in files
    on the hosts that send, never in the replicated state."""

    name: str
    kind: ChannelKind
    to: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """A rule of alerts. `subjects` are patterns of full names of jobs, or of queues for kinds about
    queues; none is all. `to` are names of channels, which are told again after each `remind_s`
    while an alert is open; 0: never."""

    name: str
    condition: Condition
    subjects: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    remind_s: int = 0


class AlertFile(msgspec.Struct, frozen=True):
    """All channels and rules of a cell, as `alerts.toml` declares them."""

    channels: tuple[Channel, ...] = ()
    rules: tuple[Rule, ...] = ()


class JobAlerts(msgspec.Struct, frozen=True, array_like=True):
    """The alert options of one job in a crontab: conditions, the channels that get the alerts, the
    mail addresses that get the output of its launches (`MAILTO`), and after how long the channels
    are told again."""

    conditions: tuple[Condition, ...] = ()
    to: tuple[str, ...] = ()
    mail_to: tuple[str, ...] = ()
    remind_s: int = 0
