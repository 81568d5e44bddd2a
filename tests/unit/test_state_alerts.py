"""Alerts in State: rules, alerts that fire, mutes, and the tasks that tell people."""

from __future__ import annotations

import pytest

from cron.alert_rules import Channel, ChannelKind, Rule
from cron.job import Retry
from cron.launch_state import LaunchState
from cron.state import alerting, deliveries
from cron.state import alerts as a
from cron.state import commands as c
from cron.state import tasks as t
from cron.state.deliveries import BACKOFF_MS, TRIES
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.retries import backoff_ms
from cron.state.rows import Chunk, Row
from launcher.protocol.columns import differences
from launcher.protocol.names import format_time
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import WorkSpec
from tests.unit.alerts_rig import BEAT, CELL, CHAT, OPS, AlertsRig, own, rule, watched
from tests.unit.state_rig import T0, job, skips

ACCEPTED = Verdict.ACCEPTED
ALREADY = Verdict.ALREADY
TWICE = rule("twice", "failed:2")
BACKUP = "default/backup"


# ---- what is told


def test_an_alert_that_fires_is_told_by_a_task_in_the_same_entry() -> None:
    rig = watched(TWICE)
    assert rig.raised("twice", BACKUP) == [ACCEPTED]
    assert rig.keys == ["1-firing-ops"]
    at = format_time(T0)
    assert rig.payload("1-firing-ops") == {
        "alert": {
            "number": 1,
            "state": "firing",
            "kind": "failed",
            "rule": "twice",
            "when": "failed:2",
            "subjects": [BACKUP],
            "count": 1,
            "open": 1,
            "removed": [],
            "since": at,
            "at": at,
            "evidence": {"failures": 2},
            "cell": CELL,
        },
        "to": ["ops@example.org"],
    }
    task = rig.state.tasks["raftcron/alerts:1-firing-ops"]
    assert task.options.handler or rig.state.queues[task.queue].handler == "mail"


def test_an_alert_is_raised_and_resolved_once_however_often_the_leader_says_so() -> None:
    rig = watched(TWICE)
    assert rig.raised("twice", BACKUP) == [ACCEPTED]
    assert rig.raised("twice", BACKUP) == [ALREADY]
    assert rig.to(60).resolved("twice", BACKUP) == [ACCEPTED]
    assert rig.resolved("twice", BACKUP) == [ALREADY]
    assert rig.keys == ["1-firing-ops", "1-resolved-ops"]
    (closed,) = rig.state.alerts.closed
    assert (closed.number, closed.rule, closed.subject) == (1, "twice", BACKUP)
    assert (closed.since_ms, closed.ended_ms) == (T0 * 1000, (T0 + 60) * 1000)
    assert not rig.state.alerts.open


def test_that_it_is_over_is_told_after_that_it_fires() -> None:
    rig = watched(TWICE)
    rig.raised("twice", BACKUP)
    rig.to(60).resolved("twice", BACKUP)
    firing, resolved = rig.state.tasks_by_number.values()
    assert rig.state.holds[resolved.number].predecessors == (firing.number,)


def test_each_channel_of_a_rule_has_its_own_delivery() -> None:
    rig = watched(rule("twice", "failed:2", to=("ops", "chat")))
    rig.raised("twice", BACKUP)
    assert rig.keys == ["1-firing-ops", "1-firing-chat"]
    assert rig.payload("1-firing-chat")["channel"] == "chat"
    assert "to" not in rig.payload("1-firing-chat")


def test_ten_thousand_alerts_at_once_are_a_handful_of_deliveries() -> None:
    rig = watched(TWICE)
    names = [f"default/j{n}" for n in range(10_000)]
    for first in range(0, 10_000, 1_000):
        assert rig.raised("twice", *names[first : first + 1_000]) == [ACCEPTED] * 1_000
    assert rig.keys == ["1-firing-ops"]
    assert rig.to(59).send("twice", "ops") is Verdict.NOT_DUE
    assert rig.to(60).send("twice", "ops") is ACCEPTED
    assert rig.send("twice", "ops") is ALREADY
    assert rig.keys == ["1-firing-ops", "1001-firing-ops"]
    first, second = (rig.payload(key)["alert"] for key in rig.keys)
    assert (first["count"], second["count"]) == (1_000, 9_000)
    assert second["subjects"] == names[1_000:1_020]
    for start in range(0, 10_000, 1_000):
        rig.resolved("twice", *names[start : start + 1_000])
    assert rig.to(120).send("twice", "ops") is ACCEPTED
    assert rig.keys[2:] == ["1-resolved-ops"]
    assert rig.payload("1-resolved-ops")["alert"]["count"] == 10_000
    assert rig.state.alerts.closed_count == 10_000
    assert not rig.state.alerts.pending


def test_what_is_gathered_is_told_with_the_next_alert_of_the_rule() -> None:
    rig = watched(TWICE)
    rig.raised("twice", "default/a")
    rig.to(10).raised("twice", "default/b")
    rig.to(70).raised("twice", "default/c")
    assert rig.keys == ["1-firing-ops", "2-firing-ops"]
    assert rig.payload("2-firing-ops")["alert"]["subjects"] == ["default/b", "default/c"]


def test_a_delivery_that_finds_no_room_is_submitted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = watched(TWICE)
    rig.put(job("other"))
    with monkeypatch.context() as patch:
        patch.setattr("cron.state.tasking.TASKS_WAITING_MAX", 0)
        assert rig.raised("twice", BACKUP) == [ACCEPTED]
        assert rig.keys == []
        assert rig.to(60).send("twice", "ops") is ACCEPTED
        assert rig.keys == []
    assert rig.to(120).send("twice", "ops") is ACCEPTED
    assert rig.keys == ["1-firing-ops"]


def test_a_delivery_is_tried_for_about_a_day() -> None:
    retry = Retry(TRIES, BACKOFF_MS)
    total_ms = sum(backoff_ms(retry, failures, "x") for failures in range(1, TRIES))
    assert 20 * 3_600_000 < total_ms < 30 * 3_600_000


def test_a_test_is_told_and_opens_nothing() -> None:
    rig = watched()
    assert rig.answer(a.TestAlert("chat", "anna", CELL)).verdict is ACCEPTED
    assert rig.payload("1-test-chat")["alert"]["state"] == "test"
    for unknown in ("nobody", "beat"):
        assert rig.answer(a.TestAlert(unknown)).verdict is Verdict.UNKNOWN_CHANNEL
    assert not rig.state.alerts.open


# ---- rules and channels


def test_rules_are_applied_as_a_whole_and_against_what_the_caller_saw() -> None:
    rig = watched(TWICE)
    revision = rig.state.alerts.revision
    with rig.unchanged():
        assert rig.answer(a.ApplyAlerts(revision - 1)).verdict is Verdict.STALE_REVISION
    assert rig.declare(rule("once", "failed:1")) is ACCEPTED
    assert list(rig.state.alerts.rules) == ["once"]
    assert rig.state.alerts.revision == rig.state.index
    (revision,) = [one for one in rig.state.revisions if one.index == rig.state.index]
    assert (revision.command, revision.by) == ("apply-alerts", "anna")
    assert {one.name for one in revision.changed} == {"rule once", "rule twice"}


def test_a_large_change_of_rules_is_counted_and_its_first_rules_are_named() -> None:
    rules = [rule(f"r{n:02}", "failed:2") for n in range(60)]
    rig = watched(*rules)
    changed = [*rules[:30], *(rule(one.name, "failed:3") for one in rules[30:])]
    assert rig.declare(*changed) is ACCEPTED
    revision = rig.state.revisions[-1]
    assert revision.count == 30
    assert [one.name for one in revision.changed] == [f"rule r{n}" for n in range(30, 50)]
    assert rig.declare(*changed) is ACCEPTED
    assert rig.state.revisions[-1].changed == ()


def test_a_delivery_says_how_many_others_fire_and_which_jobs_were_removed() -> None:
    rig = watched(TWICE)
    rig.put(job("other"))
    rig.raised("twice", BACKUP, "default/other")
    rig.put(removed=(BACKUP,))
    rig.to(60).resolved("twice", BACKUP)
    rig.to(120).resolved("twice", "default/other")
    said = [rig.payload(key)["alert"] for key in rig.keys]
    assert [(one["open"], one["removed"]) for one in said] == [(2, []), (1, [BACKUP]), (0, [])]


def test_a_queue_is_no_removed_job() -> None:
    rig = watched(rule("dead", "dead"))
    rig.answer(t.PutQueues("queues", 0, (t.QueueSpec("default/mails", "mail"),)))
    assert "default/mails" in rig.state.queues
    rig.raised("dead", "default/mails")
    rig.to(60).resolved("dead", "default/mails")
    assert rig.payload(rig.keys[-1])["alert"]["removed"] == []


@pytest.mark.parametrize(
    ("channels", "rules", "verdict"),
    [
        ((OPS, OPS), (), Verdict.REPEATED),
        ((OPS,), (TWICE, TWICE), Verdict.REPEATED),
        ((CHAT,), (TWICE,), Verdict.UNKNOWN_CHANNEL),
        ((Channel("ops", ChannelKind.HEARTBEAT),), (TWICE,), Verdict.UNKNOWN_CHANNEL),
        ((Channel("ops", ChannelKind.MAIL),), (), Verdict.BAD_ALERTS),
        ((Channel("ops", ChannelKind.WEBHOOK, ("a@b",)),), (), Verdict.BAD_ALERTS),
        ((Channel("a b", ChannelKind.WEBHOOK),), (), Verdict.BAD_ALERTS),
        ((OPS,), (rule("a b", "failed:2"),), Verdict.BAD_ALERTS),
        ((OPS,), (rule("a", "failed:2", "no-slash"),), Verdict.BAD_ALERTS),
    ],
)
def test_rules_that_cannot_be_are_refused(
    channels: tuple[Channel, ...], rules: tuple[Rule, ...], verdict: Verdict
) -> None:
    rig = watched()
    with rig.unchanged():
        assert rig.declare(*rules, channels=channels) is verdict


@pytest.mark.parametrize("name", ["CHANNELS_MAX", "RULES_MAX"])
def test_rules_and_channels_are_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerting, name, 0)
    assert AlertsRig().declare(TWICE) is Verdict.TOO_MANY


def test_alerts_of_a_rule_that_goes_are_over() -> None:
    rig = watched(TWICE)
    rig.raised("twice", BACKUP)
    assert rig.to(60).declare() is ACCEPTED
    assert rig.keys == ["1-firing-ops", "1-resolved-ops"]
    assert rig.state.alerts.closed[0].by == "anna"
    assert rig.raised("twice", BACKUP) == [Verdict.UNKNOWN_RULE]


def test_that_a_rule_went_is_told_at_once_since_nobody_could_tell_it_later() -> None:
    rig = watched(TWICE)
    rig.raised("twice", BACKUP)
    assert rig.to(5).declare() is ACCEPTED
    assert rig.keys == ["1-firing-ops", "1-resolved-ops"]
    assert not rig.state.alerts.pending


def test_a_job_tells_only_channels_that_are_there() -> None:
    rig = watched()
    for unknown in ("nobody", "beat"):
        with rig.unchanged():
            put = rig.put(job("new", alerts=own("failed:2", unknown)))
            assert put.verdict is Verdict.UNKNOWN_CHANNEL
    assert rig.put(job("new", alerts=own("failed:2", "ops"))).verdict is ACCEPTED
    assert rig.declare(channels=(CHAT,)) is Verdict.CHANNEL_IN_USE
    beats = Channel("ops", ChannelKind.HEARTBEAT)
    assert rig.declare(channels=(beats,)) is Verdict.CHANNEL_IN_USE
    assert rig.put(removed=("default/new",)).verdict is ACCEPTED
    assert rig.declare(channels=(CHAT,)) is ACCEPTED


def test_jobs_with_the_same_option_share_a_rule() -> None:
    rig = watched()
    rig.put(job("a", alerts=own("failed:2,missed", "ops")), job("b", alerts=own("failed:2", "ops")))
    name = "failed:2 to=ops"
    assert rig.raised(name, "default/a", "default/b", BACKUP) == [
        *(ACCEPTED, ACCEPTED, Verdict.UNKNOWN_RULE)
    ]
    assert rig.payload("1-firing-ops")["alert"]["subjects"] == ["default/a", "default/b"]
    for none in ("failed:3 to=ops", "failed:2 to=chat", "failed:02 to=ops", "nonsense to=ops"):
        assert rig.raised(none, "default/a") == [Verdict.UNKNOWN_RULE]


def test_alerts_that_fire_and_those_that_are_over_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alerting, "ALERTS_OPEN_MAX", 2)
    monkeypatch.setattr(alerting, "ALERTS_CLOSED_KEPT", 2)
    rig = watched(TWICE)
    names = ("default/a", "default/b", "default/c")
    assert rig.raised("twice", *names) == [ACCEPTED, ACCEPTED, Verdict.TOO_MANY]
    rig.resolved("twice", *names)
    rig.raised("twice", names[2])
    rig.resolved("twice", names[2])
    assert [one.subject for one in rig.state.alerts.closed] == ["default/b", "default/c"]
    assert rig.state.alerts.closed_count == 3


# ---- mutes


def muted(rig: AlertsRig, pattern: str = "default/*", until: int = 600) -> Verdict:
    return rig.answer(a.MuteAlerts(pattern, (T0 + until) * 1000, "moving", "anna")).verdict


def test_nobody_is_told_of_what_is_muted_until_the_mute_ends() -> None:
    rig = watched(TWICE)
    assert muted(rig) is ACCEPTED
    assert rig.raised("twice", BACKUP) == [ACCEPTED]
    assert rig.raised("twice", BACKUP) == [ALREADY]
    assert rig.keys == []
    assert rig.to(600).raised("twice", BACKUP) == [ACCEPTED]
    assert rig.keys == ["1-firing-ops"]


def test_an_alert_that_came_and_went_while_it_was_muted_is_never_told() -> None:
    rig = watched(TWICE)
    muted(rig)
    rig.raised("twice", BACKUP)
    assert rig.to(60).resolved("twice", BACKUP) == [ACCEPTED]
    assert rig.keys == []
    assert not rig.state.alerts.closed[0].is_told


def test_who_was_told_that_it_fires_is_told_that_it_is_over_mute_or_not() -> None:
    rig = watched(TWICE)
    rig.raised("twice", BACKUP)
    muted(rig)
    rig.to(60).resolved("twice", BACKUP)
    assert rig.keys == ["1-firing-ops", "1-resolved-ops"]


def test_a_mute_can_be_ended() -> None:
    rig = watched(TWICE)
    muted(rig)
    assert rig.items(a.UnmuteAlerts((1, 2), "anna")) == [ACCEPTED, ALREADY]
    rig.raised("twice", BACKUP)
    assert rig.keys == ["1-firing-ops"]


def test_mutes_are_checked_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerting, "MUTES_MAX", 1)
    rig = watched(TWICE)
    assert muted(rig, "backup") is Verdict.BAD_ALERTS
    assert muted(rig, until=0) is Verdict.BAD_TIMES
    assert muted(rig) is ACCEPTED
    assert muted(rig) is Verdict.TOO_MANY
    assert muted(rig.to(600), until=900) is ACCEPTED, "one that is over makes room"


# ---- what State knows of ends


def marks(rig: AlertsRig) -> a.Marks:
    return rig.record().marks or a.NO_MARKS


def test_failures_in_a_row_are_counted_and_a_success_ends_the_row() -> None:
    rig = watched(TWICE)
    rig.failed(60)
    rig.failed(120)
    assert marks(rig).failed == 0b11
    assert marks(rig).since_ms == (T0 + 60) * 1000
    names = tuple(f"{BACKUP}@{format_time(T0 + second)}" for second in (60, 120))
    assert marks(rig).launches == names
    rig.ran(180)
    assert marks(rig).failed == 0b10
    assert list(rig.outcome.marked) == [1]
    rig.ran(240)
    assert rig.record().marks is None
    assert not rig.state.alerts.marked


def test_failures_are_counted_beyond_what_a_rule_looks_at() -> None:
    rig = watched(TWICE)
    for n in range(1, 86):
        rig.failed(60 * n)
    assert (marks(rig).failed, marks(rig).failures) == (0b11, 85)
    again = decode_state([encode_state(rig.state)])
    assert again.jobs[BACKUP].marks == marks(rig)
    rig.ran(60 * 86)
    assert marks(rig).failures == 0


def test_an_older_format_counts_no_failures_and_a_newer_one_goes_on_from_its_bits() -> None:
    rig = watched(rule("many", "failed:5"), log_format=11)
    for n in range(1, 4):
        rig.failed(60 * n)
    assert (marks(rig).failed, marks(rig).failures) == (0b111, 0)
    rig.answer(c.RaiseFormat(c.FORMAT))
    rig.failed(300)
    assert marks(rig).failures == 4


def test_the_attempts_of_a_launch_are_one_end() -> None:
    rig = watched(TWICE, retry=Retry(tries=2, backoff_ms=1000), deadline_s=3000)
    rig.failed(60)
    assert marks(rig) == a.NO_MARKS, "it is tried again"
    assert rig.to(90).begin(60, attempt=2) is ACCEPTED
    rig.finished(60, attempt=2, state=LaunchState.FAILED, exit_code=1)
    assert marks(rig).failed == 1


def test_a_lost_launch_counts_as_failed_and_a_cancelled_one_does_not() -> None:
    rig = watched(TWICE)
    rig.to(60).account(60)
    rig.begin(60)
    rig.lost(60)
    assert marks(rig).failed == 1
    rig.ran(120, state=LaunchState.CANCELLED, reason=Reason.KILLED)
    assert marks(rig).failed == 1


def test_a_late_report_is_no_second_failure() -> None:
    rig = watched(TWICE)
    rig.to(60).account(60)
    rig.begin(60)
    rig.lost(60)
    late = {"state": LaunchState.FAILED, "exit_code": 1}
    assert rig.to(90).finished(60, **late) is Verdict.AMENDED
    assert marks(rig).failed == 1


def test_of_many_ends_only_rows_that_a_rule_is_for_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = watched(rule("one", "failed:2", BACKUP), rule("gone", "missed", BACKUP))
    rig.put(
        *(job(f"j{n}") for n in range(50)),
        job("mails", alerts=own("", mail_to=("anna@example.org",))),
    )
    made: list[str] = []
    row_of = Chunk.row

    def noted(chunk: Chunk, place: int, name: str = "") -> Row:
        made.append(name)
        return row_of(chunk, place, name)

    numbers = [record.number for record in rig.state.jobs.values()]
    deltas = tuple(differences(numbers))
    rows = {"skipped": (skips(60, 120, 2),), "due": (c.Instants(T0 + 180),)}
    line = c.AccountLine(deltas, rig.state.catalog, T0, T0 + 180, **rows)
    monkeypatch.setattr("cron.state.outcome.rows_of", lambda _: [])
    monkeypatch.setattr(Chunk, "row", noted)
    rig.to(200).append(c.Account((line,)))
    assert made == [BACKUP], "only its instants are missed for a rule"
    made.clear()
    spec = c.BatchSpec(1, rig.state.catalog, rig.at_ms + 60_000, T0 + 180, deltas)
    rig.append(c.Begin((spec,)))
    places = [0, *(1 for _ in numbers[1:])]
    times = {"started_ms": [rig.at_ms], "finished_ms": [rig.at_ms]}
    ended = BatchReport(rig.state.index, Status.ENDED, Reason.NONE, 0, places, **times)
    rig.append(c.Report(rows=((1, ended),)))
    assert not rig.state.active
    assert set(made) <= {BACKUP}, "nobody wrote anything, and the others never failed"


def test_instants_without_a_launch_are_counted_until_one_runs() -> None:
    rig = watched(rule("missed", "missed"))
    rig.to(200).account(to=180, skipped=(skips(60, 180, 3),))
    assert marks(rig).missed == 3
    assert marks(rig).launches == (f"{BACKUP}@{format_time(T0 + 180)}",)
    rig.ran(240)
    assert rig.record().marks is None


@pytest.mark.parametrize(
    ("reason", "missed"),
    [(Reason.DEADLINE, 1), (Reason.OVERLAP, 0), (Reason.PAUSED, 0), (Reason.NO_EXECUTOR, 1)],
)
def test_what_somebody_wanted_is_not_missed(reason: Reason, missed: int) -> None:
    rig = watched(rule("missed", "missed"))
    rig.to(60).account(60)
    assert rig.skip(60, reason) is ACCEPTED
    assert marks(rig).missed == missed


def test_a_launch_that_began_late_is_noted_until_one_begins_in_time() -> None:
    rig = watched(rule("late", "late:30s"))
    rig.to(60).account(60)
    rig.to(100).begin(60)
    rig.finished(60)
    assert marks(rig).late_ms == 40_000
    rig.ran(120)
    assert rig.record().marks is None


def test_the_newest_success_is_noted_for_rules_about_it() -> None:
    rig = watched(rule("alive", "no-success:1h"))
    rig.ran(60)
    assert marks(rig).success_ms == (T0 + 60) * 1000
    assert not rig.outcome.marked, "nothing can fire by it"
    rig.failed(120)
    assert marks(rig).success_ms == (T0 + 60) * 1000
    rig.to(600).answer(c.Pause((BACKUP,), "x", 0, "anna"))
    rig.to(900).answer(c.Resume((BACKUP,), "anna"))
    assert marks(rig).success_ms == (T0 + 900) * 1000


def test_jobs_that_no_rule_is_for_have_no_marks() -> None:
    rig = watched(rule("other", "failed:2", "billing/*"))
    rig.failed(60)
    assert rig.record().marks is None
    rig = watched(TWICE)
    rig.failed(60)
    rig.declare()
    rig.declare(rule("other", "failed:2", "billing/*"))
    rig.failed(120)
    assert rig.record().marks is None


def test_a_removed_job_has_no_marks() -> None:
    rig = watched(TWICE)
    rig.failed(60)
    rig.to(60).put(removed=(BACKUP,))
    assert not rig.state.alerts.marked
    rig.put(job())
    assert rig.record().marks is None


# ---- MAILTO


def test_output_of_a_command_is_mailed_once_it_is_over() -> None:
    rig = watched(alerts=own("", mail_to=("anna@example.org",)))
    rig.ran(60)
    assert rig.keys == [], "it wrote nothing"
    rig.ran(120, output_bytes=7)
    rig.failed(180)
    said = [rig.payload(key) for key in rig.keys]
    assert [one["to"] for one in said] == [["anna@example.org"]] * 2
    assert [one["launch"]["state"] for one in said] == ["succeeded", "failed"]
    assert said[0]["launch"]["name"] == f"{BACKUP}@{format_time(T0 + 120)}"
    assert said[1]["launch"]["exit"] == 1
    assert said[0]["launch"]["command"] == "backup"


def test_a_mail_names_no_command_in_an_older_format_or_of_a_job_that_changed() -> None:
    rig = watched(alerts=own("", mail_to=("anna@example.org",)))
    rig.state.format = deliveries.COMMAND_FORMAT - 1
    rig.failed(60)
    assert "command" not in rig.payload(rig.keys[-1])["launch"]
    rig.state.format = deliveries.COMMAND_FORMAT
    long = WorkSpec(("sh", "-c", "x" * 10_000))
    rig.put(job(alerts=own("", mail_to=("anna@example.org",)), work=long))
    rig.failed(120)
    command = rig.payload(rig.keys[-1])["launch"]["command"]
    assert len(command) == deliveries.COMMAND_CHARS_MAX


def test_mails_of_launches_do_not_fill_the_queue_of_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MAILS_WAITING_MAX", 2)
    rig = watched(TWICE, alerts=own("", mail_to=("anna@example.org",)))
    for second in range(60, 301, 60):
        rig.failed(second)
    assert len(rig.keys) == 2
    assert rig.raised("twice", BACKUP) == [ACCEPTED]
    assert rig.keys[-1] == "1-firing-ops"
    mail = rig.state.tasks[f"raftcron/alerts:{rig.keys[0]}"]
    assert mail.options.deadline_s == deliveries.MAIL_DEADLINE_S


# ---- images, restored cells and clocks


def test_an_image_has_all_of_it() -> None:
    rig = watched(TWICE, rule("alive", "no-success:1h"))
    rig.put(job("own", alerts=own("failed:2", "ops")))
    rig.failed(60)
    rig.raised("twice", BACKUP, "default/a")
    rig.to(70).raised("twice", "default/b")
    rig.resolved("twice", "default/a")
    muted(rig)
    again = decode_state([encode_state(rig.state)])
    assert encode_state(again) == encode_state(rig.state)
    was, now = rig.state.alerts, again.alerts
    for name in ("open_of", "open_count", "pending", "own", "own_kinds", "marked", "named_kinds"):
        assert getattr(now, name) == getattr(was, name), name
    assert now.is_watching
    assert now.watch(BACKUP) == was.watch(BACKUP)


def test_a_clock_that_is_set_back_repeats_no_alert() -> None:
    rig = watched(TWICE, rule("alive", "no-success:1h"))
    rig.to(3600).put(job("ahead"))
    rig.raised("twice", BACKUP)
    muted(rig, until=7200)
    rig.to(0)
    assert rig.answer(c.ResetClock(T0 * 1000, "anna")).verdict is ACCEPTED
    assert rig.raised("twice", BACKUP) == [ALREADY]
    assert rig.keys == ["1-firing-ops"]
    assert rig.state.alerts.mutes[1].until_ms == (T0 + 3600) * 1000
    rig.resolved("twice", BACKUP)
    assert rig.to(60).send("twice", "ops") is ACCEPTED, "deliveries go on after the reset"


def test_the_subjects_of_the_cell_itself_are_not_meant_by_a_rule_for_all_jobs() -> None:
    alerts = watched(TWICE).state.alerts
    assert alerts.watch("raftcron/heartbeat-beat") == a.Watch()
    assert alerts.watch(BACKUP).rules == (TWICE,)


def test_a_channel_that_goes_takes_along_what_was_gathered_for_it() -> None:
    rig = watched(rule("twice", "failed:2", to=("ops", "chat")))
    rig.raised("twice", "default/a")
    rig.raised("twice", "default/b")
    assert len(rig.state.alerts.pending) == 2
    assert rig.declare(TWICE, channels=(OPS, BEAT)) is ACCEPTED
    assert list(rig.state.alerts.pending) == [("twice", "ops")]
    assert rig.to(60).send("twice", "chat") is ALREADY


def test_what_fires_again_before_its_end_was_told_is_not_said_to_be_over() -> None:
    rig = watched(TWICE)
    rig.raised("twice", BACKUP)
    rig.to(10).resolved("twice", BACKUP)
    rig.to(20).raised("twice", BACKUP)
    assert rig.to(60).send("twice", "ops") is ALREADY
    assert rig.keys == ["1-firing-ops"], "the last that people heard is true"
    rig.to(70).resolved("twice", BACKUP)
    assert rig.keys == ["1-firing-ops", "2-resolved-ops"]


def test_a_job_that_comes_and_goes_is_counted_once_in_what_is_gathered() -> None:
    rig = watched(TWICE)
    rig.raised("twice", "default/a")
    for second in (10, 20, 30):
        rig.to(second).raised("twice", BACKUP)
        rig.to(second + 5).resolved("twice", "default/a", BACKUP)
    rig.to(40).raised("twice", BACKUP)
    assert rig.to(60).send("twice", "ops") is ACCEPTED
    assert rig.keys == ["1-firing-ops", "2-firing-ops", "1-resolved-ops"]
    told = [rig.payload(key)["alert"] for key in rig.keys[1:]]
    assert [(one["subjects"], one["count"]) for one in told] == [
        ([BACKUP], 1), (["default/a"], 1),
    ]  # fmt: skip


def test_an_alert_is_over_when_its_rule_becomes_one_of_another_kind() -> None:
    rig = watched(rule("cell", "replica-away"))
    rig.raised("cell", "raftcron/r2")
    rig.to(10).raised("cell", "raftcron/r3")
    assert rig.declare(rule("cell", "backup-failing")) is ACCEPTED
    assert rig.state.alerts.open == {}
    kinds = {rig.payload(key)["alert"]["kind"] for key in rig.keys}
    assert (kinds, rig.keys) == (
        {"replica-away"}, ["1-firing-ops", "2-firing-ops", "1-resolved-ops"],
    )  # fmt: skip
