"""cron.api.tasks: what a program may hand over, and what is refused before anything happens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron import limits
from cron.api import tasks
from cron.api.callers import may
from cron.api.checks import checked
from cron.api.rpc import SERVICE, decode, encode
from cron.api.status import Code, code_of, error_of
from cron.api.table import SUBMIT, TABLE
from cron.api.task_queues import QUEUES_BYTES_MAX, PutQueuesRequest
from cron.errors import InvalidInput, LimitExceeded, OtherContent, QueueFull, UnknownTask

NOW_MS = 1_795_186_800_000
DAY_MS = 86_400_000
NIGHT = tasks.TaskFilter(collection="night")


def submission(**fields: Any) -> tasks.TaskSubmission:
    given: dict[str, Any] = {"key": "k1", "handler": "mail.send"}
    return tasks.TaskSubmission(**(given | fields))


def read(text: str) -> tasks.TaskSubmission:
    """A submission as the server reads it."""
    return checked(decode(text, tasks.TaskSubmission))


# ---- names


@pytest.mark.parametrize(
    ("text", "name"),
    [("mail:k1", "default/mail:k1"), ("acme/mail.send:k-1", "acme/mail.send:k-1")],
)
def test_a_task_is_named_by_tenant_queue_and_key(text: str, name: str) -> None:
    assert tasks.task_name(text) == name
    assert "/".join(tasks.split_task_name(text)[:2]) == name.partition(":")[0]


@pytest.mark.parametrize(
    "text", ["", "mail", ":k", "mail:", "a/b/c:k", "a:b:c", "mail:k 1", "mail:k\n", "x" * 400]
)
def test_what_is_no_name_of_a_task_is_refused_in_a_short_message(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        tasks.task_name(text)
    assert len(str(caught.value)) < 200


def test_queue_and_key_fit_into_the_name_of_a_launch_together() -> None:
    longest = "k" * (tasks.NAME_PART_CHARS_MAX - len("mail.send:"))
    assert checked(submission(key=longest)).key == longest
    with pytest.raises(InvalidInput, match="101 characters with the colon"):
        checked(submission(key=longest + "k"))
    with pytest.raises(InvalidInput, match="101 characters with the colon"):
        tasks.task_name(f"mail.send:{longest}k")


def test_a_queue_is_called_like_its_handler_unless_it_is_named() -> None:
    assert submission().name == "default/mail.send:k1"
    assert submission(queue="slow", tenant="acme").name == "acme/slow:k1"
    assert checked(submission(handler="", queue="slow")).name == "default/slow:k1"
    with pytest.raises(InvalidInput, match="names a handler or a queue"):
        checked(submission(handler=""))


# ---- times


def test_a_task_without_a_time_is_due_now_and_never_before() -> None:
    assert submission().due_ms(NOW_MS) == NOW_MS
    assert submission(delay_ms=10).due_ms(NOW_MS) == NOW_MS + 10
    assert submission(at_ms=NOW_MS - DAY_MS).due_ms(NOW_MS) == NOW_MS
    assert submission(at="2001-01-01T00:00:00Z").due_ms(NOW_MS) == NOW_MS


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-11-20T15:00:00Z", NOW_MS),
        ("2026-11-20T16:00:00.007+01:00", NOW_MS + 7),
        ("20261120T150000Z", NOW_MS),
    ],
)
def test_times_are_iso_8601_with_a_zone(text: str, at_ms: int) -> None:
    assert checked(submission(at=text)).due_ms(NOW_MS) == at_ms
    assert tasks.iso_ms(tasks.show_iso_ms(at_ms)) == at_ms


@pytest.mark.parametrize(
    "text", ["2026-11-20T15:00:00", "tomorrow", "1969-12-31T23:59:59Z", "9" * 60, "٢026-11-20"]
)
def test_times_that_mean_different_things_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        checked(submission(at=text))


def test_ten_years_is_the_farthest() -> None:
    last_ms = NOW_MS + limits.TASK_AHEAD_MS_MAX
    assert submission(at_ms=last_ms).due_ms(NOW_MS) == last_ms
    assert checked(submission(delay_ms=limits.TASK_AHEAD_MS_MAX)).due_ms(NOW_MS) == last_ms
    with pytest.raises(InvalidInput, match=r"2036-11-17T15:00:00\.001Z is more than ten"):
        submission(at_ms=last_ms + 1).due_ms(NOW_MS)
    with pytest.raises(LimitExceeded, match="delay_ms"):
        checked(submission(delay_ms=limits.TASK_AHEAD_MS_MAX + 1))


def test_a_time_is_said_once() -> None:
    for fields in (
        {"at": "2026-11-20T15:00:00Z", "delay_ms": 1},
        {"at_ms": 1, "delay_ms": 1},
        {"at": "2026-11-20T15:00:00Z", "at_ms": 1},
    ):
        with pytest.raises(InvalidInput, match="choose one"):
            checked(submission(**fields))


# ---- payloads


def test_a_payload_is_kept_as_it_was_written() -> None:
    read_back = read('{"key": "k", "handler": "h", "payload": {"b": 1,  "a": [null]}}')
    assert bytes(read_back.payload) == b'{"b": 1,  "a": [null]}'
    assert tasks.canonical_payload(read_back.payload) == b'{"a":[null],"b":1}'
    assert read('{"key": "k", "handler": "h"}').payload is msgspec.UNSET


def test_a_payload_may_have_256_kib() -> None:
    longest = b'"' + b"x" * (limits.PAYLOAD_BYTES_MAX - 2) + b'"'
    assert checked(submission(payload=msgspec.Raw(longest))).payload == msgspec.Raw(longest)
    with pytest.raises(LimitExceeded, match="payload has 262,145 bytes, at most 262,144"):
        checked(submission(payload=msgspec.Raw(longest[:-1] + b'x"')))


@pytest.mark.parametrize(
    "payload", [b"{", b"nul", b'"\xff"', b'"\\ud800"', b"[" * 100_000 + b"]" * 100_000]
)
def test_a_payload_that_is_not_json_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInput, match="payload is not JSON"):
        checked(submission(payload=msgspec.Raw(payload)))


# ---- options


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": ""}, "key '' is not a plain word"),
        ({"key": "a b"}, "key 'a b' is not a plain word"),
        ({"handler": "nu pay"}, "handler 'nu pay' is not a plain word"),
        ({"handler": "command"}, "handler 'command' is what the pool of commands is called"),
        ({"tenant": "a/b"}, "tenant"),
        ({"priority": 10}, "priority 10"),
        ({"tries": -1}, "tries -1 is below 1"),
        ({"tries": tasks.TRIES_MAX + 1}, "tries"),
        ({"backoff_ms": tasks.BACKOFF_MS_MAX + 1}, "backoff_ms"),
        ({"deadline_ms": 31 * DAY_MS + 1}, "deadline_ms"),
        ({"timeout_ms": 31 * DAY_MS + 1}, "timeout_ms"),
        ({"retries": -2}, "retries -2 is below 0"),
        ({"retries": 1, "tries": 2}, "retries and tries say the same"),
        ({"on_lost": "maybe"}, "on_lost 'maybe' is not one of skip, retry"),
        ({"traceparent": "00-0-0-00"}, "traceparent"),
        ({"labels": {"a b": "c"}}, "label 'a b'"),
        ({"labels": {"a": "c\n"}}, "label a"),
        ({"labels": {str(n): "" for n in range(33)}}, "number of labels 33"),
        ({"labels": {str(n): "\N{EURO SIGN}" * 98 for n in range(7)}}, "bytes of all labels 2065"),
        ({"group": "a b"}, "group 'a b' is not a plain word"),
        ({"group": "g" * 99}, "group 'g+"),
        ({"after": ["mail:"]}, "'mail:' is not the name of a task"),
        ({"after_any": ["a/b/c"]}, "'a/b/c' is not the name of a group"),
        ({"after": ["a:b", "default/a:b", "g"], "after_any": ["g"]}, "g is in after and in"),
    ],
)
def test_options_are_refused_by_their_names(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidInput, LimitExceeded), match=message):
        checked(submission(**fields))


def test_all_options_are_taken_at_their_bounds() -> None:
    given = submission(
        priority=0,
        tries=tasks.TRIES_MAX,
        backoff_ms=tasks.BACKOFF_MS_MAX,
        deadline_ms=31 * DAY_MS,
        timeout_ms=31 * DAY_MS,
        on_lost="retry",
        labels={"order": "4711"},
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    assert checked(given) == given


# ---- calls


def test_a_call_has_one_to_a_thousand_tasks() -> None:
    assert len(checked(tasks.SubmitRequest(tasks=[submission()] * 1_000)).tasks) == 1_000
    for wrong in ([], [submission()] * 1_001):
        with pytest.raises((InvalidInput, LimitExceeded), match="number of tasks"):
            checked(tasks.SubmitRequest(tasks=wrong))


def test_one_bad_task_does_not_refuse_the_others_of_its_call() -> None:
    # Each gets its own verdict from the service.
    batch = tasks.SubmitRequest(tasks=[submission(), submission(key="a b")])
    assert checked(batch) == batch


def test_a_cancel_names_tasks_or_a_filter() -> None:
    cancel = checked(tasks.CancelRequest(names=["mail:k1", "default/mail:k1", "mail:k2"]))
    assert cancel.names == ["default/mail:k1", "default/mail:k2"]
    wanted = checked(tasks.CancelRequest(filter=tasks.TaskFilter(queue="mail"))).filter
    assert wanted is not None
    assert wanted.queue == "default/mail"
    for wrong in (
        tasks.CancelRequest(),
        tasks.CancelRequest(names=["mail:k1"], filter=tasks.TaskFilter(queue="mail")),
        tasks.CancelRequest(filter=tasks.TaskFilter()),
    ):
        with pytest.raises(InvalidInput):
            checked(wrong)


@pytest.mark.parametrize(
    "fields",
    [{"state": "done"}, {"from_ms": 2, "to_ms": 2}, {"queue": "a:b"}, {"prefix": "a b"}],
)
def test_a_filter_that_cannot_fit_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        checked(tasks.TaskFilter(**fields))


def test_a_reschedule_changes_something() -> None:
    name = "mail:k1"
    now = checked(tasks.RescheduleRequest(name=name, delay_ms=0))
    assert (now.name, now.due_ms(NOW_MS), now.has_time) == ("default/mail:k1", NOW_MS, True)
    assert not checked(tasks.RescheduleRequest(name=name, priority=0)).has_time
    null = decode('{"name": "mail:k1", "payload": null}', tasks.RescheduleRequest)
    assert bytes(checked(null).payload) == b"null"
    assert encode(null) == b'{"name":"mail:k1","payload":null}'
    with pytest.raises(InvalidInput, match="nothing is to change"):
        checked(tasks.RescheduleRequest(name=name, revision=7))
    with pytest.raises(InvalidInput, match="choose one"):
        checked(tasks.RescheduleRequest(name=name, at_ms=1, delay_ms=0))


def test_a_client_waits_as_long_as_a_call_may_take() -> None:
    for wait_ms in (1_500, 0):
        watch = tasks.WatchRequest(wait_ms=wait_ms)
        assert watch.timeout_ms() // 3 > (wait_ms or tasks.WATCH_MS_MAX)


@pytest.mark.parametrize("position", ["x", "-1", "1.", "1.2.3", "1" * 20])
def test_a_position_that_is_none_is_refused(position: str) -> None:
    with pytest.raises(InvalidInput, match="position"):
        checked(tasks.WatchRequest(position=position))


def test_a_file_of_queues_has_something_and_not_too_much() -> None:
    with pytest.raises(InvalidInput, match="is empty"):
        checked(PutQueuesRequest(source="q.toml", text=" \n"))
    with pytest.raises(LimitExceeded, match=r"q\.toml has 1,048,577 bytes"):
        checked(PutQueuesRequest(source="q.toml", text="x" * (QUEUES_BYTES_MAX + 1)))


# ---- the service


def test_tasks_are_a_service_of_their_own() -> None:
    assert SUBMIT.path == "/raftcron.v1.Tasks/Submit"
    assert may("person", SUBMIT.path)
    assert not may("person", f"/{SERVICE}/Submit")
    assert not may("executor", SUBMIT.path)
    assert {rpc.name for rpc in TABLE.values() if rpc.service == tasks.SERVICE} == {
        "Submit", "Cancel", "Reschedule", "RunNow", "Get", "List", "Watch", "PutQueues",
        "RescheduleMany", "GetMany", "ListQueues",
        "GetGroup", "ListGroups", "TaskGraph", "CloseGroup", "CancelGroup",
    }  # fmt: skip


def test_errors_of_single_tasks_are_those_of_calls() -> None:
    assert isinstance(error_of("other_content", "text"), OtherContent)
    assert error_of("queue_full", "text", "wait").hint == "wait"
    assert [code_of(one("")) for one in (OtherContent, QueueFull, UnknownTask)] == [
        Code.ALREADY_EXISTS,
        Code.RESOURCE_EXHAUSTED,
        Code.NOT_FOUND,
    ]
