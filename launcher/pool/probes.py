"""Which executors answer: each is probed from time to time, soonest after it was given orders.

Theory of operation (rule R7). A host that vanishes without a reset leaves its stream open, and
orders written to it wait in TCP until a lease ends. So the leader probes: an executor that leaves a
probe unanswered for `UNANSWERED_MS` is *silent* and gets no new launches until it answers that
probe. A probe follows the orders that left before it, so its answer says that they arrived; queued
bulk does not delay it. Silence proves nothing else: an order that was handed to the stream stays in
doubt.

A leader that was stalled itself has read no answers. So time counts only while the leader's loop
makes progress: one look adds at most `LOOK_MS` more than the pause that the last one asked for, and
between two looks the loop reads what has arrived.
"""

from __future__ import annotations

from typing import Final

from launcher.pool.session import Session

LOOK_MS: Final = 100
"""The shortest pause between two looks, and the one while a probe is unanswered."""
UNANSWERED_MS: Final = 1_000
PROBE_EVERY_MS: Final = 500
"""An executor is probed again this long after its last probe, if it answered that. Also the longest
pause between two looks."""
IDLE_EVERY_MS: Final = 2_000
"""The same in an idle cell, unless the executor was given orders since."""
IDLE_AFTER_MS: Final = 10_000
"""A cell is idle that has given no orders for so long."""
PROBES_PER_LOOK: Final = 40
"""400 a second: each of 200 executors every 500 ms, each of 10,000 every 25 s."""


class Probes:
    """When each welcomed session was probed last, and which sessions have not answered."""

    def __init__(self) -> None:
        self._progress_ms = 0
        self._looked_mono_ms: int | None = None
        self._pause_ms = LOOK_MS
        self._ordered_ms = 0  # progress at the last order of all
        self._idle: dict[Session, int] = {}  # -> progress at its last probe; the oldest in front
        self._ordered: dict[Session, None] = {}  # those of `_idle` that were given orders since
        self._asked: dict[Session, int] = {}  # -> progress at its unanswered probe, oldest in front

    def add(self, session: Session) -> None:
        """Probe a session from the next look on."""
        if session not in self._asked:
            self._idle[session] = self._progress_ms - PROBE_EVERY_MS
            self._ordered[session] = None

    def remove(self, session: Session) -> None:
        """Forget a session that is over."""
        self._idle.pop(session, None)
        self._ordered.pop(session, None)
        self._asked.pop(session, None)

    def clear(self) -> None:
        """Forget all sessions."""
        self._idle.clear()
        self._ordered.clear()
        self._asked.clear()
        self._looked_mono_ms, self._pause_ms = None, LOOK_MS

    def ordered(self, session: Session) -> None:
        """Probe a session that was given orders before the others."""
        self._ordered_ms = self._progress_ms
        if session in self._idle:
            self._ordered[session] = None

    def answered(self, session: Session) -> None:
        """Note that a session has answered its probe."""
        if self._asked.pop(session, None) is not None:
            self._idle[session] = self._progress_ms

    def look(self, mono_ms: int) -> list[Session]:
        """Probe the sessions whose turn it is; return those that fell silent since the last look.
        `mono_ms` is the monotonic clock."""
        before_ms = mono_ms if self._looked_mono_ms is None else self._looked_mono_ms
        self._looked_mono_ms = mono_ms
        self._progress_ms += max(0, min(mono_ms - before_ms, self._pause_ms + LOOK_MS))
        silent = []
        for session, asked_ms in self._asked.items():
            if self._progress_ms - asked_ms < UNANSWERED_MS:
                break
            if not session.is_silent:
                session.is_silent = True
                silent.append(session)
        self._ask()
        return silent

    def pause_ms(self) -> int:
        """Return in how many ms to look again."""
        pause_ms = LOOK_MS
        if not self._asked:
            ordered = (self._idle[session] + PROBE_EVERY_MS for session in self._ordered)
            first_ms = next(iter(self._idle.values()), self._progress_ms) + self._every_ms()
            left_ms = min([first_ms, *ordered]) - self._progress_ms
            pause_ms = min(max(left_ms, LOOK_MS), PROBE_EVERY_MS)
        self._pause_ms = pause_ms
        return pause_ms

    def _every_ms(self) -> int:
        is_idle = self._progress_ms - self._ordered_ms >= IDLE_AFTER_MS
        return IDLE_EVERY_MS if is_idle else PROBE_EVERY_MS

    def _ask(self) -> None:
        due_ms = self._progress_ms - PROBE_EVERY_MS
        usual_due_ms = self._progress_ms - self._every_ms()
        chosen = [session for session in self._ordered if self._idle[session] <= due_ms]
        del chosen[PROBES_PER_LOOK:]
        for session, probed_ms in self._idle.items():
            if probed_ms > usual_due_ms or len(chosen) >= PROBES_PER_LOOK:
                break
            if session not in self._ordered:
                chosen.append(session)
        for session in chosen:
            del self._idle[session]
            self._ordered.pop(session, None)
            self._asked[session] = self._progress_ms
            session.probe()
