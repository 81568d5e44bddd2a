"""What an executor answers to orders: which rows it accepts, which it durably refuses, and why.

Everything that decides whether an attempt may be started is in this file (rules R3, R4, R5, R7).
Called inside a transaction of the ledger: nothing of what is decided may be acted on, or told to
anybody, before that transaction is on the disk.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from launcher.executor.attempt import Attempt
from launcher.executor.ledger import Ledger
from launcher.executor.rows import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    STARTING,
    UNKNOWN,
    Batch,
    Change,
    Job,
    Row,
    epoch_of,
    tombstone,
)
from launcher.protocol.columns import BadColumn, differences, full, row_numbers, sums
from launcher.protocol.names import BadName, parse_job_name
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import WorkSpec

WORKS_MAX: Final = 65_536
"""Numbers that a leader may give in a stream."""
_DECODER: Final = msgspec.msgpack.Decoder(WorkSpec)
LEASE_OVER: Final = "the executor's lease is over"
ROW_MAX: Final = (1 << 32) - 1
_REASONS: Final = frozenset(int(reason) for reason in Reason)


class BadOrders(ValueError):
    """Orders that a leader never gives: nothing of them is done, and their stream ends."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """A job and its work; none where this executor cannot read it."""

    job: Job
    spec: WorkSpec | None


class Works:
    """The work that a stream's leader has numbered, by that number. It is gone with the stream. In
    the ledger's thread only."""

    def __init__(self) -> None:
        self.by_number: dict[int, Work] = {}

    def learn(self, messages: Iterable[pool_pb2.Work]) -> None:
        """Take numbers, in order. What had one of them before is known by it no more.

        Raises:
            BadOrders: a number is too high.
        """
        for message in messages:
            if message.number >= WORKS_MAX:
                raise BadOrders(f"work has number {message.number}, {WORKS_MAX} or more")
            if message.job:
                digest = hashlib.blake2b(message.spec, digest_size=16).digest()
                spec = spec_of(message.spec) if _is_name(message.job) else None
                self.by_number[message.number] = Work(Job(message.job, digest), spec)
            else:
                self.by_number.pop(message.number, None)


def _is_name(text: str) -> bool:
    try:
        return parse_job_name(text) == text
    except BadName:
        return False


def spec_of(raw: bytes) -> WorkSpec | None:
    """Return the work in `raw`, or None where it cannot be read."""
    try:
        work = _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if work.handler:
        return work if not work.argv else None
    return work if work.argv and work.argv[0] else None


class Conditions(msgspec.Struct):
    """What is true of this executor when orders are settled. `obstacle` is why it takes no work at
    all, or empty. `executes` is false where work is only reported as done, for benches.

    `slots_free` is of commands. `handlers` has the group of workers that serves each handler,
    `groups_free` how many launches more each group takes, `groups_idle` how many of those its
    workers would be given at once. What is accepted takes its slot from these three.
    """

    wall_ms: int
    lease_valid: bool
    slots_free: int
    obstacle: str = ""
    executes: bool = True
    handlers: Mapping[str, str] = {}
    groups_free: dict[str, int] = {}
    groups_idle: dict[str, int] = {}


class Settled(msgspec.Struct):
    """What orders come to. `accepted` are attempts whose rows are in the ledger: once that is
    durable those that are `is_starting` may be started, since their rows are start records as well.

    `refused` are rows that came and are refused, `answers` those of which something was known.
    `mismatched` are names that came with other work than before; `withdrawn` are fenced ones that
    are accepted and may not have begun: they need not. `problem` is why nothing was done, and the
    stream is to be left.
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
    under = sys.intern(str(epoch))
    for given in batches:
        _settle_batch(ledger, given, under, conditions, settled)
    _settle_fences(ledger, fences, settled)
    _settle_kills(ledger, orders.kills, settled)
    for ack in orders.acks:
        if ack.index in ledger.batches:
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
    try:
        known = list(map(works.by_number.__getitem__, full(message.works, count)))
    except KeyError as error:
        raise BadOrders(f"work {error} was not told in this stream") from error
    return _Given(
        message.index,
        rows,
        known,
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
    settled: Settled,
) -> None:
    """Accept or refuse the rows of a batch that are new; answer for the others."""
    if given.index in ledger.batches:
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
        (given.scheduled_s, given.attempts, given.triggers, given.parts),
    )
    obstacle = conditions.obstacle or ("" if conditions.lease_valid else LEASE_OVER)
    if obstacle:
        batch.details = dict.fromkeys(range(len(batch)), obstacle)
    else:
        batch.details = _admit(given, batch, conditions, settled)
    rows: dict[str, list[int]] = {}
    for place, detail in batch.details.items():
        batch.states[place] = REFUSED
        rows.setdefault(detail, []).append(batch.rows[place])
    settled.refused += [
        Change(batch.index, REFUSED, 0, 0, differences(some), detail=detail)
        for detail, some in rows.items()
    ]
    ledger.insert(batch)
    if not conditions.executes:
        ran = [place for place in range(len(batch)) if place not in batch.details]
        settled.answers += map(batch.row, ran)


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


def _admit(given: _Given, batch: Batch, conditions: Conditions, settled: Settled) -> dict[int, str]:
    """Accept what may be started of a batch; return why the rows at other places may not. What is
    accepted takes a slot, and starts at once unless it has to wait for a worker."""
    refused: dict[int, str] = {}
    wall_ms, accepted, states = conditions.wall_ms, settled.accepted, batch.states
    free, idle = conditions.groups_free, conditions.groups_idle
    if not conditions.executes:
        states[:] = bytes([ENDED]) * len(batch)
    columns = zip(given.rows, given.works, batch.names(), given.not_after_ms, strict=True)
    for place, (row, work, name, not_after_ms) in enumerate(columns):
        spec, is_starting = work.spec, True
        if wall_ms > not_after_ms:
            refused[place] = f"{wall_ms - not_after_ms} ms too late"
            continue
        if spec is None:
            refused[place] = "the work cannot be read by this executor"
            continue
        if not conditions.executes:
            batch.started[place] = batch.finished[place] = wall_ms
            continue
        if not spec.handler:
            if conditions.slots_free <= 0:
                refused[place] = "no free slot"
                continue
            conditions.slots_free -= 1
        else:
            group = conditions.handlers.get(spec.handler)
            if group is None:
                refused[place] = f"no worker here serves {spec.handler}"
                continue
            if free[group] <= 0:
                said = f"no free slot in group {group} of workers"
                refused[place] = f"{said}, which serves {spec.handler}"
                continue
            free[group] -= 1
            idle[group] = idle.get(group, 0) - 1
            is_starting = idle[group] >= 0
        if is_starting:
            states[place] = ACCEPTED | STARTING
        one = Attempt(
            given.index, row, ACCEPTED, name, batch.epoch,
            batch=batch, place=place, spec=spec, not_after_ms=not_after_ms,
        )  # fmt: skip
        one.is_starting = is_starting
        accepted.append(one)
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
        elif row.status == ACCEPTED:
            reason = kill.reason if kill.reason in _REASONS else int(Reason.KILLED)
            settled.kills.append((row.name, reason))
        else:
            _answer(row, settled)


def _answer(row: Row, settled: Settled) -> None:
    # A pending row is answered once it is known whether it could be started.
    if not row.is_pending:
        settled.answers.append(row)
