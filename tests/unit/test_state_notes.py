"""Rows hold codes and arguments; sentences are made where they are shown."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import msgspec
import pytest

from cron import notes
from cron.history.story import sentence_of
from cron.limits import NOTE_CHARS_MAX
from cron.notes import Note, NoteCode
from cron.state import commands as c
from cron.state.archive import Tail, decode_rows
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.pool import CloseGate, Gate, GateAction, LiftGates
from cron.state.rows import Row, encodable
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import T0, StateRig, job, said, with_job

FORMAT_1_LOG = Path(__file__).parent.parent / "data" / "format-1.log"
"""Drawn commands as the last release that knew no other format applied them, with the digests that
it had then."""


def test_a_cell_of_format_1_has_the_digests_of_the_release_before() -> None:
    """Replicas are restarted one by one: what an old one and a new one apply must be the same."""
    recorded, entries = msgspec.msgpack.decode(zlib.decompress(FORMAT_1_LOG.read_bytes()))
    machine = Machine()
    for index, (term, entry) in enumerate(entries, 1):
        machine.apply(term, index, entry)
    history = machine.state.history
    assert machine.state.format == 1
    assert machine.state.digest == recorded["digest"]
    assert [record.digest for record in history.segments.values()] == recorded["segments"]
    tails = [hashlib.blake2b(tail.whole(), digest_size=16).digest() for tail in history.tails]
    assert tails == recorded["tails"]


def told_in_all_ways(log_format: int = c.FORMAT) -> StateRig:
    """A rig with rows that a pause, a removal and an executor's silence left."""
    rig = with_job(log_format=log_format)
    rig.to(60).account(60)
    rig.begin(60)
    rig.lost(60)
    rig.answer(c.Pause(("default/backup",), "new disks", 0, "anna"))
    item = c.SkipItem(T0 + 120, T0 + 240, 3, Reason.PAUSED)
    rig.to(240).account(to=240, skipped=(item,))
    rig.to(300).account(300)
    rig.put(removed=("default/backup",))
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


def test_rows_of_both_formats_stand_in_one_segment() -> None:
    rig = told_in_all_ways(log_format=1)
    rig.answer(c.RaiseFormat(c.FORMAT))
    rig.put(job("other"))
    rig.to(600).account(600, number=2)
    rig.skip(600, number=2)
    older, newer = rig.rows[:-1], rig.rows[-1]
    assert {row.number for row in older} == {-1}
    assert all(row.note is None for row in older)
    assert older[-1].detail == "the job was removed"
    assert newer.number == 0
    found = list(rig.state.history.rows_after(0))
    assert sorted(found, key=lambda row: row.ended_index) == sorted(
        rig.rows, key=lambda row: row.ended_index
    )


def test_a_row_of_format_1_has_the_fields_that_it_had() -> None:
    (row, *_) = told_in_all_ways(log_format=1).rows
    assert len(msgspec.msgpack.decode(msgspec.msgpack.encode(encodable(row)))) == 28
    tail = Tail()
    tail.append(row)
    assert decode_rows(tail.whole()) == [row]


def test_what_an_older_release_wrote_into_a_row_is_shown_as_it_stands() -> None:
    (_, paused, _) = told_in_all_ways(log_format=1).rows
    assert sentence_of(paused) == (
        "skipped: the job was paused (paused by anna until somebody resumes it: new disks)"
    )


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
