"""A replica's writer, and what it is given: entries of a rig, applied as a replica applies them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from consensus.leadership import Position
from cron.history.store import RowStore
from cron.leader.applier import StateApplier
from cron.state import commands as c
from cron.state.archive import SegmentRecord
from cron.state.imaging import Imaging
from cron.state.rows import Row
from cron.storage.history_backfill import HistoryBackfill
from cron.storage.snapshot_writer import SnapshotWriter
from snapshots.disk import SnapshotFile
from tests.unit.state_rig import StateRig, with_job
from tests.unit.test_state_keeping import ran

CELL = "cell-1"


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds, a minute at most."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110, threads have no event for each thing
            await asyncio.sleep(0.002)


class Disk:
    """One replica's folder, with the parts of a replica that keep things in it."""

    def __init__(self, data: Path, log: StateRig, *, snapshots_kept: int = 3) -> None:
        self.data = data
        self.log = log
        self.told: list[SnapshotFile] = []
        self.writer = SnapshotWriter(
            data, CELL, snapshots_kept=snapshots_kept, on_snapshot=self.told.append
        )
        self.row_store = RowStore(self.writer)
        self.applier = StateApplier(self.row_store, self.writer)
        self.backfill = HistoryBackfill(self.writer, [])
        self.applied = 0

    def start(self) -> Disk:
        """Start the threads; nothing is applied yet."""
        self.writer.start()
        return self

    def apply(self, up_to: int | None = None) -> None:
        """Apply the log, or the rest of it."""
        entries = self.log.log[: up_to or len(self.log.log)]
        for index in range(self.applied, len(entries)):
            self.applier.apply(Position(1, index + 1), entries[index])
        self.applied = len(entries)

    def restore(self, other: Disk) -> None:
        """Begin with the dump of another replica."""
        pieces = list(other.applier.take())
        self.applied = other.applied
        self.applier.restore(Position(1, self.applied), pieces)

    def stop(self) -> None:
        """End; all may be begun anew on the same folder."""
        self.writer.stop()
        self.row_store.stop()

    async def settle(self) -> None:
        """Wait until all segments are on the disk, and the history is complete."""
        await asyncio.to_thread(self.writer.wait_durable)
        await self.backfill.look()

    def files(self, folder: str = "segments") -> dict[str, bytes]:
        """The files of a folder, by name; the snapshot writer may take some away meanwhile."""
        found = {}
        for path in (self.data / folder).iterdir():
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                found[path.name] = path.read_bytes()
        return found


def life(seals: int, *, rows: int = 3) -> StateRig:
    """A log with so many Seals, before each of them a few launches, of which one failed."""
    rig = with_job()
    for seal in range(1, seals + 1):
        more(rig, rows, fails_at=0)
        rig.append(c.Seal(seal))
    return rig


def more(rig: StateRig, rows: int, *, fails_at: int = -1) -> None:
    """Let a few more launches run."""
    horizon_s = rig.record().horizon_s - (rig.record().horizon_s % 60)
    for number in range(rows):
        from_t0_s = horizon_s - _T0_S + 60 * (number + 1)
        ran(rig, from_t0_s, fails=number == fails_at)


_T0_S = 1_795_190_400


def records(rig: StateRig) -> list[SegmentRecord]:
    """The catalog."""
    return list(rig.state.history.segments.values())


def rows_of(rig: StateRig) -> list[Row]:
    """All rows, newest first."""
    return sorted(rig.rows, key=lambda row: row.scheduled_s, reverse=True)


class Gated(Imaging):
    """An image whose pieces come when a test lets them: piece n waits for `gates[n]`."""

    gates: tuple[threading.Event, ...] = ()
    waits: tuple[threading.Event, ...] = ()

    @classmethod
    def of(cls, rig: StateRig, gates: int) -> Gated:
        """Begin the image of a rig's State."""
        made = cls(rig.state)
        made.gates = tuple(threading.Event() for _ in range(gates))
        made.waits = tuple(threading.Event() for _ in range(gates))
        return made

    def pieces(self) -> Iterator[bytes]:
        """Yield the image, and empty pieces while there are gates."""
        yield from super().pieces()
        for gate, waits in zip(self.gates, self.waits, strict=True):
            waits.set()
            gate.wait(60)
            yield b""
