"""What an executor answers to orders: every refusal, and what each leaves in the ledger."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher.executor.ledger import Ledger
from launcher.executor.refusals import LEASE_OVER, STOPPING, UNREADABLE, late_by
from launcher.executor.rows import (
    ENDED,
    INTERRUPTED,
    REFUSED,
)
from launcher.executor.rules import (
    WORKS_MAX,
    BadOrders,
    Conditions,
    Decisions,
    Works,
    decide,
    spec_of,
)
from launcher.protocol.names import SCHEDULED_S_MAX
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import WorkSpec
from tests.unit.rows_rig import Start, answered, found, name_of, orders

A, B, C = (f"default/{job}@2026-11-20T15:00:00Z#1" for job in "abc")
NOW_MS = 1_000_000
WORK = msgspec.msgpack.encode(WorkSpec(("/bin/sh", "-c", "true")))
FINE = Conditions(wall_ms=NOW_MS, lease_valid=True, groups_free={"": 8}, groups_idle={"": 8})


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
) -> Decisions:
    """Decide about one message of the leader in a transaction of its own."""
    message = orders(*starts, epoch=(0, term), **fields)
    return decided(ledger, message, conditions=conditions)


def decided(ledger: Ledger, message: pool_pb2.Orders, conditions: Conditions = FINE) -> Decisions:
    decisions = Decisions()
    with ledger.transaction():
        decide(ledger, message, Works(), copy.deepcopy(conditions), decisions)
    return decisions


def changed(**fields: Any) -> Conditions:
    return msgspec.structs.replace(FINE, **fields)


def statuses(decisions: Decisions) -> list[tuple[str, int]]:
    return [(name_of(row.row), row.status) for row in answered(decisions)]


@pytest.mark.parametrize(
    ("conditions", "order", "detail"),
    [
        (changed(lease_valid=False), start(), LEASE_OVER),
        (FINE, start(late_ms=250), late_by(250)),
        (FINE, start(spec=b"\xc1 no msgpack"), UNREADABLE),
        (FINE, start(spec=msgspec.msgpack.encode(WorkSpec(()))), UNREADABLE),
        (changed(groups_free={"": 0}), start(), "no free slot"),
        (changed(obstacle=STOPPING), start(), STOPPING),
    ],
)
def test_a_refusal_is_in_the_ledger_and_stands_for_ever(
    ledger: Ledger, conditions: Conditions, order: Start, detail: str
) -> None:
    decisions = give(ledger, conditions, starts=[order])
    assert statuses(decisions) == [(A, REFUSED)]
    assert detail in answered(decisions)[0].detail
    assert not decisions.accepted
    again = give(ledger, starts=[start()])
    assert statuses(again) == [(A, REFUSED)]
    assert not again.accepted


def test_a_known_name_with_other_work_is_answered_and_noticed(ledger: Ledger) -> None:
    give(ledger, changed(lease_valid=False), starts=[start()])
    other = msgspec.msgpack.encode(WorkSpec(("/bin/other",)))
    decisions = give(ledger, starts=[start(spec=other)])
    assert decisions.mismatched == [A]
    assert statuses(decisions) == [(A, REFUSED)]


def test_a_start_at_the_watermark_is_answered_as_unknown_status_and_leaves_no_row(
    ledger: Ledger,
) -> None:
    # It may have run here and been forgotten: REFUSED would claim that it never did.
    give(ledger, floor=10)
    decisions = give(ledger, starts=[start(A, index=10), start(B, index=11)])
    assert statuses(decisions) == [(A, INTERRUPTED)]
    assert [one.name for one in decisions.accepted] == [B]
    assert set(found(ledger)) == {B}


def test_an_executor_that_executes_nothing_reports_success_at_once(ledger: Ledger) -> None:
    full = changed(executes=False, groups_free={"": 0})
    decisions = give(ledger, full, starts=[start(A), start(B)])
    assert statuses(decisions) == [(A, ENDED), (B, ENDED)]
    report = answered(decisions)[0]
    assert (report.exit_code, report.started_ms, report.finished_ms) == (0, NOW_MS, NOW_MS)
    assert not decisions.accepted


def test_commands_without_a_free_slot_wait_in_the_order_in_which_they_came(ledger: Ledger) -> None:
    few = changed(groups_free={"": 2}, groups_idle={"": 1})
    decisions = give(ledger, few, starts=[start(A), start(B), start(C)])
    assert [(one.name, one.is_starting) for one in decisions.accepted] == [(A, True), (B, False)]
    assert statuses(decisions) == [(C, REFUSED)]
    rows = found(ledger)
    assert [rows[name].is_starting for name in (A, B)] == [True, False]


# ---- handlers


def handled(handler: str = "app.mail", payload: bytes = b"{}", **fields: Any) -> bytes:
    return msgspec.msgpack.encode(WorkSpec((), handler=handler, payload=payload, **fields))


SERVED = changed(handlers={"app.mail": "app", "b": "other"}, groups_free={"app": 1})


def test_a_handler_that_nobody_serves_is_refused_by_name(ledger: Ledger) -> None:
    decisions = give(ledger, SERVED, starts=[start(A, spec=handled("c"))])
    assert answered(decisions)[0].detail == "no worker here serves c"


def test_work_is_a_command_or_a_handler_and_not_both() -> None:
    assert spec_of(handled()) is not None
    assert spec_of(msgspec.msgpack.encode(WorkSpec(("/bin/true",), handler="a"))) is None
    assert spec_of(msgspec.msgpack.encode(WorkSpec(("",)))) is None


def test_handlers_need_no_workers_where_nothing_is_executed(ledger: Ledger) -> None:
    decisions = give(ledger, changed(executes=False), starts=[start(A, spec=handled())])
    assert statuses(decisions) == [(A, ENDED)]


# ---- batches


def batches(*rows: int, **fields: Any) -> pool_pb2.Orders:
    """A message with one batch, of job j, whose work has number 7."""
    message = pool_pb2.Orders()
    message.epoch.term = 5
    message.works.add(number=7, job="default/j", spec=WORK)
    given = {"index": 10, "works": [7], "scheduled_s": [60], "not_after_ms": [NOW_MS]} | fields
    message.batches.add(rows=rows, **given)
    return message


def test_a_batch_is_accepted_as_a_whole_and_each_row_has_its_name(ledger: Ledger) -> None:
    message = batches(3, 1, 5, attempts=[1, 2, 1], triggers=[0, 0, 4], parts=[2, 1, 1])
    accepted = decided(ledger, message).accepted
    time = "1970-01-01T00:01:00Z"
    assert [(one.row, one.name) for one in accepted] == [
        (3, f"default/j@{time}#1/2"),
        (4, f"default/j@{time}#2"),
        (9, f"default/j@{time}+t4#1"),
    ]
    assert sorted(found(ledger)) == sorted(one.name for one in accepted)


@pytest.mark.parametrize(
    "message",
    [
        batches(),
        batches(1, 0),
        batches(0, 1, 1, works=[7, 7]),
        batches(0, 1, scheduled_s=[1, 2, 3]),
        batches(0, 1, scheduled_s=[SCHEDULED_S_MAX, 1]),
        batches(0, scheduled_s=[-1]),
        batches(0, works=[8]),
        batches((1 << 32) - 1, 1),
    ],
)
def test_orders_that_no_leader_gives_change_nothing(
    ledger: Ledger, message: pool_pb2.Orders
) -> None:
    message.acks.add(index=10, rows=[0])
    message.floor = 3
    decisions = Decisions()
    with ledger.transaction(), contextlib.suppress(BadOrders):
        decide(ledger, message, Works(), changed(), decisions)
        pytest.fail("they were done")
    assert decisions == Decisions()
    assert (ledger.count, ledger.watermark) == (0, 0)


def test_numbers_of_work_are_bounded(ledger: Ledger) -> None:
    message = batches(0)
    message.works[0].number = WORKS_MAX
    with pytest.raises(BadOrders):
        decided(ledger, message)


def test_a_job_whose_name_is_none_is_never_started(ledger: Ledger) -> None:
    message = batches(0)
    message.works[0].job = "../../etc/passwd"
    decisions = decided(ledger, message)
    assert (decisions.accepted, answered(decisions)[0].status) == ([], REFUSED)
