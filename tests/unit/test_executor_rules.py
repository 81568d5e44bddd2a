"""What an executor answers to orders: every refusal, and what each leaves in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher.executor.ledger import Ledger
from launcher.executor.row import ACCEPTED, ENDED, FENCED, INTERRUPTED, REFUSED, UNKNOWN, Row
from launcher.executor.rules import Conditions, Settled, settle, work_of
from launcher.limits import WORK_BYTES_CACHED
from launcher.rpc.v1 import pool_pb2
from launcher.work import WorkSpec

A, B, C = (f"default/{job}@2026-11-20T15:00:00Z#1" for job in "abc")
NOW_MS = 1_000_000
WORK = msgspec.msgpack.encode(WorkSpec(("/bin/sh", "-c", "true")))
FINE = Conditions(wall_ms=NOW_MS, lease_valid=True, slots_free=8)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "journal")
    yield ledger
    ledger.close()


def start(
    name: str = A, *, index: int = 10, spec: bytes = WORK, late_ms: int = 0
) -> pool_pb2.Start:
    return pool_pb2.Start(
        name=name, begun_index=index, not_after_ms=NOW_MS - late_ms, work=spec, scheduled_time="t"
    )


def give(ledger: Ledger, conditions: Conditions = FINE, *, term: int = 5, **fields: Any) -> Settled:
    """Settle one message of the leader in a transaction of its own."""
    epoch = pool_pb2.Epoch(lineage=0, term=term, replica="r1")
    with ledger.transaction():
        return settle(ledger, pool_pb2.Orders(epoch=epoch, **fields), conditions)


def changed(**fields: Any) -> Conditions:
    return msgspec.structs.replace(FINE, **fields)


def fates(settled: Settled) -> list[tuple[str, int]]:
    return [(row.name, row.fate) for row in settled.answers]


def test_a_start_is_accepted_and_stands_in_the_ledger(ledger: Ledger) -> None:
    settled = give(ledger, starts=[start(A), start(B, index=11)])
    assert [one.start.name for one in settled.accepted] == [A, B]
    assert settled.accepted[0].work.argv == ("/bin/sh", "-c", "true")
    assert str(settled.accepted[0].epoch) == "0.5.r1"
    assert not settled.answers
    row = ledger.rows([B])[B]
    assert (row.fate, row.begun_index, row.epoch, len(row.digest)) == (ACCEPTED, 11, "0.5.r1", 16)
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
    ledger: Ledger, conditions: Conditions, order: pool_pb2.Start, detail: str
) -> None:
    settled = give(ledger, conditions, starts=[order])
    assert fates(settled) == [(A, REFUSED)]
    assert detail in settled.answers[0].detail
    assert not settled.accepted
    again = give(ledger, starts=[start()])
    assert fates(again) == [(A, REFUSED)]
    assert not again.accepted


def test_slots_are_counted_within_a_message(ledger: Ledger) -> None:
    settled = give(ledger, changed(slots_free=1), starts=[start(A), start(B)])
    assert [one.start.name for one in settled.accepted] == [A]
    assert fates(settled) == [(B, REFUSED)]


def test_a_name_twice_in_a_message_is_started_once(ledger: Ledger) -> None:
    settled = give(ledger, starts=[start(A), start(A)])
    assert len(settled.accepted) == 1
    assert not settled.answers


def test_a_pending_row_is_not_answered_before_it_is_known_whether_it_started(
    ledger: Ledger,
) -> None:
    give(ledger, starts=[start()])
    assert not give(ledger, starts=[start()], fences=[A]).answers
    with ledger.transaction():
        ledger.started([(A, 4711, 1, NOW_MS)])
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
    assert not settled.answers
    assert not ledger.unacked()
    assert ledger.floor == 0


def test_a_higher_epoch_is_remembered_with_what_it_ordered(ledger: Ledger) -> None:
    give(ledger, term=6, starts=[start()])
    again = Ledger(ledger.path)
    assert (again.highest.term, set(again.rows([A]))) == (6, {A})
    again.close()


def test_a_start_at_the_floor_is_answered_as_unknown_fate_and_leaves_no_row(
    ledger: Ledger,
) -> None:
    # It may have run here and been forgotten: REFUSED would claim that it never did.
    give(ledger, floor=10)
    settled = give(ledger, starts=[start(A, index=10), start(B, index=11)])
    assert fates(settled) == [(A, INTERRUPTED)]
    assert [one.start.name for one in settled.accepted] == [B]
    assert set(ledger.rows([A, B])) == {B}


def test_a_fence_of_an_unknown_name_is_a_tombstone(ledger: Ledger) -> None:
    assert fates(give(ledger, fences=[A, A])) == [(A, FENCED)]
    again = Ledger(ledger.path)
    assert again.rows([A])[A].fate == FENCED
    again.close()
    settled = give(ledger, starts=[start()])
    assert fates(settled) == [(A, FENCED)]
    assert not settled.accepted


def test_a_fence_of_a_known_name_is_answered_with_what_became_of_it(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.insert([Row(A, ENDED, 10, started_ms=1, finished_ms=2, exit_code=3)])
    settled = give(ledger, fences=[A])
    assert fates(settled) == [(A, ENDED)]
    assert settled.answers[0].exit_code == 3


def test_a_kill_reaches_what_runs_and_is_answered_otherwise(ledger: Ledger) -> None:
    give(ledger, starts=[start(A)], fences=[B])
    kills = [pool_pb2.Kill(name=name, reason=8) for name in (A, B, C)]
    settled = give(ledger, kills=kills)
    assert settled.kills == [(A, 8)]
    assert fates(settled) == [(B, FENCED), (C, UNKNOWN)]
    assert not ledger.rows([C])


def test_acks_and_floor_forget(ledger: Ledger) -> None:
    give(ledger, changed(lease_valid=False), starts=[start(A, index=10), start(B, index=11)])
    settled = give(ledger, acks=[A, B], floor=10)
    assert settled.forgotten == 1
    assert set(ledger.rows([A, B])) == {B}
    assert not ledger.unacked()


def test_an_executor_that_executes_nothing_reports_success_at_once(ledger: Ledger) -> None:
    settled = give(ledger, changed(executes=False, slots_free=0), starts=[start(A), start(B)])
    assert fates(settled) == [(A, ENDED), (B, ENDED)]
    report = settled.answers[0].report()
    assert (report.exit_code, report.started_ms, report.finished_ms) == (0, NOW_MS, NOW_MS)
    assert not settled.accepted


# ---- handlers


def handled(handler: str = "app.mail", payload: bytes = b"{}", **fields: Any) -> bytes:
    return msgspec.msgpack.encode(WorkSpec((), handler=handler, payload=payload, **fields))


SERVED = changed(slots_free=0, handlers={"app.mail": "app", "b": "other"}, groups_free={"app": 1})


def test_work_of_a_handler_takes_a_slot_of_the_group_that_serves_it(ledger: Ledger) -> None:
    first, second = start(A, spec=handled()), start(B, spec=handled())
    settled = give(ledger, SERVED, starts=[first, second])
    assert [one.work.handler for one in settled.accepted] == ["app.mail"]
    assert fates(settled) == [(B, REFUSED)]
    assert settled.answers[0].detail == (
        "no free slot in group app of workers, which serves app.mail"
    )
    assert ledger.rows([A])[A].is_pending


def test_a_handler_that_nobody_serves_is_refused_by_name(ledger: Ledger) -> None:
    settled = give(ledger, SERVED, starts=[start(A, spec=handled("c"))])
    assert settled.answers[0].detail == "no worker here serves c"


def test_slots_that_were_taken_are_gone_for_the_next_message_of_the_turn(ledger: Ledger) -> None:
    conditions = changed(slots_free=3, handlers={"app.mail": "app"}, groups_free={"app": 2})
    orders = [start(A, spec=handled()), start(B)]
    after = give(ledger, conditions, starts=orders).left
    assert after is not None
    assert (after.slots_free, after.groups_free) == (2, {"app": 1})
    assert conditions.groups_free == {"app": 2}


def test_work_is_a_command_or_a_handler_and_not_both() -> None:
    assert work_of(handled()) is not None
    assert work_of(msgspec.msgpack.encode(WorkSpec(("/bin/true",), handler="a"))) is None
    assert work_of(msgspec.msgpack.encode(WorkSpec(("",)))) is None


def test_handlers_need_no_workers_where_nothing_is_executed(ledger: Ledger) -> None:
    settled = give(ledger, changed(executes=False), starts=[start(A, spec=handled())])
    assert fates(settled) == [(A, ENDED)]


def test_a_fenced_row_that_has_not_begun_is_withdrawn(ledger: Ledger) -> None:
    give(ledger, starts=[start(A), start(B)])
    with ledger.transaction():
        ledger.started([(B, 4711, 1, NOW_MS)])
    settled = give(ledger, fences=[A, B, C])
    assert settled.withdrawn == [A]
    assert sorted(fates(settled)) == [(B, ACCEPTED), (C, FENCED)]


def test_equal_work_is_decoded_once() -> None:
    assert work_of(bytes(bytearray(WORK))) is work_of(WORK)


def test_large_work_is_not_kept() -> None:
    large = handled(payload=b"x" * WORK_BYTES_CACHED)
    assert work_of(large) == work_of(large)
    assert work_of(large) is not work_of(large)
