"""Where an executor's reports go: one stream to a leader, as its foreman sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from launcher.executor.offers import Offer
from launcher.executor.row import Change, Row
from launcher.executor.works import Works
from launcher.work import Epoch


class Outlet(Protocol):
    """Where reports go: one stream to a leader. `works` is what the leader said of work in it."""

    works: Works

    def begin(self, known: list[Row], highest: Epoch) -> None:
        """Say hello with all rows whose end is not acknowledged. Called once, before `send`."""

    def send(self, changes: list[Change]) -> None:
        """Report what became of rows; never waits."""

    def offer(self, offers: Sequence[Offer]) -> None:
        """Tell what the workers of this host serve, whole; never waits."""

    def leave(self, reason: str) -> None:
        """End the stream: what came over it was not the leader's."""


class RecallOutlet(Outlet, Protocol):
    """An outlet whose leader wants to know all that the ledger remembers."""

    def recollect(self, page: Page) -> None:
        """Tell a page; never waits. Whoever asked asks again with `page.rest` once it has left, so
        that a leader which reads slowly does not fill the memory."""


class Recall(msgspec.Struct, frozen=True):
    """A question for the next page of the ledger: what follows (log index, row) `after`.

    `until` is the newest log index that the ledger knew when the first page was read, -1 before.
    What is begun behind it came from the leader who asks; an executor that starts a thousand
    launches a second would otherwise never come to its last page.
    """

    outlet: RecallOutlet
    after: tuple[int, int] = (-1, -1)
    until: int = -1


class Page(msgspec.Struct, frozen=True):
    """Rows of the ledger in log order, its floor, and the question for the rest: None at last."""

    rows: list[Row]
    floor: int
    rest: Recall | None
