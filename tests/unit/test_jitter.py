"""`jitter`: the instant stays what it is, and its launch begins up to so much later."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from cron.crontab.import_systemd import import_systemd
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.reader import read_crontab
from cron.crontab.written import job_text
from cron.job import Job, Overlap
from cron.launch_state import LaunchState
from cron.scheduler.placed import placed_of
from cron.scheduler.plan import plan
from cron.scheduler.queues import Queues
from cron.scheduler.why import why_waiting
from cron.state import commands as c
from launcher.protocol.names import format_time
from launcher.protocol.status import Reason
from tests.unit.alerts_rig import rule
from tests.unit.state_rig import T0, StateRig, job, with_job
from tests.unit.test_scheduler_alerts import BACKUP, watching
from tests.unit.test_scheduler_plan import follow, view_of

JITTER_S = 50


def jittered(**fields: object) -> Job:
    return job(jitter_s=JITTER_S, **fields)  # type: ignore[arg-type]


def delay_s(second: int = 60) -> int:
    """How long after T0 + `second` the launch may begin, rounded up."""
    return -(-jittered().delay_ms(T0 + second) // 1000)


def declared(options: str, schedule: str = "0 * * * *") -> Job:
    reading = read_crontab(f"#: name=a {options}\n{schedule} x\n".encode(), file="crontab")
    assert not reading.errors, reading.errors
    return reading.jobs[0]


# ---- how long


def test_the_delay_is_the_documented_hash_of_the_launchs_name() -> None:
    name = f"default/backup@{format_time(T0)}".encode()
    drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
    assert jittered().delay_ms(T0) == drawn % 50_000
    assert job().delay_ms(T0) == 0


def test_delays_are_spread_over_the_whole_jitter() -> None:
    delays = [jittered().delay_ms(T0 + 60 * count) for count in range(500)]
    assert all(0 <= one < 50_000 for one in delays)
    assert min(delays) < 2_000
    assert max(delays) > 48_000
    assert 22_000 < sum(delays) / 500 < 28_000


# ---- when a launch begins


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.FORBID, Overlap.QUEUE, Overlap.REPLACE])
def test_a_launch_has_its_row_at_the_instant_and_begins_later(overlap: Overlap) -> None:
    """Each `follow` plans with fresh queues, as a new leader does."""
    rig = with_job(jitter_s=JITTER_S, overlap=overlap).to(60)
    assert follow(rig, 1) == ["account 1 to 60"]
    begins_s = 60 + delay_s()
    assert follow(rig.to(begins_s - 1)) == []
    assert follow(rig.to(begins_s)) == ["begin 1@60#1 on 1"]
    assert rig.row(60).scheduled_s == T0 + 60


def test_a_launch_replaces_what_runs_when_its_jitter_is_over() -> None:
    rig = with_job(jitter_s=JITTER_S, overlap=Overlap.REPLACE)
    follow(rig.to(60), 1)
    follow(rig.to(60 + delay_s()))
    assert follow(rig.to(120), 1) == ["account 1 to 120"]
    assert follow(rig.to(120 + delay_s(120) - 1)) == []
    assert follow(rig.to(120 + delay_s(120))) == ["cancel 1@60 replaced"]
    rig.finished(60, state=LaunchState.CANCELLED, reason=Reason.REPLACED, exit_code=143)
    assert follow(rig) == ["begin 1@120#1 on 1"]


def test_a_launch_that_runs_when_the_jitter_is_over_forbids_it() -> None:
    rig = with_job(jitter_s=JITTER_S, overlap=Overlap.FORBID)
    follow(rig.to(60), 1)
    follow(rig.to(60 + delay_s()))
    assert follow(rig.to(120), 1) == ["account 1 to 120"], "it may be over until then"
    assert follow(rig.to(120 + delay_s(120))) == ["skip 1@120 overlap"]


def test_one_leaders_queues_bring_the_launch_up_at_its_time() -> None:
    rig = with_job(jitter_s=JITTER_S).to(60)
    view = view_of(rig, 1)
    queues: Queues = view.queues
    commands = _plan(rig, queues, due=True)
    assert [type(one) for one in commands] == [c.Account]
    queues.applied(rig.append(*commands))
    queues.follow([(1, T0 + 60, 0)])
    assert _plan(rig, queues) == []
    begins_ms = rig.at_ms + jittered().delay_ms(T0 + 60)
    assert queues.next_ms() == begins_ms
    rig.at_ms = begins_ms
    assert [type(one) for one in _plan(rig, queues)] == [c.Begin]


def _plan(rig: StateRig, queues: Queues, *, due: bool = False) -> list[c.Command]:
    view = view_of(rig, *((1,) if due else ()), queues=queues)
    return plan(view, rig.at_ms)


def test_a_pause_meanwhile_skips_it() -> None:
    rig = with_job(jitter_s=JITTER_S).to(60)
    follow(rig, 1)
    rig.item(c.Pause(("default/backup",), "", 0, "anna"))
    assert follow(rig.to(60 + delay_s())) == ["skip 1@60 paused"]


def test_what_somebody_asked_for_and_a_retry_begin_at_once() -> None:
    rig = with_job(jitter_s=JITTER_S).to(60)
    rig.trigger("r1")
    assert follow(rig) == ["begin 1@60+t1#1 on 1"]


def test_a_job_with_jitter_is_not_usual() -> None:
    assert placed_of("default/backup", job()).is_usual
    assert not placed_of("default/backup", jittered()).is_usual


def test_why_says_until_when() -> None:
    rig = with_job(jitter_s=JITTER_S).to(60)
    follow(rig, 1)
    reason = why_waiting(rig.state, rig.row(60), frozenset({1}), rig.at_ms)
    assert reason.text == f"its jitter lets it begin at {format_time(T0 + 60 + delay_s())}"
    assert reason.until_ms == (T0 + 60) * 1000 + jittered().delay_ms(T0 + 60)


# ---- alerts


def test_jitter_is_no_lateness() -> None:
    rig = watching(rule("late", "late:10s"), jitter_s=JITTER_S, deadline_s=300)
    begins_s = 60 + delay_s()
    rig.to(60).account(60)
    assert rig.turn(begins_s + 9) == []
    assert rig.turn(begins_s + 11) == [f"+late {BACKUP}"]
    assert 10 <= rig.evidence("late").value <= 12
    rig.begin(60)
    rig.finished(60)
    assert rig.turn() == []
    rig.to(120).account(120)
    rig.to(120 + delay_s(120))
    rig.begin(120)
    rig.finished(120)
    assert rig.turn() == [f"-late {BACKUP}"]


# ---- crontabs


def test_the_default_deadline_has_room_for_it_and_an_export_says_the_same() -> None:
    one = declared("jitter=10m")
    assert (one.jitter_s, one.deadline_s) == (600, 3600 + 600)
    [again] = read_jobs_toml(job_text(one).encode(), file="jobs.toml").jobs
    assert msgspec.structs.replace(again, line=one.line) == one
    assert "deadline" not in job_text(one)


@pytest.mark.parametrize(
    ("options", "schedule", "said"),
    [
        ("jitter=0s", "@daily", "jitter"),
        ("jitter=2d", "@weekly", "jitter"),
        ("jitter=5m", "*/5 * * * *", "not shorter than the 300 s"),
        ("jitter=90s", "@every 90s", "not shorter than the 90 s"),
        ("jitter=10m deadline=10m", "@daily", "may be over before the launch begins"),
    ],
)
def test_what_cannot_be_is_an_error(options: str, schedule: str, said: str) -> None:
    reading = read_crontab(f"#: {options}\n{schedule} x\n".encode(), file="crontab")
    [error] = reading.errors
    assert said in error.message
    assert error.hint


def test_a_timer_of_systemd_brings_its_random_delay() -> None:
    service = "[Service]\nExecStart=/bin/true\n"
    timer = "[Timer]\nOnCalendar=daily\nRandomizedDelaySec=1h\n"
    imported = import_systemd({"a.timer": timer, "a.service": service})
    assert imported.tables[0]["jitter"] == "3600s"
    timer = "[Timer]\nOnCalendar=hourly\nRandomizedDelaySec=2h\n"
    imported = import_systemd({"a.timer": timer, "a.service": service})
    assert "jitter" not in imported.tables[0]
    assert any("RandomizedDelaySec=2h" in one.what for one in imported.left)
