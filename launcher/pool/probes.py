"""Which executors answer: each is probed from time to time, soonest after it was given orders.

Theory of operation (rule R7). A host that vanishes without a reset leaves its stream open, and
orders written to it wait in TCP until a lease ends. So the leader probes: an executor that leaves a
probe unanswered for `UNANSWERED_MS` is *silent* and gets no new launches until it answers that
probe. A probe follows the orders that left before it, so its answer says that they arrived; queued
bulk does not delay it. Silence proves nothing else: an order that was handed to the stream stays in
doubt.

A leader that was stalled itself has read no answers. So time counts only while the leader's loop
makes progress: one look adds at most `STEP_MS_MAX`, however long ago the last one was, and between
two looks the loop reads what has arrived.
"""

from __future__ import annotations

from typing import Final

from launcher.pool.session import Session

LOOK_MS: Final = 100
"""How often `Probes.look` is to be called."""
STEP_MS_MAX: Final = 2 * LOOK_MS
UNANSWERED_MS: Final = 1_000
PROBE_EVERY_MS: Final = 500
"""An executor is probed again this long after its last probe, if it answered that."""
PROBES_PER_LOOK: Final = 40
"""400 a second: each of 200 executors every 500 ms, each of 10,000 every 25 s."""


class Probes:
    """When each welcomed session was probed last, and which sessions have not answered."""

    def __init__(self) -> None:
        self._progress_ms = 0
        self._looked_mono_ms: int | None = None
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
        self._looked_mono_ms = None

    def ordered(self, session: Session) -> None:
        """Probe a session that was given orders before the others."""
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
        self._progress_ms += max(0, min(mono_ms - before_ms, STEP_MS_MAX))
        silent = []
        for session, asked_ms in self._asked.items():
            if self._progress_ms - asked_ms < UNANSWERED_MS:
                break
            if not session.is_silent:
                session.is_silent = True
                silent.append(session)
        self._ask()
        return silent

    def _ask(self) -> None:
        due_ms = self._progress_ms - PROBE_EVERY_MS
        chosen = [session for session in self._ordered if self._idle[session] <= due_ms]
        del chosen[PROBES_PER_LOOK:]
        for session, probed_ms in self._idle.items():
            if probed_ms > due_ms or len(chosen) >= PROBES_PER_LOOK:
                break
            if session not in self._ordered:
                chosen.append(session)
        for session in chosen:
            del self._idle[session]
            self._ordered.pop(session, None)
            self._asked[session] = self._progress_ms
            session.probe()
