"""A leader without a log: State and its indexes, one turn after the other."""

from __future__ import annotations

from cron.job import COMMAND, Job, Overlap, Schedule
from cron.launch_state import LaunchState
from cron.scheduler.indexes import LeaderIndexes
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import ROWS_MAX, View, plan
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.pool import CloseGate, Gate, GateAction, LimitItem, Limits, SetLimits
from cron.state.state import State
from launcher.protocol.status import Reason
from tests.batches import AttemptItem, begun, refused_item
from tests.places import counts_what_runs, used
from tests.unit.state_rig import T0, StateRig, job

SECONDS = Schedule("@every 1s", every_s=1)


def queues_with(state: State, slots: dict[int, int], *handlers: str) -> Queues:
    """Queues of all that State has, with so many free slots for commands, and for these handlers
    together with them, by executor."""
    queues, pools = Queues(state), (COMMAND, *handlers)
    for number, free in slots.items():
        by_pool = used(queues.places, number)
        taken = sum(by_pool.get(pool, 0) for pool in pools)
        queues.places.put(Place(number, {}, (Capacity(taken + free, pools),)))
    return queues


class QueuesRig:
    """A leader without a log: State, indexes, and executor 1 with four free slots for commands."""

    def __init__(self, *jobs: Job) -> None:
        self.rig = StateRig()
        assert self.rig.put(*jobs).verdict is Verdict.ACCEPTED
        self.rig.join()
        self.state = self.rig.state
        self.lead()

    def lead(self) -> None:
        """A term begins: nothing is left of the one before but State."""
        self.indexes = LeaderIndexes(self.state)
        self.queues.places.put(Place(1, {}, (Capacity(4),)))

    @property
    def queues(self) -> Queues:
        return self.indexes.queues

    @property
    def now_ms(self) -> int:
        return self.rig.at_ms

    def to(self, second: float) -> QueuesRig:
        self.rig.at_ms = int((T0 + second) * 1000)
        return self

    def append(self, *commands: c.Command) -> list[list[Verdict]]:
        outcome = self.rig.append(*commands)
        self.indexes.follow(outcome)
        return [[Verdict(item) for item in result.items] for result in outcome.results]

    def plan(self, late_budget: int = 9, rows_max: int = ROWS_MAX) -> list[c.Command]:
        """What a turn would append."""
        view = View(self.state, [], self.queues, late_budget=late_budget, rows_max=rows_max)
        return plan(view, self.now_ms)

    def turn(self, late_budget: int = 9, rows_max: int = ROWS_MAX) -> list[str]:
        """One turn of the leader, all of it committed: what begins and what is skipped."""
        commands = self.plan(late_budget, rows_max)
        if commands:
            self.append(*commands)
        return told(commands)

    def account(self, *seconds: int, number: int = 1, late: bool = False) -> None:
        """Make these instants due, of a job that has none yet that is newer."""
        record = self.state.by_number[number]
        due = tuple(c.Instants(T0 + second, is_late=late) for second in seconds)
        item = c.AccountLine((number,), record.revision, record.horizon_s, T0 + seconds[-1], due)
        assert self.append(c.Account((item,))) == [[Verdict.ACCEPTED]]

    def end(self, second: int, attempt: int = 1, number: int = 1, *, code: int = 0) -> None:
        """Report the end of an attempt: a failure, where the exit code says so."""
        state = LaunchState.FAILED if code else LaunchState.SUCCEEDED
        key = (number, T0 + second, 0)
        item = AttemptItem.of(key, attempt, state, Reason.NONE, code, self.now_ms, self.now_ms)
        assert self.append(c.Report((item,))) == [[Verdict.ACCEPTED]]

    def refuse(self, second: int, attempt: int = 1, number: int = 1) -> None:
        key = (number, T0 + second, 0)
        refused = c.Report((refused_item(key, attempt, "busy"),))
        assert self.append(refused) == [[Verdict.ACCEPTED]]

    def close(self, **fields: object) -> int:
        usual = {"number": 0, "action": GateAction.PAUSE, "reason": "", "by": "anna"}
        gate = Gate(since_ms=0, **usual | fields)  # type: ignore[arg-type]
        self.append(CloseGate(gate))
        return self.state.gate_numbers

    def limit(self, scope: tuple[str, str, int], **limits: int) -> None:
        self.append(SetLimits((LimitItem(scope, Limits(**limits)),), "anna"))

    def agrees(self) -> bool:
        """Whether the queues have what State has."""
        queues, state = self.queues, self.state
        taken = sum(sum(used(queues.places, number).values()) for number in range(9))
        return (
            set(queues._waiting) == set(state.due)
            and counts_what_runs(queues)
            and set(queues.fair.running) == set(queues._running)
            and len(state.active) == taken
        )


def told(commands: list[c.Command]) -> list[str]:
    """Commands in words, in seconds after T0."""
    words = []
    for command in commands:
        if isinstance(command, c.Begin):
            words += [f"begin {shown(item.key)}#{item.attempt}" for item in begun(command)]
        elif isinstance(command, c.Skip | c.Cancel):
            verb = type(command).__name__.lower()
            words += [f"{verb} {shown(item.key)} {item.reason.label}" for item in command.items]
    return words


def shown(key: c.Key) -> str:
    number, scheduled_s, trigger = key
    return f"{number}@{scheduled_s - T0}" + (f"+t{trigger}" if trigger else "")


def queue(**fields: object) -> Job:
    """A job whose launches begin in the order of their instants."""
    usual = {"overlap": Overlap.QUEUE, "deadline_s": 10_000}
    return job(schedule=SECONDS, **usual | fields)  # type: ignore[arg-type]
