"""A cell of three leaders-to-be in memory, executors that keep output, and one object storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from consensus.memory import MemoryCell
from cron.history.store import RowStore
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.leader.requests import appending
from cron.leader.settings import LeaderSettings
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.state import State
from cron.storage.outputs import Outputs, OutputSettings
from cron.storage.uploader import Storing
from cron.storage.uploads import About
from launcher.launch import LaunchState, Reason
from launcher.names import AttemptName, LaunchName, parse_attempt_name
from launcher.pool.errors import NotConnected, OutputUnavailable
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.pool.session import OutputSlice, SessionView
from snapshots.layout import output_object, outputs_prefix
from snapshots.memory import MemoryStore
from snapshots.outputs import OUTPUT_BYTES_MAX, OutputHeader
from snapshots.retention import SnapshotPolicy
from snapshots.vault import Vault
from tests.unit.backup_rig import CELL, NEVER, URL, Clocks
from tests.unit.history_rig import HandShelf
from tests.unit.state_rig import T0, job

JOB = "default/backup"
YEAR_MS = 365 * 86_400_000


def session(executor: str) -> SessionView:
    return SessionView(executor, f"ledger-{executor}", 4, 0, 0, 0, "", 1, "", "", {}, True, True)


class FakeExecutors:
    """A pool of executors. `kept`: what each has of an attempt, and how much it dropped before.

    `hanging` ones are waited for until `released`; `failing` says why an executor gives nothing, or
    not that attempt.
    `after_slice` is called with the number of slices given.
    """

    def __init__(self) -> None:
        self.connected: set[str] = {"e1"}
        self.kept: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.failing: dict[str, str] = {}
        self.hanging: set[str] = set()
        self.released = asyncio.Event()
        self.asked: list[tuple[str, str, int]] = []
        self.at_once = 0
        self.most_at_once: dict[str, int] = {}
        self.after_slice: Callable[[int], None] = lambda _count: None
        self._now: dict[str, int] = {}

    def sessions(self) -> list[SessionView]:
        return [session(name) for name in sorted(self.connected)]

    async def output(
        self, executor: str, ledger: str, name: AttemptName, *,
        offset: int, limit: int, tail: bool, timeout_ms: int,
    ) -> OutputSlice:  # fmt: skip
        assert (ledger, tail) == (f"ledger-{executor}", False)
        assert timeout_ms > 0
        self.asked.append((executor, str(name), offset))
        self._now[executor] = self._now.get(executor, 0) + 1
        self.at_once = max(self.at_once, sum(self._now.values()))
        self.most_at_once[executor] = max(self.most_at_once.get(executor, 0), self._now[executor])
        try:
            await asyncio.sleep(0)
            if executor in self.hanging:
                await self.released.wait()
        finally:
            self._now[executor] -= 1
        if executor not in self.connected:
            raise NotConnected(f"executor {executor} is not connected")
        if why := self.failing.get(executor) or self.failing.get(str(name)):
            raise OutputUnavailable(why)
        dropped, content = self.kept.get((executor, str(name)), (0, b""))
        begin = min(max(offset, dropped), dropped + len(content))
        data = content[begin - dropped : begin - dropped + limit]
        is_last = begin + len(data) == dropped + len(content)
        piece = OutputSlice(data, begin, len(content), is_last, dropped)
        self.after_slice(len(self.asked))
        return piece


class Replica:
    """One replica, with its uploader of outputs and nothing else of an archive."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name
        self.failures: list[BaseException] = []
        self.shelf = HandShelf(rig.folder / name)
        self.row_store = RowStore(self.shelf)
        self.applier = StateApplier(self.row_store, self.shelf)
        self.log = rig.cell.log(name, self.applier)
        pool = Pool(
            cell=CELL,
            lease=LeaseTimes(),
            mono_ms=rig.clock.mono_ms,
            wall_ms=rig.clock.wall_ms,
            on_event=lambda event: self.leader.on_event(event),  # noqa: PLW0108 - made later
        )
        self.leader = Leader(
            log=self.log,
            applier=self.applier,
            pool=pool,
            clock=rig.clock,
            settings=LeaderSettings(turn_ms=1, housekeeping_ms=5, append_timeout_ms=2_000),
            about=c.Claim("2026b", "0.1.0", c.FORMAT),
            on_failure=self.failures.append,
        )
        about = About(name, "0.1.0", "host")
        storing = Storing(rig.vault, URL, SnapshotPolicy(3, 0), about, lambda: "never drawn")
        settings = msgspec.structs.replace(rig.settings, folder=rig.folder / name / "outputs")
        self.outputs = Outputs(
            self.leader, self.applier, self.row_store, rig.clock, storing, settings, rig.pool
        )

    @property
    def state(self) -> State:
        return self.applier.state

    async def look(self) -> None:
        """What happens once a second, up to its end."""
        await self.outputs.look()
        await self.outputs.settled()

    async def submit(self, *commands: c.Command) -> Any:
        index, results = await self.leader.submit(appending(*commands))
        assert all(result.verdict is Verdict.ACCEPTED for result in results), results
        return index, results


class Rig:
    """The cell; `r1` leads at first."""

    def __init__(self, folder: Path, settings: OutputSettings) -> None:
        self.folder = folder
        self.settings = settings
        self.clock = Clocks()
        self.pool = FakeExecutors()
        self.store = MemoryStore()
        self.vault = Vault(self.store, CELL)
        self.cell = MemoryCell(("r1", "r2", "r3"))
        self.replicas = {name: Replica(self, name) for name in self.cell.replicas}
        self.ended: dict[str, int] = {}  # when each attempt ended, by its name

    def __getitem__(self, name: str) -> Replica:
        return self.replicas[name]

    @property
    def leader(self) -> Replica:
        return next(one for one in self.replicas.values() if one.leader.epoch is not None)

    @property
    def mark(self) -> int:
        """What State says of how far it is."""
        return self.leader.state.history.outputs_index

    def later(self, seconds: float) -> None:
        """Turn the clock on."""
        self.clock.ms += int(seconds * 1000)

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait for it to be so, at most 10 s."""
        async with asyncio.timeout(30):
            while not is_so():
                assert not any(one.failures for one in self.replicas.values())
                await asyncio.sleep(0.001)

    async def elect(self, name: str) -> Replica:
        """Make a replica the leader."""
        self.cell.elect(name)
        one = self.replicas[name]
        await self.until(lambda: one.leader.epoch is not None)
        others = [other for other in self.replicas.values() if other is not one]
        await self.until(lambda: all(other.leader.epoch is None for other in others))
        return one

    async def run(
        self, content: bytes = b"printed", executor: str = "e1", *, dropped: int = 0,
        state: LaunchState = LaunchState.SUCCEEDED,
    ) -> str:  # fmt: skip
        """Let a launch end a second later, whose output its executor keeps; return its attempt."""
        self.later(1)
        leader = self.leader
        number = await self._join(executor)
        _, (result,) = await leader.submit(c.Trigger(JOB, f"request-{len(self.ended)}", "anna"))
        key = (1, result.scheduled_s, result.number)
        row = leader.state.due[key]
        begin = c.BeginItem(key, 1, row.revision, number, row.deadline_ms)
        end = c.FinishedItem(
            key, 1, state, Reason.NONE, 0, self.clock.ms, self.clock.ms, "", len(content)
        )
        await leader.submit(c.Begin.of((begin,)), c.Finished((end,)))
        name = str(AttemptName(LaunchName(JOB, key[1], key[2])))
        if content:
            self.pool.kept[(executor, name)] = dropped, content
        self.ended[name] = leader.state.at_ms
        return name

    async def _join(self, executor: str) -> int:
        # It has no stream that could renew its lease, and tests turn the clock on by hours.
        self.leader.leader.pool.grant(executor, f"ledger-{executor}", self.clock.ms + YEAR_MS)
        known = self.leader.state.executor_of(executor, f"ledger-{executor}")
        if known is not None:
            return known.number
        joined = c.ExecutorJoined(executor, f"ledger-{executor}", 4)
        _, (result,) = await self.leader.submit(joined)
        return int(result.number)

    async def look(self, count: int = 1) -> None:
        """Let the leader look after outputs, a second later each time."""
        for _ in range(count):
            self.later(1)
            await self.leader.look()

    def stored(self) -> list[str]:
        """The names of what is in the store, without what all of them begin with."""
        prefix = outputs_prefix(CELL)
        return [name[len(prefix) :] for name in sorted(self.store.objects) if prefix in name]

    def puts(self) -> list[str]:
        """The attempts that were stored, in this order."""
        names = [name for operation, name in self.store.calls if operation == "put"]
        return [one for name in names for one in self.ended if name == self.object_of(one)]

    def object_of(self, name: str) -> str:
        """The name of an attempt's object."""
        parsed = parse_attempt_name(name)
        return output_object(CELL, self.ended[name], str(parsed.launch), parsed.attempt)

    def read(self, name: str) -> tuple[OutputHeader, bytes] | None:
        """What the store has of an attempt, verified."""
        parsed = parse_attempt_name(name)
        path = self.folder / "read"
        found = self.vault.fetch_output(
            self.ended[name], str(parsed.launch), parsed.attempt, path, OUTPUT_BYTES_MAX
        )
        return (found, path.read_bytes()) if found is not None else None


@asynccontextmanager
async def telling(folder: Path, **fields: Any) -> AsyncIterator[Rig]:
    """A cell that has a job and a place in the store; `fields` change its settings."""
    rig = Rig(folder, msgspec.structs.replace(OutputSettings(), **fields))
    for one in rig.replicas.values():
        await one.log.start()
    for one in rig.replicas.values():
        one.leader.start()
    await rig.until(lambda: rig["r1"].leader.epoch is not None)
    put = c.PutJobs("crontab", 0, T0, (job(schedule=NEVER),))
    await rig["r1"].leader.submit(appending(put), changes_jobs=True)
    await rig["r1"].submit(c.BackedUp(URL, claim="ours"))
    try:
        yield rig
        assert not any(one.failures for one in rig.replicas.values())
    finally:
        rig.pool.released.set()
        for one in rig.replicas.values():
            one.outputs.close()
            await one.leader.stop()
            await one.log.stop()
            one.row_store.stop()
