"""Decides about orders: which rows an executor accepts, which it durably refuses, and why.

This file decides once for each row, when its order arrives (rules R3, R4, R5, R7). Called inside a
transaction of the ledger: the executor must not act on a decision, or report it, before that
transaction is on the disk.

A row that is accepted here may still be refused until it starts: because the lease ended, its start
window is over, it was killed or fenced, no worker takes it, or the executor stops or died. Others
decide that. DESIGN.md, "Refusals", lists all functions that refuse, with their reasons:

* `loop.py`: `ExecutorLoop._conditions` before the rules, `ExecutorLoop._act` after them;
  `interrupt_all`
* `launches.py`: `Launches.accept`, `_give_fresh`, `refuse_late`, `give_back`, `withdraw`
* `handlers/workers.py`: `Workers.tick`, `drain`, `kill`
* `handlers/groups.py`: `WorkerGroup.reason_to_refuse_all`
* `commands/running.py`: `Commands.reason_to_refuse_all`, `withdraw`, `withdraw_all`
* `commands/spawner.py`: `Spawner._refusal`, `_kill`, `_lapse`
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from launcher.executor.attempt import Attempt
from launcher.executor.ledger import Ledger
from launcher.executor.refusals import LEASE_OVER, UNREADABLE, late_by
from launcher.executor.rows import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    STARTING,
    UNKNOWN,
    Batch,
    Job,
    Work,
    epoch_of,
    tombstone,
)
from launcher.protocol.columns import BadColumn, differences, full, row_numbers, sums
from launcher.protocol.limits import MARK_BYTES_MAX, PROOF_BYTES_MAX
from launcher.protocol.names import SCHEDULED_S_MAX, BadName, parse_job_or_task_name
from launcher.protocol.reports import BatchReport, Ordered, RowReport
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import WorkSpec

WORKS_MAX: Final = 65_536
"""Numbers that a leader may give in a stream."""
_DECODER: Final = msgspec.msgpack.Decoder(WorkSpec)
OLDER_LOG: Final = "the cell's log is older than this executor's journal"
COMMANDS: Final = ""
"""The group of all commands, which have no handler."""
ROW_MAX: Final = (1 << 32) - 1
_REASONS: Final = frozenset(int(reason) for reason in Reason)


class BadOrders(ValueError):
    """Orders of an older epoch, or that no leader gives: they change nothing, and the executor
    leaves their stream."""


class Works:
    """The work that a stream's leader has numbered. The numbers are valid in that stream only. Used
    in the ledger's thread only."""

    def __init__(self) -> None:
        self.by_number: dict[int, Work] = {}

    def learn(self, messages: Iterable[pool_pb2.Work]) -> None:
        """Learn numbers, in order. A number that was used before gets its new meaning.

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
        return parse_job_or_task_name(text) == text
    except BadName:
        return False


def spec_of(raw: bytes) -> WorkSpec | None:
    """Return the work in `raw`, or None if it cannot be read."""
    try:
        work = _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if work.handler:
        return work if not work.argv else None
    return work if work.argv and work.argv[0] else None


class Conditions(msgspec.Struct):
    """The state of this executor while a turn is written. `obstacle` is why it takes no work at
    all, "" if it does. `executes` is false in benches that only report work as done.

    `handlers` has the group of workers that serves each handler, and COMMANDS for commands.
    `groups_free` is how many more launches each group takes, and `groups_idle` how many of these
    would get a slot at once. Accepted rows take their slots from these two.
    """

    wall_ms: int
    lease_valid: bool
    obstacle: str = ""
    executes: bool = True
    handlers: Mapping[str, str] = msgspec.field(default_factory=lambda: {"": COMMANDS})
    groups_free: dict[str, int] = {}
    groups_idle: dict[str, int] = {}


class Decisions(msgspec.Struct):
    """What the orders of a turn lead to. `accepted` are attempts whose rows are in the ledger: once
    the turn is durable, those that are `is_starting` may start, because their rows are start
    records as well.

    `changes` are rows that were refused, and `answers` are rows that were known before. `kills` has
    names and reasons. `mismatched` are names that came with other work than before, and
    `contradicted` those of known rows, each with the other name that an order gave to the row.
    `withdrawn` are fenced names of accepted rows that may not have begun: they need not.
    """

    changes: list[BatchReport] = []
    accepted: list[Attempt] = []
    answers: list[RowReport] = []
    kills: list[tuple[str, int]] = []
    mismatched: list[str] = []
    contradicted: list[tuple[str, str]] = []
    withdrawn: list[str] = []


def decide(
    ledger: Ledger,
    orders: pool_pb2.Orders,
    works: Works,
    conditions: Conditions,
    into: Decisions,
) -> None:
    """Decide about one message of the leader. Writes the decisions into `ledger` and adds them to
    `into`. `works` is the work that its stream has numbered.

    Raises:
        BadOrders: nothing of it is done. Orders of an epoch below the highest one get no answer
            (R3).
    """
    epoch = epoch_of(orders.epoch)
    if epoch < ledger.highest:
        raise BadOrders(f"epoch {epoch} is older than {ledger.highest}")
    under, mark = sys.intern(str(epoch)), orders.mark
    if len(mark) > MARK_BYTES_MAX or len(orders.proof) > PROOF_BYTES_MAX:
        raise BadOrders(f"mark or proof has more than {MARK_BYTES_MAX} or {PROOF_BYTES_MAX} bytes")
    try:
        works.learn(orders.works)
        batches = [read_batch(message, under, works, mark) for message in orders.batches]
        graves = [tombstone(one.index, one.row, one.name, under, mark) for one in orders.fences]
    except (BadColumn, BadName) as error:
        raise BadOrders(str(error)) from error
    ledger.raise_epoch(epoch)
    if batches and mark:
        newest = max(batch.index for batch in batches)
        ledger.note_ordered(Ordered(epoch, mark, newest, orders.proof))
    for batch in batches:
        _start(ledger, batch, conditions, into)
    for grave in graves:
        _fence(ledger, grave, into)
    for kill in orders.kills:
        _kill(ledger, kill, mark, into)
    for ack in orders.acks:
        if ack.index in ledger.batches:
            ledger.ack(ack.index, sums(ack.rows))
    ledger.raise_watermark(orders.floor)


def read_batch(message: pool_pb2.StartBatch, epoch: str, works: Works, mark: bytes = b"") -> Batch:
    """Return a batch of a message, with its works and the ends of its windows.

    Raises:
        BadOrders: work has an unknown number.
        BadColumn: a column cannot be read, or has a time that no name can say.
    """
    rows = row_numbers(message.rows, ROW_MAX)
    count = len(rows)
    try:
        known = list(map(works.by_number.__getitem__, full(message.works, count)))
    except KeyError as error:
        raise BadOrders(f"work {error} is not known in this stream") from error
    scheduled = full(message.scheduled_s, count, is_times=True)
    if min(scheduled) < 0 or max(scheduled) > SCHEDULED_S_MAX:
        raise BadColumn(f"scheduled_s: a time is not from 0 to {SCHEDULED_S_MAX}")
    tries = (
        scheduled,
        full(message.attempts, count, 1),
        full(message.triggers, count),
        full(message.parts, count, 1),
    )
    batch = Batch(message.index, epoch, rows, [work.job for work in known], tries, mark)
    batch.works, batch.not_after_ms = known, full(message.not_after_ms, count, is_times=True)
    return batch


def _start(ledger: Ledger, batch: Batch, conditions: Conditions, into: Decisions) -> None:
    """Accept or refuse the rows of a batch that are new; answer for the others."""
    new: Sequence[int] = range(len(batch))
    if batch.index in ledger.batches:
        new = _new(ledger, batch, into)
    if batch.index <= ledger.watermark:
        # Not REFUSED: that would claim that they never ran, and the ledger may have forgotten them.
        text = f"at or below this ledger's watermark {ledger.watermark}"
        detail = f"begun at log index {batch.index}, {text}"
        into.answers += [_in_doubt(batch.index, batch.rows[at], detail, batch.mark) for at in new]
        return
    if not new:
        return
    if len(new) < len(batch):
        batch = batch.only(new)
    obstacle = conditions.obstacle or ("" if conditions.lease_valid else LEASE_OVER)
    if obstacle:
        batch.details = dict.fromkeys(range(len(batch)), obstacle)
    else:
        batch.details = _admit(batch, conditions, into)
    batch.works, batch.not_after_ms = (), ()  # the ledger needs neither
    refused: dict[str, list[int]] = {}
    for place, detail in batch.details.items():
        batch.states[place] = REFUSED
        refused.setdefault(detail, []).append(batch.rows[place])
    into.changes += [
        BatchReport(
            batch.index, REFUSED, Reason.NONE, 0, differences(some), detail=detail, mark=batch.mark
        )
        for detail, some in refused.items()
    ]
    ledger.insert(batch)
    if not conditions.executes:
        into.answers += [batch.row(at) for at in range(len(batch)) if at not in batch.details]


def _new(ledger: Ledger, batch: Batch, into: Decisions) -> list[int]:
    """Answer for the rows that are known; return the places of the others. A known row that an
    order gives to another launch is no answer about that one."""
    new: list[int] = []
    for place, number in enumerate(batch.rows):
        row, job = ledger.row(batch.index, number), ledger.job(batch.index, number)
        if row is None or job is None:
            new.append(place)
            continue
        name = batch.name(place)
        if _is_other(row, name):
            _contradict(row, name, batch.mark, into)
            continue
        _answer(row, batch.mark, into)
        if job.digest and job.digest != batch.jobs[place].digest:
            into.mismatched.append(row.name)
    return new


def _admit(batch: Batch, conditions: Conditions, into: Decisions) -> dict[int, str]:
    """Accept the rows of a batch that may be started; return why the others may not, by place. An
    accepted row starts at once if a slot is free; otherwise it waits for one."""
    refused: dict[int, str] = {}
    wall_ms, states = conditions.wall_ms, batch.states
    free, idle = conditions.groups_free, conditions.groups_idle
    if not conditions.executes:
        states[:] = bytes([ENDED]) * len(batch)
    columns = zip(batch.rows, batch.works, batch.names(), batch.not_after_ms, strict=True)
    for place, (row, work, name, not_after_ms) in enumerate(columns):
        spec = work.spec
        if wall_ms > not_after_ms:
            refused[place] = late_by(wall_ms - not_after_ms)
            continue
        if spec is None:
            refused[place] = UNREADABLE
            continue
        if not conditions.executes:
            batch.started[place] = batch.finished[place] = wall_ms
            continue
        group = conditions.handlers.get(spec.handler)
        if group is None:
            refused[place] = f"no worker here serves {spec.handler}"
            continue
        if free[group] <= 0:
            text = f" in group {group} of workers, which serves {spec.handler}"
            refused[place] = f"no free slot{text if spec.handler else ''}"
            continue
        free[group] -= 1
        idle[group] = idle.get(group, 0) - 1
        is_starting = idle[group] >= 0
        if is_starting:
            states[place] = ACCEPTED | STARTING
        one = Attempt(
            batch.index, row, ACCEPTED, name=name, epoch=batch.epoch,
            mark=batch.mark, batch=batch, place=place, spec=spec, not_after_ms=not_after_ms,
        )  # fmt: skip
        one.is_starting = is_starting
        into.accepted.append(one)
    return refused


def _fence(ledger: Ledger, grave: Batch, into: Decisions) -> None:
    """Insert a tombstone for a row that is not known; answer for one that is. The tombstone stays
    until the watermark has passed what it forbids, whose start may be under way."""
    row = ledger.row(grave.index, grave.rows[0])
    if row is None:
        grave.states[0] = FENCED
        ledger.insert(grave)
        into.answers.append(grave.row(0))
        return
    if _is_other(row, grave.name(0)):
        _contradict(row, grave.name(0), grave.mark, into)
        return
    _answer(row, grave.mark, into)
    if row.is_pending:
        into.withdrawn.append(row.name)


def _kill(ledger: Ledger, kill: pool_pb2.Kill, mark: bytes, into: Decisions) -> None:
    """Kill a row that is accepted; answer for one that is over or not known. Leaders before this
    release name no launch."""
    row = ledger.row(kill.index, kill.row)
    if row is None or kill.name not in ("", row.name):
        into.answers.append(RowReport(kill.index, kill.row, UNKNOWN, mark=mark))
    elif row.status == ACCEPTED:
        reason = kill.reason if kill.reason in _REASONS else int(Reason.KILLED)
        into.kills.append((row.name, reason))
    else:
        _answer(row, mark, into)


def _answer(row: RowReport, mark: bytes, into: Decisions) -> None:
    # A pending row is answered once it is known whether it could be started.
    if not row.is_pending:
        row.mark = mark  # it answers these orders, whichever it came by
        into.answers.append(row)


def _is_other(row: RowReport, name: str) -> bool:
    """Whether a row is known here as that of another launch than the leader means."""
    return row.name != name


def _contradict(row: RowReport, name: str, mark: bytes, into: Decisions) -> None:
    """Answer for a launch whose row is known as that of another one: the log that gave it this
    number does not know what this ledger was ordered. It is not started, ever, and what became of
    it is in doubt, since nobody knows what else that log does not know."""
    into.contradicted.append((row.name, name))
    detail = f"row {row.row} of log index {row.index} is {row.name} here: {OLDER_LOG}"
    into.answers.append(_in_doubt(row.index, row.row, detail, mark))


def _in_doubt(index: int, row: int, detail: str, mark: bytes) -> RowReport:
    """Return the answer for a row of which this ledger cannot say that it never ran."""
    return RowReport(index, row, INTERRUPTED, detail=detail, mark=mark)
