"""Whether a log is older than what executors were ordered: marks of terms, and proofs of orders."""

from __future__ import annotations

import msgspec
import pytest

from cron.launch_state import LaunchState
from cron.scheduler.older_log import OTHER_LAUNCH, contradiction, has_ordered
from cron.scheduler.reports import ReportCommands, digest
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import LEADER_TERMS_KEPT
from cron.storage.new_generation import NewGeneration, begin_generation
from launcher.protocol.proofs import prove
from launcher.protocol.reports import BatchReport, Ordered
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch
from tests.unit.state_rig import T0, StateRig, job

KEY = b"k" * 32


def claimed(*terms: int, replica: str = "r1", rig: StateRig | None = None) -> StateRig:
    """A cell in which a replica led in these terms, each of which wrote two more entries."""
    rig = rig or StateRig(is_claimed=False)
    for term in terms:
        rig.epoch = Epoch(1, term, replica)
        key = b"" if rig.state.order_key else KEY
        rig.append(c.Claim("2026b", "1", c.FORMAT, f"{replica}.{term}".encode(), key))
        rig.append()
        rig.append()
    return rig


def ordered(term: int, index: int, replica: str = "r1", **fields: object) -> Ordered:
    said = Ordered(Epoch(1, term, replica), f"{replica}.{term}".encode(), index)
    said = msgspec.structs.replace(said, proof=prove(KEY, "e1", said))
    return msgspec.structs.replace(said, **fields)


def judged(rig: StateRig, said: Ordered, executor: str = "e1") -> tuple[bool, bool]:
    """Whether the words of an executor contradict the log, and whether they are proven."""
    text, is_proven = contradiction(rig.state, executor, said)
    return bool(text), is_proven


def test_an_order_that_the_log_has_contradicts_nothing() -> None:
    rig = claimed(1, 2, 5)  # the Claims are entries 1, 4 and 7
    for term, index in ((1, 2), (1, 3), (2, 6), (5, 8), (5, 9)):
        assert judged(rig, ordered(term, index)) == (False, False)
    # A leader asks again about what an earlier one began.
    assert judged(rig, ordered(5, 2)) == (False, False)
    assert judged(rig, Ordered()) == (False, False)


def test_an_order_of_a_term_that_the_log_lacks_proves_that_it_is_old() -> None:
    assert judged(claimed(1, 2), ordered(5, 8)) == (True, True)


def test_an_order_behind_the_end_of_its_term_proves_it_though_the_log_has_grown_past_it() -> None:
    """Term 2 wrote up to entry 9 in the life before; here, term 3 has the entries from 7 on."""
    rig = claimed(1, 2, 3, 4)
    assert judged(rig, ordered(2, 6)) == (False, False)
    assert judged(rig, ordered(2, 7)) == (True, True)


def test_a_term_of_the_same_number_and_leader_in_another_life_is_another_term() -> None:
    rig = claimed(1)
    rig.epoch = Epoch(1, 2, "r1")
    rig.append(c.Claim("2026b", "1", c.FORMAT, b"drawn"))
    assert judged(rig, ordered(2, 4)) == (True, True)


@pytest.mark.parametrize(
    "lie",
    [
        ordered(9, 1 << 60, proof=b""),
        ordered(9, 1 << 60, proof=bytes(16)),
        ordered(9, 1 << 60, proof=ordered(1, 2).proof),  # of another order that it had
        msgspec.structs.replace(ordered(1, 2), index=1 << 60),
        ordered(9, 8, mark=b"other"),
    ],
)
def test_an_executor_that_lies_stops_nobody(lie: Ordered) -> None:
    assert judged(claimed(1, 2), lie) == (True, False)


def test_the_proof_of_another_executor_is_none() -> None:
    assert judged(claimed(1, 2), ordered(5, 8), executor="e2") == (True, False)


def test_without_the_key_nothing_is_proven() -> None:
    """The key was drawn after the copy was made, by a leader of which the copy does not know."""
    rig = StateRig(is_claimed=False)
    rig.append(c.Claim("2026b", "1", 11), epoch=Epoch(1, 1, "r1"))
    assert rig.state.order_key == b""
    assert judged(rig, ordered(5, 8)) == (True, False)
    rig.epoch = Epoch(1, 2, "r1")
    rig.append(c.Claim("2026b", "1", 11, b"later", b"x" * 32))  # not before the format
    assert (rig.state.order_key, rig.state.marks) == (b"", {})
    rig.append(c.RaiseFormat(12, b"later", b"x" * 32))
    assert judged(rig, ordered(5, 8)) == (True, False)


def test_the_first_key_and_the_first_mark_of_a_term_stay() -> None:
    rig = claimed(1, 2)
    rig.append(c.RaiseFormat(c.FORMAT, b"again", b"x" * 32))
    rig.append(c.Claim("2026b", "1", c.FORMAT, b"again", b"x" * 32))  # of the same term: stale
    assert rig.state.order_key == KEY
    assert list(rig.state.marks) == [b"r1.1", b"r1.2"]


def test_orders_of_terms_that_are_forgotten_are_not_judged() -> None:
    rig = claimed(*range(1, LEADER_TERMS_KEPT + 3))
    assert judged(rig, ordered(1, 2)) == (False, False)
    assert judged(rig, ordered(3, 7)) == (False, False)
    assert has_ordered(rig.state, b"r1.2", Epoch(1, 1, "r1"))


def test_orders_of_the_life_before_a_restore_are_usual_and_those_of_a_later_one_are_not() -> None:
    rig = claimed(1, 2)
    begin_generation(rig.state, NewGeneration(2, T0 * 1000, "ada"))
    assert rig.state.order_key == KEY
    rig.epoch = Epoch(2, 3, "r1")
    rig.append(c.Claim("2026b", "1", c.FORMAT, b"r1.3"))
    assert judged(rig, ordered(7, 99)) == (False, False)
    later = ordered(9, 5, epoch=Epoch(3, 9, "r1"))
    later = msgspec.structs.replace(later, proof=prove(KEY, "e1", later))
    assert judged(rig, later) == (True, True)
    assert "the cell was restored" in contradiction(rig.state, "e1", later)[0]


def test_an_image_has_marks_and_key() -> None:
    rig = claimed(1, 2)
    again = decode_state([encode_state(rig.state)])
    assert (again.marks, again.order_key) == (rig.state.marks, KEY)


# ---- reports of rows


def begun(term: int) -> StateRig:
    """A cell whose leader of a term has begun a launch on e1."""
    rig = claimed(1, term)
    rig.append(c.ExecutorJoined("e1", "l1", 4, "h", "1"))
    rig.put(job())
    rig.to(60)
    rig.account(60)
    rig.begin(60)
    return rig


def reported(rig: StateRig, mark: bytes, status: Status = Status.ENDED) -> ReportCommands:
    """What it means that e1 reports row 0 of the newest entry, which came with a mark."""
    index = next(iter(next(iter(rig.state.executors.values())).batches))
    times = {"started_ms": [T0 * 1000], "finished_ms": [T0 * 1000 + 5]}
    said = BatchReport(index, status, Reason.NONE, 0, [0], mark=mark, **times)
    into = ReportCommands()
    digest(rig.state, rig.state.executor_of("e1", "l1"), [said], into, ("e1", "l1"))
    return into


@pytest.mark.parametrize("mark", [b"", b"r1.3"])
def test_a_report_of_this_term_or_of_an_executor_without_marks_counts(mark: bytes) -> None:
    rig = begun(3)
    rig.append(*reported(rig, mark).commands())
    assert [row.state for row in rig.rows] == [LaunchState.SUCCEEDED]


def test_a_report_of_what_a_later_leader_ordered_again_counts() -> None:
    rig = begun(3)
    claimed(4, replica="r2", rig=rig)
    rig.append(*reported(rig, b"r2.4").commands())
    assert [row.state for row in rig.rows] == [LaunchState.SUCCEEDED]


@pytest.mark.parametrize("status", [Status.ENDED, Status.ACCEPTED, Status.REFUSED])
@pytest.mark.parametrize("mark", [b"r2.3", b"r1.1"])
def test_no_launch_gets_the_end_of_another_life(mark: bytes, status: Status) -> None:
    """The row came by orders that this log does not have, or from before the launch was begun."""
    rig = begun(3)
    into = reported(rig, mark, status)
    assert len(into.contradicted) == 1
    rig.append(*into.commands())
    (row,) = rig.rows
    assert (row.state, row.started_ms, row.detail) == (LaunchState.LOST, 0, OTHER_LAUNCH)
    # Nor does a late report amend it.
    late = reported_late(rig, row.begun_index, mark)
    assert late.commands() == []
    assert late.acks == {row.begun_index: [0]}


def reported_late(rig: StateRig, index: int, mark: bytes) -> ReportCommands:
    said = BatchReport(index, Status.ENDED, Reason.NONE, 0, [0], [1], [2], mark=mark)
    into = ReportCommands()
    digest(rig.state, rig.state.executor_of("e1", "l1"), [said], into, ("e1", "l1"))
    return into


def test_a_report_of_what_a_restored_cell_goes_on_with_counts() -> None:
    """It was ordered again in a term after the snapshot, of which the cell does not know."""
    rig = begun(3)
    begin_generation(rig.state, NewGeneration(2, T0 * 1000, "ada"))
    rig.epoch = Epoch(2, 9, "r1")
    rig.append(c.Claim("2026b", "1", c.FORMAT, b"r1.9"))
    assert has_ordered(rig.state, b"r3.8", Epoch(1, 3, "r1"))
    assert not has_ordered(rig.state, b"r3.8", Epoch(2, 9, "r1"))
