"""Frames and headers: one encoding of each content, and limits before memory is asked for."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import pytest
from backports import zstd as library
from hypothesis import given
from hypothesis import strategies as st

from snapshots import format as form
from snapshots import zstd
from snapshots.disk import read_snapshot, verify_snapshot, write_snapshot
from snapshots.errors import InvariantViolated, SnapshotCorrupt, SnapshotUnsupported
from snapshots.format import SegmentHeader, SnapshotHeader
from snapshots.layout import snapshot_name

HEADER = SnapshotHeader("prod", 1, 7, 4711, bytes(range(16)), 1_795_190_400_000)
NAME = snapshot_name(7, 4711)


@pytest.mark.parametrize("size", [0, 1, 4096, (1 << 20) - 1, 1 << 20])
@pytest.mark.parametrize("make", [bytes, os.urandom])
def test_a_frame_comes_back_whatever_it_holds(size: int, make: object) -> None:
    content = make(size)
    frame = zstd.compress(content)
    assert len(frame) <= zstd.FRAME_STORED_BYTES_MAX
    assert zstd.decompress(frame) == content


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0" * 40,
        zstd.compress(b"rows")[:-1],
        zstd.compress(b"rows") + b"\0",
        zstd.compress(b"rows") * 2,
        library.compress(bytes((1 << 20) + 1), 3),
        library.compress(bytes(64 << 20), 19),
    ],
    ids=["empty", "zeros", "cut", "longer", "two", "a byte too many", "bomb"],
)
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(zstd.FrameDamaged):
        zstd.decompress(frame)


def test_a_frame_cannot_make_the_reader_ask_for_memory() -> None:
    """Ten bytes of content behind a header that wants a window of 128 MiB."""
    wide = {library.CompressionParameter.window_log: 27}
    packer = library.ZstdCompressor(options=wide)
    frame = packer.compress(b"ten  bytes") + packer.flush()
    assert library.decompress(frame) == b"ten  bytes"
    with pytest.raises(zstd.FrameDamaged, match="memory"):
        zstd.decompress(frame)


@given(st.lists(st.integers(0, (5 << 20) // 2), max_size=4))
def test_blocks_depend_on_the_content_alone(sizes: list[int]) -> None:
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    blocks = list(zstd.blocks(pieces))
    assert b"".join(blocks) == b"".join(pieces)
    assert all(len(block) == zstd.FRAME_BYTES for block in blocks[:-1])
    assert all(0 < len(block) <= zstd.FRAME_BYTES for block in blocks[-1:])


def test_a_known_file_is_still_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    """The layout as DESIGN.md has it, put together by hand: it may not change unnoticed."""
    content = b"state " * 40
    frame = library.compress(content, 3)
    header = msgspec.msgpack.encode(["prod", 1, 7, 4711, bytes(range(16)), 1_795_190_400_000])
    expected = b"\x89RCSNAP\n" + b"\0\x03" + len(header).to_bytes(4, "big") + header
    expected += len(frame).to_bytes(4, "big") + frame + bytes(4)
    expected += len(content).to_bytes(8, "big") + hashlib.sha256(content).digest()
    expected += hashlib.sha256(expected).digest()
    path = write_snapshot(tmp_path, HEADER, [content]).path
    assert path.read_bytes() == expected
    assert b"".join(read_snapshot(path, "prod")[1]) == content


def write_raw(folder: Path, body: bytes) -> Path:
    """A file with a checksum that is right, whatever is in it."""
    path = folder / NAME
    path.write_bytes(body + hashlib.sha256(body).digest())
    return path


def lead(header: bytes, version: int = form.FORMAT_VERSION) -> bytes:
    return form.LEAD.pack(form.SNAPSHOT_MAGIC, version, len(header)) + header


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(["prod", 1, 7]),
        msgspec.msgpack.encode(["prod", -1, 7, 4711, b"", 0]),
        msgspec.msgpack.encode(["prod", 1, 7, 2**63, b"", 0]),
        msgspec.msgpack.encode({"cell": "prod"}),
        b"\xdd\xff\xff\xff\xff",
        b"\x96\xa4\xff\xfe\xfd\xfc\x01\x07\x01\xc4\x00\x00",
    ],
)
def test_a_header_that_nobody_would_write_is_damage(tmp_path: Path, header: bytes) -> None:
    path = write_raw(tmp_path, lead(header) + form.Summing().end())
    with pytest.raises(SnapshotCorrupt):
        verify_snapshot(path, "prod")


def test_a_header_longer_than_any_is_not_read(tmp_path: Path) -> None:
    path = write_raw(tmp_path, form.LEAD.pack(form.SNAPSHOT_MAGIC, 2, 2**32 - 1) + bytes(64))
    with pytest.raises(SnapshotCorrupt, match="longer than any"):
        verify_snapshot(path, "prod")


def test_a_header_that_does_not_fit_is_not_written() -> None:
    with pytest.raises(InvariantViolated):
        form.encode_lead(form.SNAPSHOT_MAGIC, msgspec.structs.replace(HEADER, cell="x" * 5000))


def test_a_segment_is_no_snapshot(tmp_path: Path) -> None:
    header = SegmentHeader("prod", 1, 1, "runs", 1, 2, 3, bytes(16))
    body = form.encode_lead(form.SEGMENT_MAGIC, header) + form.Summing().end()
    with pytest.raises(SnapshotCorrupt, match="begin"):
        verify_snapshot(write_raw(tmp_path, body), "prod")


@pytest.mark.parametrize("version", [0, 1, 2, 65535])
def test_other_formats_are_named_when_their_bytes_are_right(tmp_path: Path, version: int) -> None:
    header = msgspec.msgpack.encode(HEADER)
    path = write_raw(tmp_path, lead(header, version) + form.Summing().end())
    with pytest.raises(SnapshotUnsupported, match=f"format {version}, and this release reads 3"):
        verify_snapshot(path, "prod")


def test_a_frame_that_says_it_is_larger_than_any_is_not_read(tmp_path: Path) -> None:
    body = form.encode_lead(form.SNAPSHOT_MAGIC, HEADER) + (2**32 - 1).to_bytes(4, "big")
    with pytest.raises(SnapshotCorrupt, match="larger than any"):
        verify_snapshot(write_raw(tmp_path, body + bytes(100)), "prod")


def test_more_content_than_any_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_snapshot(tmp_path, HEADER, [bytes(3 << 20)]).path
    monkeypatch.setattr(form, "CONTENT_BYTES_MAX", 2 << 20)
    with pytest.raises(SnapshotCorrupt, match="more than 2097152 bytes"):
        verify_snapshot(path, "prod")


@pytest.mark.parametrize("claimed", [0, 1, 2**40])
def test_a_length_that_is_not_that_of_the_content_is_found(tmp_path: Path, claimed: int) -> None:
    frame = zstd.compress(b"rows")
    body = form.encode_lead(form.SNAPSHOT_MAGIC, HEADER) + form.LENGTH.pack(len(frame)) + frame
    end = form.LENGTH.pack(0) + form.END.pack(claimed, hashlib.sha256(b"rows").digest())
    with pytest.raises(SnapshotCorrupt):
        verify_snapshot(write_raw(tmp_path, body + end), "prod")
