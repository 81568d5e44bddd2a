"""LaunchRow: an open launch as State and its indexes know it."""

from __future__ import annotations

import msgspec

from cron.job import Job
from cron.launch_state import ACTIVE, LaunchState
from cron.notes import Note
from cron.state.commands import Key
from cron.state.rows import NO_ROW, Part
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch


class LaunchRow(msgspec.Struct, array_like=True, gc=False):
    """An open launch: due, begun or launched."""

    number: int
    scheduled_s: int
    trigger: int
    state: LaunchState
    deadline_ms: int
    local_min: int = -1
    is_late: bool = False  # it catches up a missed instant (`Instants`); not: past its deadline
    attempt: int = 0  # of the newest Begin; 0 before the first
    revision: int = 0
    begun_index: int = 0
    begun_at_ms: int = 0
    epoch: Epoch = Epoch()
    executor: int = 0
    not_after_ms: int = 0
    launched_index: int = 0
    launched_at_ms: int = 0
    started_ms: int = 0
    cancel: Reason = Reason.NONE
    cancel_by: str = ""
    by: str = ""
    detail: str = ""
    job: Job | None = None  # what it began with; the current one before that (rule R2)
    due_at_ms: int = 0  # of a manual trigger: when it was asked for, which no name says
    not_before_ms: int = 0  # an attempt before may be running until then (rule R5), or rests
    tries: int = 0  # attempts before that failed
    parts: list[Part] = []  # where it has several
    held_to_ms: int = 0  # until when its deadline has the time that gates held it
    note: Note | None = None  # what `detail` does not say
    is_redriven: bool = False  # `by` redrove its dead letter; else `by` asked for a backfill
    row: int = NO_ROW  # of the attempt, among what its entry began on its executor, from 0
    unpaid_ms: int = 0  # it waits for a retry of its tenant's, and would have rested until then

    @property
    def is_refused(self) -> bool:
        """Whether it waits again since its executor would not start it."""
        return bool(self.detail) or self.note is not None

    @property
    def refused_by(self) -> int:
        """The executor that would not start its newest attempt, 0 for none."""
        return self.executor if self.is_refused else 0

    @property
    def is_scheduled(self) -> bool:
        """Whether nobody asked for it, so that a pause of its job applies."""
        return not self.trigger and not self.by

    @property
    def is_reopened(self) -> bool:
        """Whether somebody asked for an instant after all."""
        return not self.trigger and bool(self.by)

    @property
    def enqueued_ms(self) -> int:
        """Since when it waits: since it was due, or was asked for."""
        return self.due_at_ms or self.scheduled_s * 1000

    def starts(self) -> list[Part]:
        """Return what may be running of a launch that was begun; to be read only."""
        if not self.parts:
            return [Part(self.executor, self.state, started_ms=self.started_ms, row=self.row)]
        return [part for part in self.parts if part.state in ACTIVE]

    def start_on(self, executor: int) -> Part | None:
        """Return what may be running of it on that executor; to be read only."""
        return next((start for start in self.starts() if start.executor == executor), None)

    @property
    def key(self) -> Key:
        """The key under which State has it."""
        return (self.number, self.scheduled_s, self.trigger)
