"""Explanations: the verdict and the story for each thing that can have happened."""

from __future__ import annotations

import msgspec
import pytest

from cron.history.audited import AuditedJob
from cron.history.story import SENTENCES, format_ms, sentence_of
from cron.history.why import Explanation, explain
from cron.job import Schedule
from cron.launch_state import LaunchState
from cron.notes import Note, NoteCode
from cron.state.rows import Row, RowKind
from cron.state.state import Paused, Span
from launcher.protocol.names import parse_time
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.unit.history_rig import open_row

S = LaunchState
AT = "2026-03-20T02:30:00Z"
AT_S = parse_time(AT)
NIGHTLY = Schedule("30 2 * * *", "30 2 * * *")
BERLIN = Schedule("30 2 * * *", "30 2 * * *", "Europe/Berlin")
R1, R2 = Epoch(0, 4, "r1"), Epoch(0, 5, "r2")


def job(schedule: Schedule = NIGHTLY, *, horizon: str = "2027-01-01T00:00:00Z") -> AuditedJob:
    span = Span(3, parse_time("2026-03-01T12:00:00Z"), 0, schedule)
    return AuditedJob("default/backup", (span,), parse_time(horizon))


def ran(**fields: object) -> Row:
    known: dict[str, object] = {
        "kind": RowKind.ENDED,
        "job": "default/backup",
        "revision": 3,
        "scheduled_s": AT_S,
        "trigger": 0,
        "attempt": 1,
        "state": S.SUCCEEDED,
        "reason": Reason.NONE,
        "begun_index": 100,
        "begun_at_ms": AT_S * 1000 + 10,
        "epoch": R1,
        "executor": "worker-7",
        "launched_index": 101,
        "launched_at_ms": AT_S * 1000 + 60,
        "started_ms": AT_S * 1000 + 41,
        "finished_ms": AT_S * 1000 + 3241,
        "exit_code": 0,
        "ended_index": 105,
        "ended_at_ms": AT_S * 1000 + 3300,
    }
    return Row(**(known | fields))  # type: ignore[arg-type]


def unbegun(**fields: object) -> Row:
    known: dict[str, object] = {
        "attempt": 0,
        "state": S.SKIPPED,
        "begun_index": 0,
        "epoch": Epoch(),
        "executor": "",
        "launched_index": 0,
        "started_ms": 0,
        "finished_ms": 0,
        "exit_code": -1,
    }
    return ran(**(known | fields))


def why(
    rows: list[Row] | None = None,
    open_row: Row | None = None,
    *,
    of: AuditedJob | None = None,
    pause: Paused | None = None,
    waiting: str = "",
    at: str = AT,
    now: str = "2026-12-01T00:00:00Z",
) -> Explanation:
    known = msgspec.structs.replace(of or job(), paused=pause)
    now_s = parse_time(now)
    return explain(known, parse_time(at), rows or [], open_row, now_s, waiting=waiting)


def test_a_launch_that_ran_is_told_from_log_point_to_end() -> None:
    told = why([ran()])
    assert told.verdict == "it ran on worker-7, 41 ms late, and succeeded"
    assert told.story == [
        (
            AT_S * 1000 + 10,
            "attempt 1: log point 1 committed at index 100 by r1, leader of term 4, to be started "
            "on worker-7",
        ),
        (AT_S * 1000 + 41, "started on worker-7, 41 ms late"),
        (AT_S * 1000 + 60, "log point 2 committed at index 101: it was started"),
        (AT_S * 1000 + 3241, "exit code 0 after 3.2 s"),
        (AT_S * 1000 + 3300, "succeeded; recorded at index 105"),
    ]


def test_a_failure_tells_its_exit_code() -> None:
    told = why([ran(state=S.FAILED, exit_code=2, detail="no such table")])
    assert told.verdict.endswith("and failed: exit code 2 (no such table)")


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.NONE])
def test_every_reason_for_skipping_has_a_sentence(reason: Reason) -> None:
    told = why([unbegun(reason=reason)])
    assert told.verdict == f"it did not run, it was skipped: {SENTENCES[reason]}"
    assert len(SENTENCES[reason]) > 10
    assert told.story == [
        (AT_S * 1000 + 3300, f"skipped: {SENTENCES[reason]}; recorded at index 105")
    ]


def test_every_reason_is_known() -> None:
    assert set(SENTENCES) == set(Reason)


def test_an_instant_in_a_skipped_range_tells_the_range() -> None:
    skipped = unbegun(kind=RowKind.RANGE, reason=Reason.PAUSED, last_s=AT_S + 2 * 86_400, count=3)
    told = why([skipped])
    assert told.verdict == "it did not run, it was skipped: the job was paused"
    assert "for 3 instants from 2026-03-20T02:30:00Z to 2026-03-22T02:30:00Z" in told.story[0][1]


def test_a_launch_that_was_cancelled_tells_by_whom() -> None:
    told = why([ran(state=S.CANCELLED, reason=Reason.KILLED, by="ann")])
    assert told.verdict.endswith("and was cancelled: somebody had it killed (by ann)")
    told = why([unbegun(state=S.CANCELLED, reason=Reason.REPLACED, by="ann")])
    assert "a newer launch of the job took its place" in told.verdict
    assert told.verdict.startswith("it did not run")


def test_a_replaced_launch_was_cancelled_by_no_person() -> None:
    told = why([ran(state=S.CANCELLED, reason=Reason.REPLACED, by="a newer launch", exit_code=143)])
    assert told.verdict == (
        "it ran on worker-7, 41 ms late, and was cancelled: a newer launch of the job took its "
        "place, as overlap=replace asks"
    )


def test_what_a_pause_skipped_is_told_with_who_until_when_and_why() -> None:
    until_ms = parse_time("2026-03-21T00:00:00Z") * 1000
    note = Note(NoteCode.PAUSED, ("ann", until_ms, "new disks"))
    told = why([unbegun(reason=Reason.PAUSED, note=note)])
    assert told.verdict == (
        "it did not run, it was skipped: the job was paused by ann until 2026-03-21T00:00:00Z: new "
        "disks"
    )


def test_a_backfill_is_told_as_one_whatever_was_there_before() -> None:
    again = ran(by="ann", attempt=1, begun_at_ms=AT_S * 1000 + 7_200_000)
    in_range = unbegun(kind=RowKind.RANGE, reason=Reason.MISSED, count=3, last_s=AT_S + 2 * 86_400)
    for before in ([], [unbegun(reason=Reason.MISSED)], [in_range]):
        told = why([*before, again])
        assert told.verdict.endswith("and succeeded; it was a backfill, ann asked for it")
        assert (AT_S * 1000 + 7_200_000, "ann had it launched again") in told.story


def test_a_backfill_that_waits_is_told_as_one() -> None:
    due = open_row(AT_S, 0, 0, S.DUE, by="ann")
    told = why([unbegun(reason=Reason.MISSED)], due, now="2026-03-20T02:31:00Z")
    assert told.verdict.endswith("waits to be begun; it was a backfill, ann asked for it")
    assert [line for line, _ in told.story] == [AT_S * 1000 + 3300]


def test_who_kills_a_launch_did_not_ask_for_it() -> None:
    told = why(
        [unbegun(reason=Reason.MISSED), ran(state=S.CANCELLED, reason=Reason.KILLED, by="bo")]
    )
    assert "backfill" not in told.verdict
    assert all("launched again" not in line for _, line in told.story)


def test_a_queued_launch_names_the_one_it_waits_for() -> None:
    waiting = "default/backup@2026-03-19T02:30:00Z of the same job is not over (overlap=queue)"
    told = why([], open_row(AT_S, 0, 0, S.DUE), waiting=waiting, now="2026-03-20T02:31:00Z")
    assert told.verdict == f"it is due since 1 min 0 s and waits to be begun: {waiting}"


def test_a_launch_that_was_begun_and_never_started_is_told_so() -> None:
    told = why([ran(state=S.FAILED, reason=Reason.USER, launched_index=0, started_ms=0)])
    assert told.verdict == (
        "it was begun on worker-7, was not started, and failed: the executor may not run it as "
        "the user that the job names"
    )


def test_what_its_executor_killed_and_told_is_no_mystery() -> None:
    told = why([ran(state=S.FAILED, reason=Reason.EXECUTOR_LOST, exit_code=137)])
    assert "its executor killed it" in told.verdict
    assert "nobody can know" not in told.verdict


def test_a_lost_launch_and_its_late_report() -> None:
    lost = ran(state=S.LOST, reason=Reason.EXECUTOR_LOST, finished_ms=0, exit_code=-1)
    assert why([lost]).verdict == (
        "it was begun on worker-7 and was lost: its executor was lost: nobody can know what became "
        "of it"
    )
    news = unbegun(
        kind=RowKind.AMENDMENT, state=S.SUCCEEDED, attempt=1, exit_code=0, ended_index=300,
        ended_at_ms=AT_S * 1000 + 90_000,
    )  # fmt: skip
    told = why([lost, news])
    assert told.verdict.endswith("late report: attempt 1 succeeded after all")
    assert told.story[-1] == (
        AT_S * 1000 + 90_000,
        "late report about attempt 1, recorded at index 300: it succeeded after all with exit code "
        "0; the launch stays recorded as lost, nothing reopens",
    )


def test_late_report_without_its_row_is_still_told() -> None:
    news = unbegun(kind=RowKind.AMENDMENT, state=S.SUCCEEDED, attempt=1)
    assert "its row is older than what is kept here" in why([news]).verdict


def test_another_leader_between_two_attempts_is_told() -> None:
    lost = ran(state=S.LOST, finished_ms=0)
    again = ran(
        attempt=2, epoch=R2, begun_at_ms=AT_S * 1000 + 9000, begun_index=120, launched_index=121,
        started_ms=AT_S * 1000 + 9020, launched_at_ms=AT_S * 1000 + 9050,
        finished_ms=AT_S * 1000 + 9100, ended_at_ms=AT_S * 1000 + 9200, ended_index=130, by="ann",
    )  # fmt: skip
    told = why([lost, again])
    lines = [line for _, line in told.story]
    assert "ann had it launched again" in lines
    assert "r2 leads by now, in term 5; the attempt before was begun by r1 in term 4" in lines
    assert told.verdict == (
        "it ran on worker-7, 9.0 s late, attempt 2, and succeeded; it was a backfill, ann asked for"
        " it"
    )
    assert [at for at, _ in told.story] == sorted(at for at, _ in told.story)


def test_a_log_point_2_long_after_the_start_tells_of_a_takeover() -> None:
    told = why([ran(launched_at_ms=AT_S * 1000 + 12_041)])
    (line,) = [line for _, line in told.story if "log point 2" in line]
    assert "12.0 s after the fact" in line
    assert "whoever led then found it begun and settled it" in line


def test_open_launches_are_told_by_their_state() -> None:
    now = "2026-03-20T02:31:00Z"
    due = open_row(AT_S, 0, 0, S.DUE)
    assert why([], due, now=now).verdict == "it is due since 1 min 0 s and waits to be begun"
    begun = open_row(
        AT_S, 0, 1, S.BEGUN, begun_index=9, begun_at_ms=AT_S * 1000, epoch=R1, executor="w1"
    )
    told = why([], begun, now=now)
    assert "stands between its log points" in told.verdict
    assert "w1 has not said yet" in told.verdict
    assert "log point 1 committed at index 9 by r1" in told.story[0][1]
    running = open_row(
        AT_S, 0, 1, S.LAUNCHED, begun_index=9, begun_at_ms=AT_S * 1000, launched_index=10,
        started_ms=AT_S * 1000 + 500, launched_at_ms=AT_S * 1000 + 600, executor="w1",
    )  # fmt: skip
    told = why([], running, now=now)
    assert told.verdict == "it is running: attempt 1 on w1, for 59.5 s so far"
    assert len(told.story) == 3


def test_a_launch_that_was_refused_and_is_due_again_says_so() -> None:
    due = open_row(AT_S, 0, 1, S.DUE, begun_index=9, detail="no free slot")
    verdict = why([], due, now="2026-03-20T02:31:00Z").verdict
    assert verdict.endswith("attempt 1 was taken back (no free slot)")


def test_an_open_attempt_after_a_lost_one_tells_both() -> None:
    lost = ran(state=S.LOST, finished_ms=0)
    again = open_row(AT_S, 0, 2, S.BEGUN, begun_index=200, begun_at_ms=AT_S * 1000 + 9000, epoch=R2)
    lines = [line for _, line in why([lost], again).story]
    assert any("r2 leads by now" in line for line in lines)
    assert any("attempt 2: log point 1" in line for line in lines)


def test_a_time_off_the_schedule_names_its_neighbours() -> None:
    assert why(at="2026-03-20T02:31:00Z").verdict == (
        "it is no instant of the schedule 30 2 * * * in UTC: the one before is 2026-03-20T02:30:00Z"
        ", the next is 2026-03-21T02:30:00Z"
    )


def test_a_placed_schedule_tells_where_it_was_placed() -> None:
    placed = job(Schedule("? 2 * * *", "17 2 * * *", placement=1))
    assert "? 2 * * * (placed at 17 2 * * *) in UTC" in why(of=placed).verdict


def test_a_time_before_after_and_between_declarations() -> None:
    assert why(at="2026-02-20T02:30:00Z").verdict == (
        "the job was not declared yet, it was first applied at 2026-03-01T12:00:00Z"
    )
    spans = (
        Span(3, parse_time("2026-03-01T12:00:00Z"), parse_time(AT), NIGHTLY),
        Span(5, parse_time("2026-04-01T12:00:00Z"), parse_time("2026-05-01T12:00:00Z"), NIGHTLY),
    )
    gone = AuditedJob("default/backup", spans, parse_time("2027-01-01T00:00:00Z"))
    assert why(of=gone, at="2026-03-21T02:30:00Z").verdict == (
        "the job was removed at that time, and declared again at 2026-04-01T12:00:00Z"
    )
    assert why(of=gone, at="2026-06-21T02:30:00Z").verdict == (
        "the job had been removed by then, at 2026-05-01T12:00:00Z"
    )


def test_a_job_that_never_was() -> None:
    told = explain(None, AT_S, [], None, AT_S)
    assert told == Explanation("there is no job of this name, and there never was", [])


def test_the_future_says_when_and_whether_a_pause_will_hold() -> None:
    now = "2026-03-20T02:28:30Z"
    of = msgspec.structs.replace(job(), revision=5)  # its command was changed since
    assert why(of=of, now=now).verdict == "it is due in 1 min 30 s, by revision 5"
    pause = Paused("holidays", "ann", parse_time("2026-03-18T09:00:00Z") * 1000, 0)
    assert why(now=now, pause=pause).verdict == (
        "it is due in 1 min 30 s, and will be skipped; the job has been paused since "
        "2026-03-18T09:00:00Z, by ann (holidays) until resumed"
    )
    until = Paused("", "", pause.since_ms, until_ms=AT_S * 1000 + 1)
    assert why(now=now, pause=until).verdict.endswith("by somebody until 2026-03-20T02:30:00Z")
    over = Paused("", "", pause.since_ms, until_ms=AT_S * 1000)
    assert "skipped" not in why(now=now, pause=over).verdict


def test_a_due_instant_without_a_row_is_not_accounted_for_yet_or_a_fault() -> None:
    behind = job(horizon="2026-03-20T02:29:00Z")
    assert "accounts reach to 2026-03-20T02:29:00Z" in why(of=behind).verdict
    assert "run audit" in why().verdict


# Europe/Berlin: forward on 2026-03-29 at 01:00Z, back on 2026-10-25 at 01:00Z.


def test_a_local_time_that_did_not_exist_is_told_at_the_instant_after_the_gap() -> None:
    told = why([ran(scheduled_s=parse_time("2026-03-29T01:00:00Z"))], of=job(BERLIN),
               at="2026-03-29T01:00:00Z")  # fmt: skip
    assert told.verdict.endswith(
        "02:30 did not exist in Europe/Berlin that day, the clock went forward over it; so it was "
        "due at the first instant after the gap, 03:00"
    )


def test_a_time_beside_a_gap_is_led_to_the_launch() -> None:
    verdict = why(of=job(BERLIN), at="2026-03-29T01:30:00Z").verdict
    assert "02:30 did not exist in Europe/Berlin that day" in verdict
    assert verdict.endswith("(2026-03-29T01:00:00Z)")


def test_the_second_pass_of_a_repeated_hour_belongs_to_the_first() -> None:
    verdict = why(of=job(BERLIN), at="2026-10-25T01:30:00Z").verdict
    assert verdict.endswith(
        "02:30 came twice in Europe/Berlin that day, the clock was set back; the launch belongs to "
        "the first time, 2026-10-25T00:30:00Z"
    )
    first = why([ran(scheduled_s=parse_time("2026-10-25T00:30:00Z"))], of=job(BERLIN),
                at="2026-10-25T00:30:00Z")  # fmt: skip
    assert "twice" not in first.verdict


def test_an_interval_job_near_a_change_of_the_clock_is_told_of_it() -> None:
    quarter = job(Schedule("*/15 2 * * *", "*/15 2 * * *", "Europe/Berlin"))
    verdict = why(of=quarter, at="2026-03-29T01:15:00Z").verdict
    assert "was set forward from 02:00 to 03:00 at 2026-03-29T01:00:00Z" in verdict
    assert "clock" not in why(of=quarter, at="2026-04-09T03:15:00Z").verdict


def test_a_trigger_by_hand_is_not_explained_by_clocks() -> None:
    row = ran(scheduled_s=parse_time("2026-10-25T01:30:00Z"), trigger=1, by="ann")
    verdict = why([row], of=job(BERLIN), at="2026-10-25T01:30:00Z").verdict
    assert verdict == "it ran on worker-7, and succeeded"


def test_a_period_has_no_zone_and_no_clock_changes() -> None:
    every = job(Schedule("@every 90s", every_s=90))
    verdict = why(of=every, at="2026-03-29T01:00:01Z").verdict
    assert verdict.startswith("it is no instant of the schedule @every 90s: ")
    assert "clock" not in verdict


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_999, "59.9 s"),
        (61_000, "1 min 1 s"),
        (7_500_000, "2 h 5 min"),
        (200_000_000, "2 days 7 h"),
    ],
)
def test_spans_of_time_are_written_for_people(span_ms: int, text: str) -> None:
    assert format_ms(span_ms) == text


def test_a_lost_launch_without_a_reason_still_has_a_sentence() -> None:
    assert "nobody can know" in sentence_of(ran(state=S.LOST, reason=Reason.NONE))
