"""What an executor answers to orders: which rows it accepts, which it durably refuses, and why.

Everything that decides whether an attempt may be started is in this file (rules R3, R4, R5, R7).
Called inside a transaction of the ledger: nothing of what is decided may be acted on, or told to
anybody, before that transaction is on the disk.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from launcher.columns import BadColumn, differences, full, row_numbers, sums
from launcher.executor.attempt import Attempt
from launcher.executor.batch import STARTING, Batch, Tries, column_of, tombstone
from launcher.executor.ledger import Ledger
from launcher.executor.row import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    UNKNOWN,
    Change,
    Row,
    epoch_of,
)
from launcher.executor.works import BadOrders, Work, Works
from launcher.launch import Reason
from launcher.names import BadName
from launcher.rpc.v1 import pool_pb2
from launcher.work import WorkSpec

LEASE_OVER: Final = "the executor's lease is over"
ROW_MAX: Final = (1 << 32) - 1
_REASONS: Final = frozenset(int(reason) for reason in Reason)


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

    def refusal(self, spec: WorkSpec) -> str:
        """Why there is no room for `spec`, or nothing."""
        if not spec.handler:
            return "no free slot" if self.commands <= 0 else ""
        group = self._handlers.get(spec.handler)
        if group is None:
            return f"no worker here serves {spec.handler}"
        if self.groups[group] <= 0:
            return f"no free slot in group {group} of workers, which serves {spec.handler}"
        return ""

    def left(self, conditions: Conditions) -> Conditions:
        """Return what is true once these slots are taken."""
        return msgspec.structs.replace(
            conditions,
            slots_free=self.commands,
            groups_free=self.groups,
            groups_idle=self.idle,
        )

    def take(self, spec: WorkSpec) -> bool:
        """Give it a slot; return whether it is to start at once, and does not wait for a worker."""
        if not spec.handler:
            self.commands -= 1
            return True
        group = self._handlers[spec.handler]
        self.groups[group] -= 1
        idle = self.idle[group] = self.idle.get(group, 0) - 1
        return idle >= 0


class Settled(msgspec.Struct):
    """What orders come to. `accepted` are attempts whose rows are in the ledger: once that is
    durable those that are `is_starting` may be started, since their rows are start records as well.

    `refused` are rows that came and are refused, `answers` those of which something was known.
    `mismatched` are names that came with other work than before; `withdrawn` are fenced ones that
    are accepted and may not have begun: they need not. `left` is what is true for the next message,
    where starts were accepted. `problem` is why nothing was done, and the stream is to be left.
    """

    accepted: list[Attempt] = []
    refused: list[Change] = []
    answers: list[Row] = []
    kills: list[tuple[str, int]] = []
    mismatched: list[str] = []
    withdrawn: list[str] = []
    forgotten: int = 0
    is_stale: bool = False
    problem: str = ""
    left: Conditions | None = None


class _Given(msgspec.Struct):
    """A batch of a message, read: a value for each row."""

    index: int
    rows: list[int]
    works: list[Work]
    scheduled_s: list[int]
    not_after_ms: list[int]
    attempts: list[int]
    triggers: list[int]
    parts: list[int]

    def only(self, places: Sequence[int]) -> _Given:
        """Return it with the rows at some places."""
        columns = (getattr(self, name) for name in self.__struct_fields__[1:])
        return _Given(self.index, *([column[place] for place in places] for column in columns))


def settle(
    ledger: Ledger, orders: pool_pb2.Orders, works: Works, conditions: Conditions
) -> Settled:
    """Decide on one message of the leader and write what was decided into `ledger`. `works` is what
    its stream said of work before.

    Orders of an epoch below the highest seen change nothing and are answered by nothing (R3).
    """
    settled = Settled()
    epoch = epoch_of(orders.epoch)
    if epoch < ledger.highest:
        settled.is_stale = True
        return settled
    try:
        works.learn(orders.works)
        batches = [_given(message, works) for message in orders.batches]
        fences = {
            (fence.index, fence.row): tombstone(fence.index, fence.row, fence.name, str(epoch))
            for fence in orders.fences
        }
    except (BadOrders, BadColumn, BadName) as error:
        settled.problem = str(error)
        return settled
    ledger.raise_epoch(epoch)
    if batches:
        room, under = _Room(conditions), sys.intern(str(epoch))
        for given in batches:
            _settle_batch(ledger, given, under, conditions, room, settled)
        if settled.accepted:
            settled.left = room.left(conditions)
    _settle_fences(ledger, fences, settled)
    _settle_kills(ledger, orders.kills, settled)
    for ack in orders.acks:
        if ledger.knows(ack.index):
            ledger.ack(ack.index, sums(ack.rows))
    settled.forgotten = ledger.raise_floor(orders.floor)
    return settled


def _given(message: pool_pb2.Batch, works: Works) -> _Given:
    """Return a batch of a message.

    Raises:
        BadOrders: work has a number that is not known.
        BadColumn: a column cannot be read.
    """
    rows = row_numbers(message.rows, ROW_MAX)
    count = len(rows)
    return _Given(
        message.index,
        rows,
        works.of(full(message.works, count)),
        full(message.scheduled_s, count, is_times=True),
        full(message.not_after_ms, count, is_times=True),
        full(message.attempts, count, 1),
        full(message.triggers, count),
        full(message.parts, count, 1),
    )


def _settle_batch(
    ledger: Ledger,
    given: _Given,
    epoch: str,
    conditions: Conditions,
    room: _Room,
    settled: Settled,
) -> None:
    """Accept or refuse the rows of a batch that are new; answer for the others."""
    if ledger.knows(given.index):
        given = given.only(_new(ledger, given, settled))
    if given.index <= ledger.floor:
        settled.answers += [_forgotten(given.index, row, ledger.floor) for row in given.rows]
        return
    if not given.rows:
        return
    batch = Batch(
        given.index,
        epoch,
        given.rows,
        [work.job for work in given.works],
        Tries(*map(column_of, (given.scheduled_s, given.attempts, given.triggers, given.parts))),
    )
    obstacle = conditions.obstacle or ("" if conditions.lease_valid else LEASE_OVER)
    if obstacle:
        batch.details = dict.fromkeys(range(len(batch)), obstacle)
    else:
        batch.details = _admit(given, batch, conditions, room, settled)
    if batch.details:
        settled.refused += _refuse(batch)
    ledger.insert(batch)
    if not conditions.executes:
        ran = [place for place in range(len(batch)) if place not in batch.details]
        settled.answers += map(batch.row, ran)


def _refuse(batch: Batch) -> list[Change]:
    """Refuse the rows of a new batch that have a detail; return what is told of them."""
    rows: dict[str, list[int]] = {}
    for place, detail in batch.details.items():
        batch.states[place] = REFUSED
        rows.setdefault(detail, []).append(batch.rows[place])
    return [
        Change(batch.index, REFUSED, 0, 0, differences(some), detail=detail)
        for detail, some in rows.items()
    ]


def _new(ledger: Ledger, given: _Given, settled: Settled) -> list[int]:
    """Answer for the rows that are known; return the places of the others."""
    new: list[int] = []
    for place, number in enumerate(given.rows):
        row, job = ledger.row(given.index, number), ledger.job(given.index, number)
        if row is None or job is None:
            new.append(place)
            continue
        _answer(row, settled)
        other = given.works[place].job
        if job.digest and (job.digest, job.name) != (other.digest, other.name):
            settled.mismatched.append(row.name)
    return new


def _admit(
    given: _Given, batch: Batch, conditions: Conditions, room: _Room, settled: Settled
) -> dict[int, str]:
    """Accept what may be started of a batch; return why the rows at other places may not."""
    refused: dict[int, str] = {}
    wall_ms, accepted, states = conditions.wall_ms, settled.accepted, batch.states
    if not conditions.executes:
        states[:] = bytes([ENDED]) * len(batch)
    columns = zip(given.rows, given.works, batch.names(), given.not_after_ms, strict=True)
    for place, (row, work, name, not_after_ms) in enumerate(columns):
        spec = work.spec
        if wall_ms > not_after_ms:
            refused[place] = f"{wall_ms - not_after_ms} ms too late"
        elif spec is None:
            refused[place] = "the work cannot be read by this executor"
        elif not conditions.executes:
            batch.started[place] = batch.finished[place] = wall_ms
        elif detail := room.refusal(spec):
            refused[place] = detail
        else:
            is_starting = room.take(spec)
            if is_starting:
                states[place] = ACCEPTED | STARTING
            accepted.append(
                Attempt(batch, place, given.index, row, name, spec, not_after_ms, is_starting)
            )
    return refused


def _forgotten(index: int, row: int, floor: int) -> Row:
    # Not REFUSED: that would say that it never ran, and what this ledger knew of it may be gone.
    detail = f"begun at log index {index}, at or below this ledger's floor {floor}"
    return Row(index, row, INTERRUPTED, detail=detail)


def _settle_fences(
    ledger: Ledger, fences: Mapping[tuple[int, int], Batch], settled: Settled
) -> None:
    """Leave a tombstone for what is not known. It lasts until the floor has passed what it forbids,
    whose start may be under way."""
    for (index, number), grave in fences.items():
        row = ledger.row(index, number)
        if row is None:
            grave.states[0] = FENCED
            ledger.insert(grave)
            settled.answers.append(grave.row(0))
        else:
            _answer(row, settled)
            if row.is_pending:
                settled.withdrawn.append(row.name)


def _settle_kills(ledger: Ledger, kills: Sequence[pool_pb2.Kill], settled: Settled) -> None:
    for kill in kills:
        row = ledger.row(kill.index, kill.row)
        if row is None:
            settled.answers.append(Row(kill.index, kill.row, UNKNOWN))
        elif row.fate == ACCEPTED:
            reason = kill.reason if kill.reason in _REASONS else int(Reason.KILLED)
            settled.kills.append((row.name, reason))
        else:
            _answer(row, settled)


def _answer(row: Row, settled: Settled) -> None:
    # A pending row is answered once it is known whether it could be started.
    if not row.is_pending:
        settled.answers.append(row)
