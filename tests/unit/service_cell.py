"""A cell of one replica behind the library for programs: the service itself, without a network."""

from __future__ import annotations

import asyncio
import threading

from cron.api.checks import checked
from cron.api.rpc import decode, encode
from cron.api.table import TABLE
from cron.errors import CronError
from cron.state.tasks import CancelTasks
from launcher.client.errors import error_of
from tests.unit.tasks_world import HANDLER, TasksWorld


class ServiceCell:
    """A cell of one replica, which commits at once; a call has the name of its method counted."""

    def __init__(self) -> None:
        self.world = TasksWorld()
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def call(
        self, method: str, content: bytes, deadline_s: float, *, is_repeatable: bool = True
    ) -> bytes:
        self.calls.append(method)
        rpc = TABLE[method]
        try:
            request = checked(decode(content, rpc.request))
            with self._lock:
                return encode(asyncio.run(self.world.cell.answer(rpc, request)))
        except CronError as error:
            raise error_of(error.code, str(error), error.hint) from error

    def close(self) -> None:
        pass

    def end(self, *keys: str) -> None:
        """Let tasks end, as if somebody cancelled them."""
        names = tuple(f"default/{HANDLER}:{key}" for key in keys)
        self.world.rig.append(CancelTasks(names))
