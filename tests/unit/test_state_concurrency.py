"""`concurrency` after a loss: what may be running still holds its slots (rules R5, R6)."""

from __future__ import annotations

from typing import Any

import pytest

from cron.cli.times import format_ms
from cron.job import Overlap
from cron.leader.dispatch import Dispatcher
from cron.scheduler.why import why_waiting
from cron.state import commands as c
from cron.state import retries
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from launcher.executor.rules import spec_of
from launcher.protocol.status import Reason
from tests.batches import lost_item
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import T0, StateRig, job, with_job


def two_at_once(**fields: object) -> StateRig:
    """A job that may run twice at once, and does; more is due."""
    rig = with_job(concurrency=2, deadline_s=86_400, **fields)
    rig.to(300).account(60, 120, 180, 240, 300)
    assert rig.begin(60) is Verdict.ACCEPTED
    assert rig.begin(120) is Verdict.ACCEPTED
    return rig


def test_no_more_begin_than_may_run_whoever_asks() -> None:
    rig = two_at_once()
    assert rig.begin(180) is Verdict.OVERLAP
    rig.finished(60)
    assert rig.begin(180) is Verdict.ACCEPTED
    assert rig.begin(240) is Verdict.OVERLAP


def test_a_lost_launch_holds_one_slot_until_it_must_be_dead() -> None:
    rig = two_at_once()
    rig.lost(60, held_until=330)
    rig.lost(120, held_until=350)
    assert rig.begin(180) is Verdict.OVERLAP
    rig.to(329)
    assert rig.begin(180) is Verdict.OVERLAP
    rig.to(330)
    assert rig.begin(180) is Verdict.ACCEPTED
    assert rig.begin(240) is Verdict.OVERLAP, "the other one may be running"
    assert rig.to(350).begin(240) is Verdict.ACCEPTED


def test_held_slots_survive_a_snapshot() -> None:
    rig = two_at_once()
    rig.lost(60, held_until=330)
    again = decode_state([encode_state(rig.state)])
    assert again.by_number[1].held_slots((T0 + 329) * 1000) == 1
    assert again.by_number[1].held_slots((T0 + 330) * 1000) == 0


def test_times_until_which_slots_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "HELD_KEPT", 2)
    rig = with_job(concurrency=9, deadline_s=86_400)
    rig.to(300).account(60, 120, 180, 240)
    for second, until in ((60, 310), (120, 320), (180, 330), (240, 330)):
        rig.begin(second)
        rig.lost(second, held_until=until)
    assert rig.record().held == {(T0 + 320) * 1000: 2, (T0 + 330) * 1000: 2}


def test_a_plan_begins_what_waited_when_a_held_slot_is_free() -> None:
    rig = QueuesRig(job(concurrency=2, deadline_s=86_400))
    rig.to(300).account(60, 120, 180, 240)
    assert rig.turn() == ["begin 1@60#1", "begin 1@120#1"]
    until_ms = rig.now_ms + 20_000
    items = [lost_item((1, T0 + second, 0), 1, until_ms) for second in (60, 120)]
    rig.append(c.Report(tuple(items)))
    assert rig.turn() == []
    row = rig.state.due[1, T0 + 180, 0]
    told_why = why_waiting(rig.state, row, frozenset({1}), rig.now_ms)
    assert "may be running until its executor's self-kill" in told_why.text
    assert format_ms(told_why.until_ms) == format_ms(until_ms)
    assert rig.to(320).turn() == ["begin 1@180#1", "begin 1@240#1"]


def test_what_is_in_doubt_after_a_restore_holds_all_slots() -> None:  # R13
    rig = two_at_once()
    rig.finished(60)
    rig.finished(120)
    rig.record().held_until_ms = (T0 + 400) * 1000
    rig.state.note_job(rig.record())
    assert rig.begin(180) is Verdict.OVERLAP
    assert rig.to(400).begin(180) is Verdict.ACCEPTED


def test_a_job_that_allows_overlap_without_a_number_is_not_limited() -> None:
    rig = with_job(overlap=Overlap.ALLOW, deadline_s=86_400)
    rig.to(300).account(60, 120)
    rig.begin(60)
    rig.lost(60, held_until=400)
    assert rig.begin(120) is Verdict.ACCEPTED
    assert rig.cancel(120, reason=Reason.KILLED) is Verdict.ACCEPTED


def test_a_job_that_an_older_release_declared_is_guarded_when_it_is_started() -> None:
    rig = two_at_once()
    nobody: Any = None
    number = rig.record().number
    work = Dispatcher(nobody)._work(rig.state, number)
    assert not rig.record().job.work.guarded  # type: ignore[union-attr]
    started = spec_of(work.spec)
    assert started is not None
    assert started.guarded
