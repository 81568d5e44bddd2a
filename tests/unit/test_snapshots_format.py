"""The frame of a snapshot: what comes back, and that no damage goes unseen."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.errors import InvariantViolated, SnapshotCorrupt, SnapshotUnsupported
from snapshots.format import MAGIC, Snapshot, decode, encode

SMALL = Snapshot("cell-1", 7, 4711, bytes(range(16)), b"what the replicas agree on")


def sealed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


def test_the_layout_is_as_documented() -> None:
    content = encode(SMALL)
    assert content[:40] == (
        MAGIC
        + bytes([0, 1, 0, 6, 16, 0, 0, 0])
        + (7).to_bytes(8, "big")
        + (4711).to_bytes(8, "big")
        + (26).to_bytes(8, "big")
    )
    assert content[40:46] == b"cell-1"
    assert content[46:62] == SMALL.digest
    assert content[62:88] == SMALL.payload
    assert content[88:] == hashlib.sha256(content[:88]).digest()


@given(
    st.text(min_size=1, max_size=60),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=64),
    st.binary(max_size=300),
)
def test_what_was_encoded_is_decoded(
    cell: str, term: int, index: int, digest: bytes, payload: bytes
) -> None:
    snapshot = Snapshot(cell, term, index, digest, payload)
    assert decode(encode(snapshot)) == snapshot


def test_a_flipped_bit_anywhere_is_found() -> None:
    content = encode(SMALL)
    for at in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            with pytest.raises(SnapshotCorrupt):
                decode(bytes(damaged))


def test_every_truncation_is_found() -> None:
    content = encode(SMALL)
    for length in range(len(content)):
        with pytest.raises(SnapshotCorrupt):
            decode(content[:length])


@pytest.mark.parametrize("extra", [b"\0", b"x" * 32, b"y" * 4096])
def test_bytes_in_addition_are_found(extra: bytes) -> None:
    content = encode(SMALL)
    for damaged in (content + extra, extra + content, content[:60] + extra + content[60:]):
        with pytest.raises(SnapshotCorrupt):
            decode(damaged)


def test_two_snapshots_in_one_file_are_found() -> None:
    with pytest.raises(SnapshotCorrupt):
        decode(encode(SMALL) + encode(SMALL))


def test_lengths_that_do_not_add_up_are_found_even_if_the_checksum_is_right() -> None:
    body = encode(SMALL)[:-32]
    for at, value in ((11, 7), (11, 0), (12, 15), (39, 27)):
        damaged = bytearray(body)
        damaged[at] = value
        with pytest.raises(SnapshotCorrupt, match="header says"):
            decode(sealed(bytes(damaged)))


def test_a_name_that_is_no_text_is_found() -> None:
    body = bytearray(encode(SMALL)[:-32])
    body[40] = 0xFF
    with pytest.raises(SnapshotCorrupt, match="not UTF-8"):
        decode(sealed(bytes(body)))


def test_a_newer_format_is_not_called_damaged() -> None:
    body = bytearray(encode(SMALL)[:-32])
    body[9] = 2
    with pytest.raises(SnapshotUnsupported, match=r"0-1\.snap: its format 2 is not 1"):
        decode(sealed(bytes(body)), "0-1.snap")


def test_an_unknown_codec_is_not_called_damaged() -> None:
    body = bytearray(encode(SMALL)[:-32])
    body[10] = 1
    with pytest.raises(SnapshotUnsupported, match="codec 1 is not known"):
        decode(sealed(bytes(body)))


@pytest.mark.parametrize(
    "fields",
    [
        {"cell": ""},
        {"cell": "ü" * 128},
        {"digest": bytes(256)},
        {"term": -1},
        {"index": 1 << 64},
    ],
)
def test_what_does_not_fit_into_the_frame_is_not_written(fields: dict[str, object]) -> None:
    with pytest.raises(InvariantViolated):
        encode(msgspec.structs.replace(SMALL, **fields))


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(content: bytes) -> None:
    for damaged in (content, MAGIC + content, sealed(MAGIC + b"\0\1" + content)):
        with pytest.raises(SnapshotCorrupt):
            decode(damaged)
