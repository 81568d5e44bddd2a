"""Headers of HTTP/2 as bytes and back (RFC 7541), without a dynamic table.

Theory of operation. Who announces a table of size 0 (SETTINGS_HEADER_TABLE_SIZE) is sent static
entries and literals only, so a block of headers can be read by itself. What is written here are
literals that no table remembers; what is read may also be Huffman-coded.
"""

from __future__ import annotations

from functools import cache
from typing import Final

Headers = list[tuple[str, bytes]]

_STATIC_NAMES: Final = (
    ":authority :method :method :path :path :scheme :scheme :status :status :status :status :status"
    " :status :status accept-charset accept-encoding accept-language accept-ranges accept"
    " access-control-allow-origin age allow authorization cache-control content-disposition"
    " content-encoding content-language content-length content-location content-range content-type"
    " cookie date etag expect expires from host if-match if-modified-since if-none-match if-range"
    " if-unmodified-since last-modified link location max-forwards proxy-authenticate"
    " proxy-authorization range referer refresh retry-after server set-cookie"
    " strict-transport-security transfer-encoding user-agent vary via www-authenticate"
)
_STATIC_VALUES: Final = (
    *(b"", b"GET", b"POST", b"/", b"/index.html", b"http", b"https"),
    *(b"200", b"204", b"206", b"304", b"400", b"404", b"500", b"", b"gzip, deflate"),
)
"""Of the first entries; all others have none."""

_HUFFMAN_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
"""How many bits stand for each byte, and for the end (RFC 7541, appendix B). The code is canonical:
among codes of one length, a greater byte has the greater code."""
_END_OF_STRING: Final = 256


class BadHeaders(Exception):
    """Bytes that are no block of headers, or one that refers to a dynamic table."""


def encode(headers: Headers) -> bytes:
    """Return a block of headers; names in lower case."""
    block = bytearray()
    for name, value in headers:
        block += b"\x00"  # a literal with a new name that is not remembered
        for text in (name.encode(), value):
            block += _integer(len(text)) + text
    return bytes(block)


def decode(block: bytes) -> Headers:
    """Return the headers of a block, in their order.

    Raises:
        BadHeaders: it cannot be read.
    """
    try:
        return _decode(block)
    except (IndexError, UnicodeDecodeError) as error:
        raise BadHeaders("a block of headers is cut off or no text") from error


def _decode(block: bytes) -> Headers:
    headers: Headers = []
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = _read_integer(block, at, 7)
            headers.append(_static(index))
        elif first & 0xE0 == 0x20:
            _, at = _read_integer(block, at, 5)  # the size of a table that stays empty
        else:
            index, at = _read_integer(block, at, 6 if first & 0x40 else 4)
            if index:
                name = _static(index)[0]
            else:
                raw, at = _read_text(block, at)
                name = raw.decode()
            value, at = _read_text(block, at)
            headers.append((name, value))
    return headers


def _integer(value: int) -> bytes:
    """A length of a text as it is, that is with a prefix of seven bits."""
    if value < 127:
        return bytes((value,))
    rest, encoded = value - 127, bytearray(b"\x7f")
    while rest >= 128:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _read_integer(block: bytes, at: int, prefix_bits: int) -> tuple[int, int]:
    most = (1 << prefix_bits) - 1
    value, at = block[at] & most, at + 1
    if value < most:
        return value, at
    for shift in range(0, 35, 7):
        byte, at = block[at], at + 1
        value += (byte & 127) << shift
        if byte < 128:
            return value, at
    raise BadHeaders("a number is too long")


def _read_text(block: bytes, at: int) -> tuple[bytes, int]:
    is_huffman = block[at] & 0x80
    length, at = _read_integer(block, at, 7)
    if at + length > len(block):
        raise BadHeaders("a text is cut off")
    text = block[at : at + length]
    return _unhuffman(text) if is_huffman else text, at + length


def _static(index: int) -> tuple[str, bytes]:
    names = _STATIC_NAMES.split()
    if not 1 <= index <= len(names):
        raise BadHeaders(f"entry {index} is not in the static table")
    value = _STATIC_VALUES[index - 1] if index <= len(_STATIC_VALUES) else b""
    return names[index - 1], value


@cache
def _codes() -> dict[int, int]:
    """Each code with a 1 before it, which keeps its leading zeros, and the byte it stands for."""
    codes: dict[int, int] = {}
    code, bits = 0, 0
    for symbol in sorted(range(len(_HUFFMAN_LENGTHS)), key=lambda one: _HUFFMAN_LENGTHS[one]):
        code <<= _HUFFMAN_LENGTHS[symbol] - bits
        bits = _HUFFMAN_LENGTHS[symbol]
        codes[1 << bits | code] = symbol
        code += 1
    return codes


def _unhuffman(text: bytes) -> bytes:
    codes, found, code = _codes(), bytearray(), 1
    for byte in text:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            symbol = codes.get(code)
            if symbol is not None:
                if symbol == _END_OF_STRING:
                    raise BadHeaders("a text has an end within it")
                found.append(symbol)
                code = 1
            elif code >> 31:
                raise BadHeaders("bits that stand for nothing")
    bits = code.bit_length() - 1
    if bits > 7 or code != (1 << bits + 1) - 1:
        raise BadHeaders("a text is padded with more than a part of a byte of ones")
    return bytes(found)
