"""The applier: what goes to history and to the snapshot writer, and what a dump waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from consensus.leadership import Position
from cron.history.order import Query
from cron.history.store import Gap, RowStore
from cron.leader.applier import StateApplier
from cron.state import commands as c
from cron.state.archive import History, Sealed, SegmentRecord
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.state import State
from cron.storage.folders import name_of
from tests.states import ended_rows
from tests.unit.disk_rig import Disk, life, more, rows_of
from tests.unit.state_rig import StateRig


class Noting:
    """A snapshot writer that only notes what it is given."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.images: list[Imaging] = []
        self.refuses = False

    def keep(self, sealed: Sequence[Sealed]) -> None:
        self.notes.append(f"keep {len(sealed)}")

    def snapshot(self, state: State, imaging: Imaging) -> None:
        self.notes.append(f"snapshot {state.index}")
        self.images.append(imaging)

    def catalog(self, history: History) -> None:
        self.notes.append(f"catalog {len(history.segments)}")

    def wait_durable(self) -> None:
        self.notes.append("wait")
        if self.refuses:
            raise OSError(28, "no space left on device")


def applied(rig: StateRig, writer: Noting | None = None) -> StateApplier:
    applier = StateApplier(RowStore(), writer)
    apply_all(applier, rig.log)
    return applier


def apply_all(applier: StateApplier, log: Iterable[bytes]) -> None:
    for index, entry in enumerate(log, 1):
        applier.apply(Position(1, index), entry)


def test_the_keeper_gets_seals_snapshots_and_retention_in_log_order() -> None:
    rig = life(2)
    rig.append(c.SnapshotAt())
    rig.append(c.Seal(2))  # refused: there is nothing to seal
    rig.append(c.Retire(gone=((1, 1, 0),)))
    writer = Noting()
    applied(rig, writer)
    assert writer.notes == ["keep 2", "keep 2", f"snapshot {rig.state.index - 2}", "catalog 3"]


def test_the_image_of_a_snapshot_is_that_of_its_position_whatever_comes_after() -> None:
    rig = life(1)
    rig.append(c.SnapshotAt())
    expected = encode_state(rig.state)
    more(rig, 3)
    writer = Noting()
    applied(rig, writer)
    assert b"".join(writer.images[0].pieces()) == expected


def test_a_dump_waits_for_segments_and_fails_with_the_disk() -> None:
    writer = Noting()
    applier = applied(life(1), writer)
    pieces = applier.take()
    assert "wait" not in writer.notes, "the loop must not wait"
    assert decode_state(pieces).index == applier.state.index
    assert writer.notes[-1] == "wait"
    writer.refuses = True
    with pytest.raises(OSError, match="space"):
        list(applier.take())


async def test_a_dump_brings_the_rows_that_are_in_no_segment() -> None:
    rig = life(2)
    more(rig, 2)
    row_store, writer = RowStore(), Noting()
    applier = StateApplier(row_store, writer)
    applier.restore(Position(1, rig.state.index), [encode_state(rig.state)])
    tails = ended_rows(rig.state.history)
    assert await row_store.newest(Query()) == sorted(
        tails, key=lambda row: row.scheduled_s, reverse=True
    )
    assert len(tails) == 2
    assert row_store.gaps() == [Gap(0, rig.state.history.sealed_to)]
    assert writer.notes == ["catalog 4"]
    assert applier.state.digest == rig.state.digest


class Copying:
    """A source that copies from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        name = name_of(record)
        (folder / name).write_bytes((self.folder / name).read_bytes())
        return True


async def test_a_replica_that_was_away_is_complete_again(tmp_path: Path) -> None:
    """It saw a part of the log, then got a dump: rows from before, segments, and tails meet."""
    log = life(3)
    more(log, 2)
    there, away = (Disk(tmp_path / name, log).start() for name in ("r1", "r2"))
    there.apply()
    await there.settle()
    away.apply(len(log.log) // 2)
    await asyncio.to_thread(away.writer.wait_durable)
    away.restore(there)
    away.backfill.sources = [Copying(tmp_path / "r1" / "segments")]
    await away.backfill.look()
    for disk in (there, away):
        assert await disk.row_store.newest(Query(limit=1000)) == rows_of(log)
        assert disk.row_store.gaps() == []
        disk.stop()
    assert away.files() == there.files()
