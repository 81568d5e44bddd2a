"""The target `sqs`: what is sent, and what is refused before that. `tests/conformance` has a
server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from launcher.errors import BadConfig
from launcher.targets.config import SqsConfig
from launcher.targets.sqs import SqsTarget, short_name
from launcher.worker.errors import BadPayload
from launcher.worker.wire import Result
from tests.unit.targets_rig import LAUNCH, context_of, ended, read

LONG_JOB = "t" * 100 + "/" + "j" * 100


def target(**fields: Any) -> SqsTarget:
    return SqsTarget(SqsConfig(**{"queues": ("mail*",), "region": "eu-west-1"} | fields), Path())


class Client:
    """Takes messages as a client of SQS does, or raises."""

    def __init__(self, *errors: Exception) -> None:
        self.sent: list[dict[str, Any]] = []
        self.asked = 0
        self._errors = list(errors)

    def get_queue_url(self, QueueName: str) -> dict[str, str]:  # noqa: N803 - boto3's
        self.asked += 1
        return {"QueueUrl": f"https://sqs/{QueueName}"}

    def send_message(self, **sent: Any) -> dict[str, str]:
        if self._errors:
            raise self._errors.pop(0)
        self.sent.append(sent)
        return {"MessageId": "m1"}


def with_client(*errors: Exception) -> tuple[SqsTarget, Client]:
    one, client = target(), Client(*errors)
    one._client = client
    return one, client


def test_a_message_says_which_launch_it_is_of() -> None:
    one, client = with_client()
    payload = {
        "queue": "mail", "body": {"to": "ada"}, "attributes": {"shop": "x", "n": 7}, "delay_s": 9,
    }  # fmt: skip
    for attempt in (1, 2):
        context, output = context_of(attempt=attempt)
        assert ended(one, payload, context).detail == "message m1"
        assert output.text == "sent to mail: message m1\n"
    assert client.asked == 1
    first, second = client.sent
    assert first == {
        "QueueUrl": "https://sqs/mail", "MessageBody": '{"to": "ada"}', "DelaySeconds": 9,
        "MessageAttributes": {
            "shop": {"DataType": "String", "StringValue": "x"},
            "n": {"DataType": "Number", "StringValue": "7"},
            "raftcron-launch": {"DataType": "String", "StringValue": LAUNCH},
            "raftcron-attempt": {"DataType": "Number", "StringValue": "1"},
            "raftcron-due": {"DataType": "String", "StringValue": "2026-11-20T15:00:00Z"},
        },
    }  # fmt: skip
    assert second["MessageAttributes"]["raftcron-attempt"]["StringValue"] == "2"


def test_a_fifo_queue_gets_the_name_to_tell_a_second_message_by() -> None:
    one, client = with_client()
    context, _ = context_of(attempt=4)
    ended(one, {"queue": "mail.fifo", "body": "hello \u00e4"}, context)
    ended(one, {"queue": "mail.fifo", "body": "x", "group": "g7"}, context_of()[0])
    ended(one, {"queue": "mail.fifo", "body": "x"}, context_of(job=LONG_JOB)[0])
    first, second, third = client.sent
    assert first["MessageBody"] == "hello \u00e4"
    assert (first["MessageDeduplicationId"], first["MessageGroupId"]) == (LAUNCH, "acme/mail")
    assert second["MessageGroupId"] == "g7"
    assert third["MessageDeduplicationId"] == short_name(f"{LONG_JOB}@2026-11-20T15:00:00Z")
    assert max(len(third["MessageDeduplicationId"]), len(third["MessageGroupId"])) <= 128


def test_long_names_are_digests_that_differ() -> None:
    first, second = short_name("a" * 129), short_name("a" * 128 + "b")
    assert first != second
    assert len(first) == len(second) == 64
    assert short_name("a" * 128) == "a" * 128


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "so it is"}}, "SendMessage")


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (client_error("AWS.SimpleQueueService.NonExistentQueue"), Result.FATAL),
        (client_error("QueueDoesNotExist"), Result.FATAL),
        (client_error("com.amazonaws.sqs#QueueDoesNotExist"), Result.RETRY),
        (client_error("InvalidMessageContents"), Result.FATAL),
        (client_error("AccessDenied"), Result.FATAL),
        (client_error("RequestThrottled"), Result.RETRY),
        (client_error("ExpiredToken"), Result.RETRY),
        (client_error("500"), Result.RETRY),
        (EndpointConnectionError(endpoint_url="https://sqs"), Result.RETRY),
        (ConnectionResetError("reset"), Result.RETRY),
    ],
)
def test_what_another_try_cannot_change_is_fatal(error: Exception, result: Result) -> None:
    one, _ = with_client(error)
    end = ended(one, {"queue": "mail", "body": "x"}, context_of()[0])
    assert end.result is result, end
    assert end.trace == ""


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"queue": "other"}, "is not one of the target's `queues`"),
        ({"queue": "https://sqs.eu-west-1.amazonaws.com/1/mail"}, "is no name of a queue"),
        ({"queue": "mail" + "x" * 80}, "is no name of a queue"),
        ({"queue": ""}, "is no name of a queue"),
        ({"body": ""}, "body is empty"),
        ({"attributes": {str(one): "x" for one in range(8)}}, "8 attributes, at most 7"),
        ({"attributes": {"raftcron-launch": "x"}}, "no name that may be set"),
        ({"attributes": {"AWS.x": "x"}}, "no name that may be set"),
        ({"attributes": {"a b": "x"}}, "no name that may be set"),
        ({"attributes": {"a": [1]}}, "attributes"),
        ({"delay_s": 901}, "delay_s 901"),
        ({"delay_s": -1}, "delay_s -1"),
        ({"queue": "mail.fifo", "delay_s": 1}, "delay_s 1"),
        ({"group": "g"}, "group 'g'"),
        ({"queue": "mail.fifo", "group": "g" * 129}, "group 'ggg"),
        ({"secret": "x"}, "unknown field `secret`"),
    ],
)
def test_a_payload_that_is_no_message_is_refused(fields: dict[str, Any], problem: str) -> None:
    payload = {"queue": "mail", "body": "x"} | fields
    with pytest.raises(BadPayload) as caught:
        read(target(), payload)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "fields", [{"timeout": "9s"}, {"timeout": "soon"}, {"region": "", "profile": "nobody"}]
)
def test_a_wrong_configuration_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="sqs"):
        target(**fields)


def test_a_target_without_a_region_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(BadConfig, match="region"):
        target(region="")
