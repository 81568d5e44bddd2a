"""Output in the replicated state: what rows say of it."""

from __future__ import annotations

import msgspec
import pytest

from cron.launch_state import LaunchState
from cron.leader.recovery import gather
from cron.scheduler.reports import ReportCommands, digest
from cron.state import commands as c
from cron.state.codec import decode_entry, encode_entry
from cron.state.outcome import Verdict
from cron.state.rows import RowKind
from cron.state.tail import Tail
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch
from tests.batches import AttemptItem
from tests.unit.restored_rig import RestoredRig
from tests.unit.state_rig import T0, StateRig, with_job


def ran(rig: StateRig, second: int, output_bytes: int = 0, *, fails: bool = False) -> None:
    """Let one launch run to its end."""
    rig.to(second).account(second)
    rig.begin(second)
    state = LaunchState.FAILED if fails else LaunchState.SUCCEEDED
    rig.finished(second, state=state, output_bytes=output_bytes)


# ---- rows


def test_a_row_says_how_much_output_its_executor_kept() -> None:
    rig = with_job()
    ran(rig, 60, 1234)
    ran(rig, 120, fails=True)
    ran(rig, 180, 99, fails=True)
    assert [row.output_bytes for row in rig.rows] == [1234, 0, 99]
    sealed = rig.append(c.Seal(1)).sealed
    rows = [row for one in sealed for row in Tail.of(one.tail.whole()).all_rows()]
    assert sorted(row.output_bytes for row in rows) == [0, 99, 1234]


def test_who_was_skipped_or_lost_has_none() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.skip(60)
    rig.to(120).account(120)
    rig.begin(120)
    rig.lost(120)
    assert [row.output_bytes for row in rig.rows] == [0, 0]


def test_late_report_says_it_too() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    rig.lost(60)
    assert rig.finished(60, output_bytes=50) is Verdict.AMENDED
    amendment = rig.rows[-1]
    assert (amendment.kind, amendment.output_bytes) == (RowKind.AMENDMENT, 50)


def test_what_an_executor_reports_of_an_end_goes_into_the_row() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    fact = RowReport(rig.state.index, 0, Status.ENDED, Reason.NONE, 0, 1, 2, "", 4321)
    into = ReportCommands()
    digest(rig.state, rig.state.executors[1], (fact.as_batch(),), into, ("e1", "l1"))
    rig.append(*into.commands())
    assert rig.rows[-1].output_bytes == 4321


@pytest.mark.parametrize(("status", "kept"), [(Status.ENDED, 77), (Status.INTERRUPTED, 0)])
def test_a_restored_cell_learns_of_output_from_what_executors_remember(
    status: Status, kept: int
) -> None:
    rig = RestoredRig()
    name = AttemptName(LaunchName("default/backup", T0 + 60))
    rig.restore(120)
    begun = rig.snapshot_index + 1
    fact = RowReport(begun, 0, status, Reason.NONE, 0, 1, 2, "", 77)
    recalled = msgspec.structs.replace(fact, name=str(name), epoch=str(Epoch(1, 1, "r1")))
    gathered = gather(rig.state, {1: {str(name): recalled}})
    (item,) = gathered.by_job[1]
    assert item.output_bytes == kept
    record = rig.state.by_number[1]
    whole = c.RecoverItem(1, record.revision, record.horizon_s, T0 + 120, (item,))
    assert rig.items(c.Recover((whole,))) == [Verdict.ACCEPTED]
    row = rig.rows[-1]
    assert (row.scheduled_s, row.output_bytes) == (T0 + 60, kept)


def test_a_command_of_a_release_that_knew_of_no_output_is_read() -> None:
    """Fields are appended: an item without the last one means that none is known."""
    item = AttemptItem.of((1, 2, 0), 1, LaunchState.SUCCEEDED, Reason.NONE, 0, 1, 2, "", 9)
    data = encode_entry(5, Epoch(1, 1, "r1"), (c.Report((item,)),))
    (command,) = decode_entry(data).commands
    assert command == c.Report((item,))
    raw = msgspec.msgpack.decode(data)
    del raw[3][0][1][0][2][6:]  # the entry's only command, its items, the first of them, its end
    (older,) = decode_entry(msgspec.msgpack.encode(raw)).commands
    assert isinstance(older, c.Report)
    assert older.items[0][2] == msgspec.structs.replace(item.end, output_bytes=0)
