"""`raftcron intake`: drains a queue of SQS into submits, for spikes that no front door should take.

The key of a task is the id of its message, which is deleted once the cell has committed the task.
Killed before that, the message comes again and its task is known. A message that the cell refuses,
or whose body is no JSON, goes to a dead-letter queue with the reason in the attribute
`raftcron-reason`, once or, after a crash, more often. Without such a queue it stays, and SQS does
with it what its own settings say.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from launcher.address import is_loopback
from launcher.client.carrying import Carried, Counts, End, Source, failpoints, submit_all
from launcher.client.core import Core
from launcher.client.errors import BadTask
from launcher.client.messages import Submission
from launcher.client.options import Options, submission

log = logging.getLogger("raftcron")

MESSAGES_MAX: Final = 10
"""Messages of one call of SQS."""
TURN_MAX: Final = 200
"""Messages of one turn, at 256 KiB each: 50 MiB."""
LONG_POLL_S: Final = 5
"""How long SQS may wait for a first message; a stop waits as long."""
FULL_S: Final = 5
"""How long a message stays hidden whose task found its queue full."""
REASON: Final = "raftcron-reason"
_REGION: Final = re.compile(r"sqs\.([a-z0-9-]+)\.")


class QueuePlace(NamedTuple):
    """A queue of SQS: its URL, the server's, and its region."""

    url: str
    endpoint: str
    region: str


def find_queue(text: str) -> QueuePlace:
    """Return the queue that `sqs://HOST/ACCOUNT/NAME` names; `?region=` may say its region, else
    the host or AWS_REGION does. A host on loopback is asked without TLS.

    Raises:
        BadTask: it is no such URL.
    """
    split = urlsplit(text.removeprefix("sqs://") if "://" in text[6:] else text)
    hint = "sqs://sqs.eu-west-1.amazonaws.com/123456789012/orders"
    if split.scheme not in ("sqs", "https", "http") or not split.hostname or len(split.path) < 2:
        raise BadTask(f"{text[:200]!r} is not the URL of a queue of SQS", hint)
    scheme = split.scheme
    if scheme == "sqs":
        scheme = "http" if is_loopback(split.hostname) else "https"
    endpoint = f"{scheme}://{split.netloc}"
    said = parse_qs(split.query).get("region", [""])[0]
    own = _REGION.match(split.hostname)
    region = said or (own.group(1) if own else "") or os.environ.get("AWS_REGION", "")
    region = region or os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
    return QueuePlace(endpoint + split.path, endpoint, region)


class Intake(Source):
    """Carries the messages of one queue."""

    def __init__(
        self,
        place: QueuePlace,
        core: Core,
        handler: str,
        options: Options,
        dead_letter: str = "",
        wait_s: int = LONG_POLL_S,
    ) -> None:
        """The body of a message is the payload of a task of `handler`, with `options`.
        `dead_letter` is the URL of a queue; by default that of the queue's own redrive policy.
        A turn waits `wait_s` for a first message."""
        self.name = f"intake {place.url}"
        self._place = place
        self._core = core
        self._handler, self._options = handler, options
        self._wait_s = wait_s
        self._sqs = _connected(place)
        self._dead_letter = dead_letter or self._own_dead_letter()

    @property
    def dead_letter(self) -> str:
        """Return the URL of the queue for bad messages, "" for none."""
        return self._dead_letter

    @property
    def faults(self) -> tuple[type[BaseException], ...]:
        """Return the errors of boto3."""
        from botocore.exceptions import BotoCoreError, ClientError

        return (BotoCoreError, ClientError, OSError)

    def reopen(self) -> None:
        """Do nothing: the client of SQS connects anew by itself."""

    def close(self) -> None:
        """Do nothing: nothing is open between two calls."""

    def turn(self) -> Counts:
        """Carry some messages; return what became of them. As `Source.turn`."""
        messages = self._received()
        if not messages:
            return Counts()
        failpoints.hit("carry-taken")
        ends: list[tuple[dict[str, Any], Carried]] = []
        made: list[tuple[dict[str, Any], Submission]] = []
        for message in messages:
            options: Options = {**self._options, "key": message["MessageId"]}
            try:
                body = message["Body"].encode()
                made.append((message, submission(self._handler, body, options)))
            except (BadTask, UnicodeError) as error:
                ends.append((message, Carried(End.REFUSED, f"invalid_input: {error}")))
        carried = submit_all(self._core, [one for _, one in made])
        failpoints.hit("carry-submitted")
        ends += [(message, end) for (message, _), end in zip(made, carried, strict=True)]
        return self._settled(ends)

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return at once: to receive messages waits for them."""

    def _received(self) -> list[dict[str, Any]]:
        """The messages that are there, some at least if they come soon."""
        found: list[dict[str, Any]] = []
        while len(found) < TURN_MAX:
            answer = self._sqs.receive_message(
                QueueUrl=self._place.url,
                MaxNumberOfMessages=MESSAGES_MAX,
                WaitTimeSeconds=0 if found else self._wait_s,
                AttributeNames=["MessageGroupId"],
            )
            some = answer.get("Messages", [])
            found += some
            if not some:
                break
        return found

    def _settled(self, ends: Sequence[tuple[dict[str, Any], Carried]]) -> Counts:
        """Delete what is done, put aside what is refused; count both."""
        gone = [message for message, one in ends if one.end is End.DONE]
        refused = 0
        for message, one in ends:
            if one.end is End.REFUSED:
                refused += 1
                log.warning("%s: message %s: %s", self.name, message["MessageId"], one.reason)
                if self._dead_letter and self._put_aside(message, one.reason):
                    gone.append(message)
            elif one.end is End.FULL:
                self._sqs.change_message_visibility(
                    QueueUrl=self._place.url,
                    ReceiptHandle=message["ReceiptHandle"],
                    VisibilityTimeout=FULL_S,
                )
        failpoints.hit("carry-deleted")
        for at in range(0, len(gone), MESSAGES_MAX):
            some = gone[at : at + MESSAGES_MAX]
            self._sqs.delete_message_batch(
                QueueUrl=self._place.url,
                Entries=[
                    {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                    for number, message in enumerate(some)
                ],
            )
        failpoints.hit("carry-committed")
        done = sum(one.end is End.DONE for _, one in ends)
        return Counts(done, refused, len(ends) - done - refused)

    def _put_aside(self, message: dict[str, Any], reason: str) -> bool:
        """Send a message to the dead-letter queue; return whether that took it. With the reason it
        may be too long for SQS. Then it stays, and must not stop the others.

        Raises:
            BotoCoreError: the queue was not reached.
        """
        from botocore.exceptions import ClientError

        more: dict[str, Any] = {}
        if self._dead_letter.endswith(".fifo"):
            group = message.get("Attributes", {}).get("MessageGroupId", "raftcron")
            more = {"MessageGroupId": group, "MessageDeduplicationId": message["MessageId"]}
        text = "".join(one if one.isprintable() else " " for one in reason)
        try:
            self._sqs.send_message(
                QueueUrl=self._dead_letter,
                MessageBody=message["Body"],
                MessageAttributes={
                    REASON: {"DataType": "String", "StringValue": text[:500] or "refused"},
                    "raftcron-message": {"DataType": "String", "StringValue": message["MessageId"]},
                },
                **more,
            )
        except ClientError as error:
            log.warning("%s: message %s stays: %s", self.name, message["MessageId"], error)
            return False
        return True

    def _own_dead_letter(self) -> str:
        """The URL of the queue's own dead-letter queue, "" where it has none.

        Raises:
            BadTask: the queue cannot be asked.
        """
        import json

        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._sqs.get_queue_attributes(
                QueueUrl=self._place.url, AttributeNames=["RedrivePolicy"]
            )
            policy = answer.get("Attributes", {}).get("RedrivePolicy", "")
            if not policy:
                return ""
            *_, account, name = json.loads(policy)["deadLetterTargetArn"].split(":")
            found = self._sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)
            return str(found["QueueUrl"])
        except (BotoCoreError, ClientError) as error:
            hint = "its URL, AWS credentials and region; --dead-letter URL"
            raise BadTask(f"{self._place.url}: {error}", hint) from error


def _connected(place: QueuePlace) -> Any:
    import boto3
    from botocore.config import Config

    settings = Config(
        retries={"mode": "standard"}, connect_timeout=5, read_timeout=LONG_POLL_S + 20
    )
    return boto3.session.Session().client(
        "sqs", endpoint_url=place.endpoint, region_name=place.region, config=settings
    )
