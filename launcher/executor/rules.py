"""What an executor answers to orders: which starts it accepts, which it durably refuses, and why.

Everything that decides whether a name may be started is in this file (rules R3, R4, R5, R7).
Called inside a transaction of the ledger: nothing of what is decided may be acted on, or told to
anybody, before that transaction is on the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from launcher.executor.ledger import Ledger
from launcher.executor.row import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    UNKNOWN,
    Row,
    epoch_of,
)
from launcher.limits import WORK_BYTES_CACHED, WORK_SPECS_CACHED
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch, WorkSpec

LEASE_OVER: Final = "the executor's lease is over"


class Conditions(msgspec.Struct, frozen=True):
    """What is true of this executor when orders are settled. `obstacle` is why it takes no work at
    all, or empty. `executes` is false where work is only reported as done, for benches.

    `slots_free` is of commands. `handlers` has the group of workers that serves each handler,
    `groups_free` how many launches more each group takes, `groups_idle` how many of those its
    workers would be given at once.
    """

    wall_ms: int
    lease_valid: bool
    slots_free: int
    obstacle: str = ""
    executes: bool = True
    handlers: Mapping[str, str] = {}
    groups_free: Mapping[str, int] = {}
    groups_idle: Mapping[str, int] = {}


class _Room:
    """Slots that are free, while starts are admitted one after the other."""

    def __init__(self, conditions: Conditions) -> None:
        self.commands = conditions.slots_free
        self.groups = dict(conditions.groups_free)
        self.idle = dict(conditions.groups_idle)
        self._handlers = conditions.handlers

    def refusal(self, work: WorkSpec) -> str:
        """Why there is no room for `work`, or nothing."""
        if not work.handler:
            return "no free slot" if self.commands <= 0 else ""
        group = self._handlers.get(work.handler)
        if group is None:
            return f"no worker here serves {work.handler}"
        if self.groups[group] <= 0:
            return f"no free slot in group {group} of workers, which serves {work.handler}"
        return ""

    def left(self, conditions: Conditions) -> Conditions:
        """Return what is true once these slots are taken."""
        return msgspec.structs.replace(
            conditions,
            slots_free=self.commands,
            groups_free=self.groups,
            groups_idle=self.idle,
        )

    def take(self, work: WorkSpec) -> bool:
        """Give it a slot; return whether it is to start at once, and does not wait for a worker."""
        if not work.handler:
            self.commands -= 1
            return True
        group = self._handlers[work.handler]
        self.groups[group] -= 1
        self.idle[group] = self.idle.get(group, 0) - 1
        return self.idle[group] >= 0


class Accepted(msgspec.Struct, frozen=True):
    """A start whose row is in the ledger. Once that is durable it may be started, if it is
    `starting`: its row is a start record as well. Otherwise it waits for one."""

    start: pool_pb2.Start
    work: WorkSpec
    epoch: Epoch
    is_starting: bool = True


class Settled(msgspec.Struct):
    """What orders come to. `mismatched` are known names that came with other work than before;
    `withdrawn` are fenced ones that are accepted and may not have begun: they need not. `left` is
    what is true for the next message, where starts were accepted."""

    accepted: list[Accepted] = []
    answers: list[Row] = []
    kills: list[tuple[str, int]] = []
    mismatched: list[str] = []
    withdrawn: list[str] = []
    forgotten: int = 0
    is_stale: bool = False
    left: Conditions | None = None


def settle(ledger: Ledger, orders: pool_pb2.Orders, conditions: Conditions) -> Settled:
    """Decide on one message of the leader and write what was decided into `ledger`.

    Orders of an epoch below the highest seen change nothing and are answered by nothing (R3).
    """
    settled = Settled()
    epoch = epoch_of(orders.epoch)
    if epoch < ledger.highest:
        settled.is_stale = True
        return settled
    ledger.raise_epoch(epoch)
    _settle_starts(ledger, orders, conditions, settled)
    _settle_fences(ledger, orders, settled)
    _settle_kills(ledger, orders, settled)
    if orders.acks:
        ledger.ack(orders.acks)
    settled.forgotten = ledger.raise_floor(orders.floor)
    return settled


def _settle_starts(
    ledger: Ledger, orders: pool_pb2.Orders, conditions: Conditions, settled: Settled
) -> None:
    if not orders.starts:
        return
    epoch = epoch_of(orders.epoch)
    known = ledger.rows([start.name for start in orders.starts])
    rows: list[Row] = []
    under = str(epoch)
    room = _Room(conditions)
    for start in orders.starts:
        if (row := known.get(start.name)) is not None:
            _answer(row, settled)
            if row.digest and row.digest != digest_of(start.work):
                settled.mismatched.append(start.name)
            continue
        if start.begun_index <= ledger.floor:
            settled.answers.append(_forgotten(start, ledger.floor))
            continue
        row, work = _admit(start, under, conditions, room)
        known[start.name] = row
        rows.append(row)
        if work is not None and row.fate == ACCEPTED:
            row.is_starting = room.take(work)
            settled.accepted.append(Accepted(start, work, epoch, row.is_starting))
        else:
            settled.answers.append(row)
    ledger.insert(rows)
    if settled.accepted:
        settled.left = room.left(conditions)


def _admit(
    start: pool_pb2.Start, epoch: str, conditions: Conditions, room: _Room
) -> tuple[Row, WorkSpec | None]:
    work, digest = _read(start.work)
    row = Row(start.name, ACCEPTED, start.begun_index, epoch, digest)
    row.detail = _refusal(start, work, conditions, room)
    if row.detail:
        row.fate = REFUSED
    elif not conditions.executes:
        row.fate = ENDED
        row.started_ms = row.finished_ms = conditions.wall_ms
    return row, work


def _refusal(
    start: pool_pb2.Start, work: WorkSpec | None, conditions: Conditions, room: _Room
) -> str:
    """Why `start` must not be started, or nothing."""
    if conditions.obstacle:
        return conditions.obstacle
    if not conditions.lease_valid:
        return LEASE_OVER
    if conditions.wall_ms > start.not_after_ms:
        return f"{conditions.wall_ms - start.not_after_ms} ms too late"
    if work is None:
        return "the work cannot be read by this executor"
    return room.refusal(work) if conditions.executes else ""


def _forgotten(start: pool_pb2.Start, floor: int) -> Row:
    # Not REFUSED: that would say that it never ran, and what this ledger knew of it may be gone.
    detail = f"begun at log index {start.begun_index}, at or below this ledger's floor {floor}"
    return Row(start.name, INTERRUPTED, start.begun_index, detail=detail)


def _settle_fences(ledger: Ledger, orders: pool_pb2.Orders, settled: Settled) -> None:
    fences = list(dict.fromkeys(orders.fences))
    if not fences:
        return
    known = ledger.rows(fences)
    epoch = str(epoch_of(orders.epoch))
    # A tombstone lasts until the floor has passed what it forbids, whose start may be under way.
    index = orders.fence_index
    tombstones = [Row(name, FENCED, index, epoch) for name in fences if name not in known]
    ledger.insert(tombstones)
    for row in known.values():
        _answer(row, settled)
        if row.is_pending:
            settled.withdrawn.append(row.name)
    settled.answers += tombstones


def _settle_kills(ledger: Ledger, orders: pool_pb2.Orders, settled: Settled) -> None:
    if not orders.kills:
        return
    known = ledger.rows([kill.name for kill in orders.kills])
    for kill in orders.kills:
        row = known.get(kill.name)
        if row is None:
            settled.answers.append(Row(kill.name, UNKNOWN))
        elif row.fate == ACCEPTED:
            settled.kills.append((kill.name, kill.reason))
        else:
            _answer(row, settled)


def _answer(row: Row, settled: Settled) -> None:
    # A pending row is answered once it is known whether it could be started.
    if not row.is_pending:
        settled.answers.append(row)


def work_of(raw: bytes) -> WorkSpec | None:
    """Return the work in `raw`, or None where it cannot be read."""
    return _read(raw)[0]


def _read(raw: bytes) -> tuple[WorkSpec | None, bytes]:
    """The work in `raw`, and its digest. Equal bytes are read once, but for large ones, which are
    some handler's payload and hardly come again."""
    return _cached(raw) if len(raw) <= WORK_BYTES_CACHED else _once(raw)


def _once(raw: bytes) -> tuple[WorkSpec | None, bytes]:
    return _decoded(raw), digest_of(raw)


def _decoded(raw: bytes) -> WorkSpec | None:
    try:
        work = msgspec.msgpack.decode(raw, type=WorkSpec)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if work.handler:
        return work if not work.argv else None
    return work if work.argv and work.argv[0] else None


_cached = lru_cache(maxsize=WORK_SPECS_CACHED)(_once)


def digest_of(raw: bytes) -> bytes:
    """Return 16 bytes that tell work from other work."""
    return hashlib.blake2b(raw, digest_size=16).digest()
