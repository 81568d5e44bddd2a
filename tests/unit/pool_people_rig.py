"""A leader that does at once what it is asked, on one State: what people ask of the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from cron.errors import NotLeader
from cron.launch_state import LaunchState
from cron.scheduler.indexes import LeaderIndexes
from cron.scheduler.places import Places
from cron.scheduler.views import Depth, Wait
from cron.service.replica import Replica
from cron.service.service import CellService
from cron.state.commands import Command
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.state import State
from launcher.pool.duplicate_ids import DuplicateIds
from launcher.protocol.reports import GroupOffer, Ordered
from launcher.protocol.status import Limiting, Reason
from tests.unit.api_rig import Calls
from tests.unit.state_rig import T0, StateRig


class FakeQueues:
    """Queues that say what a test wants them to say, by the second of a launch after T0."""

    def __init__(self) -> None:
        self.rows: list[Depth] = []
        self.waits: dict[int, Wait] = {}
        self.ahead: dict[int, int] = {}
        self.places = Places()
        self.lack = ""
        self.places = SimpleNamespace(fit=lambda need: SimpleNamespace(groups=()))  # none fits
        self.asked_positions = 0
        self.asked_missing = 0

    def depths(self) -> list[Depth]:
        return self.rows

    def position(self, key: tuple[int, int, int]) -> int | None:
        self.asked_positions += 1
        return self.ahead.get(key[1] - T0)

    def why(self, key: tuple[int, int, int]) -> Wait | None:
        return self.waits.get(key[1] - T0)

    def missing(self, key: tuple[int, int, int]) -> str:
        self.asked_missing += 1
        return self.lack


class FakeClock:
    """The rig's time."""

    def __init__(self, rig: StateRig) -> None:
        self._rig = rig

    def wall_ms(self) -> int:
        return self._rig.at_ms

    def mono_ms(self) -> int:
        return self._rig.at_ms


class World:
    """A leader, an applier, a pool and its service, on one rig."""

    def __init__(self, rig: StateRig) -> None:
        self.rig = rig
        self.epoch: Any = rig.epoch
        self.queues: FakeQueues | None = FakeQueues()
        self.seated: list[Any] = []
        self.submitted = 0
        self.jobs_behind: dict[tuple[str, int, str], int] = {}
        self.duplicate_ids = DuplicateIds(lambda: rig.at_ms)
        self.listeners: list[Callable[[int, Outcome], None]] = []
        world: Any = self
        clock: Any = FakeClock(rig)
        nothing: Any = None
        self.service = Calls(CellService(Replica(world, world, nothing, clock)))

    @property
    def state(self) -> State:
        return self.rig.state

    @property
    def pool(self) -> World:
        return self

    @property
    def executors(self) -> World:
        return self

    def behind(self) -> dict[tuple[str, int, str], int]:
        return self.jobs_behind

    def awaits_row(self, _number: int) -> str:
        return ""

    def sessions(self) -> Sequence[Any]:
        return self.seated

    def view(self, executor: str) -> Any:
        return next((one for one in self.seated if one.executor == executor), None)

    def connected(self) -> frozenset[int]:
        known = self.state.by_ledger
        places = [(one.executor, one.ledger) for one in self.seated]
        return frozenset(known[place].number for place in places if place in known)

    def leader_address(self) -> str:
        return "127.0.0.1:7402"

    async def submit(
        self, build: Any, *, changes_jobs: bool = False
    ) -> tuple[int, tuple[Result, ...]]:
        if self.epoch is None:
            raise NotLeader(None)
        self.submitted += 1
        outcome = self.feed(*build(self.rig.state, self.rig.at_ms))
        return self.rig.state.index, outcome.results

    async def append(self, *commands: Command) -> tuple[int, tuple[Result, ...]]:
        return await self.submit(lambda _state, _now_ms: [*commands])

    @property
    def indexes(self) -> LeaderIndexes:
        return LeaderIndexes(self.state)

    def elsewhere(self) -> NotLeader | None:
        return NotLeader(None) if self.epoch is None else None

    async def confirm(self) -> None:
        """The majority of one confirms who leads."""
        if self.epoch is None:
            raise NotLeader(None)

    def subscribe(self, listener: Callable[[int, Outcome], None]) -> None:
        self.listeners.append(listener)

    def feed(self, *commands: Command) -> Outcome:
        """Feed an entry, and tell who listens."""
        outcome = self.rig.append(*commands)
        for listener in self.listeners:
            listener(self.rig.state.index, outcome)
        return outcome

    def seat(self, executor: str = "e1", ledger: str = "l1", **fields: Any) -> None:
        """Connect an executor."""
        usual: dict[str, Any] = {
            "executor": executor,
            "ledger": ledger,
            "connected_since_ms": T0 * 1000,
            "running": 0,
            "offset_ms": 3,
            "address": "ipv4:10.0.0.7:41000",
            "greeting": SimpleNamespace(
                pid=77,
                slots=6,
                version="0.2.0",
                incarnation=fields.pop("incarnation", ""),
                cpu_limiting=Limiting.NONE,
                memory_limiting=fields.pop("memory_limiting", Limiting.UNKNOWN),
                accounts=fields.pop("accounts", None),
                ordered=Ordered(),
            ),
            "is_leased": True,
            "is_silent": False,
            "is_full": False,
            "gets_work": True,
            "silent_ms": 0,
            "outputs_waiting": 0,
            "certificate_ends_ms": 0,
            "offers": (GroupOffer("web", 8, ("mail.send", "mail.fetch")),),
        }
        self.seated.append(SimpleNamespace(**usual | fields))

    def die(self, second: int, number: int = 1, **fields: Any) -> None:
        """Make the launch of a second a dead letter, by a failure."""
        self.rig.to(max(second, (self.rig.at_ms // 1000) - T0))
        assert self.rig.account(second, number=number) is Verdict.ACCEPTED
        assert self.rig.begin(second, number=number) is Verdict.ACCEPTED
        usual: dict[str, Any] = {
            "state": LaunchState.FAILED,
            "reason": Reason.FATAL,
            "exit_code": 3,
            "detail": "no such customer",
            "output_bytes": 12,
        }
        assert self.rig.finished(second, number=number, **usual | fields) is Verdict.ACCEPTED
