"""Questions that cross from the event loop to a thread, and their answers on the way back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Generic, TypeVar

from cron.errors import Shutdown

T = TypeVar("T")


class Ask(Generic[T]):
    """A question to the projection. It is answered once `mark` has reached `index`."""

    def __init__(self, answer: Callable[[sqlite3.Connection], T], index: int = 0) -> None:
        self.index = index
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def run(self, db: sqlite3.Connection) -> None:
        """Find the answer and give it to the loop; called in the thread.

        Raises:
            Exception: whatever the question raised; the loop has got nothing then.
        """
        self.give(self._answer(db))

    def give(self, result: T) -> None:
        """Give the loop an answer; called in any thread."""
        self._on_loop(lambda: self.future.set_result(result))

    def fail(self, error: Exception) -> None:
        """Give `error` to the loop instead of an answer; called in any thread."""
        self._on_loop(lambda: self.future.set_exception(error))

    def shut_down(self) -> None:
        """Tell the loop that no answer will come."""
        self.fail(Shutdown("history is stopping"))

    def _on_loop(self, settle: Callable[[], None]) -> None:
        # The asker may have been cancelled, or its loop closed: then nobody wants the answer.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: None if self.future.done() else settle())
