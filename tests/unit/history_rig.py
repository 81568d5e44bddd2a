"""A replica's history that a test feeds by hand: tails, segments on a disk, a store over both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cron.history.segment import Segment
from cron.history.store import RowStore
from cron.launch_state import LaunchState
from cron.state.archive import History, Sealed, SegmentRecord
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.rows import Chunk, Row, RowKind
from cron.state.state import State
from cron.storage.folders import Folders, name_of, open_rows
from launcher.protocol.status import Reason
from snapshots.errors import SnapshotMissing

BACKUP = "default/backup"
CELL = "cell-1"


def row(index: int, scheduled_s: int, *, job: str = BACKUP, **fields: object) -> Row:
    known: dict[str, object] = {
        "kind": RowKind.ENDED,
        "revision": 1,
        "trigger": 0,
        "attempt": 1,
        "state": LaunchState.SUCCEEDED,
        "reason": Reason.NONE,
        "ended_at_ms": scheduled_s * 1000 + 900,
    }
    known |= {"job": job, "scheduled_s": scheduled_s, "ended_index": index}
    return Row(**(known | fields))  # type: ignore[arg-type]


def open_row(
    scheduled_s: int,
    trigger: int,
    attempt: int,
    state: LaunchState,
    begun_index: int = 0,
    begun_at_ms: int = 0,
    launched_index: int = 0,
    started_ms: int = 0,
    launched_at_ms: int = 0,
    **fields: object,
) -> Row:
    """A launch that is not over."""
    known: dict[str, object] = {
        "kind": RowKind.OPEN,
        "revision": 0,
        "trigger": trigger,
        "attempt": attempt,
        "state": state,
        "begun_index": begun_index,
        "begun_at_ms": begun_at_ms,
        "launched_index": launched_index,
        "started_ms": started_ms,
        "launched_at_ms": launched_at_ms,
        "ended_at_ms": 0,
    }
    return row(0, scheduled_s, **(known | fields))


def skipped(index: int, first_s: int, last_s: int, *, job: str = BACKUP) -> Row:
    return row(
        index,
        first_s,
        job=job,
        kind=RowKind.RANGE,
        state=LaunchState.SKIPPED,
        reason=Reason.PAUSED,
        attempt=0,
        last_s=last_s,
        count=(last_s - first_s) // 60 + 1,
    )


class HandSegmentFiles:
    """A snapshot writer that writes when a test says so."""

    def __init__(self, folder: Path) -> None:
        self.folders = Folders(folder, CELL)
        self.folders.open()
        self.version = 0
        self.waiting: list[Sealed] = []
        self.distrusted: list[SegmentRecord] = []

    def holdings(
        self, records: Iterable[SegmentRecord]
    ) -> tuple[list[SegmentRecord], list[Sealed]]:
        waiting = {one.record.key for one in self.waiting}
        here = [one for one in records if one.key not in waiting and self._path(one).exists()]
        return here, list(self.waiting)

    def _path(self, record: SegmentRecord) -> Path:
        return self.folders.segments / name_of(record)

    def open_rows(self, record: SegmentRecord) -> Segment:
        return open_rows(self.folders.segments / name_of(record), CELL, record)

    def distrust(self, record: SegmentRecord, error: Exception) -> None:
        assert not isinstance(error, SnapshotMissing)
        self.distrusted.append(record)
        self.remove(record)

    def keep(self, sealed: Sequence[Sealed]) -> None:
        """Write at once, as the snapshot writer of an applier."""
        self.waiting += sealed
        self.write()

    def snapshot(self, state: State, imaging: Imaging) -> None:
        """Keep none."""
        imaging.close()

    def catalog(self, history: History) -> None:
        """Look anew at what is wanted."""
        self.version += 1

    def wait_durable(self) -> None:
        """All that was kept is."""

    def write(self) -> None:
        """Write what waits."""
        for sealed in self.waiting:
            self.folders.write(sealed)
        self.waiting.clear()
        self.version += 1

    def remove(self, record: SegmentRecord) -> None:
        """Let a file go."""
        self.waiting = [one for one in self.waiting if one.record.key != record.key]
        self._path(record).unlink(missing_ok=True)
        self.version += 1


class Fed:
    """One replica's history."""

    def __init__(self, folder: Path, history: History | None = None) -> None:
        self.history = History() if history is None else history
        self.segment_files = HandSegmentFiles(folder)
        self.row_store = RowStore(self.segment_files)
        self.row_store.follow(self.history)

    def add(self, *rows: Row | Chunk) -> None:
        """Let attempts end."""
        for one in rows:
            self.history.append(one)

    def seal(self, index: int, *, writes: bool = True) -> None:
        """Close the tails, as State does at this log index, and write them."""
        self.segment_files.waiting += self.history.seal(1, index, 0)
        self.segment_files.version += 1
        if writes:
            self.segment_files.write()

    def restart(self) -> None:
        """Begin again, with State from an image and the files that were written."""
        self.row_store.stop()
        self.segment_files.write()  # the log brings what was not written once more
        self.history = decode_state([encode_state(State(history=self.history))]).history
        self.row_store = RowStore(self.segment_files)
        self.row_store.follow(self.history)
