"""Files of snapshots and segments on a disk that fails: nothing half done is taken for done."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from snapshots import disk, segments, zstd
from snapshots import format as form
from snapshots.disk import (
    read_snapshot,
    write_snapshot,
)
from snapshots.errors import SnapshotCorrupt, SnapshotError, SnapshotMissing
from snapshots.format import SegmentHeader, SnapshotHeader
from snapshots.layout import segment_name, snapshot_name
from snapshots.segments import list_segments, open_segment, verify_segment, write_segment
from tests.unit.backup_store_rig import newest_snapshot, read_segment

HEADER = SnapshotHeader("prod", 1, 7, 4711, bytes(16), 1_795_190_400_000)
ROWS = b"rows " * 50


class Crash(BaseException):
    """The process is killed here."""


def at(index: int) -> SnapshotHeader:
    return msgspec.structs.replace(HEADER, index=index)


def rows_header(content: bytes = ROWS, number: int = 1) -> SegmentHeader:
    digest = hashlib.blake2b(content, digest_size=16).digest()
    return SegmentHeader("prod", 1, number, "runs", 10, 20, 3, digest)


def crash_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the process die where it would call `os.NAME`."""

    def die(*_: object, **__: object) -> None:
        raise Crash(name)

    monkeypatch.setattr(disk.os, name, die)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_dies_before_its_rename_leaves_the_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    kept = write_snapshot(tmp_path, at(1), [b"one"])
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # the dead do not tidy up
    crash_in(monkeypatch, step)
    with pytest.raises(Crash):
        write_snapshot(tmp_path, at(2), [b"two"])
    monkeypatch.undo()
    assert newest_snapshot(tmp_path, "prod") == (kept, [])
    assert len(disk.remove_unfinished(tmp_path)) == 1


def test_a_write_that_dies_before_its_name_is_durable_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Path) -> None:
        raise Crash("sync")

    monkeypatch.setattr(disk, "sync_directory", die)
    with pytest.raises(Crash):
        write_snapshot(tmp_path, at(2), [b"two"])
    monkeypatch.undo()
    found, skipped = newest_snapshot(tmp_path, "prod")
    assert found is None or b"".join(read_snapshot(found.path, "prod")[1]) == b"two"
    assert skipped == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_sync_of_a_file_leaves_nothing_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    synced: list[int] = []

    def fail(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk.os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(code)) as failed:
        write_segment(tmp_path, rows_header(), [ROWS])
    assert failed.value.errno == code
    assert len(synced) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_failed_sync_of_the_directory_leaves_nothing_that_a_second_try_would_believe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(disk, "sync_directory", fail)
    with pytest.raises(OSError, match="input/output"):
        write_segment(tmp_path, rows_header(), [ROWS])
    with pytest.raises(OSError, match="input/output"):
        write_snapshot(tmp_path, HEADER, [ROWS])
    assert list(tmp_path.iterdir()) == []


def test_a_segment_that_is_kept_is_durable_under_its_name_when_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wrote it may have been killed between its rename and the sync of the directory."""
    write_segment(tmp_path, rows_header(), [ROWS])
    synced: list[Path] = []
    monkeypatch.setattr(disk, "sync_directory", synced.append)
    write_segment(tmp_path, rows_header(), [ROWS])
    assert synced == [tmp_path]


def test_a_section_is_read_alone_and_damage_in_it_is_found(tmp_path: Path) -> None:
    """Of sections of any size, also empty ones and those of several frames."""
    sections = [b"index", b"", bytes(3 << 20), b"rows"]
    path = write_segment(tmp_path, rows_header(), sections).path
    found = open_segment(path, "prod")
    assert [found.read(number) for number in range(len(found))] == sections
    whole = bytearray(path.read_bytes())
    at = whole.rindex(b"rows")
    whole[at] ^= 1
    path.write_bytes(whole)
    assert open_segment(path, "prod").read(0) == b"index", "what is not read is not looked at"
    with pytest.raises(SnapshotCorrupt, match="cannot be unpacked"):
        open_segment(path, "prod").read(3)
    path.write_bytes(whole[:at])
    with pytest.raises(SnapshotCorrupt, match="end is missing"):
        open_segment(path, "prod").read(3)


@pytest.mark.parametrize(
    ("table", "why"), [(b"\0\0\0", "not one"), (b"\xff" * 8, "its end is missing")]
)
def test_a_table_of_sections_that_is_none_is_refused(
    tmp_path: Path, table: bytes, why: str
) -> None:
    """Found by fuzzing: its sizes were believed, up to 4 GiB each."""
    path = tmp_path / segment_name(1, 1, "runs")
    with disk.create(path) as file:
        lead = form.encode_lead(form.SEGMENT_MAGIC, rows_header())
        disk.put_frames(file, lead, [(table, zstd.compress_checked(table))])
    verify_segment(path, "prod")
    with pytest.raises(SnapshotCorrupt, match=why):
        open_segment(path, "prod")


def test_more_rows_than_a_reader_takes_are_not_written_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(3 << 20)
    path = write_segment(tmp_path, rows_header(content), [content]).path
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MAX", 2 << 20)
    with pytest.raises(SnapshotCorrupt, match="more than 2097152 bytes"):
        verify_segment(path, "prod", 2 << 20)
    with pytest.raises(SnapshotCorrupt, match="more than 2097152 bytes"):
        write_segment(tmp_path, rows_header(content, 2), [content])
    assert list_segments(tmp_path) == [path]


def fail_reading(monkeypatch: pytest.MonkeyPatch, bad: Path, code: int) -> None:
    """Let the disk refuse to read the file `bad`."""
    real = Path.open

    def opened(path: Path, *args: object, **kinds: object) -> object:
        if path == bad:
            raise OSError(code, os.strerror(code))
        return real(path, *args, **kinds)

    monkeypatch.setattr(Path, "open", opened)


def test_a_snapshot_on_a_bad_sector_does_not_hide_the_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = write_snapshot(tmp_path, at(1), [b"one"])
    newest = write_snapshot(tmp_path, at(2), [b"two"])
    fail_reading(monkeypatch, newest.path, errno.EIO)
    found, skipped = newest_snapshot(tmp_path, "prod")
    assert found == older
    assert [type(error) for error in skipped] == [SnapshotCorrupt]
    assert "Input/output error" in str(skipped[0])


def test_too_many_open_files_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = write_snapshot(tmp_path, at(2), [b"two"])
    fail_reading(monkeypatch, newest.path, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        newest_snapshot(tmp_path, "prod")


def test_what_cannot_be_read_back_is_not_left_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_reading(monkeypatch, tmp_path / snapshot_name(7, 4711), errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        write_snapshot(tmp_path, HEADER, [b"state"])
    monkeypatch.undo()
    fail_reading(monkeypatch, tmp_path / segment_name(1, 1, "runs"), errno.EIO)
    with pytest.raises(SnapshotCorrupt):
        write_segment(tmp_path, rows_header(), [ROWS])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_that_name_is_no_snapshot(tmp_path: Path) -> None:
    older = write_snapshot(tmp_path, at(1), [b"one"])
    (tmp_path / snapshot_name(7, 2)).mkdir()
    found, skipped = newest_snapshot(tmp_path, "prod")
    assert found == older
    assert len(skipped) == 1


def blocks_of(count: int, first: int = 0) -> Iterator[bytes]:
    """Content that cannot be packed, so that no buffer holds all of the file."""
    for number in range(count):
        yield hashlib.shake_128(bytes([first + number])).digest(1 << 20)


def test_a_file_that_changes_while_it_is_read_is_never_given_whole(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, HEADER, blocks_of(3)).path
    _, pieces = read_snapshot(path, "prod")
    taken: list[bytes] = [next(pieces)]
    other = tmp_path / "other"
    other.mkdir()
    replaced = write_snapshot(other, HEADER, blocks_of(3, first=9)).path.read_bytes()
    with path.open("r+b") as file:
        file.write(replaced)
    with pytest.raises(SnapshotCorrupt):
        taken.extend(pieces)
    assert len(taken) < 3, "whoever has the last piece has verified ones"


def test_a_file_that_is_replaced_before_it_is_read_is_not_given_whole(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, HEADER, [b"state"]).path
    _, pieces = read_snapshot(path, "prod")
    write_snapshot(tmp_path, HEADER, [b"other"])
    with pytest.raises(SnapshotCorrupt, match="changed"):
        list(pieces)


def test_a_file_that_goes_before_it_is_read_is_missing(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, HEADER, [b"state"]).path
    _, pieces = read_snapshot(path, "prod")
    path.unlink()
    with pytest.raises(SnapshotMissing):
        list(pieces)


def test_every_cut_and_every_byte_more_of_a_segment_is_found(tmp_path: Path) -> None:
    path = write_segment(tmp_path, rows_header(), [ROWS]).path
    whole = path.read_bytes()
    for wrong in [*(whole[:place] for place in range(len(whole))), whole + b"\0", whole + whole]:
        path.write_bytes(wrong)
        with pytest.raises(SnapshotError):
            read_segment(path, "prod")
        with pytest.raises(SnapshotError):
            verify_segment(path, "prod")


@pytest.mark.parametrize("count", [1, 8])
def test_a_snapshot_needs_little_memory_however_large_it_is(tmp_path: Path, count: int) -> None:
    """Pieces are made one by one, and no more than two are asked for ahead of being written."""
    alive = 0
    most = 0

    class Piece(bytes):
        def __new__(cls, content: bytes) -> Piece:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            return super().__new__(cls, content)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    write_snapshot(tmp_path, HEADER, (Piece(bytes(1 << 20)) for _ in range(count)))
    assert most <= 2
