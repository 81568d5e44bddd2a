"""The disk in memory loses what it may lose, and nothing else."""

from __future__ import annotations

import errno
import random

import pytest

from consensus.engine.storage.disk import Disk
from tests.fakes.memory_disk import MemoryDisk


def written(disk: MemoryDisk, name: str, *parts: bytes, synced: int = 0) -> None:
    file = disk.create(name)
    for number, part in enumerate(parts, 1):
        file.append(part)
        if number == synced:
            file.sync()
    file.close()


def after_power_cuts(disk_made: object, seeds: int = 200) -> set[tuple[tuple[str, bytes], ...]]:
    found = set()
    for seed in range(seeds):
        disk = disk_made()  # type: ignore[operator]
        disk.power_cut(random.Random(seed))
        found.add(tuple((name, disk.content(name)) for name in disk.names()))
    return found


def test_it_is_a_disk() -> None:
    disk: Disk = MemoryDisk("r1")
    assert (disk.place, disk.names()) == ("r1", [])
    with pytest.raises(FileNotFoundError):
        disk.open("a")


def test_what_was_synced_stays_and_of_the_rest_any_beginning() -> None:
    def made() -> MemoryDisk:
        disk = MemoryDisk()
        written(disk, "a", b"kept", b"12", b"3", synced=1)
        disk.sync_names()
        return disk

    contents = {dict(files)["a"] for files in after_power_cuts(made)}
    assert all(content.startswith(b"kept") for content in contents)
    assert {b"kept", b"kept1", b"kept12", b"kept123"} < contents, "prefixes, and torn ones"


def test_names_that_were_not_synced_happen_in_order_or_not() -> None:
    def made() -> MemoryDisk:
        disk = MemoryDisk()
        written(disk, "a", b"old", synced=1)
        disk.sync_names()
        written(disk, "b", b"new", synced=1)
        disk.rename("b", "a")
        disk.remove("a")
        return disk

    assert after_power_cuts(made) == {
        (("a", b"old"),),
        (("a", b"old"), ("b", b"new")),
        (("a", b"new"),),
        (),
    }


def test_synced_names_without_synced_content_are_empty_files() -> None:
    def made() -> MemoryDisk:
        disk = MemoryDisk()
        written(disk, "a", b"x")
        disk.sync_names()
        return disk

    assert (("a", b""),) in after_power_cuts(made)


def test_a_cut_that_was_not_synced_happened_or_not() -> None:
    def made() -> MemoryDisk:
        disk = MemoryDisk()
        written(disk, "a", b"123456", synced=1)
        disk.sync_names()
        file = disk.open("a")
        file.cut(4)
        file.cut(2)
        return disk

    assert after_power_cuts(made) == {(("a", b"123456"),), (("a", b"12"),)}


def test_a_killed_process_loses_only_its_open_files() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    file.append(b"x")
    disk.crash()
    with pytest.raises(OSError, match="closed"):
        file.append(b"y")
    assert disk.open("a").read(0, 9) == b"x"
    lost = [disk.names() for seed in range(20) if not disk.power_cut(random.Random(seed))]
    assert lost[-1] == [] or disk.content("a") in (b"", b"x", b"\x00")


def test_a_removed_file_can_be_read_by_who_has_it_open() -> None:
    disk = MemoryDisk()
    written(disk, "a", b"x", synced=1)
    file = disk.open("a")
    disk.remove("a")
    assert file.read(0, 1) == b"x"


def test_a_full_disk_takes_a_part_and_says_so() -> None:
    disk = MemoryDisk(room=5)
    file = disk.create("a")
    with pytest.raises(OSError, match="space") as caught:
        file.append(b"1234567")
    assert caught.value.errno == errno.ENOSPC
    assert (disk.content("a"), disk.room_bytes()) == (b"12345", 0)
    with pytest.raises(OSError, match="space"):
        disk.create("b")
    disk.remove("a")
    assert disk.room_bytes() == 5


def test_the_nth_sync_fails_and_makes_nothing_durable() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    disk.sync_names()
    disk.fail_sync(2)
    file.append(b"1")
    file.sync()
    file.append(b"2")
    with pytest.raises(OSError, match="injected"):
        file.sync()
    file.append(b"3")
    disk.power_cut(random.Random(1))
    assert disk.content("a")[:1] == b"1"
    assert disk.syncs == 3


def test_who_dies_between_two_steps_has_done_the_first() -> None:
    disk = MemoryDisk()
    seen: list[tuple[str, str]] = []

    def before(act: str, name: str) -> None:
        seen.append((act, name))
        if act == "rename":
            raise InterruptedError

    disk.before = before
    written(disk, "a", b"x", synced=1)
    with pytest.raises(InterruptedError):
        disk.rename("a", "b")
    assert seen == [("create", "a"), ("append", "a"), ("sync", "a"), ("rename", "a b")]
    assert disk.names() == ["a"]
    assert disk.fork().content("a") == b"x"
