"""A leader whose log was set back gives known rows to other launches: what its executor answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from launcher.executor.ledger import Ledger
from launcher.executor.rows import ACCEPTED, ENDED, INTERRUPTED, UNKNOWN, Batch, Job, changes_of
from launcher.executor.rules import OLDER_LOG, BadOrders, Conditions, Decisions, Works, decide
from launcher.protocol.names import parse_attempt_name
from launcher.protocol.reports import Ordered, RowReport
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch, WorkSpec

NOW_MS = 1_000_000
FINE = Conditions(wall_ms=NOW_MS, lease_valid=True, groups_free={"": 8}, groups_idle={"": 8})
INDEX = 100
BEFORE = "default/a@2026-11-20T15:00:00Z#1"
OTHERS = [
    "default/b@2026-11-20T15:00:00Z#1",  # another job
    "default/a@2026-11-20T15:01:00Z#1",  # another instant of the same job
    "default/a@2026-11-20T15:00:00Z#2",  # another attempt of the same launch
    "default/a@2026-11-20T15:00:00Z+t1#1",  # a person's launch of that second
    "default/a@2026-11-20T15:00:00Z#1/2",  # another part of it
]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger in which row 0 of `INDEX` is `BEFORE`, which ran and succeeded."""
    ledger = Ledger(tmp_path / "journal")
    name = parse_attempt_name(BEFORE)
    batch = Batch(
        INDEX, "1.5.r1", [0], [Job(name.launch.job)], ([name.launch.scheduled_s], [1], [0], [1])
    )
    end = RowReport(INDEX, 0, ENDED, started_ms=NOW_MS - 2_000, finished_ms=NOW_MS - 1_000)
    with ledger.transaction():
        ledger.insert(batch)
        ledger.changed(changes_of([end]))
    yield ledger
    ledger.close()


def orders(name: str = "", mark: bytes = b"", proof: bytes = b"", index: int = INDEX,
           term: int = 6) -> pool_pb2.Orders:  # fmt: skip
    """A message of the leader of term 6; one that starts a launch as row 0 of `INDEX`."""
    message = pool_pb2.Orders(mark=mark, proof=proof)
    message.epoch.generation, message.epoch.term, message.epoch.replica = 1, term, "r1"
    if name:
        parsed = parse_attempt_name(name)
        spec = msgspec.msgpack.encode(WorkSpec(("/bin/true",)))
        message.works.add(number=0, job=parsed.launch.job, spec=spec)
        message.batches.add(
            index=index,
            rows=[0],
            works=[0],
            scheduled_s=[parsed.launch.scheduled_s],
            not_after_ms=[NOW_MS],
            attempts=[parsed.attempt],
            triggers=[parsed.launch.trigger],
            parts=[parsed.part],
        )
    return message


def decided(ledger: Ledger, message: pool_pb2.Orders) -> Decisions:
    decisions = Decisions()
    with ledger.transaction():
        decide(ledger, message, Works(), copy.deepcopy(FINE), decisions)
    return decisions


@pytest.mark.parametrize("other", OTHERS)
def test_a_row_that_is_known_as_another_launch_is_in_doubt_and_not_answered_with_its_end(
    ledger: Ledger, other: str
) -> None:
    decisions = decided(ledger, orders(other))
    [answer] = decisions.answers
    assert (answer.status, answer.started_ms, answer.finished_ms) == (INTERRUPTED, 0, 0)
    assert BEFORE in answer.detail
    assert OLDER_LOG in answer.detail
    assert decisions.contradicted == [(BEFORE, other)]
    assert not decisions.accepted
    row = ledger.row(INDEX, 0)
    assert row is not None
    assert (row.name, row.status) == (BEFORE, ENDED)  # as it was


def test_a_row_that_is_known_as_the_same_launch_is_answered_with_its_end(ledger: Ledger) -> None:
    decisions = decided(ledger, orders(BEFORE, mark=b"later"))
    [answer] = decisions.answers
    assert (answer.status, answer.started_ms, answer.mark) == (ENDED, NOW_MS - 2_000, b"later")
    assert not decisions.contradicted


@pytest.mark.parametrize("other", OTHERS)
def test_a_fence_of_another_launch_claims_nothing_about_it(ledger: Ledger, other: str) -> None:
    message = orders(mark=b"later")
    message.fences.add(index=INDEX, row=0, name=other)
    decisions = decided(ledger, message)
    [answer] = decisions.answers
    assert (answer.status, answer.mark) == (INTERRUPTED, b"later")
    assert decisions.contradicted == [(BEFORE, other)]


def test_a_tombstone_of_another_launch_is_no_end_of_this_one(ledger: Ledger) -> None:
    message = orders()
    message.fences.add(index=INDEX + 1, row=0, name=BEFORE)
    decided(ledger, message)
    [answer] = decided(ledger, orders(OTHERS[0], index=INDEX + 1)).answers
    assert answer.status == INTERRUPTED


def test_a_kill_of_another_launch_kills_nothing(ledger: Ledger) -> None:
    running = decided(ledger, orders(OTHERS[0], index=INDEX + 1))
    assert [one.name for one in running.accepted] == [OTHERS[0]]
    message = orders(mark=b"later")
    message.kills.add(index=INDEX + 1, row=0, reason=Reason.KILLED, name=BEFORE)
    decisions = decided(ledger, message)
    assert not decisions.kills
    assert [(row.status, row.mark) for row in decisions.answers] == [(UNKNOWN, b"later")]
    message.kills[0].name = OTHERS[0]
    assert decided(ledger, message).kills == [(OTHERS[0], Reason.KILLED)]
    message.kills[0].name = ""  # a leader before names were sent
    assert decided(ledger, message).kills == [(OTHERS[0], Reason.KILLED)]


def test_a_row_at_the_watermark_answers_the_orders_that_asked(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.raise_watermark(INDEX + 5)
    [answer] = decided(ledger, orders(OTHERS[0], mark=b"later", index=INDEX + 5)).answers
    assert (answer.status, answer.mark) == (INTERRUPTED, b"later")


def test_the_newest_order_is_remembered_with_its_proof_and_rows_with_their_mark(
    ledger: Ledger, tmp_path: Path
) -> None:
    decided(ledger, orders(OTHERS[0], b"six", b"p200", index=200))
    decided(ledger, orders(OTHERS[1], b"six", b"p150", index=150))  # asked again: an older Begin
    assert ledger.ordered == Ordered(Epoch(1, 6, "r1"), b"six", 200, b"p200")
    decided(ledger, orders(OTHERS[2], b"seven", b"p180", index=180, term=7))
    newest = Ordered(Epoch(1, 7, "r1"), b"seven", 180, b"p180")
    assert ledger.ordered == newest
    decided(ledger, orders(OTHERS[3], index=300, term=8))  # of a leader without a mark
    ledger.close()
    for _ in range(2):  # as it was written, and written anew
        again = Ledger(tmp_path / "journal")
        assert again.ordered == newest
        rows = [again.row(index, 0) for index in (INDEX, 150, 180, 200, 300)]
        assert [row.mark for row in rows if row] == [b"", b"six", b"seven", b"six", b""]
        assert again.highest == Epoch(1, 8, "r1")
        again.close()


def test_reports_of_one_index_that_came_by_different_orders_are_apart(ledger: Ledger) -> None:
    mine = RowReport(INDEX, 0, ACCEPTED, started_ms=1, mark=b"six")
    theirs = RowReport(INDEX, 1, ACCEPTED, started_ms=1, mark=b"seven")
    assert [one.mark for one in changes_of([mine, theirs])] == [b"six", b"seven"]


@pytest.mark.parametrize("field", ["mark", "proof"])
def test_a_mark_or_a_proof_of_any_length_is_no_order(ledger: Ledger, field: str) -> None:
    message = orders(OTHERS[0], **{field: bytes(33)})
    with pytest.raises(BadOrders, match="mark or proof"):
        decided(ledger, message)
