"""A leader whose log is older than what executors were ordered launches nothing, and says so."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from cron.errors import CronError, OldDisk
from cron.scheduler.older_log import contradiction
from cron.state import commands as c
from cron.state.formats import has_marks
from cron.state.state import State
from launcher.pool.pool import Pool
from launcher.protocol.proofs import KEY_BYTES, MARK_BYTES
from launcher.protocol.reports import Greeting
from launcher.protocol.work import Epoch

_log = structlog.get_logger()

TOLD_MAX: Final = 1_000
"""Executors whose unproven words were logged, so that each is logged once."""


class OlderLog:
    """What is known of this log's age, from the Hellos of executors, and what this leader draws for
    its term. `draw` returns random bytes."""

    def __init__(self, replica: str) -> None:
        self.draw: Callable[[int], bytes] = secrets.token_bytes
        self._replica = replica
        self._found: tuple[int, str] = (0, "")  # in which term, and what
        self._told: set[str] = set()

    def in_term(self, term: int) -> str:
        """Return why the leader of a term launches nothing, "" if it does."""
        return self._found[1] if self._found[0] == term else ""

    def error(self, term: int) -> CronError | None:
        """Return the error for whoever asks the leader of a term that launches nothing."""
        text = self.in_term(term)
        return OldDisk(text, WAYS_OUT) if text else None

    def look(self, state: State, greeting: Greeting, epoch: Epoch) -> bool:
        """Return whether a Hello proves that this log is old, so that its leader must stop."""
        executor, ordered = greeting.executor, greeting.ordered
        text, is_proven = contradiction(state, executor, ordered)
        if is_proven:
            led = ordered.epoch.replica
            disk = "another replica's disk has it" if led == self._replica else f"{led} led then"
            self._found = (epoch.term, f"the disk of {self._replica} is old: {text}; {disk}")
            _log.error(
                "leader.outdated", replica=self._replica, error=self._found[1], hint=WAYS_OUT
            )
        elif text and executor not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(executor)
            _log.warning("executor.doubts_log", executor=executor, error=f"{text}, it says")
        return is_proven

    # ---- what a leader draws

    def claim(self, state: State, about: c.Claim) -> c.Claim:
        """Return the Claim of a term, with what State may have by then."""
        format_ = state.format if state.leader_terms else max(state.format, about.format)
        return msgspec.structs.replace(about, **self._drawn(state)) if has_marks(format_) else about

    def raising(self, state: State, format_: int) -> c.RaiseFormat:
        """Return the command that raises the format, which a term may need marks for."""
        return c.RaiseFormat(format_, **(self._drawn(state) if has_marks(format_) else {}))

    def _drawn(self, state: State) -> dict[str, bytes]:
        drawn = {"mark": self.draw(MARK_BYTES)}
        if not state.order_key:
            drawn["order_key"] = self.draw(KEY_BYTES)
        return drawn

    @staticmethod
    def prove_orders(pool: Pool, state: State) -> None:
        """Have the pool mark and prove orders as this term does from now on."""
        pool.prove_orders(state.leader_terms[-1].mark, state.order_key)


WAYS_OUT: Final = (
    "stop all replicas, and run `raftcron restore --from-data DIR` with the newest disk; "
    "`raftcron replica replace` is for one old disk beside two newer ones: docs/backup.md"
)
