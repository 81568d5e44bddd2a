"""What any bytes in the place of an executor's journal may do: be refused, and never be changed.

Some targets make checksums right, so that what is behind them is reached too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final
from zlib import crc32

import msgspec

from launcher.errors import LedgerDamaged, LedgerForeign, LedgerOld
from launcher.executor import journal
from launcher.executor.ledger import Inventory, Ledger
from tests.fuzz.pool_bytes import NAME, NOW_MS
from tests.fuzz.subject import Finding, Subject, check_same
from tests.unit.journal_rig import MemoryDisk
from tests.unit.rows_rig import ack, ended, insert, starting

_REFUSALS: Final = (LedgerDamaged, LedgerForeign, LedgerOld)
_OTHER: Final = "shop/mail@2026-11-20T15:00:00Z+t1#2"
_SHORT: Final = struct.Struct("<H")
_HEAD: Final = struct.Struct("<8sIQ16s")
_RECORD: Final = struct.Struct("<4sIQ")
_PLACE: Final = struct.Struct("<Q")


def file(content: bytes) -> bool:
    """As the whole file."""
    return _opens(content)


def records(content: bytes) -> bool:
    """As the bodies of records, each behind a length, in a file whose checksums are right."""
    return _opens(_journal(5, _bodies(content)))


def older_records(content: bytes) -> bool:
    """The same in a file of the version before."""
    return _opens(_journal(4, _bodies(content)))


def torn(content: bytes) -> bool:
    """As what stands behind good records: nothing of it is believed without its checksum."""
    good = _good()
    disk = MemoryDisk(good.read() + content, good.mark)
    with suppress(*_REFUSALS):
        if _state(Ledger(disk.path, disk=disk)) != _state(Ledger(good.path, disk=good.copy())):
            raise Finding("a row was invented")
        return True
    return False


def mark(content: bytes) -> bool:
    """As the file that says what was synced."""
    disk = MemoryDisk(_good().read(), content)
    with suppress(*_REFUSALS):
        Ledger(disk.path, disk=disk)
        return True
    return False


def _opens(content: bytes) -> bool:
    disk = MemoryDisk(content)
    with suppress(*_REFUSALS):
        ledger = Ledger(disk.path, disk=disk)
        before = _state(ledger)
        check_same(before, _state(Ledger(disk.path, disk=disk.copy())), "a journal")
        return ledger.count > 0
    if bytes(disk.data or b"") != content:
        raise Finding("a journal that is refused was changed")
    return False


def _state(ledger: Ledger) -> tuple[object, ...]:
    page = ledger.recollect(Inventory())
    rows = [repr(msgspec.to_builtins(row)) for row in (page.rows if page is not None else ())]
    workers = sorted(ledger.workers())
    return ledger.highest, ledger.watermark, rows, len(ledger.unacked()), workers


def _good() -> MemoryDisk:
    disk = MemoryDisk()
    ledger = Ledger(disk.path, "executor-1", disk=disk)
    with ledger.transaction():
        insert(ledger, NAME, _OTHER)
        starting(ledger, NAME)
        ended(ledger, NAME, NOW_MS, detail="fine")
        ack(ledger, NAME)
        ledger.record_workers([(7, 70)], [])
    return disk


def _bodies(content: bytes) -> Iterator[bytes]:
    while content:
        (length,), content = _SHORT.unpack(content[:2].ljust(2, b"\0")), content[2:]
        yield content[:length]
        content = content[length:]


def _journal(version: int, bodies: Iterable[bytes]) -> bytes:
    head = _HEAD.pack(b"raftcron", version, 0, bytes(16))
    content = head + crc32(head).to_bytes(4, "little")
    for body in bodies:
        place = len(content)
        lead = _RECORD.pack(b"\xffrj\n", len(body), place)
        checksum = crc32(body, crc32(lead + _PLACE.pack(place)))
        content += lead + checksum.to_bytes(4, "little") + body
    return content


def _packed(*bodies: list[Any]) -> bytes:
    encoded = [msgspec.msgpack.encode(body) for body in bodies]
    return b"".join(_SHORT.pack(len(body)) + body for body in encoded)


def _recorded() -> bytes:
    """Return the bodies of a good journal as the targets take them."""
    return b"".join(_SHORT.pack(len(body)) + body for body in journal.read(_good().read()).records)


_OLDER: Final = _packed(
    [[0, "executor-1", "boot"], [1, [0, 1, "r1"]], [3, ["default/a"], [b"d"]]],
    [[4, 7, "0.1.r1", [1, 2], [0], [5], [], [], [], b"\x01"], [8, 7, [1]]],
)
"""Two records as the version before wrote them, with two rows."""

SUBJECT: Final = Subject(
    (file, records, older_records, torn, mark),
    {
        "file": [_good().read()],
        "records": [_recorded()],
        "older_records": [_OLDER],
        "torn": [b"", _good().read()[-60:]],
        "mark": [_good().mark],
    },
)
