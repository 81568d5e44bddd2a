"""Who watches the simulation: a witness on the hosts, a reader of the log, and their judgement.

The judge reads the log by itself, with its own notion of which epoch is current, and sees each
command that really starts or ends. Nothing of the leader is asked. What is wrong is kept as a
sentence with its letter:

a  an attempt was started twice                   f  an instant has no row, or two
b  two attempts of a launch ran at once           g  replicas differ at one log index
c  what never ran by the log was started          h  a row says what the witness did not see
d  started without a Begin of a current epoch     i  started after its deadline
e  two launches ran at once that must not         l  a launch never ends, a horizon stands still
p  a launch is not what its parts were            r  tries, rests, dead letters (`tries.py`)
m  more runs than a limit allows, or what a gate or a drain holds (`bounds.py`)
s  starts faster than a rate allows               v  takes a slot that is reserved (`pacing.py`)
n  nothing was started after the faults, or nothing of it succeeded
k  the fencing token of a later attempt is not greater than that of an earlier one
o  a launch begins before what it follows, or is skipped for what succeeded (`followed.py`)
t  a task is lost, doubled, too early, or begins though it was cancelled (`tasks.py`)
j  a launch begins before its jitter is over, or a job is paused too early (`jittered.py`)

An attempt of several parts is begun part by part here: each has its name, and may start once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from consensus.leadership import Position
from cron.job import Job, OnLost, Overlap
from cron.launch_state import LaunchState
from cron.leader.applier import StateApplier
from cron.state import commands as c
from cron.state.codec import decode_entry
from cron.state.machine import Machine
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.state import State
from cron.state.tasks import CancelTasks, TaskRecord
from launcher.protocol.names import AttemptName, LaunchName, parse_attempt_name
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.batches import AttemptItem, BeginItem, answered, items_of
from tests.simulation.bounds import Bounds
from tests.simulation.followed import FollowedWitness
from tests.simulation.jittered import JitterWitness
from tests.simulation.pacing import THREAD_POOL, Pacing
from tests.simulation.tasks import TaskWitness
from tests.simulation.tries import Tries
from tests.states import image_digest

IMAGE_EVERY = 64
CLOCK_MS = 50
"""What a spawner may take between its last look at the clock and the start."""
WORKER_MS = 250
"""What a worker may take more, that has a launch in hand when its time is over."""


class Begun(msgspec.Struct):
    """An attempt as its Begin in the log has it, and what the witness saw of it."""

    name: AttemptName
    job: str
    number: int
    index: int
    overlap: Overlap
    guarded: bool
    deadline_ms: int
    executor: str
    ledger: str
    is_current: bool
    parts: int = 1  # of its attempt
    started_ms: int = 0
    ended_ms: int = 0
    exit_code: int = -1
    reason: int = 0
    never_ran: bool = False  # the log says that it never ran and never will
    is_lost: bool = False
    is_cancelled: bool = False  # by the log, before it ended
    is_handler: bool = False
    concurrency: int = 0  # launches of its job at once, 0 for any number


class Judge:
    """Sees all commits and all starts; `problems` are what is wrong."""

    def __init__(
        self,
        wall_ms: Callable[[], int],
        tell: Callable[[str], None],
        on_disk: Callable[[State, str], TaskRecord | None] = lambda _state, _name: None,
    ) -> None:
        self.problems: list[str] = []
        self.machine = Machine()
        self.begun: dict[str, Begun] = {}
        self.started = 0
        self.newest_start_ms = 0
        self.newest_success_ms = 0  # in the log
        self.wall_ms = wall_ms
        self._tell = tell
        self._highest = Epoch()
        self._running: dict[str, Begun] = {}
        self._digests: dict[int, bytes] = {}
        self._images: dict[int, str] = {}
        self.verdicts: dict[Verdict, int] = {}
        self._before: frozenset[str] = frozenset()  # launches that ran in a life before
        self._restored_ms = 0
        self._again: dict[c.Key, None] = {}  # caught up by jobs that would rather run twice
        self._tries = Tries(self.accuse)
        self._bounds = Bounds(self.accuse, wall_ms)
        self._pacing = Pacing(self.accuse, wall_ms, self._slots)
        self._tasks = TaskWitness(self.accuse, on_disk)
        self.followed = FollowedWitness(self.accuse)
        self.jittered = JitterWitness(self.accuse)
        self.thread_pools: dict[
            str, int
        ] = {}  # how many launches the workers of an executor may have

    def accuse(self, letter: str, message: str) -> None:
        """Note what is wrong."""
        self.problems.append(f"{letter}: {message}")
        self._tell(f"WRONG {letter}: {message}")

    def _slots(self, state: State, domain: str) -> int:
        records = state.executors.values()
        if domain == THREAD_POOL:
            return sum(self.thread_pools.get(record.executor, 0) for record in records)
        return sum(record.slots for record in records)

    # ---- the log

    def restored(self, state: State) -> None:
        """All replicas were lost, and this is what the cell begins with again. What the witness saw
        he has seen."""
        self.machine = Machine(state)
        self._highest = state.epoch
        self._digests.clear()
        self._images.clear()
        self._tries.restored(state)
        self._bounds.restored(state)
        self._pacing.restored(state)
        self._tasks.restored(state, self.wall_ms())
        self.followed.restored()
        self._restored_ms = self.wall_ms()
        # A leader whose clock was an hour ahead has launched what is due in an hour. Where no
        # ledger remembers that either, nobody can know.
        until_s = self.wall_ms() // 1000 + 10
        started = (
            str(one.name.launch)
            for one in self.begun.values()
            if one.started_ms and one.name.launch.scheduled_s <= until_s
        )
        self._before = self._before.union(started)

    def _went_on(self, launch: LaunchName, attempt: int) -> bool:
        """Whether an attempt outlived the life of the cell in which it began: nobody but this life
        can have tried it again."""
        parts = self.parts_of(AttemptName(launch, attempt)) if attempt else []
        return any(one.ended_ms >= self._restored_ms for one in parts)

    def committed(self, position: Position, data: bytes) -> None:
        """Read a committed entry, before any replica applies it."""
        entry = decode_entry(data)
        if entry.commands and isinstance(entry.commands[0], c.Claim):
            is_current = entry.epoch > self._highest
            self._highest = max(self._highest, entry.epoch)
        else:
            is_current = entry.epoch == self._highest
        items = [items_of(command, self.machine.state) for command in entry.commands]
        outcome = self.machine.apply(position.term, position.index, data)
        state = self.machine.state
        kinds = ",".join(_shown(command) for command in entry.commands)
        digest = state.digest.hex()[:8]
        accepted = "" if outcome.verdict is Verdict.ACCEPTED else " REFUSED"
        self._tell(f"log {position.index} {entry.epoch} {kinds}{accepted} {digest}")
        self._digests[position.index] = state.digest
        if position.index % IMAGE_EVERY == 0:
            self._images[position.index] = image_digest(state)
        for command, result, meant in zip(outcome.commands, outcome.results, items, strict=False):
            self._read(command, result, meant, is_current=is_current)
        if outcome.commands:
            self._tries.read(state, outcome)
            self._bounds.read(state, outcome)
            self._pacing.read(state, outcome, entry.at_ms)
            self._tasks.read(state, outcome)
            self.followed.read(state, outcome)
            self.jittered.read(state, outcome)

    def tasks(
        self, acknowledged: dict[str, None], calm_ms: int, now_ms: int, *, served: bool
    ) -> None:
        """Judge the tasks that programs were told to have been taken; at the end."""
        state = self.machine.state
        self._tasks.judge(state, acknowledged, calm_ms, now_ms, served=served)

    def dead_letters(self) -> None:
        """Compare State's dead letters with those that there have to be; at the end."""
        self._tries.compare(self.machine.state)

    def _read(
        self, command: c.Command, result: Result, items: list[Any], *, is_current: bool
    ) -> None:
        if isinstance(command, c.Recover):
            self._note_lost(command)
            self._check_memories(command, result)
        if isinstance(command, c.Cancel):
            self._note_cancelled([item.key for item in command.items], result)
        elif isinstance(command, CancelTasks):
            records = map(self.machine.state.record_of, command.names)
            open_rows = [[*record.open.values()] if record else [] for record in records]
            keys = [rows[0].key if rows else (0, 0, 0) for rows in open_rows]
            self._note_cancelled(keys, result)
        if not isinstance(command, c.Begin | c.Report):
            return
        for item, verdict in answered(command, result, items):
            if isinstance(item, BeginItem):
                self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
            if verdict not in (Verdict.ACCEPTED, Verdict.AMENDED):
                continue
            if isinstance(item, BeginItem):
                self._note_begun(item, is_current=is_current)
            elif item.state is LaunchState.SKIPPED:
                self._never_ran(self._of(item.key, item.attempt, item.part))
            elif item.state is LaunchState.LOST:
                self._of(item.key, item.attempt, item.part).is_lost = True
            elif item.state is not LaunchState.LAUNCHED:
                self._check_end(item)

    def _note_cancelled(self, keys: list[c.Key], result: Result) -> None:
        state = self.machine.state
        for key, verdict in zip(keys, result.items, strict=True):
            row = state.active.get(key) if verdict == Verdict.ACCEPTED else None
            if row is not None:
                for one in self.parts_of(AttemptName(state.launch_name(key), row.attempt)):
                    one.is_cancelled = True

    def _note_lost(self, command: c.Recover) -> None:
        """What ran in the life before and is not open now may be running, and nobody knows."""
        state = self.machine.state
        numbers = {item.number for item in command.items}
        for key in state.due:
            job = state.by_number[key[0]].job
            if key[0] in numbers and job is not None and job.on_lost is OnLost.RETRY:
                self._again[key] = None
        for one in self.begun.values():
            key = state.key_of(one.name.launch)
            row = state.row(key) if key is not None else None
            is_open = row is not None and row.attempt == one.name.attempt
            if is_open and row is not None:
                is_open = any(start.number == one.name.part for start in row.starts())
            if one.number in numbers and not is_open:
                one.is_lost = True

    def _check_memories(self, command: c.Recover, result: Result) -> None:
        """A success that a restored cell takes over was one; late report may be of one part."""
        state = self.machine.state
        for item, verdict in zip(command.items, result.items, strict=True):
            job = state.by_number[item.number].job if item.number else None
            for ran in item.ran if job is not None and verdict == Verdict.ACCEPTED else ():
                launch = LaunchName(job.name, ran.scheduled_s, ran.trigger)
                parts = self.parts_of(AttemptName(launch, ran.attempt))
                is_clean = all(one.ended_ms and not one.exit_code for one in parts)
                # Of what the job was when the attempt began only this judge knows.
                is_same = len(parts) == job.parts and not job.each
                if ran.state is LaunchState.SUCCEEDED and is_same and not is_clean:
                    self.accuse("p", f"{launch} is remembered as a success, not by all its parts")

    def _of(self, key: c.Key, attempt: int, part: int) -> Begun:
        return self.begun[str(AttemptName(self.machine.state.launch_name(key), attempt, part))]

    def parts_of(self, name: AttemptName) -> list[Begun]:
        """Return all parts that were begun of an attempt, by any of their names."""
        first = self.begun.get(str(AttemptName(name.launch, name.attempt)))
        numbers = range(1, first.parts + 1) if first is not None else ()
        return [self.begun[str(AttemptName(name.launch, name.attempt, one))] for one in numbers]

    def _note_begun(self, item: BeginItem, *, is_current: bool) -> None:
        state = self.machine.state
        row = state.active[item.key]
        assert row.job is not None
        launch = state.launch_name(item.key)
        is_asked_for = bool(row.by) or row.job.on_lost is OnLost.RETRY or item.key in self._again
        is_next = is_asked_for or self._went_on(launch, item.attempt - 1)
        if str(launch) in self._before and not is_next:
            self.accuse("a", f"{launch} was begun, and ran before the cell was restored")
        numbers = (item.executor, *item.others)
        self._check_parts(launch, row.job, numbers)
        for part, number in enumerate(numbers, 1):
            name, executor = AttemptName(launch, item.attempt, part), state.executors[number]
            before = self.begun.get(str(name))
            self.begun[str(name)] = Begun(
                name, row.job.name, row.number, state.index, row.job.overlap, row.job.work.guarded,
                row.deadline_ms, executor.executor, executor.ledger, is_current, len(numbers),
                is_handler=bool(row.job.work.handler),
                concurrency=row.job.concurrency if row.job.overlap is Overlap.ALLOW else 0,
            )  # fmt: skip
            self._remember(before, self.begun[str(name)])

    def _remember(self, before: Begun | None, begun: Begun) -> None:
        """What a cell has forgotten and begins again where it ran, runs no other time there."""
        where = (begun.executor, begun.ledger)
        if before is None or (before.executor, before.ledger) != where:
            return
        begun.started_ms, begun.ended_ms = before.started_ms, before.ended_ms
        begun.exit_code, begun.reason = before.exit_code, before.reason
        if str(begun.name) in self._running:
            self._running[str(begun.name)] = begun

    def _check_parts(self, launch: LaunchName, job: Job, numbers: tuple[int, ...]) -> None:
        """It begins on as many executors as it has parts, or on some such as it asks for."""
        executors = [self.machine.state.executors[number] for number in dict.fromkeys(numbers)]
        if len(executors) != (len(numbers) if job.each else job.parts):
            self.accuse("p", f"{launch} of {job.parts} parts was begun on {numbers}")
        key, _, value = job.each.partition("=")
        for record in executors if key else ():
            if (key, value) not in record.labels:
                self.accuse(
                    "p", f"{launch} was begun on {record.executor}, which is not {job.each}"
                )

    def _never_ran(self, attempt: Begun) -> None:
        attempt.never_ran = True
        if attempt.started_ms:
            self.accuse("c", f"{attempt.name} was started, and the log says that it never ran")

    def _check_end(self, item: AttemptItem) -> None:
        attempt = self._of(item.key, item.attempt, item.part)
        if not attempt.ended_ms or attempt.exit_code != item.exit_code:
            self.accuse(
                "h",
                f"{attempt.name} is {item.state.label} with exit {item.exit_code}, "
                f"the witness has {attempt.exit_code}",
            )
        if item.state is LaunchState.SUCCEEDED:
            self.newest_success_ms = self.wall_ms()
        is_clean = attempt.exit_code == 0 and attempt.reason == Reason.NONE
        if (item.state is LaunchState.SUCCEEDED) != is_clean:
            self.accuse("h", f"{attempt.name} is {item.state.label} by the log only")

    # ---- the hosts

    def start(self, name: str, executor: str, ledger: str) -> None:
        """A command was really started."""
        self._tell(f"start {name} on {executor}")
        self.started += 1
        attempt = self.begun.get(name)
        if attempt is None or not attempt.is_current:
            self.accuse("d", f"{name} was started without a Begin of a current epoch")
            if attempt is None:
                return
        if (attempt.executor, attempt.ledger) != (executor, ledger):
            self.accuse("d", f"{name} was started on {executor}, begun on {attempt.executor}")
        if attempt.started_ms:
            self.accuse("a", f"{name} was started twice")
        if attempt.never_ran:
            self.accuse("c", f"{name} was started after the log said that it never ran")
        late_ms = self.wall_ms() - attempt.deadline_ms
        if late_ms > CLOCK_MS + WORKER_MS * attempt.is_handler:
            self.accuse("i", f"{name} was started {late_ms} ms after its deadline")
        for other in self._running.values():
            self._beside(attempt, other)
        self._among(attempt)
        attempt.started_ms = self.newest_start_ms = self.wall_ms()
        self._running[name] = attempt

    def _beside(self, attempt: Begun, other: Begun) -> None:
        if attempt.number != other.number or attempt is other:
            return
        # An unguarded command that was given up goes on on its host: that was allowed to it by the
        # revision it began with, and nobody else knows of it.
        if other.is_lost and not other.guarded:
            return
        later = max(attempt, other, key=lambda one: one.index)
        if attempt.name.launch == other.name.launch:
            if attempt.name.attempt == other.name.attempt and attempt.name != other.name:
                return  # another part of it
            self.accuse("b", f"{attempt.name} was started while {other.name} was running")
        elif later.overlap is not Overlap.ALLOW:
            self.accuse("e", f"{attempt.name} was started while {other.name} was running")

    def _among(self, attempt: Begun) -> None:
        """Count the launches that really run of a job that allows some at once."""
        beside = {
            one.name.launch
            for one in self._running.values()
            if one.number == attempt.number and (one.guarded or not one.is_lost)
        } - {attempt.name.launch}
        if 0 < attempt.concurrency <= len(beside):
            message = f"beside {len(beside)} others of its job, {attempt.concurrency} may run"
            self.accuse("m", f"{attempt.name} was started {message}")

    def end(self, name: str, exit_code: int, reason: int) -> None:
        """A command really ended."""
        self._tell(f"end {name} exit {exit_code} {Reason(reason).label}")
        attempt = self._running.pop(name, None) or self.begun.get(name)
        if attempt is not None:
            attempt.ended_ms = self.wall_ms()
            attempt.exit_code, attempt.reason = exit_code, reason

    @property
    def running(self) -> int:
        """How many commands really run."""
        return len(self._running)

    # ---- replicas

    def applied(self, replica: str, index: int, applier: StateApplier, _: Outcome) -> None:
        """A replica has applied an entry: it must be where everybody was at that index."""
        state = applier.state
        if self._digests.get(index) != state.digest:
            self.accuse("g", f"{replica} has another digest at index {index}")
        if index in self._images and image_digest(state) != self._images[index]:
            self.accuse("g", f"{replica} has another image at index {index}")


class Eyes:
    """The witness that hosts report to."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._fences: dict[str, dict[int, int]] = {}

    def started(self, name: str, executor: str, ledger: str) -> None:
        """A command runs."""
        assert str(parse_attempt_name(name)) == name
        self._judge.start(name, executor, ledger)

    def ended(self, name: str, exit_code: int, reason: int) -> None:
        """It does not any more."""
        self._judge.end(name, exit_code, reason)

    def obeyed(self, name: str, executor: str, epoch: Epoch, seen: Epoch) -> None:
        """An executor that has seen one epoch accepts a start of another."""
        if epoch < seen:
            self._judge.accuse("d", f"{executor} accepts {name} of {epoch} and has seen {seen}")

    def fenced(self, name: str, fence: int) -> None:
        """An attempt gets its fencing token, also after all replicas were lost."""
        this = parse_attempt_name(name)
        tokens = self._fences.setdefault(str(this.launch), {})
        for attempt, other in tokens.items():
            is_earlier, is_later = attempt < this.attempt, attempt > this.attempt
            if (is_earlier and other >= fence) or (is_later and other <= fence):
                self._judge.accuse("k", f"{name} has {fence}, attempt {attempt} had {other}")
        tokens[this.attempt] = fence


def _shown(command: c.Command) -> str:
    kind = type(command).__name__.lower()
    items = [*items_of(command), *getattr(command, "executors", ())]
    return f"{kind}*{len(items)}" if items or hasattr(command, "items") else kind
