"""Jobs that follow others, as the log has them: a launch begins after what it follows, and is
skipped for it only if that did not succeed."""

from __future__ import annotations

from collections.abc import Callable

from cron.job import Job
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.outcome import Outcome, Verdict
from cron.state.rows import Row
from cron.state.state import JobRecord, State
from launcher.protocol.status import Reason
from tests.batches import answered

OPEN = 0
NOTHING = -1


class FollowedWitness:
    """Reads the log, after it was applied. What ends by an entry was not over for its plan."""

    def __init__(self, accuse: Callable[[str, str], None]) -> None:
        self._accuse = accuse
        self._ended: dict[tuple[str, int], LaunchState] = {}
        self._is_blind = False
        self.begun = 0

    def restored(self) -> None:
        """The cell begins with a snapshot: what it knows of ends is not what this knows."""
        self._is_blind = True

    def read(self, state: State, outcome: Outcome) -> None:
        """Read an entry that was accepted."""
        if self._is_blind or not state.followers:
            return
        skipped = [row for row in outcome.rows if row.reason is Reason.PREDECESSOR]
        for row in skipped:
            self._check_skip(state, row)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            for item, verdict in answered(command, result) if isinstance(command, c.Begin) else ():
                if verdict == Verdict.ACCEPTED and item.attempt == 1 and not item.key[2]:
                    self._check_begin(state, item.key)
        for row in outcome.rows:
            for at_s in range(row.scheduled_s, row.last_s + 1) if not row.trigger else ():
                self._ended[row.job, at_s] = row.state

    def _check_begin(self, state: State, key: c.Key) -> None:
        record, row = state.by_number[key[0]], state.row(key)
        if record.job is None or (row is not None and row.by):
            return
        self.begun += bool(record.job.follows)
        for name, known in self._followed(state, record.job, key[1]):
            is_right = known > OPEN if name in record.job.after_any else known == _SUCCEEDED
            if not is_right:
                launch = state.launch_name(key)
                self._accuse("o", f"{launch} began, and {name} before it stands at {known}")

    def _check_skip(self, state: State, row: Row) -> None:
        job = state.jobs[row.job].job
        if job is None:
            return
        known = [
            one for name, one in self._followed(state, job, row.scheduled_s) if name in job.after
        ]
        if all(one in (OPEN, _SUCCEEDED) for one in known):
            self._accuse("o", f"{row.job}@{row.scheduled_s} was skipped for what succeeded")

    def _followed(self, state: State, job: Job, at_s: int) -> list[tuple[str, int]]:
        """Return what a launch follows, and the state of the launch of each before this entry."""
        found = []
        for name in job.follows:
            record = state.jobs[name]
            before_s = max(_instants(record, at_s), default=0)
            is_open = state.row((record.number, before_s, 0)) is not None
            ended = self._ended.get((name, before_s), NOTHING)
            found.append((name, OPEN if is_open else int(ended)))
        return found


_SUCCEEDED = LaunchState.SUCCEEDED


def _instants(record: JobRecord, until_s: int) -> list[int]:
    """Return the newest instant of each span, by plain arithmetic."""
    newest = []
    for span in record.spans:
        every_s, to_s = span.schedule.every_s, min(until_s, span.to_s or until_s)
        at_s = to_s // every_s * every_s
        newest += [at_s] if at_s > span.from_s else []
    return newest
