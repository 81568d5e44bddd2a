"""Validates the messages of executors: protobuf in, values out, or the field that is invalid.

A message is validated completely before any part of it is used, so an invalid one changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from launcher.protocol import limits
from launcher.protocol.columns import BadColumn, full, row_numbers, sums
from launcher.protocol.names import (
    DEFAULT_TENANT,
    AttemptName,
    BadName,
    parse_attempt_name,
    parse_job_name,
)
from launcher.protocol.reports import (
    TIMES,
    Accounts,
    BatchReport,
    Greeting,
    GroupOffer,
    OfferedOutput,
    Ordered,
    RowReport,
)
from launcher.protocol.status import Limiting, Reason, Status
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch

_REASONS: Final = {reason.value: reason for reason in Reason}
_LIMITINGS: Final = {limiting.value: limiting for limiting in Limiting}
_STATUSES: Final = {status.value: status for status in Status}
_WORD: Final = re.compile(r"[!-~]+")  # visible ASCII, no blanks
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_EPOCH: Final = re.compile(r"(0|[1-9]\d{0,18})\.(0|[1-9]\d{0,18})\.(.*)", re.ASCII)
NAMING: Final = "not a name like tenant/job@2026-11-20T15:00:00Z#1, always with its attempt"
_SHOWN_CHARS_MAX: Final = 120
_ENDS: Final = (  # columns of ends, with the highest value that each may have
    ("started_ms", limits.WALL_MS_MAX),
    ("finished_ms", limits.WALL_MS_MAX),
    ("output_bytes", limits.OUTPUT_KEPT_BYTES_MAX),
    ("retry_after_ms", limits.RETRY_AFTER_MS_MAX),
    ("cpu_ms", limits.USAGE_MAX),
    ("memory_peak_bytes", limits.USAGE_MAX),
)


class BadMessage(Exception):
    """An executor's message is invalid. `field` names the place, as `reports[3].name`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def parse_hello(hello: pool_pb2.Hello, cell: str) -> Greeting:
    """Return the greeting of an executor of this cell.

    Raises:
        BadMessage: a field is invalid, or the executor belongs to another cell.
    """
    if hello.protocol != limits.PROTOCOL:
        who = "the executor" if hello.protocol < limits.PROTOCOL else "the replicas"
        text = f"the executor speaks {hello.protocol}, and this replica speaks {limits.PROTOCOL}"
        raise BadMessage("hello.protocol", f"{text}; upgrade {who}")
    if hello.cell != cell:
        raise BadMessage("hello.cell", f"{_shown(hello.cell)} is not this cell, {cell!r}")
    if not _UUID.fullmatch(hello.ledger):
        text = f"{_shown(hello.ledger)} is not a UUID in lower case with dashes"
        raise BadMessage("hello.ledger", text)
    epoch = hello.highest_epoch
    if epoch.replica:
        _part("hello.highest_epoch.replica", epoch.replica)
    for name, value, low, high in (
        ("highest_epoch.generation", epoch.generation, 0, limits.INDEX_MAX),
        ("highest_epoch.term", epoch.term, 0, limits.INDEX_MAX),
        ("slots", hello.slots, 1, limits.SLOTS_MAX),
        ("pid", hello.pid, 1, limits.PID_MAX),
        ("wall_ms", hello.wall_ms, 0, limits.WALL_MS_MAX),
        ("cpu_milli", hello.cpu_milli, 0, limits.CPU_MILLI_MAX),
        ("memory_bytes", hello.memory_bytes, 0, limits.MEMORY_BYTES_MAX),
    ):
        _within("hello.", name, value, low, high)
    if len(hello.labels) > limits.LABELS_MAX:
        too_many = f"{len(hello.labels)} labels are more than {limits.LABELS_MAX}"
        raise BadMessage("hello.labels", too_many)
    labels = {_part("hello.labels", key): hello.labels[key] for key in sorted(hello.labels)}
    for key, text in labels.items():
        _printable(f"hello.labels[{key}]", text, limits.LABEL_CHARS_MAX)
    return Greeting(
        executor=_part("hello.executor", hello.executor),
        ledger=hello.ledger,
        incarnation=_word("hello.incarnation", hello.incarnation, limits.INCARNATION_CHARS_MAX),
        slots=hello.slots,
        host=_word("hello.host", hello.host, limits.HOST_CHARS_MAX),
        pid=hello.pid,
        version=_word("hello.version", hello.version, limits.VERSION_CHARS_MAX),
        wall_ms=hello.wall_ms,
        highest_epoch=Epoch(epoch.generation, epoch.term, epoch.replica),
        labels=labels,
        known=_parse_known(hello.known),
        can_inventory=hello.can_inventory,
        cpu_milli=hello.cpu_milli,
        memory_bytes=hello.memory_bytes,
        knows_secrets=hello.knows_secrets,
        cpu_limiting=_limiting(hello.cpu_limiting),
        memory_limiting=_limiting(hello.memory_limiting),
        accounts=_accounts(hello.accounts) if hello.HasField("accounts") else None,
        ordered=_parse_ordered(hello.ordered),
    )


def _accounts(said: pool_pb2.Accounts) -> Accounts:
    if len(said.others) > limits.ACCOUNTS_MAX:
        too_many = f"{len(said.others)} accounts are more than {limits.ACCOUNTS_MAX}"
        raise BadMessage("hello.accounts", too_many)
    for name in (said.own, *said.others):
        _printable("hello.accounts", name, limits.ACCOUNT_CHARS_MAX)
    return Accounts(said.own, tuple(said.others))


def _limiting(number: int) -> Limiting:
    """Return how a limit is held; a newer executor may hold it in a way that is not known here."""
    return _LIMITINGS.get(number, Limiting.UNKNOWN)


def _parse_ordered(said: pool_pb2.Ordered) -> Ordered:
    """Return what a Hello says of the orders that its executor had."""
    field, epoch = "hello.ordered", said.epoch
    if epoch.replica:
        _part(f"{field}.epoch.replica", epoch.replica)
    for name, value in (
        ("epoch.generation", epoch.generation),
        ("epoch.term", epoch.term),
        ("index", said.index),
    ):
        _within(f"{field}.", name, value, 0, limits.INDEX_MAX)
    _short(f"{field}.mark", said.mark, limits.MARK_BYTES_MAX)
    _short(f"{field}.proof", said.proof, limits.PROOF_BYTES_MAX)
    where = Epoch(epoch.generation, epoch.term, epoch.replica)
    return Ordered(where, said.mark, said.index, said.proof)


def _parse_known(message: pool_pb2.Reports) -> tuple[BatchReport, ...]:
    """Return the reports in a Hello, which has each row once."""
    known = parse_reports(message, "hello.known", limits.KNOWN_MAX)
    seen: dict[int, set[int]] = {}
    for i, batch in enumerate(known):
        rows, said = seen.setdefault(batch.index, set()), sums(batch.rows)
        if batch.status is Status.UNKNOWN:
            raise BadMessage(f"hello.known.batches[{i}].status", "a known row cannot be unknown")
        if not rows.isdisjoint(said):
            twice = next(row for row in said if row in rows)
            raise BadMessage(f"hello.known.batches[{i}].rows", f"{twice} is there twice")
        rows.update(said)
    return known


def parse_offers(message: pool_pb2.Offers) -> tuple[GroupOffer, ...]:
    """Return what an executor offers, in the order of the message. The offer of commands has an
    empty group and no handlers.

    Raises:
        BadMessage: a field is invalid, there is too much, or a group or handler is there twice.
    """
    if len(message.offers) > limits.GROUPS_MAX:
        raise BadMessage("offers", f"{len(message.offers)} are more than {limits.GROUPS_MAX}")
    offers: dict[str, GroupOffer] = {}
    served: dict[str, str] = {}  # by handler, its group
    for i, offer in enumerate(message.offers):
        field, handlers = f"offers[{i}]", tuple(offer.handlers)
        is_commands = not handlers and not offer.group
        if not is_commands and not 1 <= len(handlers) <= limits.HANDLERS_MAX:
            text = f"{len(handlers)} handlers are not 1 to {limits.HANDLERS_MAX}"
            raise BadMessage(f"{field}.handlers", text)
        for j, name in enumerate(handlers):
            _word(f"{field}.handlers[{j}]", name, limits.HANDLER_CHARS_MAX)
        group = "" if is_commands else _word(f"{field}.group", offer.group, limits.GROUP_CHARS_MAX)
        slots = _within(field, ".slots", offer.slots, 1, limits.SLOTS_MAX)
        at_once = _within(field, ".at_once", offer.at_once, 0, slots)
        if group in offers:
            raise BadMessage(f"{field}.group", f"{_shown(group)} is there twice")
        for name in handlers:
            if name in served:
                text = f"{_shown(name)} is in group {_shown(served[name])} already"
                raise BadMessage(f"{field}.handlers", text)
            served[name] = group
        offers[group] = GroupOffer(
            group, slots, handlers, at_once, _limiting(offer.memory_limiting)
        )
    if len(served) > limits.HANDLERS_MAX:
        raise BadMessage("offers", f"{len(served)} handlers are more than {limits.HANDLERS_MAX}")
    return tuple(offers.values())


def check_heartbeat(beat: pool_pb2.Heartbeat, previous: int) -> None:
    """Check a heartbeat that follows number `previous`.

    Raises:
        BadMessage: a field is invalid.
    """
    for name, low, high in (
        ("number", 1, limits.INDEX_MAX),
        ("running", 0, limits.SLOTS_MAX),
        ("wall_ms", 0, limits.WALL_MS_MAX),
        ("outputs_waiting", 0, limits.OUTPUTS_WAITING_MAX),
        ("certificate_ends_ms", 0, limits.WALL_MS_MAX),
    ):
        _within("heartbeat.", name, getattr(beat, name), low, high)
    if beat.number <= previous:
        raise BadMessage("heartbeat.number", f"{beat.number} does not follow {previous}")
    _printable("heartbeat.outputs_problem", beat.outputs_problem, limits.PROBLEM_CHARS_MAX)


def parse_offered_output(kept: pool_pb2.KeptOutput) -> OfferedOutput:
    """Return an output that an executor offers to have stored.

    Raises:
        BadMessage: a field is invalid.
    """
    try:
        name = parse_attempt_name(kept.name)
    except BadName as error:
        raise BadMessage("kept.name", str(error)) from error
    if len(kept.sha256) != hashlib.sha256().digest_size:
        raise BadMessage("kept.sha256", f"{len(kept.sha256)} bytes are no SHA-256")
    size = _within("kept", ".bytes", kept.bytes, 1, limits.OUTPUT_PACKED_BYTES_MAX)
    return OfferedOutput(name, size, kept.sha256)


# ---- reports of rows


def parse_reports(
    message: pool_pb2.Reports, place: str = "reports", rows_max: int = limits.REPORTS_MAX
) -> tuple[BatchReport, ...]:
    """Return the reports of a message, in its order and in columns; errors name `place`.

    Raises:
        BadMessage: a field is invalid, or there are too many rows.
    """
    count = sum(len(batch.rows) for batch in message.batches)
    if count > rows_max:
        raise BadMessage(place, f"{count} rows are more than {rows_max}; send fewer")
    found = []
    for i, batch in enumerate(message.batches):
        field, part = f"{place}.batches[{i}]", "rows"
        status, reason = _status_and_reason(field, batch)
        columns = dict[str, Any]()
        try:
            rows = batch.rows[:]
            row_numbers(rows, limits.ROW_MAX)
            for part, high in _ENDS:
                if column := getattr(batch, part)[:]:
                    columns[part] = column
                    values = full(column, len(rows), is_times=part in TIMES)
                    for value in (min(values), max(values)):
                        _within(field, f".{part}", value, 0, high)
        except BadColumn as error:
            raise BadMessage(f"{field}.{part}", str(error)) from error
        _short(f"{field}.mark", batch.mark, limits.MARK_BYTES_MAX)
        same = (batch.index, status, reason, batch.exit_code, rows)
        found.append(BatchReport(*same, detail=batch.detail, mark=batch.mark, **columns))
    return tuple(found)


def parse_recollection(
    message: pool_pb2.Recollection, after: tuple[int, int]
) -> tuple[RowReport, ...]:
    """Return the rows of a Recollection, each of which follows (index, row) `after`.

    Raises:
        BadMessage: a field is invalid, there are too many rows, or they are not in order.
    """
    count = len(message.reports)
    if count > limits.REPORTS_MAX:
        text = f"{count} rows are more than {limits.REPORTS_MAX}; send fewer"
        raise BadMessage("recollection", text)
    _within("recollection", ".floor", message.floor, 0, limits.INDEX_MAX)
    rows = []
    for i, report in enumerate(message.reports):
        field = f"recollection.reports[{i}]"
        status, reason = _status_and_reason(field, report)
        if status is Status.UNKNOWN:
            raise BadMessage(f"{field}.status", "a row of a ledger cannot be unknown")
        for part, high in (("row", limits.ROW_MAX), *_ENDS):
            _within(field, f".{part}", getattr(report, part), 0, high)
        place = (report.index, report.row)
        if place <= after:
            text = f"row {place[1]} of {place[0]} does not follow row {after[1]} of {after[0]}"
            raise BadMessage(f"{field}.row", text)
        after = place
        parse_name(f"{field}.name", report.name)
        row = RowReport(*place, status, reason, report.exit_code, detail=report.detail)
        row.name, row.epoch = report.name, _epoch(f"{field}.epoch", report.epoch)
        for part, _ in _ENDS:
            setattr(row, part, getattr(report, part))
        rows.append(row)
    return tuple(rows)


def _status_and_reason(
    field: str, said: pool_pb2.BatchReport | pool_pb2.RowReport
) -> tuple[Status, Reason]:
    """Check the fields that a row and a batch of rows share; return attempt status and reason."""
    status, reason = _STATUSES.get(said.status), _REASONS.get(said.reason)
    if status is None:
        raise BadMessage(f"{field}.status", f"{said.status} is not a status")
    if reason is None:
        raise BadMessage(f"{field}.reason", f"{said.reason} is not a reason")
    if len(said.detail) > limits.DETAIL_CHARS_MAX:
        text = f"{len(said.detail)} characters are more than {limits.DETAIL_CHARS_MAX}"
        raise BadMessage(f"{field}.detail", text)
    _within(field, ".index", said.index, 1, limits.INDEX_MAX)
    _within(field, ".exit_code", said.exit_code, -1, limits.EXIT_CODE_MAX)
    return status, reason


def parse_name(field: str, text: str) -> AttemptName:
    """Return the attempt that `text` names, in full and in its canonical spelling.

    Raises:
        BadMessage: the text is not the canonical name of an attempt.
    """
    try:
        name = parse_attempt_name(text)
    except (ValueError, OverflowError) as error:
        raise BadMessage(field, f"{_shown(text)} is {NAMING}") from error
    if str(name) != text:
        raise BadMessage(field, f"{_shown(text)} is {NAMING}")
    return name


def _epoch(field: str, text: str) -> str:
    """Return an epoch in its canonical spelling; empty if a journal does not know it."""
    if not text:
        return text
    match = _EPOCH.fullmatch(text) if len(text) <= limits.EPOCH_CHARS_MAX else None
    if match is None or max(int(match[1]), int(match[2])) > limits.INDEX_MAX:
        raise BadMessage(field, f"{_shown(text)} is not an epoch like 0.7.r1")
    if match[3]:
        _part(field, match[3])
    return text


# ---- single fields: the value, or BadMessage


def _part(field: str, text: str) -> str:
    """Return a name of an executor, a replica or a label, which has the characters of a job name's
    part."""
    try:
        parse_job_name(f"{DEFAULT_TENANT}/{text}")
    except BadName as error:
        text = f"{_shown(text)} is not a name of up to 100 of A-Z a-z 0-9 _ . -"
        raise BadMessage(field, text) from error
    return text


def _word(field: str, text: str, chars_max: int) -> str:
    """Return a word of visible ASCII characters."""
    if len(text) > chars_max or not _WORD.fullmatch(text):
        rule = f"1 to {chars_max} visible ASCII characters without blanks"
        raise BadMessage(field, f"{_shown(text)} is not {rule}")
    return text


def _short(field: str, value: bytes, bytes_max: int) -> None:
    """Check bytes that only their length can make wrong."""
    if len(value) > bytes_max:
        raise BadMessage(field, f"{len(value)} bytes are more than {bytes_max}")


def _printable(field: str, text: str, chars_max: int) -> None:
    """Check a text for people, which may be empty."""
    if len(text) > chars_max or not text.isprintable():
        raise BadMessage(field, f"{_shown(text)} is not up to {chars_max} printable characters")


def _within(field: str, part: str, value: int, low: int, high: int) -> int:
    """Return a number of a part of a field, such as `.row` of `reports[3]`."""
    if not low <= value <= high:
        raise BadMessage(field + part, f"{value} is not between {low} and {high}")
    return value


def _shown(text: str) -> str:
    """Return a text to quote in a status message, cut: that travels in a header of a few KiB."""
    return ascii(text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "...")
