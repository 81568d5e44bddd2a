"""The applier: what goes to history and to the keeper, in which order; what a dump waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from consensus.leadership import Position
from cron.history.gaps import Gap
from cron.history.order import Query
from cron.leader.applier import StateApplier
from cron.segments import name_of
from cron.state import commands as c
from cron.state.archive import History, Sealed, SegmentRecord
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.rows import Row
from cron.state.state import State
from tests.unit.keeper_rig import Disk, life, more, rows_of
from tests.unit.state_rig import StateRig


class Offered:
    """A projection that only notes what it is given."""

    def __init__(self, mark: int = 0) -> None:
        self.mark = mark
        self.offers: list[tuple[int, int, Gap]] = []

    def offer(self, rows: list[Row], up_to: int, *, gap_from: int = 0, gap_to: int = 0) -> None:
        self.offers.append((len(rows), up_to, Gap(gap_from, gap_to)))
        self.mark = max(self.mark, up_to)


class Noting:
    """A keeper that only notes what it is given."""

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


def applied(
    rig: StateRig, keeper: Noting | None = None, mark: int = 0
) -> tuple[StateApplier, Offered]:
    history = Offered(mark)
    applier = StateApplier(history, keeper)  # type: ignore[arg-type]
    apply_all(applier, rig.log)
    return applier, history


def apply_all(applier: StateApplier, log: Iterable[bytes]) -> None:
    for index, entry in enumerate(log, 1):
        applier.apply(Position(1, index), entry)


def test_the_keeper_gets_seals_snapshots_and_retention_in_log_order() -> None:
    rig = life(2)
    rig.append(c.SnapshotAt())
    rig.append(c.Seal(2))  # refused: there is nothing to seal
    rig.append(c.Retire(gone=((1, 1, 0),)))
    keeper = Noting()
    applied(rig, keeper)
    assert keeper.notes == ["keep 2", "keep 2", f"snapshot {rig.state.index - 2}", "catalog 3"]


def test_the_image_of_a_snapshot_is_that_of_its_position_whatever_comes_after() -> None:
    rig = life(1)
    rig.append(c.SnapshotAt())
    expected = encode_state(rig.state)
    more(rig, 3)
    keeper = Noting()
    applied(rig, keeper)
    assert b"".join(keeper.images[0].pieces()) == expected


def test_the_mark_reaches_the_end_of_a_segment_though_its_entry_has_no_rows() -> None:
    rig = life(1)
    applier, history = applied(rig)
    assert history.mark == rig.state.index
    assert applier.rows_index < rig.state.index


def test_a_dump_waits_for_segments_and_fails_with_the_disk() -> None:
    keeper = Noting()
    applier, _ = applied(life(1), keeper)
    pieces = applier.take()
    assert "wait" not in keeper.notes, "the loop must not wait"
    assert decode_state(pieces).index == applier.state.index
    assert keeper.notes[-1] == "wait"
    keeper.refuses = True
    with pytest.raises(OSError, match="space"):
        list(applier.take())


@pytest.mark.parametrize("mark_at", ["nothing", "in a segment", "in the tails", "all"])
def test_what_the_index_lacks_is_offered_from_the_tails_or_is_a_gap(mark_at: str) -> None:
    rig = life(2)
    more(rig, 2)
    state = rig.state
    sealed_to = state.history.sealed_to
    tails = [row.ended_index for row in state.history.rows_after(0)]
    assert len(tails) == 2
    mark = {
        "nothing": 0, "in a segment": sealed_to - 3, "in the tails": tails[0], "all": state.index,
    }[mark_at]  # fmt: skip
    history, keeper = Offered(mark), Noting()
    applier = StateApplier(history, keeper)  # type: ignore[arg-type]
    applier.restore(Position(1, state.index), [encode_state(state)])
    assert (
        history.offers
        == {
            "nothing": [(2, state.index, Gap(0, sealed_to))],
            "in a segment": [(2, state.index, Gap(sealed_to - 3, sealed_to))],
            "in the tails": [(1, state.index, Gap(0, 0))],
            "all": [],
        }[mark_at]
    )
    assert keeper.notes == ["catalog 4"]
    assert applier.state.digest == state.digest


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
    await asyncio.to_thread(away.keeper.wait_durable)
    away.restore(there)
    away.filler.sources = [Copying(tmp_path / "r1" / "segments")]
    await away.filler.look()
    for disk in (there, away):
        assert await disk.projection.newest(Query(limit=1000)) == rows_of(log)
        assert await disk.projection.gaps() == []
        disk.stop()
    assert away.files() == there.files()
