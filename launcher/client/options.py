"""Options of a submit, and the submission that they make. Pure, but for the key that is drawn and a
payload that is stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypedDict

import msgspec

from launcher.client.errors import BadTask, Unavailable
from launcher.client.front import Front
from launcher.client.messages import PAYLOAD_BYTES_MAX, Submission
from launcher.lengths import Length, length_ms
from launcher.payloads import PayloadsAway, PayloadStore, PayloadTooLarge, put_payload

HandlerName: TypeAlias = str | Callable[..., Any]
"""A handler: its name, or the function that `@handler` registered."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS_AHEAD_MAX: Final = 3_650
UNLIMITED: Final = "unlimited"
TRIES_UNLIMITED: Final = 999_999_999
"""As the cell calls and counts retries that go on until the deadline."""
_LENGTHS: Final = ("backoff", "deadline", "timeout")
_TEXTS: Final = ("key", "queue", "tenant", "collection", "on_lost", "traceparent")


class Options(TypedDict, total=False):
    """What a submit may say of a task; its queue says the rest.

    `delay` is a length from now, `at` an aware datetime or an ISO text with a zone. `key` makes
    repeats safe: the same key and content is the same task. `retries` counts attempts after the
    first one, `tries` all; `retries="unlimited"` goes on until the deadline. `timeout` limits one
    attempt. `deadline` is how long after its time the
    task, or another attempt of it, may begin. Lengths are seconds, texts such as "10ms" or "5m", or
    timedeltas. `after` are tasks and groups, or their names: the task is due once all of them have
    succeeded, and cancelled if one ends otherwise. It does not matter how those of `after_any` end.
    """

    delay: Length | None
    at: datetime | str | None
    key: str | None
    queue: str | None
    tenant: str | None
    priority: int | None
    tries: int | None
    retries: int | str | None
    backoff: Length | None
    deadline: Length | None
    timeout: Length | None
    collection: str | None
    on_lost: str | None
    labels: Mapping[str, str] | None
    traceparent: str | None
    group: Any
    after: Sequence[Any] | None
    after_any: Sequence[Any] | None


def submission(
    handler: HandlerName | None,
    payload: object,
    options: Options,
    tenant: str = "",
    store: PayloadStore | None = None,
) -> Submission:
    """Return a task, checked as far as a client can; without a key it gets a new one. It is of
    `tenant` unless the options say another one. A payload that is too long for a task is put into
    `store`.

    Raises:
        BadTask: an option or the payload cannot be sent.
        BadPayload: the payload does not fit the type that the handler declares.
    """
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    unknown = next((name for name in said if name not in Options.__annotations__), None)
    if unknown is not None:
        known = ", ".join(sorted(Options.__annotations__))
        raise BadTask(f"{unknown}: there is no such option of a task", f"there are {known}")
    content = _content(payload)
    name = _name_of(handler, content)
    if not name and "queue" not in said:
        raise BadTask("a task needs a handler or a queue", 'submit("billing.invoice", payload)')
    fields: dict[str, Any] = {name: _text(name, said[name]) for name in _TEXTS if name in said}
    fields |= {each: _number(each, said[each]) for each in ("priority", "tries") if each in said}
    if "retries" in said:
        if "tries" in said:
            raise BadTask("retries and tries say the same", "leave one out: retries=0 is tries=1")
        fields["tries"] = tries_of(said["retries"])
    for each in _LENGTHS:
        if each in said:
            fields[f"{each}_ms"] = _length(each, said[each], 366)
    for each in ("after", "after_any"):
        if said.get(each):
            fields[each] = _predecessors(each, said[each])
    if "group" in said:
        fields["group"] = name_of(said["group"])
    if "labels" in said:
        fields["labels"] = _labels(said["labels"])
    fields |= _when(said)
    fields.setdefault("tenant", tenant)
    fields.setdefault("key", os.urandom(16).hex())
    return Submission(handler=name, payload=msgspec.Raw(_kept(content, store)), **fields)


def name_of(task: Any) -> str:
    """Return the name of a task or group.

    Raises:
        BadTask: it is none.
    """
    name = task if isinstance(task, str) else getattr(task, "name", None)
    name = name if name is not None else getattr(task, "task", getattr(task, "group", None))
    if not isinstance(name, str) or not name:
        hint = "give the Task that submit returned, a Group, or its name"
        raise BadTask(f"{task!r} is no task or group", hint)
    return name


def _predecessors(what: str, said: Any) -> list[str]:
    if isinstance(said, str) or not isinstance(said, Iterable):
        raise BadTask(f"{what}: {said!r} is no list", f"{what}=[task, ...]")
    return [name_of(one) for one in said]


def _content(payload: object) -> bytes:
    """The payload as JSON; bytes are JSON already."""
    try:
        if isinstance(payload, bytes | bytearray | memoryview):
            content = bytes(payload)
            msgspec.json.decode(content)
        else:
            content = msgspec.json.encode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "bytes are sent as they are; encode other bytes as a text"
        raise BadTask(f"payload of bytes is not JSON: {error}", hint) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        hint = "a payload is JSON: a msgspec.Struct, a dataclass, dict, list, text or number"
        raise BadTask(f"payload cannot be said in JSON: {error}", hint) from error
    return content


def _kept(content: bytes, store: PayloadStore | None) -> bytes:
    """The payload as a task carries it: itself, or a reference to where it is stored."""
    if len(content) <= PAYLOAD_BYTES_MAX:
        return content
    if store is None:
        raise BadTask(
            f"payload has {len(content):,} bytes of JSON, at most {PAYLOAD_BYTES_MAX:,} are sent",
            'store larger ones: Client(payloads="s3://bucket/prefix"), or RAFTCRON_PAYLOADS',
        )
    try:
        return put_payload(store, content)
    except PayloadTooLarge as error:
        raise BadTask(str(error)) from error
    except PayloadsAway as error:
        raise Unavailable(str(error), error.hint) from error


def _name_of(handler: HandlerName | None, content: bytes) -> str:
    if handler is None or isinstance(handler, str):
        return handler or ""
    front = handler if isinstance(handler, Front) else getattr(handler, "submit", None)
    if not isinstance(front, Front):
        shown = getattr(handler, "__qualname__", repr(handler))
        raise BadTask(f"{shown} is no handler", "put @handler above it, or submit by a name")
    front.check(content)
    return front.handler_name


def _when(said: dict[str, Any]) -> dict[str, int]:
    """The one of `at_ms` and `delay_ms` that is said."""
    if "at" in said and "delay" in said:
        raise BadTask("at and delay: say one of them")
    if "delay" in said:
        return {"delay_ms": _length("delay", said["delay"], _DAYS_AHEAD_MAX)}
    if "at" not in said:
        return {}
    return {"at_ms": max(1, moment_ms("at", said["at"]))}


def moment_ms(what: str, at: Any) -> int:
    """Return the Unix milliseconds of an aware datetime or an ISO text with a zone.

    Raises:
        BadTask: it is neither; `what` names it.
    """
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError as error:
            raise BadTask(
                f"{what}: {at[:100]!r} is no ISO 8601 time", "such as 2026-11-20T15:00:00Z"
            ) from error
    if not isinstance(at, datetime):
        raise BadTask(f"{what}: {at!r} is neither a datetime nor a text")
    if at.utcoffset() is None:
        hint = "give it one: at.replace(tzinfo=ZoneInfo('Europe/Paris')), or datetime.now(UTC)"
        raise BadTask(f"{what}: {at.isoformat()} has no time zone", hint)
    return (at - _EPOCH) // timedelta(milliseconds=1)


def _length(what: str, length: Any, days_max: int) -> int:
    try:
        return length_ms(length, days_max=days_max)
    except (ValueError, TypeError) as error:
        raise BadTask(f"{what}: {error}") from error


def _text(what: str, text: Any) -> str:
    if not isinstance(text, str):
        raise BadTask(f"{what}: {text!r} is no text")
    return text


def _number(what: str, number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) > 1 << 53:
        raise BadTask(f"{what}: {number!r} is no whole number")
    return number


def tries_of(said: Any) -> int:
    """The attempts that `retries` means: an older cell knows no other word.

    Raises:
        BadTask: it is neither a number nor `unlimited`.
    """
    if said == UNLIMITED:
        return TRIES_UNLIMITED
    retries = _number("retries", said)
    if retries < 0:
        raise BadTask(f"retries: {retries} is below 0")
    return retries + 1


def _labels(labels: Any) -> dict[str, str]:
    if not isinstance(labels, Mapping) or not all(
        isinstance(one, str) for pair in labels.items() for one in pair
    ):
        raise BadTask("labels: they are texts by names", 'labels={"team": "billing"}')
    return dict(labels)
