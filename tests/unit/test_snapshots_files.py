"""Snapshots and segments on a disk: equal contents are equal bytes, and every damage is found."""

from __future__ import annotations

import errno
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots import disk, zstd
from snapshots import format as form
from snapshots.disk import (
    list_snapshots,
    read_snapshot,
    remove_unfinished,
    verify_snapshot,
    write_snapshot,
)
from snapshots.errors import (
    SnapshotCorrupt,
    SnapshotError,
    SnapshotForeign,
    SnapshotMissing,
    SnapshotUnsupported,
)
from snapshots.format import SegmentHeader, SnapshotHeader
from snapshots.layout import segment_name, snapshot_name
from snapshots.segments import list_segments, verify_segment, write_segment
from tests.unit.backup_store_rig import newest_snapshot, read_segment

HEADER = SnapshotHeader("prod", 1, 7, 4711, bytes(range(16)), 1_795_190_400_000)
CONTENT = b"state " * 40


def segment(content: bytes = CONTENT, number: int = 1) -> SegmentHeader:
    digest = hashlib.blake2b(content, digest_size=16).digest()
    return SegmentHeader("prod", 1, number, "runs", 10, 20, 3, digest)


def test_a_snapshot_comes_back_as_it_was_written(tmp_path: Path) -> None:
    file = write_snapshot(tmp_path, HEADER, [CONTENT, b"", CONTENT])
    assert file.path == tmp_path / snapshot_name(7, 4711)
    assert file.header == HEADER
    assert file.content_bytes == 2 * len(CONTENT)
    assert file.content_digest == hashlib.sha256(2 * CONTENT).digest()
    assert file.file_bytes == file.path.stat().st_size
    found, pieces = read_snapshot(file.path, "prod")
    assert found == file
    assert b"".join(pieces) == 2 * CONTENT
    assert list(tmp_path.iterdir()) == [file.path]


def test_an_empty_content_is_one(tmp_path: Path) -> None:
    file = write_snapshot(tmp_path, HEADER, [])
    assert b"".join(read_snapshot(file.path, "prod")[1]) == b""


@settings(max_examples=25)
@given(st.lists(st.integers(0, 50_000), max_size=5), st.integers(1, 12_000))
def test_equal_contents_are_equal_bytes_however_they_come(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], step: int
) -> None:
    content = bytes(range(251)) * 150
    places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    pieces = [content[a:b] for a, b in itertools.pairwise(places)]
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zstd, "FRAME_BYTES", 16 << 10)  # three frames of little content
        first = write_snapshot(one, HEADER, pieces)
        second = write_snapshot(two, HEADER, _steps(content, step))
        assert len(list(zstd.blocks(pieces))) == 3
    assert first.path.read_bytes() == second.path.read_bytes()


def _steps(content: bytes, step: int) -> Iterator[bytes]:
    for start in range(0, len(content), step):
        yield content[start : start + step]


def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, HEADER, [CONTENT]).path
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(SnapshotError):
            verify_snapshot(path, "prod")
        path.write_bytes(whole[:place])
        with pytest.raises(SnapshotCorrupt):
            verify_snapshot(path, "prod")
    path.write_bytes(whole + b"\0")
    with pytest.raises(SnapshotCorrupt):
        verify_snapshot(path, "prod")
    path.write_bytes(whole)
    verify_snapshot(path, "prod")


def test_every_flipped_byte_of_a_segment_is_found(tmp_path: Path) -> None:
    path = write_segment(tmp_path, segment(), [CONTENT]).path
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(SnapshotError):
            read_segment(path, "prod")


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """A frame that claims a mebibyte and holds a gibibyte, in a file whose checksum is right."""
    bomb = zstd.zstd.compress(bytes(64 << 20), 3)
    lead = form.encode_lead(form.SNAPSHOT_MAGIC, HEADER)
    body = lead + form.LENGTH.pack(len(bomb)) + bomb + form.Summing().end()
    path = tmp_path / snapshot_name(7, 4711)
    path.write_bytes(body + hashlib.sha256(body).digest())
    with pytest.raises(SnapshotCorrupt, match="frame"):
        verify_snapshot(path, "prod")


@pytest.mark.parametrize(
    "content", [b"", b"x", bytes(100), hashlib.sha512(b"x").digest(), b"\xff" * 70]
)
def test_any_other_file_is_no_snapshot(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / snapshot_name(7, 4711)
    path.write_bytes(content)
    with pytest.raises(SnapshotCorrupt):
        verify_snapshot(path, "prod")
    assert newest_snapshot(tmp_path, "prod")[0] is None


def test_what_is_missing_foreign_or_misnamed_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(SnapshotMissing):
        verify_snapshot(tmp_path / snapshot_name(1, 1), "prod")
    path = write_snapshot(tmp_path, HEADER, [CONTENT]).path
    with pytest.raises(SnapshotForeign, match="prod"):
        verify_snapshot(path, "test")
    other = path.rename(tmp_path / snapshot_name(7, 4712))
    with pytest.raises(SnapshotCorrupt, match="belongs to"):
        verify_snapshot(other, "prod")


def test_another_format_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "FORMAT_VERSION", 4)
    path = write_snapshot(tmp_path, HEADER, [CONTENT]).path
    monkeypatch.undo()
    with pytest.raises(SnapshotUnsupported, match="format 4"):
        verify_snapshot(path, "prod")


def test_the_newest_that_verifies_is_taken_and_the_others_are_told(tmp_path: Path) -> None:
    for index in (5, 20, 100):
        write_snapshot(tmp_path, msgspec.structs.replace(HEADER, index=index), [CONTENT])
    newest = tmp_path / snapshot_name(7, 100)
    newest.write_bytes(newest.read_bytes()[:-1])
    found, skipped = newest_snapshot(tmp_path, "prod")
    assert found is not None
    assert found.header.index == 20
    assert [error.name for error in skipped] == [newest.name]
    assert [path.name for path in list_snapshots(tmp_path)] == [
        snapshot_name(7, index) for index in (100, 20, 5)
    ]


def test_a_write_that_fails_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield CONTENT
        raise OSError(errno.ENOSPC, "no space left on device")

    kept = write_snapshot(tmp_path, HEADER, [b"before"])
    with pytest.raises(OSError, match="no space"):
        write_snapshot(tmp_path, HEADER, pieces())
    assert list(tmp_path.iterdir()) == [kept.path]
    assert b"".join(read_snapshot(kept.path, "prod")[1]) == b"before"


def test_what_was_written_wrong_is_found_when_it_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(source: Path, target: Path) -> None:
        content = bytearray(source.read_bytes())
        content[-40] ^= 1
        target.write_bytes(content)
        source.unlink()

    monkeypatch.setattr(disk.os, "replace", replace)
    with pytest.raises(SnapshotCorrupt):
        write_snapshot(tmp_path, HEADER, [CONTENT])
    assert list(tmp_path.iterdir()) == [], "nobody may take it for a snapshot"


def test_what_a_crash_left_is_removed_and_never_listed(tmp_path: Path) -> None:
    (tmp_path / (snapshot_name(1, 1) + disk.UNFINISHED)).write_bytes(b"half")
    (tmp_path / (segment_name(1, 1, "runs") + disk.UNFINISHED)).write_bytes(b"half")
    assert list_snapshots(tmp_path) == list_segments(tmp_path) == []
    assert len(remove_unfinished(tmp_path)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_segment_comes_back_and_is_written_once(tmp_path: Path) -> None:
    file = write_segment(tmp_path, segment(), [CONTENT])
    before = file.path.stat().st_ino
    assert write_segment(tmp_path, segment(), [CONTENT]) == file
    assert file.path.stat().st_ino == before, "the same is not written again"
    assert read_segment(file.path, "prod") == (segment(), CONTENT)
    assert verify_segment(file.path, "prod") == file
    file.path.write_bytes(b"damaged")
    assert write_segment(tmp_path, segment(), [CONTENT]) == file
    assert [path.name for path in list_segments(tmp_path)] == ["0001-0000000001-runs.seg"]
