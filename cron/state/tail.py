"""The tail of one stream of history: what ended since the last Seal, encoded, in log order.

Theory of operation. An item is a row, or a chunk of rows that are alike. It is encoded once, when
it is appended, onto the end of `content`; an entry's digest covers the same bytes. Beside it stand
its log index, its ScheduledTimes and its state, an integer each: a question passes over items by
them, and decodes those that are left. A launch of a chunk makes no object here, and costs little
more than the copy of its bytes.

All columns only grow, and what is in them never changes: another thread may read a tail up to the
number of items that the thread that owns State has given it.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Final

import msgspec

from cron.errors import InvalidInput, InvariantViolated
from cron.state.rows import CHUNK, Chunk, Row, RowKind, rows_of, values

ITEMS_MAX: Final = 1 << 24
"""Items that a decoder takes from one segment: far above any that we seal, against damage."""

_ARRAY32: Final = 0xDD
"""MessagePack's mark of an array with a length of four bytes: a tail is an array of items."""
HEAD_BYTES: Final = 5
_KIND_AT: Final = 3
_RANGE: Final = RowKind.RANGE  # members of an enumeration are slow to look up


_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
_encoder = msgspec.msgpack.Encoder()
_decode_row = msgspec.msgpack.Decoder(Row).decode
_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode
_cut = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class RowsDamaged(InvalidInput):
    """Bytes that claim to be rows are none."""

    code = "rows_damaged"


def content_digest(content: bytes) -> bytes:
    """Return the digest by which the catalog knows a segment's content."""
    return hashlib.blake2b(content, digest_size=16).digest()


def head_of(items: int) -> bytes:
    """Return what stands before so many items."""
    return bytes((_ARRAY32, *items.to_bytes(4, "big")))


def decode_row(raw: bytes) -> Row:
    """Return a single row. Raises RowsDamaged."""
    try:
        return _decode_row(raw)
    except _UNREADABLE as error:
        raise RowsDamaged(f"segment: a row cannot be read: {error}") from error


def encode_item(item: Row | Chunk) -> bytes:
    """Return the bytes of what ended, as history and digests have them."""
    return _encoder.encode(item)


class Tail:
    """The items of one stream since the last Seal: encoded, and in columns, an entry for each.

    `ends`: where an item's bytes end in `content`; `firsts`: the number of its first row, from 0;
    `indexes`: its log index; `firsts_s` and `lasts_s` span its ScheduledTimes; `states`.
    `is_numbered`: log index and number alone say in which order the rows are.
    """

    __slots__ = (
        "content", "ends", "firsts", "firsts_s", "indexes", "is_numbered", "last_index",
        "last_number", "lasts_s", "rows", "states",
    )  # fmt: skip

    def __init__(self) -> None:
        self.content = bytearray()
        self.rows = 0
        self.last_index = 0
        self.last_number = -1
        self.is_numbered = True
        self.ends = array("Q")
        self.firsts = array("I")
        self.indexes = array("Q")
        self.firsts_s = array("q")
        self.lasts_s = array("q")
        self.states = array("B")

    def __len__(self) -> int:
        """Return how many items there are."""
        return len(self.ends)

    @classmethod
    def of(cls, content: bytes) -> Tail:
        """Return the tail whose items in log order are `content`.

        Raises:
            RowsDamaged: these are no rows.
        """
        if len(content) < HEAD_BYTES or content[0] != _ARRAY32:
            raise RowsDamaged("segment: it does not begin like rows")
        if int.from_bytes(content[1:HEAD_BYTES], "big") > ITEMS_MAX:
            raise RowsDamaged("segment: it claims to have more rows than any segment may")
        tail = cls()
        try:
            for raw in _cut(content):
                item = _decoded(raw)
                if isinstance(item, Chunk) and not item.is_sound():
                    raise RowsDamaged("segment: a chunk has other columns than rows")
                if item.ended_index < tail.last_index:
                    raise RowsDamaged("segment: its rows are not in log order")
                tail.append(item, raw)
        except _UNREADABLE as error:
            raise RowsDamaged(f"segment: its rows cannot be read: {error}") from error
        return tail

    def append(self, item: Row | Chunk, raw: bytes | msgspec.Raw = b"") -> bytes:
        """Add what ended at or after all others of this tail; return its bytes, which are `raw` if
        they are known."""
        if item.ended_index < self.last_index:
            raise InvariantViolated("history: log index went back")
        encoded = bytes(raw) or _encoder.encode(item)
        self.content += encoded
        rows, number = 1, item.number
        if isinstance(item, Row):
            first_s = item.scheduled_s
            last_s = item.last_s if item.kind is _RANGE else first_s
            if 0 < item.last_s < first_s:  # it ended before its time
                first_s = item.last_s
        else:
            rows = len(item)
            if isinstance(item.scheduled_s, int):
                first_s = item.scheduled_s
                last_s = item.last_s if item.count else first_s
            else:
                instants = values(item.scheduled_s, rows)
                first_s, last_s = min(instants), max(instants)
        index = item.ended_index
        if index == self.last_index and number <= self.last_number:
            self.is_numbered = False
        self.last_index, self.last_number = index, number + rows - 1
        self.firsts.append(self.rows)
        self.indexes.append(index)
        self.firsts_s.append(first_s)
        self.lasts_s.append(last_s)
        self.states.append(item.state)
        self.rows += rows
        self.ends.append(len(self.content))  # the last, as it tells readers that the item is there
        return encoded

    @property
    def first_s(self) -> int:
        """The oldest ScheduledTime; 0 where there is no row. Looks at all items."""
        return min(self.firsts_s, default=0)

    @property
    def last_s(self) -> int:
        """The newest ScheduledTime; 0 where there is no row. Looks at all items."""
        return max(self.lasts_s, default=0)

    def item(self, number: int) -> Row | Chunk:
        """Return an item by its number, from 0."""
        return _decoded(self.raw(number))

    def raw(self, number: int) -> bytearray:
        """Return the bytes of an item by its number, from 0."""
        begin = self.ends[number - 1] if number else 0
        return self.content[begin : self.ends[number]]

    def all_rows(self) -> list[Row]:
        """Return all rows, in log order."""
        return [row for number in range(len(self)) for row in rows_of(self.item(number))]

    def whole(self) -> bytes:
        """Return its items as a catalog's digest covers them."""
        return head_of(len(self)) + self.content

    def digest(self) -> bytes:
        """Return the digest of its items."""
        digest = hashlib.blake2b(head_of(len(self)), digest_size=16)
        digest.update(self.content)
        return digest.digest()

    @property
    def size(self) -> int:
        """How many bytes `whole` returns."""
        return HEAD_BYTES + len(self.content)


def _decoded(raw: bytes | bytearray | msgspec.Raw) -> Row | Chunk:
    """Return an item. Raises what msgspec raises.

    Rows and chunks are arrays with a length of two bytes; the next byte is the kind.
    """
    view = memoryview(raw)
    is_chunk = len(view) > _KIND_AT and view[_KIND_AT] == CHUNK
    return _decode_chunk(raw) if is_chunk else _decode_row(raw)
