"""Jobs with jitter and `pause-after`, as the log has them: no launch begins before its time, and a
job is paused exactly when as many of its launches in a row have failed."""

from __future__ import annotations

from collections.abc import Callable

from cron.state import commands as c
from cron.state.outcome import Outcome, Verdict
from cron.state.state import State
from tests.batches import answered


class JitterWitness:
    """Reads the log, after it was applied."""

    def __init__(self, accuse: Callable[[str, str], None]) -> None:
        self._accuse = accuse
        self.begun = self.paused = 0

    def read(self, state: State, outcome: Outcome) -> None:
        """Read an entry that was accepted."""
        self.paused += len(outcome.paused)
        for name in outcome.paused:
            record = state.jobs[name]
            most = record.job.pause_after if record.job is not None else 0
            if not 0 < most <= record.failed_in_a_row:
                self._accuse("j", f"{name} is paused after {record.failed_in_a_row} failures")
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            for item, verdict in answered(command, result) if isinstance(command, c.Begin) else ():
                if verdict == Verdict.ACCEPTED and item.attempt == 1 and not item.key[2]:
                    self._check_begin(state, item.key)

    def _check_begin(self, state: State, key: c.Key) -> None:
        record, row = state.by_number[key[0]], state.row(key)
        if record.job is None or not record.job.jitter_s or (row is not None and row.by):
            return
        self.begun += 1
        early_ms = key[1] * 1000 + record.job.delay_ms(key[1]) - state.at_ms
        if early_ms > 0:
            self._accuse("j", f"{state.launch_name(key)} began {early_ms} ms before its jitter")
