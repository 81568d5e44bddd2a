"""Three engine replicas in one process: real sockets, threads, files, and their insides."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from consensus.engine.replica import EngineLog
from tests.conformance.cells import IDS, engine_configs, eventually
from tests.conformance.ledger import Ledger


class LocalCell:
    def __init__(self, directory: Path, **settings: Any) -> None:
        self.configs = engine_configs(directory, **settings)
        self.logs: dict[str, EngineLog] = {}
        self.ledgers: dict[str, Ledger] = {}
        self.failures: dict[str, BaseException] = {}

    async def start(self, *names: str) -> None:
        for name in names or IDS:
            self.ledgers[name] = Ledger()
            self.logs[name] = EngineLog(
                self.configs[name],
                self.ledgers[name],
                on_failure=lambda error, name=name: self.failures.__setitem__(name, error),
            )
            await self.logs[name].start()

    async def stop(self, *names: str) -> None:
        await asyncio.gather(*(self.logs[name].stop() for name in names or list(self.logs)))

    async def leader(self, *among: str) -> EngineLog:
        found: list[EngineLog] = []

        async def agreed() -> bool:
            logs = [self.logs[name] for name in among or IDS]
            found[:] = [log for log in logs if log.leadership.leads]
            heard = {log.leadership.leader for log in logs}
            return len(found) == 1 and heard == {found[0].replica}

        await eventually(agreed, "a leader that all know")
        return found[0]

    async def settled(self, count: int, *names: str) -> None:
        async def same() -> bool:
            return all(len(self.ledgers[name].entries) == count for name in names or IDS)

        await eventually(same, f"{count} entries everywhere")
