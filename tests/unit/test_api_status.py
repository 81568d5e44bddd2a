from __future__ import annotations

import grpc
import pytest

from cron import errors, limits
from cron.api.client import Client
from cron.api.rpc import encode
from cron.api.status import ERROR, TABLE, Code, Refusal, code_of, from_refusal, to_refusal
from cron.errors import CronError, CrontabError, NotLeader, Problem, ScheduleError
from tests.unit.api_rig import FakeBackend, call, in_thread, serving

SPECIAL = {
    CrontabError: lambda: CrontabError(
        [
            Problem("ä.crontab", 3, 9, "minute 61 is not in 0-59", "write 0-59"),
            Problem("ä.crontab", 0, 0, "TZ is only passed on", "write CRON_TZ", is_warning=True),
        ]
    ),
    ScheduleError: lambda: ScheduleError("minute 61 is not in 0-59", 9, "write 0-59 — ü"),
    NotLeader: lambda: NotLeader("127.0.0.1:7401"),
}


def every_class() -> list[type[CronError]]:
    found = [
        one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, CronError)
    ]
    assert len(found) > 15
    return found


def make(kind: type[CronError]) -> CronError:
    return SPECIAL[kind]() if kind in SPECIAL else kind("jöb is\nnot there", "look élsewhere")


def same(one: CronError, other: CronError) -> bool:
    return type(one) is type(other) and str(one) == str(other) and vars(one) == vars(other)


@pytest.mark.parametrize("kind", every_class(), ids=lambda kind: kind.__name__)
def test_every_error_comes_back_whole(kind):
    before = make(kind)
    after, refusal = from_refusal(*to_refusal(before, ["127.0.0.1:1", "127.0.0.1:2"]))
    assert same(after, before)
    assert refusal.peers == ["127.0.0.1:1", "127.0.0.1:2"]


# What a client keeps asking on (Unavailable) or never gets (NotLeader) is for test_api_client.
ON_THE_WIRE = [one for one in every_class() if not issubclass(one, errors.Unavailable)]


@pytest.mark.parametrize("kind", ON_THE_WIRE, ids=lambda kind: kind.__name__)
async def test_a_client_raises_what_the_server_raised(kind):
    before = make(kind)
    backend = FakeBackend(kill=before)
    async with serving(backend) as server:
        with Client([server]) as client, pytest.raises(kind) as caught:
            await in_thread(call, client, "kill", "a@2026-11-20T15:00:00Z", "ada")
    assert same(caught.value, before)
    assert len(backend.calls) == 1


async def test_a_hundred_problems_with_long_texts_come_through():
    problems = [
        Problem("f" * 200, n, 1, f"{n} " + "ü" * 500, "h" * 500)
        for n in range(limits.CRONTAB_ERRORS_MAX)
    ]
    async with serving(FakeBackend(kill=CrontabError(problems))) as server:
        with Client([server]) as client, pytest.raises(CrontabError) as caught:
            await in_thread(call, client, "kill", "a@2026-11-20T15:00:00Z", "ada")
    assert caught.value.problems == problems


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidInput, Code.INVALID_ARGUMENT),
        (errors.CrontabError, Code.INVALID_ARGUMENT),
        (errors.UnknownJob, Code.NOT_FOUND),
        (errors.RevisionConflict, Code.ABORTED),
        (errors.NotLeader, Code.FAILED_PRECONDITION),
        (errors.NoQuorum, Code.UNAVAILABLE),
        (errors.OutcomeUnknown, Code.UNKNOWN),
        (errors.TooManyTimes, Code.RESOURCE_EXHAUSTED),
        (errors.CronError, Code.INTERNAL),
    ],
)
def test_the_table_of_codes_is_the_one_of_the_house(kind, code):
    assert code_of(make(kind)) is code


def test_codes_are_unique_or_a_client_could_raise_the_wrong_class():
    codes = [kind.code for kind in every_class()]
    assert len(set(codes)) == len(codes)
    assert len({code for _, code in TABLE}) == len(TABLE)


def test_an_error_of_a_newer_server_becomes_the_class_of_its_grpc_code():
    metadata = ((ERROR, encode(Refusal("quota_exceeded"))),)
    error, _ = from_refusal(Code.RESOURCE_EXHAUSTED, "too much", metadata)
    assert type(error) is errors.LimitExceeded


def test_the_codes_are_those_of_grpc():
    theirs = {one.name: one.value[0] for one in grpc.StatusCode}
    assert {one.name: one.value for one in Code} == theirs


def test_what_grpc_itself_reports_is_no_error_of_ours():
    assert from_refusal(Code.UNAVAILABLE, "connection reset", ()) is None


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"{}", b'{"code":"schedule","column":"-x"}', b'{"code":"\xff"}', 9_999 * b"["],
)
def test_metadata_that_cannot_be_read_is_no_error_of_ours(content):
    assert from_refusal(Code.INVALID_ARGUMENT, "bad", ((ERROR, content),)) is None
