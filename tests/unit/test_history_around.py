"""What stood around a launch: manual launches of its second, and what replaced it."""

from __future__ import annotations

from cron.history.story import NAMED_MAX, manual_launches, newer_launch
from cron.launch_state import LaunchState
from cron.state.rows import Row, RowKind
from launcher.protocol.status import Reason
from tests.unit.history_rig import open_row
from tests.unit.test_history_why import AT, AT_S, ran, unbegun

S = LaunchState
JOB = "default/backup"


def by_hand(trigger: int = 1, **fields: object) -> Row:
    return ran(**({"trigger": trigger, "by": "ann"} | fields))


def manual(*rows: Row, open_rows: tuple[Row, ...] = ()) -> str:
    return manual_launches(rows, open_rows, JOB, AT_S)


def test_nothing_is_said_where_nobody_launched_anything_by_hand() -> None:
    assert manual(ran(), by_hand(scheduled_s=AT_S + 1)) == ""


def test_manual_launches_of_the_second_are_named_with_maker_and_outcome() -> None:
    running = open_row(AT_S, 3, 1, S.LAUNCHED, begun_index=9, by="cy")
    skipped = unbegun(trigger=2, reason=Reason.OVERLAP, by="bo")
    assert manual(ran(), by_hand(), skipped, open_rows=(running,)) == (
        f"; launched by hand in that second: {JOB}@{AT}+t1 by ann, succeeded; "
        f"{JOB}@{AT}+t2 by bo, skipped (overlap); {JOB}@{AT}+t3 by cy, launched and not over"
    )


def test_a_manual_launch_keeps_its_maker_whoever_ended_it_and_is_told_by_its_last_row() -> None:
    lost = by_hand(state=S.LOST, by="ann")
    killed = by_hand(state=S.CANCELLED, reason=Reason.KILLED, by="bo", attempt=2)
    news = by_hand(kind=RowKind.AMENDMENT, by="")
    assert manual(lost, killed, news).endswith("+t1 by ann, cancelled (killed)")


def test_of_many_manual_launches_some_are_named_and_the_others_counted() -> None:
    told = manual(*(by_hand(trigger) for trigger in range(1, NAMED_MAX + 3)))
    assert told.count("succeeded") == NAMED_MAX
    assert told.endswith("; and 2 more")


def replaced(**fields: object) -> Row:
    return ran(**({"state": S.CANCELLED, "reason": Reason.REPLACED, "ended_index": 105} | fields))


def test_a_replaced_launch_names_the_first_newer_one_that_was_begun() -> None:
    minute, two = AT_S + 60, AT_S + 120
    given_up = replaced(scheduled_s=minute, begun_index=0, ended_index=110)
    newer = ran(scheduled_s=two, begun_index=111, ended_index=120)
    newest = ran(scheduled_s=AT_S + 180, begun_index=130, ended_index=140)
    rows = [newest, newer, given_up, replaced()]
    assert newer_launch(replaced(), rows, []) == f"; the newer launch is {JOB}@2026-03-20T02:32:00Z"
    assert newer_launch(given_up, rows, []) == f"; the newer launch is {JOB}@2026-03-20T02:32:00Z"


def test_a_newer_launch_may_be_manual_or_still_wait() -> None:
    waits = open_row(AT_S, 1, 0, S.DUE)
    runs = open_row(AT_S, 2, 1, S.LAUNCHED, begun_index=106)
    assert newer_launch(replaced(), [], [waits]).endswith("+t1")
    assert newer_launch(replaced(), [], [waits, runs]).endswith("+t2")


def test_what_is_older_or_was_begun_before_replaced_nothing() -> None:
    older = ran(scheduled_s=AT_S - 60, begun_index=200)
    before = ran(scheduled_s=AT_S + 60, begun_index=90)
    running = open_row(AT_S + 60, 0, 1, S.LAUNCHED, begun_index=90)
    assert newer_launch(replaced(), [older, before, replaced()], [running]) == ""
    assert newer_launch(ran(), [ran(scheduled_s=AT_S + 60, begun_index=200)], []) == ""
