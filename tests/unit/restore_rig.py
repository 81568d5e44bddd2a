"""A cell that has stored snapshots and history, and the folder into which it is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consensus.config import EngineConfig
from consensus.engine.envelope import ENTRY, Origin, seal
from consensus.engine.loading import load
from consensus.engine.storage.disk import DirectoryDisk
from consensus.engine.storage.dump import IN_FORCE, TAKEN, read_pieces, write_dump
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import Identity
from consensus.leadership import Position
from cron.job import Retry
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import pool
from cron.state.archive import SegmentRecord
from cron.state.calendars import PutCalendar
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.machine import Machine
from cron.state.state import State
from cron.state.tasks import PutQueues, QueueSpec, ReadyTasks, SpillTasks, SubmitTasks
from cron.storage import restoring
from cron.storage.folders import Folders, name_of
from cron.storage.new_generation import NewGeneration, begin_generation
from cron.storage.restore_target import Target
from cron.storage.restoring import Choices, Report
from cron.storage.uploads import Uploads, outline_of
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from snapshots.backup_store import BackupStore
from snapshots.disk import write_snapshot
from snapshots.format import SnapshotHeader
from snapshots.manifest import Generation, Manifest
from snapshots.retention import SnapshotPolicy
from snapshots.store import ObjectStore
from tests.fakes.memory_store import MemoryStore
from tests.unit.disk_rig import more
from tests.unit.state_rig import T0, StateRig, job
from tests.unit.tasks_rig import task

CELL = "prod"
NOW_MS = (T0 + 90_000) * 1000
CHOICES = Choices("ada", NOW_MS)


class Died(BaseException):
    """The process was killed here."""


def rich() -> StateRig:
    """A State in which nothing is empty."""
    rig = StateRig(is_claimed=False)
    rig.append(c.Claim("2026b", "0.1.0", c.FORMAT, b"mark", b"k" * 32))
    rig.put(job(), job("other"), job("tried", retry=Retry(3)))
    rig.join("e1", "l1")
    rig.join("e2", "l2")
    more(rig, 3, fails_at=1)
    rig.append(c.Seal(1))
    more(rig, 2, fails_at=1)
    at = (rig.at_ms // 1000 - T0) + 60
    rig.to(at + 120)
    rig.account(at, at + 60, at + 120)
    rig.begin(at)
    rig.begin(at + 60)
    rig.launched(at + 60)
    rig.cancel(at + 60)
    rig.begin(at + 120)
    rig.lost(at + 120, held_until=at + 500)
    rig.trigger("request-1")
    rig.append(c.Pause(("default/other",), "holidays", 0, "anna"))
    fill_pool(rig, at + 180)
    follower = task("follows", 9_000_000, group="default/g", after=("default/mail:waits",))
    rig.append(
        SubmitTasks(
            (task("ready"), task("waits", 9_000_000), follower, task("far", 90_000_000)), "shop"
        )
    )
    rig.append(SpillTasks((4,)))
    rig.append(ReadyTasks((1,)))
    rig.append(PutQueues("queues.toml", 0, (QueueSpec("default/other", "h"),)))
    rig.append(PutCalendar("holidays", (20_000,)))
    rig.append(c.SnapshotAt())
    key = next(iter(rig.state.history.segments))
    rig.append(c.BackedUp("memory://test", (key,), 1, 1, 5, 7, claim="first life"))
    rig.append(c.Retire(gone=(key,)))
    staged = {"change": "change-1", "part": 1, "parts": 2}
    rig.put(job("third"), **staged)
    return rig


def fill_pool(rig: StateRig, at: int) -> None:
    """Limits, a gate, a retry that was paid for, and a dead letter."""
    each, all_ = pool.Limits(concurrent=2, retry_budget=5), pool.Limits(rate_milli=9_000)
    items = (pool.LimitItem(("*", "", -1), each), pool.LimitItem(("", "command", 3), all_))
    rig.append(pool.SetLimits(items, "anna"))
    rig.append(pool.CloseGate(pool.Gate(0, pool.GateAction.DROP, "why", "anna", 0, jobs="x/*")))
    rig.to(at)
    rig.account(at - 60, at, number=3)
    failed = {"state": LaunchState.FAILED, "exit_code": 1}
    rig.begin(at, number=3)
    rig.finished(at, number=3, **failed)
    rig.begin(at - 60, number=3)
    rig.finished(at - 60, number=3, reason=Reason.FATAL, **failed)


def copy_of(state: State) -> State:
    return decode_state([encode_state(state)])


class Backed:
    """A cell whose log a test writes; what it keeps and stores is made as its leader would."""

    def __init__(self, folder: Path, store: ObjectStore | None = None) -> None:
        self.store = store if store is not None else MemoryStore()
        self.backup_store = BackupStore(self.store, CELL)
        self.data = folder / "leader"
        self.folders = Folders(self.data, CELL)
        self.folders.open()
        self.rig = StateRig(is_claimed=False)
        self.rig.base = 1  # the first entry of a log is the engine's own
        self.rig.append(c.Claim("2026b", "0.1.0", c.FORMAT))
        self.rig.put(job())
        self.rig.join("e1", "l1")
        self.backup_store.claim_generation(
            Generation(cell=CELL, generation=1, id="first"), unconditional=True
        )

    @property
    def state(self) -> State:
        return self.rig.state

    def seal(self, rows: int = 3, *, is_stored: bool = True) -> list[SegmentRecord]:
        """Let launches run, the first of them fail, and seal their rows: two segments."""
        more(self.rig, rows, fails_at=0)
        outcome = self.rig.append(c.Seal(self.state.history.seals + 1))
        records = [one.record for one in outcome.sealed]
        for one in outcome.sealed:
            self.folders.write(one)
        if is_stored:
            for record in records:
                self.backup_store.put_segment(self.folders.segments / name_of(record))
            keys = tuple(record.key for record in records)
            self.rig.append(c.BackedUp(self.store.url, keys, claim="first"))
        return records

    def snapshot(self) -> Manifest:
        """Take a snapshot and store it."""
        self.rig.append(c.SnapshotAt())
        state, taken = self.state, self.state.history.taken
        generation = state.epoch.generation
        header = SnapshotHeader(
            CELL, generation, taken.term, taken.index, state.digest, taken.at_ms
        )
        file = write_snapshot(self.folders.snapshots, header, Imaging.begin(state).pieces())
        named = {name_of(record): True for record in state.history.segments.values()}
        policy, draw = SnapshotPolicy(), lambda: "never drawn"
        uploads = Uploads(self.backup_store, "", policy, draw, "r1", "0.1.0")
        uploads.put_snapshot(outline_of(file), named, lambda _: None)
        manifests = self.backup_store.manifests()[0]
        return next(
            one for one in manifests if one.position == (generation, taken.index, taken.term)
        )

    def is_restored(self, generation: int, index: int) -> None:
        """Let the log go on as a restored cell that has resolved."""
        state = self.state
        rig = self.rig
        begin_generation(
            state, NewGeneration(generation, rig.at_ms, "bob", self.store.url, f"life-{generation}")
        )
        assert state.index < index
        rig.base = index - len(rig.log)
        rig.epoch = Epoch(generation, 9, "r2")
        rig.append(c.Claim("2026b", "0.1.0", c.FORMAT))
        rig.append(c.Resolve(0))


def target_of(data: Path, replica: str = "r1") -> Target:
    return Target(data, CELL, replica)


def yes(_: Report) -> bool:
    return True


def no(_: Report) -> bool:
    return False


def silent(_: str) -> None:
    pass


def restore(
    backup_store: BackupStore,
    data: Path,
    *,
    agree: Callable[[Report], bool] = yes,
    tell: Callable[[str], None] = silent,
    draw: str = "drawn",
    **choices: Any,
) -> Report:
    """Restore from a store, as r1."""
    chosen = msgspec.structs.replace(CHOICES, **choices)
    return restoring.restore(target_of(data), chosen, draw, agree, tell, backup_store=backup_store)


def restore_disk(
    source: Path,
    backup_store: BackupStore | None,
    data: Path,
    *,
    agree: Callable[[Report], bool] = yes,
    tell: Callable[[str], None] = silent,
    draw: str = "drawn",
    **choices: Any,
) -> Report:
    """Restore from a replica's disk, as r1."""
    chosen = msgspec.structs.replace(CHOICES, **choices)
    return restoring.restore(
        target_of(data), chosen, draw, agree, tell, backup_store=backup_store, data=source
    )


def opened(data: Path, replica: str = "r1") -> tuple[Position, bytes]:
    """Where a replica's log begins, and the image of its State, as the engine reads them."""
    disk = DirectoryDisk(data / "raft")
    try:
        config = EngineConfig(
            replica=replica,
            peers={replica: "127.0.0.1:1"},
            data="unused",
            start="resume",
            snapshot_entries=50,
            trailing_entries=10,
            cell=CELL,
        )
        found = load(disk, config, lambda: 99)
        assert found.dump is not None
        assert found.journal[-1][1:] == (found.dump.position.index, found.dump.position.term)
        image = b"".join(read_pieces(disk, found.dump))
        found.journal._destroy()
        return found.dump.position, image
    finally:
        disk.close()


def tree(folder: Path) -> dict[str, bytes]:
    """All that is below a folder: files with their content, folders with none."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def segments_in(data: Path) -> set[str]:
    return {path.name for path in (data / "segments").glob("*.seg")}


def write_disk(data: Path, rig: StateRig, *, dump_at: int = 0, up_to: int | None = None) -> None:
    """A stopped replica's journal: the entries of a rig, perhaps behind a dump."""
    disk = DirectoryDisk(data / "raft")
    journal = FileJournal.create(disk, Identity(CELL, "r3", 5, joins=False))
    for number, entry in enumerate(rig.log[:up_to], 1):
        journal.add(seal(ENTRY, Origin("r1", 1, number), entry), number + 1, 1)
        if number % 8 == 0:
            journal.sync()
    journal.sync()
    if dump_at:
        machine = Machine()
        for number, entry in enumerate(rig.log[: dump_at - 1], 1):
            machine.apply(1, number + 1, entry)
        write_dump(disk, TAKEN, Position(1, dump_at), b"\x80", [encode_state(machine.state)])
        disk.rename(TAKEN, IN_FORCE)
    journal._destroy()
    disk.close()


DOORS = ("mkdir", "replace", "rename", "fsync", "fdatasync", "unlink", "rmdir", "pwrite", "write")
"""What is changed on a disk goes through these of the module os."""


@contextmanager
def failing(
    patch: pytest.MonkeyPatch, store: MemoryStore, step: int, failure: BaseException
) -> Iterator[Callable[[], int]]:
    """Let the operation number `step` on the disk or the store fail, counted from 0; who was killed
    does nothing afterwards either. Yields how many there were."""
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done == step + 1 or (done > step and isinstance(failure, Died)):
            raise failure

    import os

    def door(name: str) -> Any:
        real = getattr(os, name)

        def called(*given: Any, **named: Any) -> Any:
            count()
            return real(*given, **named)

        return called

    with patch.context() as inside:
        for name in DOORS:
            inside.setattr(os, name, door(name))
        store.hook = lambda operation, name: count()
        try:
            yield lambda: done
        finally:
            store.hook = lambda operation, name: None
