"""What any bytes on the stream between an executor and a leader may do: be refused by name.

Both ends are here: what the leader reads of an executor, and the orders that an executor reads.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from launcher.executor.ledger import Ledger
from launcher.executor.rows import changes_of
from launcher.executor.rules import BadOrders, Conditions, Decisions, Works, decide, spec_of
from launcher.executor.stream import messages_of
from launcher.protocol.names import BadName, parse_attempt_name, parse_launch_name
from launcher.protocol.reading import (
    BadMessage,
    check_heartbeat,
    parse_hello,
    parse_offered_output,
    parse_offers,
    parse_recollection,
    parse_reports,
)
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import WorkSpec
from tests.fuzz.subject import Finding, Subject, check_same
from tests.unit.journal_rig import MemoryDisk
from tests.unit.pool_rig import CELL, hello, report, reports, said
from tests.unit.rows_rig import Start, orders

NAME: Final = "default/backup@2026-11-20T15:00:00Z#1"
NOW_MS: Final = 1_795_186_800_000
FINE: Final = Conditions(NOW_MS, lease_valid=True, groups_free={"": 8}, groups_idle={"": 8})
_NONE: Final = (-1, -1)
M = TypeVar("M", bound=Message)


def read(content: bytes, kind: type[M]) -> M | None:
    """Return the message of gRPC, None where gRPC refuses it."""
    with suppress(DecodeError):
        return kind.FromString(content)
    return None


def greeting(content: bytes) -> bool:
    """As the Hello of an executor."""
    message = read(content, pool_pb2.Hello)
    with suppress(BadMessage):
        return message is not None and bool(parse_hello(message, CELL))
    return False


def offers(content: bytes) -> bool:
    """As what an executor offers."""
    message = read(content, pool_pb2.Offers)
    with suppress(BadMessage):
        return message is not None and bool(parse_offers(message))
    return False


def heartbeat(content: bytes) -> bool:
    """As a heartbeat."""
    message = read(content, pool_pb2.Heartbeat)
    with suppress(BadMessage):
        if message is not None:
            check_heartbeat(message, 0)
            return True
    return False


def row_reports(content: bytes) -> bool:
    """As reports of rows: row by row they are the same, and so they are if they are sent again."""
    message = read(content, pool_pb2.Reports)
    with suppress(BadMessage):
        found = parse_reports(message) if message is not None else ()
        rows = [row for batch in found for row in batch.row_reports()]
        if len({(row.index, row.row) for row in rows}) < len(rows):
            return False  # an executor says one thing of a row at a time
        again = [
            one for part in messages_of(changes_of(rows), 1_000) for one in parse_reports(part)
        ]
        check_same(_sorted(rows), _sorted([r for one in again for r in one.row_reports()]), "rows")
        return bool(rows)
    return False


def _sorted(rows: list[Any]) -> list[str]:
    return sorted(repr(msgspec.to_builtins(row)) for row in rows)


def recollection(content: bytes) -> bool:
    """As a page of an executor's journal."""
    message = read(content, pool_pb2.Recollection)
    with suppress(BadMessage):
        return message is not None and bool(parse_recollection(message, _NONE))
    return False


def kept_output(content: bytes) -> bool:
    """As an output that is to be stored."""
    message = read(content, pool_pb2.KeptOutput)
    with suppress(BadMessage):
        return message is not None and bool(parse_offered_output(message))
    return False


def given_orders(content: bytes) -> bool:
    """As orders to an executor: its journal is the same after a restart, also of bad ones."""
    message = read(content, pool_pb2.Orders)
    if message is None:
        return False
    disk = MemoryDisk()
    ledger, decisions = Ledger(disk.path, disk=disk), Decisions()
    before, is_good = _rows(ledger), False
    with suppress(BadOrders), ledger.transaction():
        decide(ledger, message, Works(), copy.deepcopy(FINE), decisions)
        is_good = True
    if not is_good:
        check_same(before, _rows(ledger), "a journal that bad orders must not change")
    check_same(_rows(ledger), _rows(Ledger(disk.path, disk=disk.copy())), "a journal")
    return bool(decisions.accepted)


def _rows(ledger: Ledger) -> tuple[object, ...]:
    rows = [
        row
        for index in sorted(ledger.batches)
        for batch in ledger.batches[index]
        for row in (batch.row(place) for place in range(len(batch)))
    ]
    return ledger.highest, ledger.watermark, _sorted(rows)


def work(content: bytes) -> bool:
    """As the work of a job."""
    return spec_of(content) is not None


def name(content: bytes) -> bool:
    """As the name of a launch or an attempt: one that is read is written in one way."""
    text = content.decode("utf-8", "replace")
    is_good = False
    for parse in (parse_launch_name, parse_attempt_name):
        with suppress(BadName):
            found = parse(text)
            if parse(str(found)) != found:
                raise Finding(f"{text!r} is read as {found}, which is read as something else")
            is_good = True
    return is_good


_WORK: Final = msgspec.msgpack.encode(WorkSpec(("/bin/sh", "-c", "true")))

SUBJECT: Final = Subject(
    (
        greeting,
        offers,
        heartbeat,
        row_reports,
        recollection,
        kept_output,
        given_orders,
        work,
        name,
    ),
    {
        "greeting": [
            hello(labels={"zone": "eu"}, known=reports(said(1)), can_inventory=True)
            .SerializeToString()
        ],
        "offers": [
            pool_pb2.Offers(
                offers=[
                    pool_pb2.Offer(group="", slots=8),
                    pool_pb2.Offer(group="a", slots=2, handlers=["mail", "page"]),
                ]
            ).SerializeToString()
        ],
        "heartbeat": [pool_pb2.Heartbeat(number=3, wall_ms=NOW_MS).SerializeToString()],
        "row_reports": [
            reports(
                said(1, started_ms=[5], finished_ms=[9], output_bytes=[7]),
                pool_pb2.BatchReport(index=9, status=3, rows=[1, 2, 3], started_ms=[5, 1, 1]),
            ).SerializeToString()
        ],
        "recollection": [
            pool_pb2.Recollection(
                reports=[report(1, name=NAME, epoch="1.2.r1"), report(2, name=NAME)], floor=7
            ).SerializeToString()
        ],
        "kept_output": [
            pool_pb2.KeptOutput(name=NAME, bytes=10, sha256=bytes(32)).SerializeToString()
        ],
        "given_orders": [
            orders(Start(NAME, _WORK, NOW_MS)).SerializeToString(),
            orders(Start(NAME, _WORK, NOW_MS), fences=[NAME.replace("#1", "#2")],
                   kills=[(NAME, 3)], acks=[NAME], floor=1).SerializeToString(),
        ],
        "work": [_WORK],
        "name": [NAME.encode(), b"shop/mail:k1@2026-11-20T15:00:00Z+t1#2/3"],
    },
)  # fmt: skip
