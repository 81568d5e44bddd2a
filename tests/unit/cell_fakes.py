"""A replicated log that tells of its members what a test says; the rest is another log's."""

from __future__ import annotations

from typing import Any

from consensus.cell import Joining, MemberView, PeerView
from consensus.leadership import Leadership, Position

FOUNDED = {name: MemberView(1, "votes") for name in ("r1", "r2", "r3")}


class FakeCell:
    """Answers what a Roster and a Replacing ask; `replaced` and `added` have what was asked for.

    `answer` is what `replace` and `add` return or raise.
    """

    replica = "r1"

    def __init__(self, log: Any = None) -> None:
        self._log = log
        self.members: dict[str, MemberView] = {}
        self.joining: Joining | None = None
        self.reached: dict[str, PeerView] = {}
        self.answer: MemberView | Exception = MemberView(2, "open")
        self.replaced: list[tuple[str, str, str]] = []
        self.added: list[str] = []
        self.leadership = Leadership(4, True, "r1") if log is None else log.leadership
        self.applied = Position(4, 1_000)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def peers(self) -> dict[str, PeerView]:
        return self.reached

    async def add(self, replica: str, *, timeout_ms: int) -> MemberView:
        assert 0 < timeout_ms < 10_000, "a client waits for 10 s"
        self.added.append(replica)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def replace(
        self, replica: str, *, raft: str = "", about: str = "", timeout_ms: int
    ) -> MemberView:
        assert 0 < timeout_ms < 10_000, "a client waits for 10 s"
        self.replaced.append((replica, raft, about))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
