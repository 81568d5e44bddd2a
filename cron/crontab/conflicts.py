"""Checks that the options of a job are consistent; reports each conflict at its position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from cron import limits
from cron.crontab.reading import Problems
from cron.job import Overlap, Retry

if TYPE_CHECKING:
    from cron.crontab.options import Option, Policies

_OF_RETRIES: Final = ("backoff", "backoff-max", "retry-on", "fatal-on")
_OF_COMMANDS: Final = {
    "user": "it runs as the user of its worker",
    "cwd": "it runs in the directory of its worker",
    "retry-on": "a handler has no exit code, it raises Retry",
    "fatal-on": "a handler has no exit code, it raises Fatal",
}


def check_together(policies: Policies, given: Mapping[str, Option], problems: Problems) -> None:
    """Report options of a job that contradict each other or have no effect; `given` by key."""

    def error(key: str, message: str, hint: str) -> None:
        option = given[key]
        problems.error(option.line, option.key_column, message, hint)

    if "concurrency" in given and policies.overlap is not Overlap.ALLOW:
        overlap = policies.overlap.name.lower()
        message = f"concurrency means nothing with overlap={overlap}: one launch runs at a time"
        error("concurrency", message, "write overlap=allow, or remove concurrency")
    if "each" in given and "parts" in given:
        message = "each and parts both set the number of executors"
        error("parts", message, "remove one of the two")
    if "retries" not in given:
        for key in _OF_RETRIES:
            if key in given and not (policies.handler and key in _OF_COMMANDS):
                error(key, f"{key} means nothing without retries", "write retries=5, or remove it")
    if policies.handler:
        for key, way_out in _OF_COMMANDS.items():
            if key in given:
                error(key, f"{key} is for commands, and this is a handler's job", way_out)
    elif "heartbeat" in given and "handler" not in given:
        error("heartbeat", "heartbeat is for handlers", "name the handler, or remove it")
    _check_codes(policies, given, problems)
    _check_times(policies, given, problems)


def _check_codes(policies: Policies, given: Mapping[str, Option], problems: Problems) -> None:
    both = sorted({*policies.retry_codes} & {*policies.fatal_codes})
    if both:
        option = given["fatal-on"]
        message = f"exit code {both[0]} is in retry-on and in fatal-on"
        problems.error(option.line, option.value_column, message, "remove it from one of them")


def _check_times(policies: Policies, given: Mapping[str, Option], problems: Problems) -> None:
    if policies.backoff_ms > policies.backoff_max_ms > 0:
        option = given["backoff-max"]
        message = "backoff-max is shorter than backoff"
        problems.error(option.line, option.value_column, message, "set it to the longest delay")
    if policies.heartbeat_ms > policies.timeout_ms > 0:
        option, timeout = given["heartbeat"], given["timeout"]
        message = f"heartbeat {option.value} is longer than timeout {timeout.value}"
        hint = "the timeout would always come first: make it shorter, or remove one of the two"
        problems.error(option.line, option.value_column, message, hint)
    if "deadline" in given and policies.tries > 1:
        rest_s = rests_s(retry_of(policies))
        if rest_s > policies.deadline_s:
            option = given["deadline"]
            message = f"deadline is over before the last retry, which is after {rest_s} s of rest"
            hint = "give it more time, or fewer retries"
            problems.warn(option.line, option.value_column, message, hint)


def retry_of(policies: Policies) -> Retry:
    """Return the retry policy of a job; a backoff above the default limit raises the limit."""
    plain = Retry()
    backoff_ms = policies.backoff_ms or plain.backoff_ms
    return msgspec.structs.replace(
        plain,
        tries=policies.tries,
        backoff_ms=backoff_ms,
        backoff_max_ms=policies.backoff_max_ms or max(plain.backoff_max_ms, backoff_ms),
        retry_codes=policies.retry_codes,
        fatal_codes=policies.fatal_codes,
    )


def rests_s(retry: Retry) -> int:
    """Return the longest total delay between attempts, in seconds, rounded up."""
    total_ms = sum(
        min(retry.backoff_ms << min(failures, 32), retry.backoff_max_ms)
        for failures in range(retry.tries - 1)
    )
    return -(-total_ms * 11 // 10_000)


def deadline_with_retries_s(deadline_s: int, retry: Retry, timeout_ms: int) -> int:
    """Return the default deadline of a job; `deadline_s` is the default for a single attempt. All
    attempts and delays fit into it, up to the largest deadline.
    """
    attempts_s = -(-timeout_ms // 1000) * (retry.tries - 1)
    return min(deadline_s + rests_s(retry) + attempts_s, limits.DEADLINE_S_MAX)
