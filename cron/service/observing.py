"""What a leader measures of its cell for rules of alerts: backup, replicas, clocks, certificates,
disks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from operator import itemgetter
from pathlib import Path
from typing import Final, Protocol

from cron.alert_rules import AlertKind
from cron.api.members import StatusRow
from cron.api.snapshots import KeepingView
from cron.clock import Clock
from cron.scheduler.alerts import Observed
from cron.service.members import ClusterStatus

BACKUP: Final = "backup"
"""The subject of rules about the backup."""
EXECUTORS_MAX: Final = 1_000
"""Executors whose certificates are watched: those whose certificates end first."""
EXECUTORS_LOOK_MS: Final = 10_000
"""How often the leader looks at them: it may have ten thousand sessions."""
_NEVER_MS: Final = 1 << 62
GONE_MS: Final = 600_000
"""For so long the certificate of an executor counts that is not connected: it may be restarting."""


class Certified(Protocol):
    """A connected executor with the end of its certificate, 0 without one."""

    executor: str
    certificate_ends_ms: int


class ExecutorCertificates:
    """When the certificates of executors end, as the leader's sessions tell it. `is_settling`:
    executors may still come to this leader, which is new."""

    def __init__(
        self,
        sessions: Callable[[], Iterable[Certified]],
        is_settling: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._sessions, self._is_settling, self._clock = sessions, is_settling, clock
        self._looked_ms: int | None = None
        self._ends: dict[str, tuple[int, int]] = {}
        """By executor: when its certificate ends, and when it was connected last."""

    def ends_ms(self) -> dict[str, int] | None:
        """Return the ends of the certificates that end first, by executor; None if nobody knows."""
        now_ms = self._clock.mono_ms()
        if self._is_settling():
            self._looked_ms = None
            return None
        if self._looked_ms is None or now_ms - self._looked_ms >= EXECUTORS_LOOK_MS:
            self._looked_ms = now_ms
            self._look(now_ms)
        return {name: end_ms for name, (end_ms, _) in self._ends.items()}

    def _look(self, now_ms: int) -> None:
        known = {name: one for name, one in self._ends.items() if now_ms - one[1] < GONE_MS} | {
            one.executor: (one.certificate_ends_ms, now_ms) for one in self._sessions()
        }
        certified = ((name, one) for name, one in known.items() if one[0])
        self._ends = dict(nsmallest(EXECUTORS_MAX, certified, key=itemgetter(1, 0)))


class Observing:
    """The measurements of one replica while it leads. A kind that nothing is known about is left
    out: alerts about it stay as they are."""

    def __init__(
        self,
        cell: str,
        status: ClusterStatus,
        clock: Clock,
        keeping: Callable[[], KeepingView | None],
        executors: ExecutorCertificates,
    ) -> None:
        self._cell = cell
        self._status = status
        self._clock = clock
        self._keeping = keeping
        self._executors = executors
        self._away_ms: dict[str, int] = {}
        """When each replica was first seen to be away, by the monotonic clock."""

    def observe(self) -> Observed:
        """Return what is known now, in the units of `cron.state.deliveries`."""
        own, others = self._status.seen()
        rows = [own, *(row for row, _ in others.values() if row is not None)]
        measured: dict[AlertKind, Mapping[str, int]] = {
            AlertKind.REPLICA_AWAY: self._away(others),
            AlertKind.CLOCK_OFF: self._clocks(own, others),
        }
        backup = self._backup()
        if backup is not None:
            measured[AlertKind.BACKUP_FAILING] = {BACKUP: backup}
        if left := self._certificates(rows):
            measured[AlertKind.CERTIFICATE_ENDING] = left
        if used := {row.id: row.disk_used_percent for row in rows if row.disk_used_percent}:
            measured[AlertKind.DISK_FILLING] = used
        return Observed(self._cell, measured)

    def _away(self, others: Mapping[str, tuple[StatusRow | None, int | None]]) -> dict[str, int]:
        """Return for how many seconds each other replica has not answered; 0 for one that does."""
        now_ms = self._clock.mono_ms()
        away = {name for name, (row, _) in others.items() if row is None}
        self._away_ms = {name: self._away_ms.get(name, now_ms) for name in away}
        return {name: (now_ms - self._away_ms.get(name, now_ms)) // 1000 for name in others}

    def _clocks(
        self, own: StatusRow, others: Mapping[str, tuple[StatusRow | None, int | None]]
    ) -> dict[str, int]:
        """Return by how many milliseconds each clock is ahead of the median of all."""
        off_ms = self._status.off_by()
        known = {name: offset for name, (_, offset) in others.items() if offset is not None}
        return {own.id: off_ms} | {name: offset + off_ms for name, offset in known.items()}

    def _certificates(self, rows: list[StatusRow]) -> dict[str, int]:
        """Return for how many seconds the certificates of executors, and of each replica with its
        authority, are valid; none in a cell without certificates, or while executors are not known.
        """
        ends = self._executors.ends_ms()
        if ends is None:
            return {}
        for row in rows:
            if row.certificate_ends_ms:
                own_ms = min(row.certificate_ends_ms, row.authority_ends_ms or _NEVER_MS)
                ends[row.id] = min(own_ms, ends.get(row.id, own_ms))
        now_ms = self._clock.wall_ms()
        return {name: max(0, (end_ms - now_ms) // 1000) for name, end_ms in ends.items()}

    def _backup(self) -> int | None:
        """Return for how many seconds the backup has been failing, 0 if it works; None without
        object storage."""
        view = self._keeping()
        if view is None or not view.store:
            return None
        if not view.failing_since_ms:
            return 0
        return max(0, (self._clock.wall_ms() - view.failing_since_ms) // 1000)


def disk_used_percent(folder: Path) -> int:
    """Return how full the disk of a folder is for those who are not root, rounded up, at most 100.
    The system may take its time to answer."""
    usage = shutil.disk_usage(folder)
    whole = usage.used + usage.free
    return -(-100 * usage.used // whole) if whole else 100
