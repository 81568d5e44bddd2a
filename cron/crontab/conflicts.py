"""Checks that the options of a job are consistent; reports each conflict at its position."""

from __future__ import annotations

from typing import Final

import msgspec

from cron import limits
from cron.crontab.options import Policies
from cron.crontab.reading import Problems
from cron.job import TRIES_UNLIMITED, Overlap, Retry

_OF_RETRIES: Final = ("backoff", "backoff-max", "retry-on", "fatal-on")
_OF_COMMANDS: Final = {
    "user": "it runs as the user of its worker",
    "cwd": "it runs in the directory of its worker",
    "secret": "give it to its worker, as a file or in its environment",
    "retry-on": "a handler has no exit code, it raises Retry",
    "fatal-on": "a handler has no exit code, it raises Fatal",
}


def check_together(policies: Policies, problems: Problems) -> None:
    """Report options of a job that contradict each other or have no effect."""
    values, given = policies.values, policies.given

    def error(key: str, message: str, hint: str) -> None:
        problems.error(given[key].line, given[key].key_column, message, hint)

    overlap = values.get("overlap", Overlap.ALLOW)
    if "concurrency" in given and overlap is not Overlap.ALLOW:
        name = overlap.name.lower()
        message = f"concurrency means nothing with overlap={name}: one launch runs at a time"
        error("concurrency", message, "write overlap=allow, or remove concurrency")
    if "each" in given and "parts" in given:
        message = "each and parts both set the number of executors"
        error("parts", message, "remove one of the two")
    is_handler = "handler" in values
    for key in _OF_RETRIES if "retries" not in given else ():
        if key in given and not (is_handler and key in _OF_COMMANDS):
            error(key, f"{key} means nothing without retries", "write retries=5, or remove it")
    for key, way_out in _OF_COMMANDS.items() if is_handler else ():
        if key in given:
            error(key, f"{key} is for commands, and this is a handler's job", way_out)
    followed = [*values.get("after", ()), *values.get("after-any", ())]
    if twice := next((name for name in followed if followed.count(name) > 1), ""):
        key = "after-any" if "after-any" in values else "after"
        error(key, f"it follows {twice} twice", "name each job once, in after or in after-any")
    if "heartbeat" in given and "handler" not in given:
        error("heartbeat", "heartbeat is for handlers", "name the handler, or remove it")
    if ("alert" in given) != ("to" in given):
        key = "alert" if "alert" in given else "to"
        other = "to=ops, a channel of alerts.toml" if key == "alert" else "alert=failed:2"
        what = "does not say who is told" if key == "alert" else "does not say of what"
        error(key, f"{key} {what}", f"write {other}")
    if "remind" in given and "alert" not in given:
        error("remind", "remind does not say of what", "write alert=failed:2, or remove it")
    _check_values(policies, problems)


def _check_values(policies: Policies, problems: Problems) -> None:
    """Report values that contradict each other, at the value of one of them."""
    values, given = policies.values, policies.given
    both = sorted({*values.get("retry-on", ())} & {*values.get("fatal-on", ())})
    if both:
        option = given["fatal-on"]
        message = f"exit code {both[0]} is in retry-on and in fatal-on"
        problems.error(option.line, option.value_column, message, "remove it from one of them")
    if values.get("backoff", 0) > values.get("backoff-max", 0) > 0:
        option = given["backoff-max"]
        message = "backoff-max is shorter than backoff"
        problems.error(option.line, option.value_column, message, "set it to the longest delay")
    if values.get("heartbeat", 0) > values.get("timeout", 0) > 0:
        option, timeout = given["heartbeat"], given["timeout"]
        message = f"heartbeat {option.value} is longer than timeout {timeout.value}"
        hint = "the timeout would always come first: make it shorter, or remove one of the two"
        problems.error(option.line, option.value_column, message, hint)
    if "deadline" in values and values["deadline"] <= values.get("jitter", 0):
        option = given["deadline"]
        message = "deadline may be over before the launch begins, which jitter delays"
        problems.error(option.line, option.value_column, message, "make it longer than the jitter")
    retry = retry_of(policies)
    is_counted = "deadline" in values and retry.tries < TRIES_UNLIMITED
    if is_counted and (rest_s := rests_s(retry)) > values["deadline"]:
        option = given["deadline"]
        message = f"deadline is over before the last retry, which is after {rest_s} s of rest"
        hint = "give it more time, or fewer retries"
        problems.warn(option.line, option.value_column, message, hint)


def retry_of(policies: Policies) -> Retry:
    """Return the retry policy of a job; a backoff above the default limit raises the limit."""
    retry = Retry(**policies.fields(Retry))
    if "backoff-max" in policies.values:
        return retry
    longest_ms = max(retry.backoff_max_ms, retry.backoff_ms)
    return msgspec.structs.replace(retry, backoff_max_ms=longest_ms)


def rests_s(retry: Retry) -> int:
    """Return the longest total delay between attempts, in seconds, rounded up."""
    total_ms = sum(
        min(retry.backoff_ms << min(failures, 32), retry.backoff_max_ms)
        for failures in range(retry.tries - 1)
    )
    return -(-total_ms * 11 // 10_000)


def deadline_with_retries_s(
    deadline_s: int, retry: Retry, timeout_ms: int, jitter_s: int = 0
) -> int:
    """Return the default deadline of a job; `deadline_s` is the default for a single attempt. All
    attempts, delays and the jitter fit into it, up to the largest deadline, which ends tries
    without a number.
    """
    if retry.tries >= TRIES_UNLIMITED:
        return limits.DEADLINE_S_MAX
    deadline_s += jitter_s
    attempts_s = -(-timeout_ms // 1000) * (retry.tries - 1)
    return min(deadline_s + rests_s(retry) + attempts_s, limits.DEADLINE_S_MAX)
