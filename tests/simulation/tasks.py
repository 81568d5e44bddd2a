"""Programs that submit tasks while things go wrong, and who watches over their tasks.

The witness reads the log by itself and keeps its own list of tasks: what was taken, when it is due,
who cancelled it. What is wrong has the letter t.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from consensus.errors import ConsensusError
from cron.errors import CronError
from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.limits import DEADLINE_S_MAX
from cron.service import spilled
from cron.service.task_views import open_row
from cron.state import commands as c
from cron.state import tasks as t
from cron.state.groups import CloseGroups, GroupClose
from cron.state.outcome import Outcome, Verdict
from cron.state.rows import Row, RowKind
from cron.state.state import State
from launcher.protocol.names import TASK_MARK
from launcher.protocol.status import Reason
from tests.batches import answered
from tests.simulation.chains import ChainWitness, DrawnTies, name_of
from tests.simulation.crontabs import ENDS, HANDLERS
from tests.simulation.replicas import Replica

QUEUES: Final = ("default/now", "default/later", "blue/now")
DELAYS_S: Final = (-5.0, 0.0, 0.0, 0.01, 0.5, 2.0, 7.5, 20.0, 45.0, 60.0)
ACT_S: Final = 1.5
LATE_MS: Final = 60_000
"""So long after the faults, or after it was due, a task has ended."""


EARLY_MS: Final = 10_000
"""What is due so much later than a restore ran before only if somebody made it due."""


class Programs:
    """Clients that submit tasks, again where nobody answered, and change their minds."""

    def __init__(
        self, rng: random.Random, find_leader: Callable[[], Replica | None],
        wall_ms: Callable[[], int], tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._rng = rng
        self._find_leader = find_leader
        self._wall_ms = wall_ms
        self._tell = tell
        self._keys = 0
        self._asked: list[tuple[t.TaskSpec, ...]] = []
        self._ties = DrawnTies(rng)
        self.acknowledged: dict[str, None] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        """Act now and then, for ever."""
        acts = [self._submit] * 5 + [self._repeat] * 2 + [self._cancel, self._change, self._run_now]
        acts.append(self._close)
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / ACT_S))
            leader, act = self._find_leader(), self._rng.choice(acts)
            if leader is not None:
                task = asyncio.get_running_loop().create_task(self._try(act, leader))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    async def _try(self, act: Callable[[Replica], Any], leader: Replica) -> None:
        try:
            async with asyncio.timeout(15):
                said = await act(leader)
        except (CronError, ConsensusError, TimeoutError) as error:
            said = f"failed: {type(error).__name__}"
        self._tell(f"program {act.__name__.strip('_')} on {leader.name}: {said}")

    def _draw(self, before: Sequence[t.TaskSpec] = ()) -> t.TaskSpec:
        rng = self._rng
        self._keys += 1
        options = t.TaskOptions(
            rng.choice(HANDLERS),
            rng.choice((-1, -1, 2, 8)),
            tries=rng.choice((0, 0, 2, 3)),
            backoff_ms=rng.choice((1_000, 3_000)),
            deadline_s=rng.choice((0, 0, 30, 90)),
            on_lost=rng.choice((-1, -1, 0, 1)),
        )
        told = {
            "run": rng.choice((0.0, 0.2, 1.0, 5.0)),
            "fails": rng.choice((0.0, 0.0, 0.5)),
            "how": rng.sample(ENDS, 2),
            "after": rng.choice((0, 500)),
        }
        payload = json.dumps(told).encode()
        at_ms = self._wall_ms() + round(1000 * rng.choice(DELAYS_S))
        key = f"k{self._keys}"
        digest = hashlib.blake2b(payload + key.encode(), digest_size=16).digest()
        spec = t.TaskSpec(rng.choice(QUEUES), key, at_ms, payload, digest, options)
        return self._ties.tied(spec, [*self.acknowledged, *map(name_of, before)])

    async def _submit(self, leader: Replica) -> str:
        tasks: tuple[t.TaskSpec, ...] = ()
        for _ in range(self._rng.choice((1, 1, 3, 8))):
            tasks = (*tasks, self._draw(tasks))
        self._asked.append(tasks)
        return await self._send(leader, tasks)

    async def _close(self, leader: Replica) -> str:
        """Close a group, with its hook or without; now and then again, or with another hook."""
        name = self._ties.group_to_close()
        hook = None
        if self._rng.random() < 0.7:
            is_other = self._rng.random() < 0.2
            hook = self._draw_hook() if is_other else self._ties.hooks.get(name)
            hook = self._ties.hooks[name] = hook or self._draw_hook()
        defaults = t.defaults_in(leader.served.state.format)
        close = CloseGroups((GroupClose(name, hook),), "shop", defaults)
        _, results = await leader.leader.append(close)
        verdict = results[0].items[0]
        if verdict in (Verdict.ACCEPTED, Verdict.ALREADY):
            self._ties.closed()
            if hook is not None:
                self.acknowledged[name_of(hook)] = None
        return f"{name}={verdict} {hook.key if hook else ''}"

    def _draw_hook(self) -> t.TaskSpec:
        return msgspec.structs.replace(self._draw(), group="", after=(), after_any=())

    async def _repeat(self, leader: Replica) -> str:
        """Submit what was submitted before, whether anybody answered or not."""
        if not self._asked:
            return "nothing"
        return await self._send(leader, self._rng.choice(self._asked))

    async def _send(self, leader: Replica, tasks: tuple[t.TaskSpec, ...]) -> str:
        defaults = t.defaults_in(leader.served.state.format)
        _, results = await leader.leader.append(t.SubmitTasks(tasks, "shop", defaults))
        taken = (Verdict.ACCEPTED, Verdict.ALREADY)
        for spec, verdict in zip(tasks, results[0].items, strict=True):
            name = f"{spec.queue}{TASK_MARK}{spec.key}"
            if verdict in taken:
                self.acknowledged[name] = None
            elif verdict == Verdict.ON_DISK:  # it, or one that it follows
                found = await spilled.read(leader.served, name)
                if found is not None:
                    self.acknowledged[name] = None
                else:
                    await spilled.bring_back(leader.served, (*spec.after, *spec.after_any))
        return " ".join(f"{spec.key}={v}" for spec, v in zip(tasks, results[0].items, strict=True))

    def _names(self) -> tuple[str, ...]:
        names = list(self.acknowledged)[-30:]
        return tuple(self._rng.sample(names, min(len(names), self._rng.choice((1, 3)))))

    async def _cancel(self, leader: Replica) -> str:
        names = self._names()
        if leader.served.task_files is not None and self._rng.random() < 0.5:
            await self._by_service(leader, names, lambda some: t.CancelTasks(some, "anna"))
        else:
            await leader.leader.append(t.CancelTasks(names, "anna"))
        return " ".join(names)

    async def _change(self, leader: Replica) -> str:
        at_ms = self._wall_ms() + round(1000 * self._rng.choice(DELAYS_S))
        items = tuple(t.RescheduleItem(name, at_ms=max(at_ms, 0)) for name in self._names())
        by_name = {item.name: item for item in items}
        if leader.served.task_files is not None:
            await self._by_service(
                leader,
                tuple(by_name),
                lambda some: t.RescheduleTasks(tuple(by_name[one] for one in some), "anna"),
            )
        else:
            await leader.leader.append(t.RescheduleTasks(items, "anna"))
        return " ".join(item.name for item in items)

    async def _run_now(self, leader: Replica) -> str:
        names = self._names()
        if leader.served.task_files is not None:
            await self._by_service(leader, names, lambda some: t.RunTasks(some, "anna"))
        else:
            await leader.leader.append(t.RunTasks(names, "anna"))
        return " ".join(names)

    async def _by_service(
        self, leader: Replica, names: tuple[str, ...], build: Callable[[tuple[str, ...]], c.Command]
    ) -> None:
        """Change tasks, some of which may be on disk."""
        await spilled.change(leader.served, names, lambda some, _now_ms: build(some))


class Known(msgspec.Struct):
    """A task as the witness knows it."""

    at_ms: int
    on_lost: int
    tries: int  # 0 is "until its deadline"
    attempt: int = 0  # the newest that was begun
    is_cancelled: bool = False  # before it ever began
    end: LaunchState | None = None  # of the newest row
    scheduled_s: int = -1  # the instant of its launch
    deadline_s: int = DEADLINE_S_MAX
    is_stopped: bool = False  # a person has ended it
    newest_ms: int = 0  # when its newest attempt was begun, or ended


class TaskWitness:
    """Reads the log, after it was applied."""

    def __init__(
        self,
        accuse: Callable[[str, str], None],
        on_disk: Callable[[State, str], t.TaskRecord | None],
    ) -> None:
        """`on_disk` returns a task that is on disk in a State."""
        self._accuse = accuse
        self._on_disk = on_disk
        self._known: dict[str, Known] = {}
        self._chains = ChainWitness(accuse, lambda: self._known)
        self._lost: dict[str, None] = {}  # acknowledged, and not in the snapshot

    def restored(self, state: State, now_ms: int) -> None:
        """The cell begins with this again: it does not know what was submitted since, and may run a
        task again that would rather run twice, or that somebody made due before its time."""
        found = {name: state.tasks.get(name) or self._on_disk(state, name) for name in self._known}
        kept = {name: task for name, task in found.items() if task is not None}
        self._lost |= {name: None for name in found if name not in kept}
        self._known = {name: one for name, one in self._known.items() if name in kept}
        self._chains.restored(state, kept)
        for name, one in self._known.items():  # what was asked of it since is forgotten too
            task = kept[name]
            one.at_ms, one.is_cancelled = min(one.at_ms, task.at_ms), False
            one.end = one.end if task.is_over else None
            is_early = task.is_waiting and task.at_ms > now_ms + EARLY_MS
            if not task.is_over and (one.on_lost == OnLost.RETRY or is_early):
                one.attempt, one.scheduled_s = 0, -1

    def read(self, state: State, outcome: Outcome) -> None:
        """Read an entry that was accepted."""
        self._note_stops(state, outcome)
        self._note_ends(state, outcome)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                for item, verdict in answered(command, result):
                    if verdict == Verdict.ACCEPTED:
                        self._begun(state, item.key, item.attempt)
            elif isinstance(command, CloseGroups):
                hooks = self._chains.closes(command, result.items, self._known)
                deque(map(partial(self._taken, state), hooks), maxlen=0)
            elif isinstance(command, t.SubmitTasks | t.CancelTasks | t.RunTasks):
                self._asked(state, command, result.items)
            elif isinstance(command, t.RescheduleTasks):
                for change, verdict in zip(command.items, result.items, strict=True):
                    if verdict == Verdict.ACCEPTED and change.at_ms >= 0:
                        self._known[change.name].at_ms = max(change.at_ms, state.at_ms)

    def _note_ends(self, state: State, outcome: Outcome) -> None:
        is_restored = any(isinstance(one, c.Recover | c.Resolve) for one in outcome.commands)
        for row in outcome.rows:
            known = self._known.get(row.job)
            if known is not None and row.kind is RowKind.ENDED:
                known.end, known.newest_ms = row.state, row.ended_at_ms
                known.is_cancelled |= self._chains.ended(state, row.job, row)
                if not is_restored:
                    self._check_again(state, known, row)

    def _note_stops(self, state: State, outcome: Outcome) -> None:
        """Note which tasks a person ends in this entry: nothing has to follow then."""
        names: list[str] = []
        for command in outcome.commands:
            if isinstance(command, c.Cancel):
                names += [state.launch_name(item.key).job for item in command.items]
            elif isinstance(command, t.CancelTasks):
                names += command.names
        for known in filter(None, map(self._known.get, names)):
            known.is_stopped = True

    def _check_again(self, state: State, known: Known, row: Row) -> None:
        """A task that says nothing of tries, losses and its deadline is tried at least once: if it
        is lost, or fails and not for good, it is to be begun again."""
        is_bound = known.tries or known.on_lost != OnLost.RETRY or known.is_stopped
        if is_bound or known.deadline_s != DEADLINE_S_MAX or not row.attempt:
            return
        is_failure = row.state is LaunchState.FAILED and row.reason is not Reason.FATAL
        record = state.record_of(row.job)
        if (is_failure or row.state is LaunchState.LOST) and (record is None or not record.open):
            self._accuse("t", f"{row.job}#{row.attempt} is {row.state.label}, and is over")

    def _asked(
        self, state: State, command: t.SubmitTasks | t.CancelTasks | t.RunTasks, verdicts: Any
    ) -> None:
        if isinstance(command, t.SubmitTasks):
            for spec, verdict in zip(command.tasks, verdicts, strict=True):
                if verdict == Verdict.ACCEPTED:
                    self._taken(state, spec)
            return
        for name, verdict in zip(command.names, verdicts, strict=True):
            known = self._known.get(name)
            if known is None or verdict != Verdict.ACCEPTED:
                continue
            if isinstance(command, t.RunTasks):
                known.at_ms = state.at_ms
            elif not known.attempt:
                known.is_cancelled = True

    def _taken(self, state: State, spec: t.TaskSpec) -> None:
        name, options = f"{spec.queue}{TASK_MARK}{spec.key}", spec.options
        if name in self._known:
            self._accuse("t", f"{name} was taken a second time")
        at_ms = max(spec.at_ms, state.at_ms)
        # What nobody says of a task: it is tried at least once, and lost is no end of it.
        on_lost = options.on_lost if options.on_lost >= 0 else OnLost.RETRY
        deadline_s = options.deadline_s or DEADLINE_S_MAX
        self._known[name] = Known(at_ms, on_lost, options.tries, deadline_s=deadline_s)
        self._chains.taken(spec)

    def _begun(self, state: State, key: c.Key, attempt: int) -> None:
        launch = state.launch_name(key)
        known = self._known.get(launch.job)
        if known is None:
            if TASK_MARK in launch.job:
                self._accuse("t", f"{launch} was begun, and nobody submitted it")
            return
        if known.is_cancelled:
            self._accuse("t", f"{launch} was begun, and was cancelled before")
        if attempt == 1:  # of another one, what it follows had succeeded; in a life before, maybe
            self._chains.begun(state, launch.job)
        if state.at_ms < known.at_ms:
            self._accuse("t", f"{launch} was begun {known.at_ms - state.at_ms} ms before its time")
        if known.scheduled_s not in (-1, launch.scheduled_s):
            self._accuse("t", f"{launch} is a second launch of its task")
        if attempt <= known.attempt:
            self._accuse("t", f"{launch}#{attempt} was begun, after attempt {known.attempt}")
        may_follow = known.end in (None, LaunchState.FAILED, LaunchState.CANCELLED)
        if known.end is LaunchState.LOST and known.on_lost == OnLost.RETRY:
            may_follow = True
        if not may_follow and known.end is not None:
            self._accuse("t", f"{launch}#{attempt} was begun, and is {known.end.label}")
        known.attempt, known.scheduled_s, known.end = attempt, launch.scheduled_s, None
        known.newest_ms = state.at_ms

    def judge(
        self, state: State, acknowledged: Iterable[str], calm_ms: int, now_ms: int, *, served: bool
    ) -> None:
        """At the end: each task that was acknowledged waits for its time or has its end."""
        # Where the cell's time is ahead of all clocks, it stands still, and tasks wait for it.
        moves = state.at_ms < now_ms + EARLY_MS
        for name in acknowledged:
            on_disk = state.spilled.find(name) is not None
            known = self._known.get(name)
            late_ms = now_ms - max(known.at_ms, calm_ms) if known is not None else 0
            if on_disk and moves and late_ms > LATE_MS:
                self._accuse("t", f"{name} was due long ago, and is on disk")
            if name not in state.tasks and not on_disk and name not in self._lost:
                self._accuse("t", f"{name} was acknowledged, and is not known")
        is_able = served and moves
        for name, task in state.tasks.items():
            known = self._known.get(name)
            if known is None:
                self._accuse("t", f"{name} is known, and nobody submitted it")
                continue
            if task.is_over and known.end is None:
                self._accuse("t", f"{name} is {task.state.label}, and has no row")
            elif task.is_over and task.state is not known.end and known.end is not LaunchState.LOST:
                label = known.end.label if known.end else ""
                self._accuse("t", f"{name} is {task.state.label}, and its row says {label}")
            held_until_ms = self._chains.held_until_ms(state, name)
            row = open_row(state, task)
            rests_ms = row.not_before_ms if row is not None else 0
            since_ms = max(known.at_ms, calm_ms, held_until_ms or 0, known.newest_ms, rests_ms)
            is_held = held_until_ms is None
            if not task.is_over and not is_held and is_able and now_ms > since_ms + LATE_MS:
                self._accuse("t", f"{name} is not over {now_ms - since_ms} ms after its time")
        self._chains.judge(state)
        for name, queue in state.queues.items():
            if queue.running and not any(not one.is_over for one in queue.tasks.values()):
                self._accuse("t", f"queue {name} counts {queue.running} that run")
