"""What an executor answers to orders: every refusal, and what each leaves in the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher.executor.ledger import Ledger
from launcher.executor.row import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    UNKNOWN,
    Change,
)
from launcher.executor.rules import Conditions, Settled, settle
from launcher.executor.works import WORKS_MAX, Works, spec_of
from launcher.rpc.v1 import pool_pb2
from launcher.work import WorkSpec
from tests.unit.rows_rig import Start, answered, ended, found, insert, name_of, orders, started

A, B, C = (f"default/{job}@2026-11-20T15:00:00Z#1" for job in "abc")
NOW_MS = 1_000_000
WORK = msgspec.msgpack.encode(WorkSpec(("/bin/sh", "-c", "true")))
FINE = Conditions(wall_ms=NOW_MS, lease_valid=True, slots_free=8)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "journal")
    yield ledger
    ledger.close()


def start(name: str = A, *, index: int = 10, spec: bytes = WORK, late_ms: int = 0) -> Start:
    return Start(name, spec, NOW_MS - late_ms, index)


def give(
    ledger: Ledger,
    conditions: Conditions = FINE,
    *,
    term: int = 5,
    starts: Sequence[Start] = (),
    **fields: Any,
) -> Settled:
    """Settle one message of the leader in a transaction of its own."""
    message = orders(*starts, epoch=(0, term), **fields)
    with ledger.transaction():
        return settle(ledger, message, Works(), conditions)


def changed(**fields: Any) -> Conditions:
    return msgspec.structs.replace(FINE, **fields)


def fates(settled: Settled) -> list[tuple[str, int]]:
    return [(name_of(row.row), row.fate) for row in answered(settled)]


def test_a_start_is_accepted_and_stands_in_the_ledger(ledger: Ledger) -> None:
    settled = give(ledger, starts=[start(A), start(B, index=11)])
    assert [one.name for one in settled.accepted] == [A, B]
    assert settled.accepted[0].spec.argv == ("/bin/sh", "-c", "true")
    assert settled.accepted[0].batch.epoch == "0.5.r1"
    assert not answered(settled)
    row = found(ledger)[B]
    assert (row.fate, row.index, row.epoch) == (ACCEPTED, 11, "0.5.r1")
    assert row.is_pending


def test_a_start_at_its_very_last_moment_is_accepted(ledger: Ledger) -> None:
    assert give(ledger, starts=[start(late_ms=0)]).accepted
    assert not give(ledger, starts=[start(B, late_ms=1)]).accepted


@pytest.mark.parametrize(
    ("conditions", "order", "detail"),
    [
        (changed(lease_valid=False), start(), "lease"),
        (FINE, start(late_ms=250), "250 ms too late"),
        (FINE, start(spec=b"\xc1 no msgpack"), "cannot be read"),
        (FINE, start(spec=msgspec.msgpack.encode(WorkSpec(()))), "cannot be read"),
        (changed(slots_free=0), start(), "no free slot"),
        (changed(obstacle="the executor is stopping"), start(), "stopping"),
    ],
)
def test_a_refusal_is_in_the_ledger_and_stands_for_ever(
    ledger: Ledger, conditions: Conditions, order: Start, detail: str
) -> None:
    settled = give(ledger, conditions, starts=[order])
    assert fates(settled) == [(A, REFUSED)]
    assert detail in answered(settled)[0].detail
    assert not settled.accepted
    again = give(ledger, starts=[start()])
    assert fates(again) == [(A, REFUSED)]
    assert not again.accepted


def test_slots_are_counted_within_a_message(ledger: Ledger) -> None:
    settled = give(ledger, changed(slots_free=1), starts=[start(A), start(B)])
    assert [one.name for one in settled.accepted] == [A]
    assert fates(settled) == [(B, REFUSED)]


def test_a_name_twice_in_a_message_is_started_once(ledger: Ledger) -> None:
    settled = give(ledger, starts=[start(A), start(A)])
    assert len(settled.accepted) == 1
    assert not answered(settled)


def test_a_pending_row_is_not_answered_before_it_is_known_whether_it_started(
    ledger: Ledger,
) -> None:
    give(ledger, starts=[start()])
    assert not answered(give(ledger, starts=[start()], fences=[A]))
    with ledger.transaction():
        started(ledger, A, 4711, 1, NOW_MS)
    settled = give(ledger, starts=[start()])
    assert fates(settled) == [(A, ACCEPTED)]
    assert not settled.accepted


def test_a_known_name_with_other_work_is_answered_and_noticed(ledger: Ledger) -> None:
    give(ledger, changed(lease_valid=False), starts=[start()])
    other = msgspec.msgpack.encode(WorkSpec(("/bin/other",)))
    settled = give(ledger, starts=[start(spec=other)])
    assert settled.mismatched == [A]
    assert fates(settled) == [(A, REFUSED)]


def test_an_older_epoch_changes_nothing_and_is_answered_by_nothing(ledger: Ledger) -> None:
    # Rule R3
    give(ledger, term=6)
    settled = give(ledger, term=5, starts=[start()], fences=[B], acks=[C], floor=100)
    assert settled.is_stale
    assert not settled.accepted
    assert not answered(settled)
    assert not ledger.unacked()
    assert ledger.floor == 0


def test_a_higher_epoch_is_remembered_with_what_it_ordered(ledger: Ledger) -> None:
    give(ledger, term=6, starts=[start()])
    again = Ledger(ledger.path)
    assert (again.highest.term, set(found(again))) == (6, {A})
    again.close()


def test_a_start_at_the_floor_is_answered_as_unknown_fate_and_leaves_no_row(
    ledger: Ledger,
) -> None:
    # It may have run here and been forgotten: REFUSED would claim that it never did.
    give(ledger, floor=10)
    settled = give(ledger, starts=[start(A, index=10), start(B, index=11)])
    assert fates(settled) == [(A, INTERRUPTED)]
    assert [one.name for one in settled.accepted] == [B]
    assert set(found(ledger)) == {B}


def test_a_fence_of_an_unknown_name_is_a_tombstone(ledger: Ledger) -> None:
    assert fates(give(ledger, fences=[A, A])) == [(A, FENCED)]
    again = Ledger(ledger.path)
    assert found(again)[A].fate == FENCED
    again.close()
    settled = give(ledger, starts=[start()])
    assert fates(settled) == [(A, FENCED)]
    assert not settled.accepted


def test_a_fence_of_a_known_name_is_answered_with_what_became_of_it(ledger: Ledger) -> None:
    with ledger.transaction():
        insert(ledger, A)
        ended(ledger, A, exit_code=3)
    settled = give(ledger, fences=[A])
    assert fates(settled) == [(A, ENDED)]
    assert answered(settled)[0].exit_code == 3


def test_a_kill_reaches_what_runs_and_is_answered_otherwise(ledger: Ledger) -> None:
    give(ledger, starts=[start(A)], fences=[B])
    kills = [(name, 8) for name in (A, B, C)]
    settled = give(ledger, kills=kills)
    assert settled.kills == [(A, 8)]
    assert fates(settled) == [(B, FENCED), (C, UNKNOWN)]
    assert C not in found(ledger)


def test_acks_and_floor_forget(ledger: Ledger) -> None:
    give(ledger, changed(lease_valid=False), starts=[start(A, index=10), start(B, index=11)])
    settled = give(ledger, acks=[A, B], floor=10)
    assert settled.forgotten == 1
    assert set(found(ledger)) == {B}
    assert not ledger.unacked()


def test_an_executor_that_executes_nothing_reports_success_at_once(ledger: Ledger) -> None:
    settled = give(ledger, changed(executes=False, slots_free=0), starts=[start(A), start(B)])
    assert fates(settled) == [(A, ENDED), (B, ENDED)]
    report = answered(settled)[0].recollection()
    assert (report.exit_code, report.started_ms, report.finished_ms) == (0, NOW_MS, NOW_MS)
    assert not settled.accepted


# ---- handlers


def handled(handler: str = "app.mail", payload: bytes = b"{}", **fields: Any) -> bytes:
    return msgspec.msgpack.encode(WorkSpec((), handler=handler, payload=payload, **fields))


SERVED = changed(slots_free=0, handlers={"app.mail": "app", "b": "other"}, groups_free={"app": 1})


def test_work_of_a_handler_takes_a_slot_of_the_group_that_serves_it(ledger: Ledger) -> None:
    first, second = start(A, spec=handled()), start(B, spec=handled())
    settled = give(ledger, SERVED, starts=[first, second])
    assert [one.spec.handler for one in settled.accepted] == ["app.mail"]
    assert fates(settled) == [(B, REFUSED)]
    assert answered(settled)[0].detail == (
        "no free slot in group app of workers, which serves app.mail"
    )
    assert found(ledger)[A].is_pending


def test_a_handler_that_nobody_serves_is_refused_by_name(ledger: Ledger) -> None:
    settled = give(ledger, SERVED, starts=[start(A, spec=handled("c"))])
    assert answered(settled)[0].detail == "no worker here serves c"


def test_slots_that_were_taken_are_gone_for_the_next_message_of_the_turn(ledger: Ledger) -> None:
    conditions = changed(slots_free=3, handlers={"app.mail": "app"}, groups_free={"app": 2})
    orders = [start(A, spec=handled()), start(B)]
    after = give(ledger, conditions, starts=orders).left
    assert after is not None
    assert (after.slots_free, after.groups_free) == (2, {"app": 1})
    assert conditions.groups_free == {"app": 2}


def test_work_is_a_command_or_a_handler_and_not_both() -> None:
    assert spec_of(handled()) is not None
    assert spec_of(msgspec.msgpack.encode(WorkSpec(("/bin/true",), handler="a"))) is None
    assert spec_of(msgspec.msgpack.encode(WorkSpec(("",)))) is None


def test_handlers_need_no_workers_where_nothing_is_executed(ledger: Ledger) -> None:
    settled = give(ledger, changed(executes=False), starts=[start(A, spec=handled())])
    assert fates(settled) == [(A, ENDED)]


def test_a_fenced_row_that_has_not_begun_is_withdrawn(ledger: Ledger) -> None:
    give(ledger, starts=[start(A), start(B)])
    with ledger.transaction():
        started(ledger, B, 4711, 1, NOW_MS)
    settled = give(ledger, fences=[A, B, C])
    assert settled.withdrawn == [A]
    assert sorted(fates(settled)) == [(B, ACCEPTED), (C, FENCED)]


# ---- batches


def batches(*rows: int, **fields: Any) -> pool_pb2.Orders:
    """A message with one batch, of job j, whose work has number 7."""
    message = pool_pb2.Orders()
    message.epoch.term = 5
    message.works.add(number=7, job="default/j", spec=WORK)
    given = {"index": 10, "works": [7], "scheduled_s": [60], "not_after_ms": [NOW_MS]} | fields
    message.batches.add(rows=rows, **given)
    return message


def settled(ledger: Ledger, message: pool_pb2.Orders, works: Works | None = None) -> Settled:
    with ledger.transaction():
        return settle(ledger, message, works or Works(), FINE)


def test_a_batch_is_accepted_as_a_whole_and_each_row_has_its_name(ledger: Ledger) -> None:
    message = batches(3, 1, 5, attempts=[1, 2, 1], triggers=[0, 0, 4], parts=[2, 1, 1])
    accepted = settled(ledger, message).accepted
    time = "1970-01-01T00:01:00Z"
    assert [(one.row, one.name) for one in accepted] == [
        (3, f"default/j@{time}#1/2"),
        (4, f"default/j@{time}#2"),
        (9, f"default/j@{time}+t4#1"),
    ]
    assert sorted(found(ledger)) == sorted(one.name for one in accepted)


def test_rows_that_come_again_are_answered_and_the_others_of_their_batch_are_new(
    ledger: Ledger,
) -> None:
    settled(ledger, batches(0, 1))
    with ledger.transaction():
        ledger.changed([Change(10, ENDED, 0, 0, [1], [NOW_MS], [NOW_MS])])
    again = settled(ledger, batches(0, 1, 1))
    assert [one.row for one in again.accepted] == [2]
    assert [(row.row, row.fate) for row in answered(again)] == [(1, ENDED)]  # row 0 is pending


def test_one_row_of_a_batch_is_refused_and_the_others_are_accepted(ledger: Ledger) -> None:
    said = settled(ledger, batches(0, 1, 1, not_after_ms=[NOW_MS, -1, 1]))
    assert [one.row for one in said.accepted] == [0, 2]
    assert [(row.row, row.fate, row.detail) for row in answered(said)] == [
        (1, REFUSED, "1 ms too late")
    ]


def test_work_is_said_once_in_a_stream(ledger: Ledger) -> None:
    works = Works()
    settled(ledger, batches(0), works)
    message = batches(0, index=11)
    del message.works[:]
    assert settled(ledger, message, works).accepted[0].spec.argv == ("/bin/sh", "-c", "true")
    assert settled(ledger, message).problem == "work 7 was not told in this stream"


def test_a_number_that_comes_again_means_other_work_from_there_on(ledger: Ledger) -> None:
    works = Works()
    first = settled(ledger, batches(0), works).accepted[0]
    message = batches(0, index=11)
    message.works[0].job = "default/k"
    second = settled(ledger, message, works).accepted[0]
    assert [one.name.partition("@")[0] for one in (first, second)] == ["default/j", "default/k"]
    message.works[0].job = ""
    assert settled(ledger, message, works).problem


@pytest.mark.parametrize(
    "message",
    [
        batches(),
        batches(1, 0),
        batches(0, 1, 1, works=[7, 7]),
        batches(0, 1, scheduled_s=[1, 2, 3]),
        batches(0, works=[8]),
        batches((1 << 32) - 1, 1),
    ],
)
def test_orders_that_no_leader_gives_change_nothing(
    ledger: Ledger, message: pool_pb2.Orders
) -> None:
    message.acks.add(index=10, rows=[0])
    message.floor = 3
    said = settled(ledger, message)
    assert said.problem
    assert not said.accepted
    assert (ledger.count, ledger.floor) == (0, 0)


def test_numbers_of_work_are_bounded(ledger: Ledger) -> None:
    message = batches(0)
    message.works[0].number = WORKS_MAX
    assert settled(ledger, message).problem


def test_a_job_whose_name_is_none_is_never_started(ledger: Ledger) -> None:
    message = batches(0)
    message.works[0].job = "../../etc/passwd"
    said = settled(ledger, message)
    assert (said.accepted, answered(said)[0].fate) == ([], REFUSED)
