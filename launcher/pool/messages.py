"""What executors send, read and checked: protobuf in, values out, or the field that is wrong.

Nothing of a message is used before all of it was checked, so a bad one changes nothing.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final

import msgspec

from launcher.launch import Reason
from launcher.names import DEFAULT_TENANT, AttemptName, BadName, parse_job_name
from launcher.pool import limits
from launcher.pool.errors import BadMessage
from launcher.pool.events import Fact, Fate, Offer, Recalled
from launcher.pool.spelling import SPELLING
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch

_REASONS: Final = {reason.value: reason for reason in Reason}
_FATES: Final = {fate.value: fate for fate in Fate}
_EPOCH: Final = re.compile(r"(0|[1-9]\d{0,18})\.(0|[1-9]\d{0,18})\.(.*)", re.ASCII)
_WORD: Final = re.compile(r"[!-~]+")  # visible ASCII, no blanks
_SHOWN_CHARS_MAX: Final = 120
NAMING: Final = "not a name like tenant/job@2026-11-20T15:00:00Z#1, always with its attempt"


class Greeting(msgspec.Struct, frozen=True):
    """A Hello that was read and is in order."""

    executor: str
    ledger: str
    incarnation: str
    slots: int
    host: str
    pid: int
    version: str
    wall_ms: int
    highest_epoch: Epoch
    labels: dict[str, str]
    known: tuple[Fact, ...]
    can_recall: bool = False
    cpu_milli: int = 0
    memory_bytes: int = 0
    protocol: int = 0


def parse_hello(hello: pool_pb2.Hello, cell: str) -> Greeting:
    """Return what an executor of this cell says of itself.

    Raises:
        BadMessage: a field is wrong, or it belongs to another cell.
    """
    if hello.cell != cell:
        raise BadMessage("hello.cell", f"{_shown(hello.cell)} is not this cell, {cell!r}")
    epoch = hello.highest_epoch
    _within("hello", ".highest_epoch.lineage", epoch.lineage, 0, limits.INDEX_MAX)
    _within("hello", ".highest_epoch.term", epoch.term, 0, limits.INDEX_MAX)
    if epoch.replica:
        _part("hello.highest_epoch.replica", epoch.replica)
    return Greeting(
        executor=_part("hello.executor", hello.executor),
        ledger=_uuid("hello.ledger", hello.ledger),
        incarnation=_word("hello.incarnation", hello.incarnation, limits.INCARNATION_CHARS_MAX),
        slots=_within("hello", ".slots", hello.slots, 1, limits.SLOTS_MAX),
        host=_word("hello.host", hello.host, limits.HOST_CHARS_MAX),
        pid=_within("hello", ".pid", hello.pid, 1, limits.PID_MAX),
        version=_word("hello.version", hello.version, limits.VERSION_CHARS_MAX),
        wall_ms=_within("hello", ".wall_ms", hello.wall_ms, 0, limits.WALL_MS_MAX),
        highest_epoch=Epoch(epoch.lineage, epoch.term, epoch.replica),
        labels=_labels(hello),
        known=_known(hello),
        can_recall=hello.can_recall,
        cpu_milli=_within("hello", ".cpu_milli", hello.cpu_milli, 0, limits.CPU_MILLI_MAX),
        memory_bytes=_within(
            "hello", ".memory_bytes", hello.memory_bytes, 0, limits.MEMORY_BYTES_MAX
        ),
        protocol=hello.protocol,
    )


def parse_offers(message: pool_pb2.Offers) -> tuple[Offer, ...]:
    """Return what an executor's workers serve, in its order.

    Raises:
        BadMessage: a field is wrong, there is too much, or a group or handler is there twice.
    """
    if len(message.offers) > limits.GROUPS_MAX:
        raise BadMessage("offers", f"{len(message.offers)} are more than {limits.GROUPS_MAX}")
    offers = tuple(_offer(f"offers[{i}]", offer) for i, offer in enumerate(message.offers))
    groups: set[str] = set()
    handlers: dict[str, str] = {}
    for i, offer in enumerate(offers):
        if offer.group in groups:
            raise BadMessage(f"offers[{i}].group", f"{_shown(offer.group)} is there twice")
        groups.add(offer.group)
        for name in offer.handlers:
            if name in handlers:
                text = f"{_shown(name)} is in group {_shown(handlers[name])} already"
                raise BadMessage(f"offers[{i}].handlers", text)
            handlers[name] = offer.group
    if len(handlers) > limits.HANDLERS_MAX:
        raise BadMessage("offers", f"{len(handlers)} handlers are more than {limits.HANDLERS_MAX}")
    return offers


def _offer(field: str, offer: pool_pb2.Offer) -> Offer:
    if not 1 <= len(offer.handlers) <= limits.HANDLERS_MAX:
        text = f"{len(offer.handlers)} handlers are not 1 to {limits.HANDLERS_MAX}"
        raise BadMessage(f"{field}.handlers", text)
    handlers = tuple(
        _word(f"{field}.handlers[{i}]", name, limits.HANDLER_CHARS_MAX)
        for i, name in enumerate(offer.handlers)
    )
    group = _word(f"{field}.group", offer.group, limits.GROUP_CHARS_MAX)
    return Offer(group, _within(field, ".slots", offer.slots, 1, limits.SLOTS_MAX), handlers)


def parse_heartbeat(beat: pool_pb2.Heartbeat, previous: int) -> tuple[int, int, int]:
    """Return number, running and wall_ms of a heartbeat that follows number `previous`.

    Raises:
        BadMessage: a field is wrong.
    """
    _within("heartbeat", ".number", beat.number, 1, limits.INDEX_MAX)
    if beat.number <= previous:
        raise BadMessage("heartbeat.number", f"{beat.number} does not follow {previous}")
    running = _within("heartbeat", ".running", beat.running, 0, limits.SLOTS_MAX)
    return (
        beat.number,
        running,
        _within("heartbeat", ".wall_ms", beat.wall_ms, 0, limits.WALL_MS_MAX),
    )


def parse_reports(reports: Iterable[pool_pb2.Report], count: int) -> tuple[Fact, ...]:
    """Return the facts of a Reports message of `count` rows, in its order.

    Raises:
        BadMessage: a field is wrong, or there are too many.
    """
    if count > limits.REPORTS_MAX:
        raise BadMessage("reports", f"{count} rows are more than {limits.REPORTS_MAX}; send fewer")
    return tuple([_fact("reports", i, report) for i, report in enumerate(reports)])


def parse_recollection(
    message: pool_pb2.Recollection, after: tuple[int, str]
) -> tuple[Recalled, ...]:
    """Return the rows of a Recollection, each of which follows (begun index, name) `after`.

    Raises:
        BadMessage: a field is wrong, there are too many, or their order is another.
    """
    count = len(message.reports)
    if count > limits.REPORTS_MAX:
        raise BadMessage(
            "recollection", f"{count} rows are more than {limits.REPORTS_MAX}; send fewer"
        )
    _within("recollection", ".floor", message.floor, 0, limits.INDEX_MAX)
    rows = []
    for i, report in enumerate(message.reports):
        field = f"recollection.reports[{i}]"
        fact = _fact("recollection.reports", i, report)
        if fact.fate is Fate.UNKNOWN:
            raise BadMessage(f"{field}.fate", "a row of a ledger cannot be unknown")
        begun_index = _within(field, ".begun_index", report.begun_index, 0, limits.INDEX_MAX)
        place = (begun_index, report.name)
        if place <= after:
            raise BadMessage(
                f"{field}.begun_index",
                f"{report.name} at {begun_index} does not follow {after[1]} at {after[0]}",
            )
        after = place
        rows.append(Recalled(fact, begun_index, _epoch(f"{field}.epoch", report.epoch)))
    return tuple(rows)


def parse_name(field: str, text: str) -> AttemptName:
    """Return the attempt that `text` names in full, in the one way in which names are written.

    Raises:
        BadMessage: it names nothing, leaves something out, or is written in another way.
    """
    try:
        return SPELLING.read(text)
    except BadName as error:
        raise BadMessage(field, f"{_shown(text)} is {NAMING}") from error


def _known(hello: pool_pb2.Hello) -> tuple[Fact, ...]:
    if len(hello.known) > limits.KNOWN_MAX:
        raise BadMessage("hello.known", f"{len(hello.known)} rows are more than {limits.KNOWN_MAX}")
    facts = tuple(_fact("hello.known", i, report) for i, report in enumerate(hello.known))
    seen: set[AttemptName] = set()
    for i, fact in enumerate(facts):
        if fact.name in seen:
            raise BadMessage(f"hello.known[{i}].name", f"{fact.name} is there twice")
        if fact.fate is Fate.UNKNOWN:
            raise BadMessage(f"hello.known[{i}].fate", "a known row cannot be unknown")
        seen.add(fact.name)
    return facts


def _fact(place: str, number: int, report: pool_pb2.Report) -> Fact:
    """Return what the report with this number, of those at `place`, says."""
    fate, reason = _FATES.get(report.fate), _REASONS.get(report.reason)
    exit_code, kept, after_ms = report.exit_code, report.output_bytes, report.retry_after_ms
    started_ms, finished_ms, detail = report.started_ms, report.finished_ms, report.detail
    # At once: a busy leader reads ten thousand a second.
    is_sound = (
        fate is not None
        and reason is not None
        and len(detail) <= limits.DETAIL_CHARS_MAX
        and -1 <= exit_code <= limits.EXIT_CODE_MAX
        and 0 <= started_ms <= limits.WALL_MS_MAX
        and 0 <= finished_ms <= limits.WALL_MS_MAX
        and 0 <= kept <= limits.OUTPUT_KEPT_BYTES_MAX
        and 0 <= after_ms <= limits.RETRY_AFTER_MS_MAX
        and report.cpu_ms <= limits.USAGE_MAX
        and report.memory_peak_bytes <= limits.USAGE_MAX
    )
    if fate is None or reason is None or not is_sound:
        raise _what_is_wrong(f"{place}[{number}]", report)
    try:
        name = SPELLING.read(report.name)
    except BadName:
        name = parse_name(f"{place}[{number}].name", report.name)
    # By place, in the order of Fact.
    return Fact(
        name, fate, reason, exit_code, started_ms, finished_ms, detail, kept, after_ms,
        report.cpu_ms, report.memory_peak_bytes,
    )  # fmt: skip


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
    for part, low, high in (
        ("exit_code", -1, limits.EXIT_CODE_MAX),
        ("started_ms", 0, limits.WALL_MS_MAX),
        ("finished_ms", 0, limits.WALL_MS_MAX),
        ("output_bytes", 0, limits.OUTPUT_KEPT_BYTES_MAX),
        ("retry_after_ms", 0, limits.RETRY_AFTER_MS_MAX),
        ("cpu_ms", 0, limits.USAGE_MAX),
        ("memory_peak_bytes", 0, limits.USAGE_MAX),
    ):
        try:
            _within(field, f".{part}", getattr(report, part), low, high)
        except BadMessage as error:
            return error
    return BadMessage(field, "it cannot be read")


def _epoch(field: str, text: str) -> str:
    """An epoch as its own str() writes it; empty where a ledger does not know."""
    if not text:
        return text
    match = _EPOCH.fullmatch(text) if len(text) <= limits.EPOCH_CHARS_MAX else None
    if match is None or max(int(match[1]), int(match[2])) > limits.INDEX_MAX:
        raise BadMessage(field, f"{_shown(text)} is not an epoch like 0.7.r1")
    if match[3]:
        _part(field, match[3])
    return text


def _labels(hello: pool_pb2.Hello) -> dict[str, str]:
    if len(hello.labels) > limits.LABELS_MAX:
        raise BadMessage(
            "hello.labels", f"{len(hello.labels)} labels are more than {limits.LABELS_MAX}"
        )
    for key in sorted(hello.labels):
        _part("hello.labels", key)
        value = hello.labels[key]
        if len(value) > limits.LABEL_CHARS_MAX or not (value.isprintable() or not value):
            raise BadMessage(
                f"hello.labels[{key}]",
                f"{_shown(value)} is not up to {limits.LABEL_CHARS_MAX} printable characters",
            )
    return {key: hello.labels[key] for key in sorted(hello.labels)}


def _part(field: str, text: str) -> str:
    """Executors, replicas and label keys are named with the characters of a job name's part."""
    try:
        parse_job_name(f"{DEFAULT_TENANT}/{text}")
    except BadName as error:
        raise BadMessage(
            field, f"{_shown(text)} is not a name of up to 100 of A-Z a-z 0-9 _ . -"
        ) from error
    return text


def _uuid(field: str, text: str) -> str:
    try:
        is_canonical = str(uuid.UUID(text)) == text
    except ValueError:
        is_canonical = False
    if not is_canonical:
        raise BadMessage(field, f"{_shown(text)} is not a UUID in lower case with dashes")
    return text


def _word(field: str, text: str, chars_max: int) -> str:
    if len(text) > chars_max or not _WORD.fullmatch(text):
        raise BadMessage(
            field, f"{_shown(text)} is not 1 to {chars_max} visible ASCII characters without blanks"
        )
    return text


def _within(field: str, part: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise BadMessage(field + part, f"{value} is not between {low} and {high}")
    return value


def _shown(text: str) -> str:
    """Quote for a message, cut: a status message travels in a header of a few KiB."""
    return ascii(text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "...")
