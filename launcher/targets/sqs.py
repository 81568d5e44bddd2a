"""The target `sqs`: a launch is one message to a queue of Amazon SQS, or of a server like it.

The launch is done when the queue has accepted the message. A FIFO queue drops a second message of
the same launch for five minutes, because its `MessageDeduplicationId` is the name of the launch.
Other queues may get a message twice; the attribute `raftcron-launch` tells their readers.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from launcher.errors import BadConfig
from launcher.protocol.names import LaunchName
from launcher.targets.config import SqsConfig
from launcher.targets.seen import Seen, State
from launcher.targets.target import NotReached, Work, decoded, duration_ms, excerpt
from launcher.worker.errors import BadPayload

NAME_CHARS_MAX: Final = 128
"""Of a deduplication id, and of a group's."""
ATTRIBUTES_MAX: Final = 10
"""Of one message, those of the target included."""
OWN_ATTRIBUTES: Final = ("raftcron-launch", "raftcron-attempt", "raftcron-due")
TIMEOUT_MS_MAX: Final = 8_000
"""A call cannot be cut off. It has to be over before the executor's grace of 10 s is: a launch that
is cancelled and does not end takes the whole process along."""
FIFO: Final = ".fifo"
DELAY_S_MAX: Final = 900
_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo", re.ASCII)
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,255}", re.ASCII)
_REFUSED: Final = frozenset(
    {
        "AccessDenied", "AccessDeniedException", "AWS.SimpleQueueService.NonExistentQueue",
        "InvalidAddress", "InvalidAttributeName", "InvalidAttributeValue",
        "InvalidMessageContents", "InvalidParameterValue", "InvalidSecurity",
        "MissingParameter", "NonExistentQueue", "QueueDeletedRecently", "QueueDoesNotExist",
        "UnsupportedOperation", "ValidationError",
    }
)  # fmt: skip
"""Codes of errors that another try would have as well. All others may pass: throttling, an expired
token, a server that has trouble."""


class SqsSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a launch of `sqs`. A `body` that is a text is sent as it is, any other as
    JSON. `group` is the message group of a FIFO queue, the name of the job if absent. `delay_s` is
    how long a queue that is not FIFO keeps the message back."""

    queue: str
    body: msgspec.Raw
    attributes: dict[str, str | int | float] = {}
    group: str = ""
    delay_s: int = 0


class Message(NamedTuple):
    """A message that may be sent."""

    queue: str
    body: str
    attributes: dict[str, dict[str, str]]
    group: str
    delay_s: int

    @property
    def is_fifo(self) -> bool:
        """Return whether the queue drops a second message of a name."""
        return self.queue.endswith(FIFO)


class SqsTarget:
    """Sends messages to the queues that its configuration allows.

    Raises:
        BadConfig: there is no region, or no such profile.
    """

    def __init__(self, config: SqsConfig, folder: Path) -> None:
        self.handler = config.handler
        self._queues = config.queues
        try:
            timeout_ms = duration_ms(config.timeout, "sqs.timeout")
            if timeout_ms > TIMEOUT_MS_MAX:
                raise BadConfig(f"sqs.timeout: {config.timeout} is over {TIMEOUT_MS_MAX / 1000:g}s")
            session = boto3.session.Session(
                profile_name=config.profile or None, region_name=config.region or None
            )
            self._client: Any = session.client(
                "sqs",
                endpoint_url=config.endpoint or None,
                config=Config(
                    connect_timeout=timeout_ms / 1000,
                    read_timeout=timeout_ms / 1000,
                    retries={"total_max_attempts": 1},  # the cell decides about retries
                    max_pool_connections=64,
                ),
            )
        except BadPayload as error:
            raise BadConfig(str(error)) from error
        except (BotoCoreError, ValueError) as error:
            raise BadConfig(f"sqs: {error}", "set region = in [sqs]") from error
        self._urls: dict[str, str] = {}
        self._lock = threading.Lock()

    def read(self, payload: bytes, asker: LaunchName) -> Message:
        """Return the message that a payload describes; whoever asks, `queues` decide.

        Raises:
            BadPayload: it describes none, or one to a queue that is not allowed.
        """
        spec: SqsSpec = decoded(payload, SqsSpec)
        if not _QUEUE.fullmatch(spec.queue):
            raise BadPayload(f"payload: queue {spec.queue[:90]!r} is no name of a queue")
        if not any(fnmatch.fnmatchcase(spec.queue, one) for one in self._queues):
            raise BadPayload(f"payload: queue {spec.queue} is not one of the target's `queues`")
        if len(spec.attributes) > ATTRIBUTES_MAX - len(OWN_ATTRIBUTES):
            most = ATTRIBUTES_MAX - len(OWN_ATTRIBUTES)
            raise BadPayload(f"payload: {len(spec.attributes)} attributes, at most {most}")
        for name in spec.attributes:
            if not _ATTRIBUTE.fullmatch(name) or name.lower().startswith(
                ("aws.", "amazon.", "raftcron-")
            ):
                raise BadPayload(f"payload: attribute {name[:50]!r} is no name that may be set")
        attributes = {
            name: _string(value) if isinstance(value, str) else _number(value)
            for name, value in spec.attributes.items()
        }
        message = Message(spec.queue, _text(spec.body), attributes, spec.group, spec.delay_s)
        if not message.body:
            raise BadPayload("payload: body is empty")
        if not 0 <= spec.delay_s <= (0 if message.is_fifo else DELAY_S_MAX):
            raise BadPayload(f"payload: delay_s {spec.delay_s} is not one that its queue knows")
        if spec.group and (not message.is_fifo or len(spec.group) > NAME_CHARS_MAX):
            raise BadPayload(f"payload: group {spec.group[:50]!r} is none that its queue knows")
        return message

    def start(self, work: Work) -> Seen:
        """Send the message; the launch is done when the queue has it."""
        message: Message = work.spec
        sent: dict[str, Any] = {
            "MessageBody": message.body,
            "MessageAttributes": {
                **message.attributes,
                "raftcron-launch": _string(work.name),
                "raftcron-attempt": _number(work.context.attempt),
                "raftcron-due": _string(work.due),
            },
        }
        if message.is_fifo:
            sent["MessageDeduplicationId"] = short_name(work.name)
            sent["MessageGroupId"] = message.group or short_name(work.context.job)
        elif message.delay_s:
            sent["DelaySeconds"] = message.delay_s
        try:
            answer = self._client.send_message(QueueUrl=self._url(message.queue), **sent)
        except ClientError as error:
            problem = error.response.get("Error", {})
            code = str(problem.get("Code", ""))
            text = excerpt(f"{code}: {problem.get('Message', '')}".encode())
            is_final = code in _REFUSED or code.rpartition(".")[2] in _REFUSED
            return Seen(State.FATAL if is_final else State.RETRY, text)
        except (BotoCoreError, OSError) as error:
            raise NotReached(f"{message.queue}: {excerpt(str(error).encode())}") from error
        said = f"message {answer['MessageId']}"
        work.write(f"sent to {message.queue}: {said}")
        return Seen(State.DONE, said)

    def look(self, work: Work) -> Seen:
        """A FIFO queue drops a second message; of others nobody can tell."""
        if work.spec.is_fifo:
            return Seen(State.ABSENT)
        return Seen(State.UNKNOWN, "its worker died while it sent the message: it may be there")

    def stop(self, work: Work) -> None:
        """A message cannot be taken back."""

    def _url(self, queue: str) -> str:
        with self._lock:
            known = self._urls.get(queue)
        if known is None:
            known = str(self._client.get_queue_url(QueueName=queue)["QueueUrl"])
            with self._lock:
                self._urls[queue] = known
        return known


def short_name(name: str) -> str:
    """Return a name that is not longer than SQS takes: itself, or a digest of it."""
    if len(name) <= NAME_CHARS_MAX:
        return name
    return hashlib.blake2b(name.encode(), digest_size=32).hexdigest()


def _text(raw: msgspec.Raw) -> str:
    """Return the body of a message: a text as it is, any other value as JSON."""
    body = bytes(raw)
    if body.startswith(b'"'):
        return msgspec.json.decode(body, type=str)
    return body.decode("utf-8", "replace")


def _string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def _number(value: float) -> dict[str, str]:
    return {"DataType": "Number", "StringValue": str(value)}
