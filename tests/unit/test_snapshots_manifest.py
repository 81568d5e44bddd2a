"""Manifests and markers: JSON of ours, and any other."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.errors import (
    SnapshotCorrupt,
    SnapshotError,
    SnapshotForeign,
    SnapshotUnsupported,
)
from snapshots.layout import generation_object
from snapshots.manifest import Generation, Manifest, decode, encode
from tests.unit.backup_store_rig import manifest_at


def summed(members: object) -> bytes:
    """JSON of any content, with the checksum that it would have; by hand, as DESIGN.md says it."""
    text = msgspec.json.format(msgspec.json.encode(members), indent=1).removesuffix(b"\n}")
    return text + b',\n "sum": "' + hashlib.sha256(text).hexdigest().encode() + b'"\n}\n'


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{\n "format": 2', b'{\n "format": 1', b"\xff", b"[" * 100_000]
)
def test_other_json_is_no_manifest_though_its_checksum_is_right(body: bytes) -> None:
    content = body + b',\n "sum": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'
    with pytest.raises(SnapshotError, match=r"cannot be read|format"):
        decode(content, "m.json", "prod", Manifest)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff", b"[" * 100_000])
def test_other_json_is_no_manifest(content: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode(content, "m.json", "prod", Manifest)


def test_a_manifest_is_for_people_too() -> None:
    encoded = encode(manifest_at(7, names=("0001-0000000001-runs.seg",)))
    assert decode(encoded, "m", "prod", Manifest) == manifest_at(
        7, names=("0001-0000000001-runs.seg",)
    )
    assert b'\n "index": 7,' in encoded
    with pytest.raises(SnapshotError, match="'prod', not 'test'"):
        decode(encoded, "m", "test", Manifest)
    newer = encode(msgspec.structs.replace(manifest_at(7), format=9))
    with pytest.raises(SnapshotError, match="format 9"):
        decode(newer, "m", "prod", Manifest)


def test_an_older_manifest_with_fewer_fields_and_a_newer_one_with_more_are_read() -> None:
    full = msgspec.to_builtins(manifest_at(7))
    for name in ("replica", "release", "segments", "jobs"):
        del full[name]
    assert decode(summed(full), "m", "prod", Manifest) == manifest_at(7)
    more = summed(full | {"colour": "blue"})
    assert decode(more, "m", "prod", Manifest) == manifest_at(7)


@pytest.mark.parametrize("field", ["lineage", "term", "index", "file_bytes", "content_bytes"])
@pytest.mark.parametrize("value", [-1, 2**63, 1.5, "1", None])
def test_numbers_that_cannot_be_are_refused(field: str, value: object) -> None:
    wrong = msgspec.to_builtins(manifest_at(7)) | {field: value}
    with pytest.raises(SnapshotCorrupt, match=f"cannot be read.*{field}"):
        decode(summed(wrong), "m", "prod", Manifest)


@pytest.mark.parametrize("value", [-1, 253_402_300_800_000, 2**62])
def test_a_time_that_nobody_can_show_is_refused(value: int) -> None:
    wrong = msgspec.to_builtins(manifest_at(7)) | {"taken_ms": value}
    with pytest.raises(SnapshotCorrupt, match=r"cannot be read.*taken_ms"):
        decode(summed(wrong), "m", "prod", Manifest)


def test_every_cut_of_a_manifest_is_found() -> None:
    whole = encode(manifest_at(7, names=("0001-0000000001-runs.seg",)))
    for end in range(len(whole)):
        with pytest.raises(SnapshotError):
            decode(whole[:end], "m", "prod", Manifest)
    for more in (b"\0", b"\n", b"{}", whole):
        with pytest.raises(SnapshotCorrupt):
            decode(whole + more, "m", "prod", Manifest)


@pytest.mark.parametrize("bit", [1, 2, 4, 32])
def test_every_flipped_bit_is_found(bit: int) -> None:
    """A digit that flipped in a segment's name would let retention delete what is needed."""
    whole = encode(manifest_at(7, names=("0001-0000000001-runs.seg",)))
    for place in range(len(whole)):
        damaged = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
        with pytest.raises(SnapshotCorrupt, match="checksum"):
            decode(damaged, "m", "prod", Manifest)


def test_what_was_written_without_a_checksum_is_not_believed() -> None:
    with pytest.raises(SnapshotCorrupt, match="checksum"):
        decode(msgspec.json.encode(manifest_at(7)), "m", "prod", Manifest)


@given(st.binary(max_size=300))
def test_no_bytes_are_anything_but_a_snapshot_error(content: bytes) -> None:
    for kind in (Manifest, Generation):
        with pytest.raises(SnapshotError):
            decode(content, "m", "prod", kind)


def test_a_marker_comes_back_and_belongs_to_its_cell() -> None:
    marker = Generation(
        cell="prod", generation=2, id="a", from_snapshot="1/100", from_index=100,
        claimed_ms=1_795_190_400_000, by="ada", host="h1",
    )  # fmt: skip
    assert decode(encode(marker), "l", "prod", Generation) == marker
    with pytest.raises(SnapshotForeign, match="'prod', not 'test'"):
        decode(encode(marker), "l", "test", Generation)
    newer = encode(msgspec.structs.replace(marker, format=2))
    with pytest.raises(SnapshotUnsupported, match="format 2, and this release reads 1"):
        decode(newer, "l", "prod", Generation)
    with pytest.raises(SnapshotCorrupt, match="checksum") as damaged:
        decode(encode(marker)[:-1], "l", "prod", Generation)
    assert "who began" in damaged.value.hint


def test_stored_files_keep_their_names_for_a_generation() -> None:
    """A restore must find what the cell has stored before, also the markers of other restores."""
    marker = {"format": 1, "cell": "prod", "lineage": 3, "id": "drawn"}
    assert decode(summed(marker), "m", "prod", Generation).generation == 3
    assert generation_object("prod", 3) == "cells/prod/lineages/0003.json"
    assert msgspec.json.decode(encode(manifest_at(7)))["lineage"] == manifest_at(7).generation
