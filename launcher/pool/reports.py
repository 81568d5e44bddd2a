"""What executors say of rows of their ledgers, read and checked.

Nothing of a message is used before all of it was checked, so a bad one changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from launcher.columns import BadColumn, full, full_times, row_numbers
from launcher.launch import Reason
from launcher.names import AttemptName, parse_attempt_name
from launcher.pool import limits
from launcher.pool.errors import BadMessage
from launcher.pool.events import BatchFacts, Fact, Fate, Recalled, Told
from launcher.pool.fields import part, shown, within
from launcher.rpc.v1 import pool_pb2

_REASONS: Final = {reason.value: reason for reason in Reason}
_FATES: Final = {fate.value: fate for fate in Fate}
_EPOCH: Final = re.compile(r"(0|[1-9]\d{0,18})\.(0|[1-9]\d{0,18})\.(.*)", re.ASCII)
NAMING: Final = "not a name like tenant/job@2026-11-20T15:00:00Z#1, always with its attempt"


def parse_reports(message: pool_pb2.Reports) -> Told:
    """Return what a Reports message says, in its order.

    Raises:
        BadMessage: a field is wrong, or there are too many rows.
    """
    return _told("reports", message, limits.REPORTS_MAX)


def _told(place: str, message: pool_pb2.Reports, rows_max: int) -> Told:
    count = sum(len(batch.rows) for batch in message.batches)
    if count > rows_max:
        raise BadMessage(place, f"{count} rows are more than {rows_max}; send fewer")
    batches = [_batch(f"{place}.batches[{i}]", one) for i, one in enumerate(message.batches)]
    return Told((), tuple(batches))


def _batch(field: str, batch: pool_pb2.BatchReport) -> BatchFacts:
    """Return what is said of rows of one batch, in columns."""
    fate, reason = _FATES.get(batch.fate), _REASONS.get(batch.reason)
    if fate is None:
        raise BadMessage(f"{field}.fate", f"{batch.fate} is not a fate")
    if reason is None:
        raise BadMessage(f"{field}.reason", f"{batch.reason} is not a reason")
    if len(batch.detail) > limits.DETAIL_CHARS_MAX:
        text = f"{len(batch.detail)} characters are more than {limits.DETAIL_CHARS_MAX}"
        raise BadMessage(f"{field}.detail", text)
    try:
        rows = row_numbers(batch.rows[:], limits.ROW_MAX)
    except BadColumn as error:
        raise BadMessage(f"{field}.rows", str(error)) from error
    count = len(rows)

    def beside(part: str, column: Sequence[int], high: int) -> list[int]:
        return _column(field, part, column, (count, high), full) if column else []

    return BatchFacts(
        within(field, ".index", batch.index, 1, limits.INDEX_MAX),
        fate,
        reason,
        within(field, ".exit_code", batch.exit_code, -1, limits.EXIT_CODE_MAX),
        rows,
        _column(field, ".started_ms", batch.started_ms, (count, limits.WALL_MS_MAX), full_times),
        _column(field, ".finished_ms", batch.finished_ms, (count, limits.WALL_MS_MAX), full_times),
        beside(".output_bytes", batch.output_bytes, limits.OUTPUT_KEPT_BYTES_MAX),
        batch.detail,
        beside(".cpu_ms", batch.cpu_ms, limits.USAGE_MAX),
        beside(".memory_peak_bytes", batch.memory_peak_bytes, limits.USAGE_MAX),
        beside(".retry_after_ms", batch.retry_after_ms, limits.RETRY_AFTER_MS_MAX),
    )


def _column(
    field: str,
    part: str,
    column: Sequence[int],
    bounds: tuple[int, int],
    read: Callable[[Sequence[int], int], list[int]],
) -> list[int]:
    """Return a column in full; `bounds` are how many values there are to be, and their highest."""
    count, high = bounds
    try:
        values = read(column[:], count)
    except BadColumn as error:
        raise BadMessage(field + part, str(error)) from error
    within(field, part, min(values), 0, high)
    within(field, part, max(values), 0, high)
    return values


def parse_recollection(
    message: pool_pb2.Recollection, after: tuple[int, int]
) -> tuple[Recalled, ...]:
    """Return the rows of a Recollection, each of which follows (index, row) `after`.

    Raises:
        BadMessage: a field is wrong, there are too many, or their order is another.
    """
    count = len(message.reports)
    if count > limits.REPORTS_MAX:
        raise BadMessage(
            "recollection", f"{count} rows are more than {limits.REPORTS_MAX}; send fewer"
        )
    within("recollection", ".floor", message.floor, 0, limits.INDEX_MAX)
    rows = []
    for i, report in enumerate(message.reports):
        field = f"recollection.reports[{i}]"
        fact = _fact(field, report)
        if fact.fate is Fate.UNKNOWN:
            raise BadMessage(f"{field}.fate", "a row of a ledger cannot be unknown")
        place = (fact.index, fact.row)
        if place <= after:
            text = f"row {place[1]} of {place[0]} does not follow row {after[1]} of {after[0]}"
            raise BadMessage(f"{field}.row", text)
        after = place
        name = parse_name(f"{field}.name", report.name)
        rows.append(Recalled(name, fact, _epoch(f"{field}.epoch", report.epoch)))
    return tuple(rows)


def parse_name(field: str, text: str) -> AttemptName:
    """Return the attempt that `text` names in full, in the one way in which names are written.

    Raises:
        BadMessage: it names nothing, leaves something out, or is written in another way.
    """
    try:
        name = parse_attempt_name(text)
    except (ValueError, OverflowError) as error:
        raise BadMessage(field, f"{shown(text)} is {NAMING}") from error
    if str(name) != text:
        raise BadMessage(field, f"{shown(text)} is {NAMING}")
    return name


def parse_known(message: pool_pb2.Reports) -> Told:
    """Return what a Hello says of all rows that the leader may ask about, each once.

    Raises:
        BadMessage: a field is wrong, there are too many, or a row is there twice.
    """
    told = _told("hello.known", message, limits.KNOWN_MAX)
    seen: dict[int, set[int]] = {}
    for i, batch in enumerate(told.batches):
        rows = seen.setdefault(batch.index, set())
        if batch.fate is Fate.UNKNOWN:
            raise BadMessage(f"hello.known.batches[{i}].fate", "a known row cannot be unknown")
        if not rows.isdisjoint(batch.rows):
            twice = next(row for row in batch.rows if row in rows)
            raise BadMessage(f"hello.known.batches[{i}].rows", f"{twice} is there twice")
        rows.update(batch.rows)
    return told


def _fact(field: str, report: pool_pb2.Report) -> Fact:
    """Return what the report of one row says."""
    fate, reason = _FATES.get(report.fate), _REASONS.get(report.reason)
    if fate is None or reason is None or not _is_sound(report):
        raise _what_is_wrong(field, report)
    # By place, in the order of Fact.
    return Fact(
        report.index, report.row, fate, reason, report.exit_code, report.started_ms,
        report.finished_ms, report.detail, report.output_bytes, report.retry_after_ms,
        report.cpu_ms, report.memory_peak_bytes,
    )  # fmt: skip


def _is_sound(report: pool_pb2.Report) -> bool:
    """Whether all numbers of a report are within their bounds."""
    return (
        1 <= report.index <= limits.INDEX_MAX
        and report.row <= limits.ROW_MAX
        and len(report.detail) <= limits.DETAIL_CHARS_MAX
        and -1 <= report.exit_code <= limits.EXIT_CODE_MAX
        and 0 <= report.started_ms <= limits.WALL_MS_MAX
        and 0 <= report.finished_ms <= limits.WALL_MS_MAX
        and 0 <= report.output_bytes <= limits.OUTPUT_KEPT_BYTES_MAX
        and 0 <= report.retry_after_ms <= limits.RETRY_AFTER_MS_MAX
        and report.cpu_ms <= limits.USAGE_MAX
        and report.memory_peak_bytes <= limits.USAGE_MAX
    )


def _what_is_wrong(field: str, report: pool_pb2.Report) -> BadMessage:
    """Return what a report is refused for."""
    if report.fate not in _FATES:
        return BadMessage(f"{field}.fate", f"{report.fate} is not a fate")
    if report.reason not in _REASONS:
        return BadMessage(f"{field}.reason", f"{report.reason} is not a reason")
    if len(report.detail) > limits.DETAIL_CHARS_MAX:
        return BadMessage(
            f"{field}.detail",
            f"{len(report.detail)} characters are more than {limits.DETAIL_CHARS_MAX}",
        )
    for name, low, high in (
        ("index", 1, limits.INDEX_MAX),
        ("row", 0, limits.ROW_MAX),
        ("exit_code", -1, limits.EXIT_CODE_MAX),
        ("started_ms", 0, limits.WALL_MS_MAX),
        ("finished_ms", 0, limits.WALL_MS_MAX),
        ("output_bytes", 0, limits.OUTPUT_KEPT_BYTES_MAX),
        ("retry_after_ms", 0, limits.RETRY_AFTER_MS_MAX),
        ("cpu_ms", 0, limits.USAGE_MAX),
        ("memory_peak_bytes", 0, limits.USAGE_MAX),
    ):
        try:
            within(field, f".{name}", getattr(report, name), low, high)
        except BadMessage as error:
            return error
    return BadMessage(field, "it cannot be read")


def _epoch(field: str, text: str) -> str:
    """An epoch as its own str() writes it; empty where a ledger does not know."""
    if not text:
        return text
    match = _EPOCH.fullmatch(text) if len(text) <= limits.EPOCH_CHARS_MAX else None
    if match is None or max(int(match[1]), int(match[2])) > limits.INDEX_MAX:
        raise BadMessage(field, f"{shown(text)} is not an epoch like 0.7.r1")
    if match[3]:
        part(field, match[3])
    return text
