"""Audit and stories of launches that were tried several times, from what State makes of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.history.audit import audit
from cron.history.audited import AuditedJob, Finding, FindingKind
from cron.history.census import count
from cron.history.why import Explanation, explain
from cron.job import OnLost, Retry
from cron.launch_state import LaunchState
from cron.service.proofs import audited_job
from cron.state import pool
from cron.state.context import row_of
from cron.state.rows import Row
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, with_job
from tests.unit.tries_rig import HANDLER, KEY, fail, running, snooze, start

PERIOD = (T0 + 1, T0 + 60)
"""From behind the effective time of the job to its only launch."""


def audited(rig: StateRig) -> AuditedJob:
    return audited_job(rig.record())


def open_rows(rig: StateRig) -> list[Row]:
    return [row_of(rig.state, row) for row in rig.state.open_rows()]


def findings(rig: StateRig, rows: list[Row] | None = None) -> list[Finding]:
    ordered = rig.rows if rows is None else rows
    known = sorted([*ordered, *open_rows(rig)], key=lambda row: row.scheduled_s)
    return list(audit(audited(rig), known, *PERIOD))


def why(rig: StateRig) -> Explanation:
    mine = next(iter(open_rows(rig)), None)
    return explain(audited(rig), T0 + 60, rig.rows, mine, rig.at_ms // 1000)


def lines(rig: StateRig) -> list[str]:
    return [line for _, line in why(rig).story]


def tried(ends: int, **fields: Any) -> StateRig:
    """A launch of which so many attempts failed; the next is due or it is dead."""
    rig = running(**{"retry": Retry(tries=9, backoff_ms=1_000, backoff_max_ms=1_000)} | fields)
    for attempt in range(1, ends + 1):
        fail(rig, attempt)
        rig.to(61 + 2 * attempt)
        if attempt < ends:
            start(rig, attempt + 1)
    return rig


# ---- audit


@pytest.mark.parametrize("ends", [1, 2, 5])
def test_several_failed_attempts_of_one_instant_break_no_promise(ends: int) -> None:
    rig = tried(ends)
    assert findings(rig) == []
    start(rig, ends + 1)
    assert findings(rig) == []
    rig.finished(60, ends + 1)
    assert findings(rig) == []
    assert [row.attempt for row in rig.rows] == list(range(1, ends + 2))


def test_attempts_that_were_put_off_break_none() -> None:
    rig = running(work=HANDLER)
    snooze(rig)
    start(rig.to(70), 2)
    assert findings(rig) == []
    rig.finished(60, 2)
    assert findings(rig) == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_next_attempt_that_never_began_breaks_none(is_lost: bool) -> None:
    rig = running(on_lost=OnLost.RETRY)
    if is_lost:
        rig.lost(60)
    else:
        fail(rig)
    rig.to(360).skip(60, Reason.DEADLINE)
    assert [(row.attempt, row.begun_index > 0) for row in rig.rows] == [(1, True), (2, False)]
    assert findings(rig) == []


def test_a_redriven_launch_breaks_none() -> None:
    rig = tried(1, retry=Retry(tries=2, backoff_ms=1_000))
    start(rig, 2)
    fail(rig, 2, reason=Reason.FATAL)
    rig.append(pool.Redrive((KEY,), "bea"))
    start(rig, 3)
    rig.finished(60, 3)
    assert findings(rig) == []


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (LaunchState.SUCCEEDED, Reason.NONE),
        (LaunchState.CANCELLED, Reason.KILLED),
        (LaunchState.SKIPPED, Reason.DEADLINE),
    ],
)
def test_nothing_follows_by_itself_what_did_not_fail(state: LaunchState, reason: Reason) -> None:
    rig = tried(1)
    start(rig, 2)
    rig.finished(60, 2)
    first, second = rig.rows
    changed = msgspec.structs.replace(first, state=state, reason=reason)
    assert FindingKind.ACCOUNTED_TWICE in [one.kind for one in findings(rig, [changed, second])]


def test_a_failed_instant_that_is_accounted_for_again_is_found() -> None:
    rig = tried(1)
    rig.skip(60, Reason.MISSED)
    first, second = rig.rows
    again = msgspec.structs.replace(second, attempt=0)
    assert [one.kind for one in findings(rig, [first, again])] == [FindingKind.ACCOUNTED_TWICE]


def test_a_census_counts_one_launch_and_its_further_attempts() -> None:
    rig = tried(2)
    start(rig, 3)
    rig.finished(60, 3)
    census = count(audited(rig), rig.rows, *PERIOD)
    assert (census.instants, census.ran, census.extra_attempts) == (1, 1, 2)


# ---- why


def test_a_success_tells_of_the_failures_before() -> None:
    rig = tried(2)
    start(rig, 3)
    rig.finished(60, 3)
    verdict = why(rig).verdict
    assert verdict.startswith("it ran on e1, ")
    assert verdict.endswith(
        ", attempt 3, and succeeded; attempt 1 failed: exit code 1; attempt 2 failed: exit code 1"
    )


def test_a_launch_that_waits_for_its_next_attempt_tells_of_those_before() -> None:
    verdict = why(tried(1)).verdict
    assert verdict.startswith("it is due since 3.0 s and waits to be begun")
    assert verdict.endswith("; attempt 1 failed: exit code 1")
    assert "taken back" not in verdict


def test_a_running_attempt_tells_of_those_before() -> None:
    rig = tried(1)
    start(rig, 2)
    assert why(rig).verdict == (
        "it is running: attempt 2 on e1, for 0 ms so far; attempt 1 failed: exit code 1"
    )


def test_an_attempt_that_was_put_off_is_told_as_such() -> None:
    rig = running(work=HANDLER)
    snooze(rig)
    assert why(rig).verdict.endswith(
        "; attempt 1 was cancelled: its handler asked for another time"
    )


def test_of_many_attempts_a_verdict_tells_the_newest() -> None:
    verdict = why(tried(6)).verdict
    assert [f"attempt {n} failed" in verdict for n in range(1, 7)] == [False] * 3 + [True] * 3
    assert verdict.endswith("; and 3 attempts before")


def test_what_could_not_begin_again_is_told_as_what_it_did() -> None:
    rig = tried(2)
    rig.to(360).skip(60, Reason.DEADLINE)
    verdict = why(rig).verdict
    assert "attempt 2, and failed: exit code 1" in verdict
    assert "; it was not begun again, it was skipped: its deadline for starting passed" in verdict
    assert verdict.endswith("; attempt 1 failed: exit code 1")


def test_what_was_cancelled_while_it_rested_is_told_so() -> None:
    rig = tried(1)
    rig.cancel(60)
    assert why(rig).verdict.endswith(
        "and failed: exit code 1; it was not begun again, it was cancelled: somebody had it killed "
        "(by anna)"
    )


def test_one_attempt_is_told_without_its_number() -> None:
    rig = tried(1, retry=Retry())
    assert why(rig).verdict.endswith(" late, and failed: exit code 1")
    assert any(line.startswith("failed: exit code 1; recorded") for line in lines(rig))


# ---- stories


def test_a_story_numbers_the_ends_of_several_attempts() -> None:
    rig = tried(1)
    start(rig, 2)
    rig.finished(60, 2)
    ends = [line.split(";")[0] for line in lines(rig) if "recorded at" in line]
    assert ends == ["attempt 1 failed: exit code 1", "attempt 2 succeeded"]


def test_nobody_is_said_to_have_asked_for_a_retry() -> None:
    rig = with_job(retry=Retry(tries=3, backoff_ms=1_000))
    rig.to(61).trigger("q1")
    key = (1, T0 + 61, 1)
    for attempt, second in ((1, 62), (2, 70)):
        rig.to(second).begin(61, attempt, trigger=1)
        rig.finished(61, attempt, key=key, state=LaunchState.FAILED, exit_code=1)
    told = [line for _, line in explain(None, T0 + 61, rig.rows, None, T0 + 99).story]
    assert [line for line in told if "anna" in line] == ["anna triggered it"]


def test_who_redrove_it_is_told() -> None:
    rig = tried(1, work=HANDLER, retry=Retry())
    rig.append(pool.Redrive((KEY,), "bea"))
    start(rig, 2)
    rig.finished(60, 2)
    assert "bea had it launched again" in lines(rig)
    assert why(rig).verdict.endswith("bea redrove it")


def test_who_redrove_a_launch_by_hand_is_told() -> None:
    """Only those of a schedule said so: `by` of a manual one was taken for its maker."""
    rig = with_job(work=HANDLER, retry=Retry(tries=2, backoff_ms=1_000, fatal_codes=(7,)))
    rig.to(61).trigger("q1")
    key = (1, T0 + 61, 1)
    rig.to(62).begin(61, trigger=1)
    rig.finished(61, key=key, state=LaunchState.FAILED, exit_code=7)
    made = explain(None, T0 + 61, rig.rows, None, T0 + 99).verdict
    assert "redrove" not in made
    rig.append(pool.Redrive((key,), "bea"))
    rig.to(70).begin(61, 2, trigger=1)
    rig.finished(61, 2, key=key)
    told = explain(None, T0 + 61, rig.rows, None, T0 + 99)
    assert told.verdict.endswith("; it was a dead letter, bea redrove it")
    assert [line for _, line in told.story if "anna" in line] == ["anna triggered it"]
