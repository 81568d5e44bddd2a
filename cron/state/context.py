"""What a command sees while it is applied, and how launches begin, end and become rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from cron.launch_state import LaunchState
from cron.notes import (
    GATE_REASON_CHARS_MAX,
    TEXT_CHARS_MAX,
    Note,
    NoteCode,
    shortened,
    written,
)
from cron.state import letters
from cron.state.archive import Sealed
from cron.state.commands import Key
from cron.state.launch_row import LaunchRow
from cron.state.rows import NO_ROW, Chunk, Part, Row, RowKind
from cron.state.state import JobRecord, State
from cron.state.tasks import TaskRecord
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch

ENDED: Final = RowKind.ENDED  # members of an enumeration are slow to look up
OPEN: Final = RowKind.OPEN
LOST: Final = LaunchState.LOST


class Context(msgspec.Struct):
    """State, the entry's epoch, time and log index, and the rows that it adds to history.

    `encoded` is what history keeps of these, `rows` how many they are. `seals`: a Seal is in this
    entry. `jobs_changed` is by the newest PutJobs in it that happened. `begun`, `moved`,
    `begun_rows`, `ended_rows`, `moved_tasks`, `gone_jobs`, `moved_groups`, `following` and
    `marked` are as in Outcome. `rows_begun` are the rows that it began on each executor, the
    refused ones as well. `task_ends` has, by the number of a task's job, how its newest launch
    ended: state, reason and the text about it. `over_tasks` are the numbers of tasks that are
    over and have no job since this entry, `amended_tasks` of those that had none before and of
    which it has a late report. `origin` is that of the next `origin_left` changes that people
    ask for.
    """

    state: State
    epoch: Epoch
    at_ms: int
    index: int
    ended: list[Row | Chunk] = []
    encoded: bytearray = bytearray()
    rows: int = 0
    seals: bool = False
    jobs_changed: int = 0
    sealed: list[Sealed] = []
    begun: dict[Key, None] = {}
    moved: dict[Key, int] = {}
    begun_rows: list[tuple[int, int, list[int]]] = []
    ended_rows: list[tuple[int, Sequence[int], Sequence[int]]] = []
    rows_begun: dict[int, int] = {}
    moved_tasks: dict[int, None] = {}
    gone_jobs: list[int] = []
    moved_groups: Collection[str] = ()
    following: dict[int, None] = {}
    task_ends: dict[int, tuple[LaunchState, Reason, str]] = {}
    over_tasks: list[int] = []
    amended_tasks: dict[int, None] = {}
    marked: dict[int, None] = {}
    paused: dict[str, None] = {}  # jobs that this entry pauses without a command
    origin: str = ""
    origin_left: int = 0

    def record(self, item: Row | Chunk) -> None:
        """Append what ended to history, in log order. Its rows get their numbers in this entry
        here, if they have none."""
        if item.number < 0:
            item = msgspec.structs.replace(item, number=self.rows)
        self.rows += len(item) if isinstance(item, Chunk) else 1
        self.ended.append(item)
        self.encoded += self.state.history.append(item)

    def touch(self, row: LaunchRow) -> None:
        """Call this before a launch changes."""
        self.state.touch(self.state.by_number[row.number])

    def change(self, row: LaunchRow) -> LaunchRow:
        """Return a launch that may be running, to be changed: from here on it is detailed."""
        self.touch(row)
        return self.state.changeable(row.key) or row

    def open_due(self, record: JobRecord, row: LaunchRow) -> None:
        """Make a launch due."""
        self.state.touch(record)
        record.open[(row.scheduled_s, row.trigger)] = row
        key = row.key
        self.state.due.detailed[key] = row
        self.moved.setdefault(key, 0)
        if row.unpaid_ms:
            self.state.note_unpaid(row)
        if record.dead:
            self.take_out(key)
        if record.task:
            task = self.state.tasks.by_number.get(record.task)
            if task is not None and task.is_over:
                self.put_task(task, state=LaunchState.DUE, reason=Reason.NONE, ended_ms=0)

    def put_task(self, task: TaskRecord, **changes: object) -> TaskRecord:
        """Replace a task by one that has changes; return that."""
        changed = msgspec.structs.replace(task, **changes, revision=self.index)
        self.state.tasks.put(changed)
        self.moved_tasks[task.number] = None
        return changed

    def bury(self, record: JobRecord, key: Key, letter: Row) -> None:
        """Keep what is left of a launch that is over. Of a job it takes the place of the letters of
        launches that ended alike."""
        state = self.state
        state.touch(record)
        if record.task:
            state.piles.add(record, key)
        elif letters.keeps_all(state):
            others = letters.alike(record, letter.state, letter.reason)
            repeats = letters.merged(record, key[1:], others)
            for place in others:
                self.unbury((record.number, *place))
            if repeats is not None:
                record.repeats[key[1:]] = repeats
        record.dead[key[1:]] = state.dead[key] = letter

    def take_out(self, key: Key) -> None:
        """Let go of what is left of one launch, which is due again or has succeeded. A letter that
        stands for others of its job, too, stays."""
        state, record = self.state, self.state.by_number[key[0]]
        if key not in state.dead:
            if record.repeats:
                state.touch(record)
                letters.without(record, key[1:])
            return
        before = letters.before_it(record, key[1:])
        self.unbury(key)
        if before is not None:
            older, repeats = before
            place = (older.scheduled_s, older.trigger)
            record.dead[place] = state.dead[(key[0], *place)] = older
            if repeats is not None:
                record.repeats[place] = repeats

    def unbury(self, key: Key) -> None:
        """Let go of a letter; no error where there is none."""
        if self.state.dead.pop(key, None) is not None:
            record = self.state.by_number[key[0]]
            self.state.touch(record)
            del record.dead[key[1:]]
            record.repeats.pop(key[1:], None)
            if record.task:
                self.state.piles.remove(record, key)
                self.state.over_jobs[record.number] = None

    def set_active(self, row: LaunchRow) -> None:
        """Move a due launch among those that may be running, on its executor."""
        state, key = self.state, row.key
        self.leave_due(row)
        state.by_number[row.number].open[key[1:]] = row
        state.active.detailed[key] = row
        state.start_running(row.number)
        self.begun[key] = None
        for start in row.starts():
            start.row = state.add_detailed(row, start)
            if not row.parts:
                row.row = start.row

    def set_due(self, row: LaunchRow) -> None:
        """Move a launch that never ran back among the due."""
        self._leave_executor(row)
        self._leave_active(row)
        self.state.due.detailed[row.key] = row
        row.row = NO_ROW
        row.job = None  # the next attempt begins with what the job is then (rule R2)
        row.parts = []

    def leave_due(self, row: LaunchRow) -> None:
        """Take a launch out of what is due."""
        due = self.state.due
        known = due.detailed.pop(row.key, None)
        if known is None and row.key in due:
            due.take(row.scheduled_s, (row.number,))
        elif known is not None and known.unpaid_ms:
            self.state.drop_unpaid(known)
            known.unpaid_ms = 0

    def leave_part(self, row: LaunchRow, part: Part) -> None:
        """Note that a part of a launch is over."""
        self.moved.setdefault(row.key, 0)
        self.state.drop_detailed(row, part.executor, part.row)

    def _leave_active(self, row: LaunchRow) -> None:
        state, key = self.state, row.key
        if state.active.detailed.pop(key, None) is None:
            self.moved.setdefault(key, 0)
        else:
            state.stop_running(row.number)
            self.moved[key] = row.executor

    def _leave_executor(self, row: LaunchRow) -> None:
        if not row.parts:  # the usual case, cheap
            self.state.drop_detailed(row, row.executor, row.row)
        for part in row.parts:
            self.state.drop_detailed(row, part.executor, part.row)

    def end(self, row: LaunchRow, end: Part) -> None:
        """End an open launch: it leaves State and becomes a row of history.

        What waited for its next attempt has the number of that.
        """
        key = row.key
        record = self.state.by_number[row.number]
        self.state.touch(record)
        if row.attempt and not row.begun_index:
            row.attempt += 1
        self._leave_executor(row)
        self._leave_active(row)
        self.leave_due(row)
        record.open.pop(key[1:], None)
        record.ended_index = self.index
        ended = row_of(self.state, row, end, (self.index, self.at_ms, self.rows))
        if end.state is LOST:
            known = msgspec.structs.replace(ended, row=row.row)
            self.state.remember_lost(key, row.attempt, known)
        self.record(ended)
        if record.task:
            self.task_ends[record.number] = (end.state, end.reason, ended.detail)


def row_of(
    state: State,
    row: LaunchRow,
    end: Part | None = None,
    place: tuple[int, int, int] = (0, 0, -1),
) -> Row:
    """Return a launch as history has it: as it stands now, or, with an `end`, as it ended at a
    place: log index, time in milliseconds, and number in that entry."""
    executor = state.executors.get(row.executor) if row.begun_index else None
    detail, note = row.detail, row.note
    if end is None:
        end, kind, by = Part(row.executor, row.state), OPEN, row.by
    else:
        kind, by = ENDED, row.cancel_by or row.by
        if end.detail or end.note:
            detail, note = written(end.note, end.detail)
    index, at_ms, number = place
    # By place, in the order of Row: with names it takes five times as long, for each launch.
    return Row(
        kind,
        state.by_number[row.number].name,
        row.revision,
        row.scheduled_s,
        row.trigger,
        row.attempt,
        end.state,
        end.reason,
        index,
        at_ms,
        row.scheduled_s,  # last_s
        1,  # count
        row.local_min,
        row.begun_index,
        row.begun_at_ms,
        row.epoch,
        executor.executor if executor else "",
        executor.ledger if executor else "",
        row.launched_index,
        row.launched_at_ms,
        row.started_ms,
        end.finished_ms,
        end.exit_code,
        by,
        detail,
        row.due_at_ms,
        end.output_bytes,
        tuple(row.parts),
        note,
        number,
        None,  # amends
        end.cpu_ms,
        end.memory_peak_bytes,
        row.is_redriven,
    )


def pause_note(record: JobRecord, reason: Reason) -> Note | None:
    """Return by whom, until when and why a job is paused, for a row that says it was: once it is
    resumed, nothing else knows. None for any other reason."""
    paused = record.paused
    if reason is not Reason.PAUSED or paused is None:
        return None
    why = shortened(paused.reason, TEXT_CHARS_MAX)
    return Note(NoteCode.PAUSED, (paused.by, paused.until_ms, why))


def with_gate(state: State, note: Note | None) -> Note | None:
    """Return a note, which has by whom, until when and why a gate was closed, if it is about one
    that still is: once it is open, nothing else knows."""
    if note is None or note.code is not NoteCode.GATE or len(note.args) != 1:
        return note
    number = note.args[0]
    gate = state.gates.get(number) if isinstance(number, int) else None
    if gate is None:
        return note
    why = shortened(gate.reason, GATE_REASON_CHARS_MAX)
    return Note(NoteCode.GATE, (gate.number, gate.by, gate.until_ms, why))
