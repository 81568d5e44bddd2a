"""launcher.hpack, by the examples of RFC 7541."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import hpack

HUFFMAN = [  # appendix C.4 and C.6
    ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),
    ("a8eb10649cbf", b"no-cache"),
    ("25a849e95ba97d7f", b"custom-key"),
    ("25a849e95bb8e8b4bf", b"custom-value"),
    ("6402", b"302"),
    ("aec3771a4b", b"private"),
    ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    ("9d29ad171863c78f0b97c8e9ae82ae43d3", b"https://www.example.com"),
]


@pytest.mark.parametrize(("coded", "text"), HUFFMAN)
def test_huffman_codes_are_read(coded: str, text: bytes) -> None:
    raw = bytes.fromhex(coded)
    block = b"\x00\x01x" + bytes((0x80 | len(raw),)) + raw
    assert hpack.decode(block) == [("x", text)]


def test_the_code_is_complete() -> None:
    lengths = hpack._HUFFMAN_LENGTHS
    assert len(lengths) == 257
    assert sum(2 ** (30 - length) for length in lengths) == 2**30


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (
            "400a637573746f6d2d6b65790d637573746f6d2d686561646572",
            [("custom-key", b"custom-header")],
        ),
        ("040c2f73616d706c652f70617468", [(":path", b"/sample/path")]),
        ("100870617373776f726406736563726574", [("password", b"secret")]),
        ("82", [(":method", b"GET")]),
        ("3fe11f88", [(":status", b"200")]),  # the size of the table first
        ("be", None),  # 62 would be the first of a dynamic table
        ("80", None),
        ("400a6375", None),
        ("ffffffffffffffffff", None),
        ("0001ff01ff", None),
    ],
)
def test_blocks_are_read_as_the_rfc_says(
    block: str, headers: list[tuple[str, bytes]] | None
) -> None:
    if headers is None:
        with pytest.raises(hpack.BadHeaders):
            hpack.decode(bytes.fromhex(block))
    else:
        assert hpack.decode(bytes.fromhex(block)) == headers


def test_the_static_table_has_its_61_entries() -> None:
    assert hpack._static(61) == ("www-authenticate", b"")
    assert hpack._static(16) == ("accept-encoding", b"gzip, deflate")
    assert hpack._static(31) == ("content-type", b"")


@given(st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=300)), max_size=4))
def test_what_is_written_is_read(headers: list[tuple[str, bytes]]) -> None:
    assert hpack.decode(hpack.encode(headers)) == headers


@given(st.binary(max_size=60))
def test_any_bytes_are_headers_or_refused(block: bytes) -> None:
    with contextlib.suppress(hpack.BadHeaders):
        assert all(type(value) is bytes for _, value in hpack.decode(block))
