"""What executors send, read and checked: protobuf in, values out, or the field that is wrong.

Nothing of a message is used before all of it was checked, so a bad one changes nothing.
"""

from __future__ import annotations

import hashlib
import uuid

import msgspec

from launcher.names import BadName, parse_attempt_name
from launcher.pool import limits
from launcher.pool.errors import BadMessage
from launcher.pool.events import Kept, Offer, Told
from launcher.pool.fields import part, shown, within, word
from launcher.pool.reports import parse_known
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch


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
    known: Told
    can_recall: bool = False
    cpu_milli: int = 0
    memory_bytes: int = 0


def parse_hello(hello: pool_pb2.Hello, cell: str) -> Greeting:
    """Return what an executor of this cell says of itself.

    Raises:
        BadMessage: a field is wrong, or it belongs to another cell.
    """
    if hello.protocol != limits.PROTOCOL:
        raise BadMessage("hello.protocol", _other_protocol(hello.protocol))
    if hello.cell != cell:
        raise BadMessage("hello.cell", f"{shown(hello.cell)} is not this cell, {cell!r}")
    epoch = hello.highest_epoch
    within("hello", ".highest_epoch.lineage", epoch.lineage, 0, limits.INDEX_MAX)
    within("hello", ".highest_epoch.term", epoch.term, 0, limits.INDEX_MAX)
    if epoch.replica:
        part("hello.highest_epoch.replica", epoch.replica)
    return Greeting(
        executor=part("hello.executor", hello.executor),
        ledger=_uuid("hello.ledger", hello.ledger),
        incarnation=word("hello.incarnation", hello.incarnation, limits.INCARNATION_CHARS_MAX),
        slots=within("hello", ".slots", hello.slots, 1, limits.SLOTS_MAX),
        host=word("hello.host", hello.host, limits.HOST_CHARS_MAX),
        pid=within("hello", ".pid", hello.pid, 1, limits.PID_MAX),
        version=word("hello.version", hello.version, limits.VERSION_CHARS_MAX),
        wall_ms=within("hello", ".wall_ms", hello.wall_ms, 0, limits.WALL_MS_MAX),
        highest_epoch=Epoch(epoch.lineage, epoch.term, epoch.replica),
        labels=_labels(hello),
        known=parse_known(hello.known),
        can_recall=hello.can_recall,
        cpu_milli=within("hello", ".cpu_milli", hello.cpu_milli, 0, limits.CPU_MILLI_MAX),
        memory_bytes=within(
            "hello", ".memory_bytes", hello.memory_bytes, 0, limits.MEMORY_BYTES_MAX
        ),
    )


def _other_protocol(theirs: int) -> str:
    """Return why an executor of another protocol cannot be here, and what to do."""
    text = f"the executor speaks {theirs}, and this replica speaks {limits.PROTOCOL}"
    who = "the executor" if theirs < limits.PROTOCOL else "the replicas"
    return f"{text}; upgrade {who}"


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
            raise BadMessage(f"offers[{i}].group", f"{shown(offer.group)} is there twice")
        groups.add(offer.group)
        for name in offer.handlers:
            if name in handlers:
                text = f"{shown(name)} is in group {shown(handlers[name])} already"
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
        word(f"{field}.handlers[{i}]", name, limits.HANDLER_CHARS_MAX)
        for i, name in enumerate(offer.handlers)
    )
    group = word(f"{field}.group", offer.group, limits.GROUP_CHARS_MAX)
    return Offer(group, within(field, ".slots", offer.slots, 1, limits.SLOTS_MAX), handlers)


def parse_heartbeat(beat: pool_pb2.Heartbeat, previous: int) -> tuple[int, int, int]:
    """Return number, running and wall_ms of a heartbeat that follows number `previous`.

    Raises:
        BadMessage: a field is wrong.
    """
    within("heartbeat", ".number", beat.number, 1, limits.INDEX_MAX)
    if beat.number <= previous:
        raise BadMessage("heartbeat.number", f"{beat.number} does not follow {previous}")
    running = within("heartbeat", ".running", beat.running, 0, limits.SLOTS_MAX)
    return (
        beat.number,
        running,
        within("heartbeat", ".wall_ms", beat.wall_ms, 0, limits.WALL_MS_MAX),
    )


def parse_stored(beat: pool_pb2.Heartbeat) -> tuple[int, str]:
    """Return how many outputs an executor is yet to store, and why it cannot.

    Raises:
        BadMessage: a field is wrong.
    """
    problem = beat.outputs_problem
    if len(problem) > limits.PROBLEM_CHARS_MAX or not (problem.isprintable() or not problem):
        text = f"{shown(problem)} is not up to {limits.PROBLEM_CHARS_MAX} printable characters"
        raise BadMessage("heartbeat.outputs_problem", text)
    waiting = within(
        "heartbeat", ".outputs_waiting", beat.outputs_waiting, 0, limits.OUTPUTS_WAITING_MAX
    )
    return waiting, problem


def parse_kept(kept: pool_pb2.KeptOutput) -> Kept:
    """Return an output that an executor offers to have stored.

    Raises:
        BadMessage: a field is wrong.
    """
    try:
        name = parse_attempt_name(kept.name)
    except BadName as error:
        raise BadMessage("kept.name", str(error)) from error
    if len(kept.sha256) != hashlib.sha256().digest_size:
        raise BadMessage("kept.sha256", f"{len(kept.sha256)} bytes are no SHA-256")
    size = within("kept", ".bytes", kept.bytes, 1, limits.OUTPUT_PACKED_BYTES_MAX)
    return Kept(name, size, kept.sha256)


def _labels(hello: pool_pb2.Hello) -> dict[str, str]:
    if len(hello.labels) > limits.LABELS_MAX:
        raise BadMessage(
            "hello.labels", f"{len(hello.labels)} labels are more than {limits.LABELS_MAX}"
        )
    for key in sorted(hello.labels):
        part("hello.labels", key)
        value = hello.labels[key]
        if len(value) > limits.LABEL_CHARS_MAX or not (value.isprintable() or not value):
            raise BadMessage(
                f"hello.labels[{key}]",
                f"{shown(value)} is not up to {limits.LABEL_CHARS_MAX} printable characters",
            )
    return {key: hello.labels[key] for key in sorted(hello.labels)}


def _uuid(field: str, text: str) -> str:
    try:
        is_canonical = str(uuid.UUID(text)) == text
    except ValueError:
        is_canonical = False
    if not is_canonical:
        raise BadMessage(field, f"{shown(text)} is not a UUID in lower case with dashes")
    return text
