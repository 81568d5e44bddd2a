"""Rows hold codes and arguments; sentences are made where they are shown."""

from __future__ import annotations

import msgspec
import pytest

from cron import notes
from cron.history.story import sentence_of
from cron.launch_state import LaunchState
from cron.limits import NOTE_CHARS_MAX
from cron.notes import Note, NoteCode
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.pool import CloseGate, Gate, GateAction, LiftGates
from cron.state.rows import Row
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, said, with_job


def told_in_all_ways() -> StateRig:
    """A rig with rows that a pause, a removal and an executor's silence left."""
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    rig.lost(60)
    rig.answer(c.Pause(("default/backup",), "new disks", 0, "anna"))
    item = c.Instants(T0 + 120, -1, False, Reason.PAUSED, 3, T0 + 240)
    rig.to(240).account(to=240, skipped=(item,))
    rig.to(300).account(300)
    rig.put(removed=("default/backup",))
    rig.cancel(300, reason=Reason.NONE)
    return rig


def test_another_wording_changes_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = told_in_all_ways()
    assert [said(row) for row in before.rows] == [
        "silent",
        "paused by anna until somebody resumes it: new disks",
        "the job was removed",
    ]
    monkeypatch.setattr(notes, "_SENTENCES", {code: "otherwise" for code in notes._SENTENCES})
    monkeypatch.setattr(notes, "_until", lambda *_: "for some time")
    after = told_in_all_ways()
    assert said(after.rows[-1]) == "otherwise"
    assert after.state.digest == before.state.digest


# ---- gates


def dropped(reason: str, *, is_lifted: bool = False) -> Row:
    """The row of a launch that a gate dropped, which may be open again by then."""
    rig = with_job()
    gate = Gate(0, GateAction.DROP, reason, "anna", 0)
    assert rig.answer(CloseGate(gate)).verdict is Verdict.ACCEPTED
    rig.to(60).account(60)
    note = Note(NoteCode.GATE, (1,))
    skip = c.Skip((c.SkippedItem((1, T0 + 60, 0), Reason.GATED, "", note),))
    rig.append(*([LiftGates((1,), "bea")] if is_lifted else []), skip)
    (row,) = rig.rows
    assert row.state is LaunchState.SKIPPED
    return row


def test_a_dropped_launch_tells_which_gate_it_was_when_that_is_long_open() -> None:
    assert sentence_of(dropped("a leak")) == (
        "skipped: a gate was closed (gate 1, closed by anna until it is opened: a leak)"
    )
    assert sentence_of(dropped("a leak", is_lifted=True)) == "skipped: a gate was closed (gate 1)"


def test_a_dropped_launch_holds_little_of_a_long_reason() -> None:
    row = dropped("x" * NOTE_CHARS_MAX)
    assert len(msgspec.msgpack.encode(row)) < 250
    assert said(row).endswith("xx…")


def test_a_row_holds_a_kibibyte_of_text_from_outside_at_most() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    rig.finished(60, state=LaunchState.FAILED, detail="😀" * 10_000)
    assert len(rig.rows[-1].detail.encode()) <= 1024
