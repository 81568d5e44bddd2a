"""What waits and what runs on the leader: the order, the gates, the limits, after every entry."""

from __future__ import annotations

from cron.job import Catchup, Job, Overlap, Retry, Schedule
from cron.leader.books import Books
from cron.leader.gates import tell_gate
from cron.leader.plan import Settings, View, plan
from cron.leader.queues import LOADED_AT_ONCE, Queues
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.pool import (
    CloseGate,
    Drain,
    Gate,
    GateAction,
    LiftGates,
    LimitItem,
    Limits,
    SetLimits,
)
from launcher.fairness.item import WaitFor
from launcher.launch import LaunchState, Reason
from launcher.placement.place import Capacity, Place
from launcher.pool.events import Offer
from launcher.work import WorkSpec
from tests.unit.state_rig import T0, StateRig, job

SECONDS = Schedule("@every 1s", every_s=1)
EVERYTHING = ("", "", -1)


class Rig:
    """A leader without a log: State, books, and executor 1 with four free slots for commands."""

    def __init__(self, *jobs: Job) -> None:
        self.rig = StateRig()
        assert self.rig.put(*jobs).verdict is Verdict.ACCEPTED
        self.rig.join()
        self.state = self.rig.state
        self.lead()

    def lead(self) -> None:
        """A reign begins: nothing is left of the one before but State."""
        self.books = Books(self.state)
        self.queues.places.put(Place(1, {}, (Capacity(4),)))

    @property
    def queues(self) -> Queues:
        return self.books.queues

    @property
    def now_ms(self) -> int:
        return self.rig.at_ms

    def to(self, second: float) -> Rig:
        self.rig.at_ms = int((T0 + second) * 1000)
        return self

    def append(self, *commands: c.Command) -> list[list[Verdict]]:
        outcome = self.rig.append(*commands)
        self.books.follow(outcome)
        return [[Verdict(item) for item in result.items] for result in outcome.results]

    def plan(self, late_budget: int = 9, launches_max: int = 100) -> list[c.Command]:
        """What a turn would append."""
        settings = Settings(launches_max=launches_max)
        view = View(self.state, [], late_budget=late_budget, queues=self.queues, settings=settings)
        return plan(view, self.now_ms)

    def turn(self, late_budget: int = 9, launches_max: int = 100) -> list[str]:
        """One turn of the leader, all of it committed: what begins and what is skipped."""
        commands = self.plan(late_budget, launches_max)
        if commands:
            self.append(*commands)
        return told(commands)

    def account(self, *seconds: int, number: int = 1, late: bool = False) -> None:
        """Make these instants due, of a job that has none yet that is newer."""
        record = self.state.by_number[number]
        due = tuple(c.DueItem(T0 + second, is_late=late) for second in seconds)
        item = c.AccountItem(number, record.revision, record.horizon_s, T0 + seconds[-1], due)
        assert self.append(c.Account((item,))) == [[Verdict.ACCEPTED]]

    def end(self, second: int, attempt: int = 1, number: int = 1, *, code: int = 0) -> None:
        """Report the end of an attempt: a failure, where the exit code says so."""
        state = LaunchState.FAILED if code else LaunchState.SUCCEEDED
        key = (number, T0 + second, 0)
        item = c.FinishedItem(key, attempt, state, Reason.NONE, code, self.now_ms, self.now_ms)
        assert self.append(c.Finished((item,))) == [[Verdict.ACCEPTED]]

    def refuse(self, second: int, attempt: int = 1, number: int = 1) -> None:
        key = (number, T0 + second, 0)
        refused = c.Refused((c.RefusedItem(key, attempt, "busy"),))
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
        taken = sum(sum(queues.places.used(number).slots.values()) for number in range(9))
        return (
            set(queues._waiting) == set(state.due)
            and set(queues._running) == set(state.active)
            and queues.pump.running == len(state.active) == taken
        )


def told(commands: list[c.Command]) -> list[str]:
    """Commands in words, in seconds after T0."""
    words = []
    for command in commands:
        if isinstance(command, c.Begin):
            words += [f"begin {shown(item.key)}#{item.attempt}" for item in command.items]
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


# ---- overlap=queue: the order of instants, whatever rests or is late


def test_what_is_tried_again_goes_before_what_is_younger() -> None:
    """It came back behind those that waited already, and the first of these began instead."""
    rig = Rig(queue(retry=Retry(3, backoff_ms=1000)))
    rig.to(10).account(1, 2, 3)
    assert rig.turn() == ["begin 1@1#1"]
    rig.end(1, code=1)
    assert rig.turn() == []  # it rests, and those behind it wait for it
    assert rig.to(20).turn() == ["begin 1@1#2"]
    rig.end(1, 2)
    assert rig.turn() == ["begin 1@2#1"]


def test_what_was_refused_goes_before_what_is_younger() -> None:
    rig = Rig(queue())
    rig.to(10).account(1, 2)
    assert rig.turn() == ["begin 1@1#1"]
    rig.refuse(1)
    assert rig.turn() == []
    assert rig.to(11).turn() == ["begin 1@1#2"]


def test_whoever_waited_behind_a_rest_goes_on_when_that_is_called_off() -> None:
    """It had been told to wait for an hour, and nobody told it that there was no reason any more:
    it began an hour later, or not at all, if its deadline was before."""
    hour = Retry(3, backoff_ms=3_600_000)
    rig = Rig(queue(retry=hour))
    rig.to(10).account(1, 2)
    rig.turn()
    rig.end(1, code=1)
    assert rig.turn() == []
    rig.append(c.Cancel((c.CancelItem((1, T0 + 1, 0), Reason.KILLED, "anna"),)))
    assert rig.turn() == ["begin 1@2#1"]


def test_an_older_one_that_is_filled_back_goes_before_what_waits() -> None:
    rig = Rig(queue())
    rig.to(10).account(1, 5)
    assert rig.turn() == ["begin 1@1#1"]
    items = tuple(c.ReopenItem((1, T0 + second, 0), -1, 0, 0) for second in (4, 3))
    rig.append(c.Reopen(items, rig.state.index, "anna"))
    order = ["1@1"]
    for _ in range(3):
        rig.end(int(order[-1][2:]))
        (word,) = rig.turn()
        order.append(word.split()[1].split("#")[0])
    assert order == ["1@1", "1@3", "1@4", "1@5"]


def test_what_is_live_is_not_paced_once_what_was_late_of_its_job_has_begun() -> None:
    rig = Rig(queue(catchup=Catchup.ALL))
    rig.to(10).account(1, late=True)
    rig.account(10)
    assert rig.turn(late_budget=0) == []
    assert rig.turn(late_budget=1) == ["begin 1@1#1"]
    rig.end(1)
    assert rig.turn(late_budget=0) == ["begin 1@10#1"]


def test_a_queue_that_waited_at_a_gate_goes_on_in_order() -> None:
    rig = Rig(queue())
    number = rig.close()
    rig.to(10).account(1, 2, 3)
    assert rig.turn() == []
    rig.append(LiftGates((number,), "anna"))
    assert rig.turn() == ["begin 1@1#1"]
    assert rig.turn() == []


def test_a_queue_whose_gate_opens_by_itself_goes_on_in_order() -> None:
    rig = Rig(queue())
    rig.close(until_ms=(T0 + 20) * 1000)
    rig.to(10).account(1, 2)
    assert rig.turn() == []
    assert rig.queues.next_ms() == (T0 + 20) * 1000
    assert rig.to(20).turn() == ["begin 1@1#1"]
    rig.end(1)
    assert rig.turn() == ["begin 1@2#1"]


def test_a_queue_goes_on_behind_one_that_is_past_its_deadline() -> None:
    rig = Rig(queue(deadline_s=30))
    rig.to(20).account(1, 20)
    rig.queues.places.drop(1)
    assert rig.turn() == []
    rig.queues.places.put(Place(1, {}, (Capacity(4),)))
    assert rig.to(31).turn() == ["skip 1@1 deadline"]
    assert rig.turn() == ["begin 1@20#1"]


def test_a_queue_that_is_made_one_that_overlaps_lets_all_begin() -> None:
    rig = Rig(queue())
    rig.to(3).account(1, 2, 3)
    assert rig.turn() == ["begin 1@1#1"]
    put = c.PutJobs("crontab", rig.state.catalog, T0 + 3, (queue(overlap=Overlap.ALLOW),))
    rig.append(put)
    assert rig.turn() == ["begin 1@2#1", "begin 1@3#1"]


def test_what_overlapped_and_is_made_a_queue_keeps_its_order() -> None:
    rig = Rig(queue(overlap=Overlap.ALLOW))
    rig.to(3).account(1, 2, 3)
    assert rig.turn(launches_max=1) == ["begin 1@1#1"]
    rig.append(c.PutJobs("crontab", rig.state.catalog, T0 + 3, (queue(),)))
    assert rig.turn() == []
    rig.end(1)
    assert rig.turn() == ["begin 1@2#1"]


def test_what_a_plan_could_not_begin_of_a_queue_is_still_the_first() -> None:
    rig = Rig(queue())
    rig.to(3).account(1, 2)
    (begin,) = rig.plan()
    assert isinstance(begin, c.Begin)
    wrong = c.BeginItem(begin.items[0].key, 1, 77, 1, rig.now_ms + 1000)
    assert rig.append(c.Begin((wrong,))) == [[Verdict.STALE_REVISION]]
    assert rig.agrees()
    assert rig.turn() == ["begin 1@1#1"]


# ---- what is judged, and what it costs


def test_of_a_thousand_that_wait_only_the_newest_replaces() -> None:
    rig = Rig(queue(overlap=Overlap.REPLACE))
    rig.to(1000).account(*range(1, 1001))
    words = rig.turn()
    assert len(words) == 1000
    assert words[-1] == "begin 1@1000#1"
    assert all(word.startswith("cancel") for word in words[:-1])
    assert rig.agrees()


class Counted(dict[tuple[int, int], object]):
    """The open launches of a job, counting who reads all of them."""

    reads = 0

    def values(self):  # type: ignore[no-untyped-def]
        Counted.reads += 1
        return super().values()


def test_judging_a_launch_does_not_read_all_that_its_job_has_open() -> None:
    """Ten thousand that wait of one job where overlap is forbidden took a minute to judge."""
    rig = Rig(queue(overlap=Overlap.FORBID))
    rig.queues.places.drop(1)
    rig.to(300).account(*range(1, 300))
    record = rig.state.by_number[1]
    Counted.reads = 0
    record.open = Counted(record.open)  # type: ignore[assignment]
    assert rig.turn() == []
    assert Counted.reads == 0


def test_launches_that_are_over_leave_no_deadlines_behind() -> None:
    """Each launch left one until its time came: at a thousand a second, millions of them."""
    rig = Rig(job(schedule=SECONDS, deadline_s=86_400))
    queues = rig.queues
    rig.to(1)
    for second in range(1, 26_000, 1000):
        rig.account(*range(second, second + 1000))
        for key in list(rig.state.due):
            rig.state.due.pop(key)
        queues.follow([(1, T0 + one, 0) for one in range(second, second + 1000)])
    assert not queues._waiting
    assert len(queues._deadlines) < 12_000


def test_deadlines_hold_whatever_was_forgotten_of_others() -> None:
    rig = Rig(job(schedule=SECONDS, deadline_s=60_000), job("other", deadline_s=20_000))
    rig.queues.places.drop(1)
    rig.to(1).account(1, number=2)
    for second in range(1, 13_000, 1000):
        rig.account(*range(second, second + 1000))
        for one in range(second, second + 1000):
            rig.state.due.pop((1, T0 + one, 0))
        rig.queues.follow([(1, T0 + one, 0) for one in range(second, second + 1000)])
    assert rig.turn() == []
    assert rig.to(20_001).turn() == ["skip 2@1 deadline"]
