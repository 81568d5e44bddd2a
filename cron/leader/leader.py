"""The leader: it claims, plans, appends, dispatches, records, and stops the moment that it is
deposed.

Theory of operation. Leadership lasts a term. It begins with a Claim: once that is applied,
everything older is applied here. It ends when the log says so. During a term one entry at a time is
in flight. While it commits, executors' reports and users' changes gather, and all of them share the
next entry (group commit). The plan therefore always sees what is committed. When leadership is
lost, the executors' streams are closed before anything else happens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection
from itertools import islice, takewhile

import msgspec
import structlog

from consensus.errors import ConsensusError, EntryTooBig, NotLeader, QueueFull
from consensus.leadership import Freshness, Leadership
from consensus.log import ReplicatedLog
from cron.api.reading import HINT as STALE_HINT
from cron.clock import Clock
from cron.errors import CronError, LimitExceeded, NotNow, Unavailable
from cron.errors import NotLeader as NotTheLeader
from cron.failpoints import hit
from cron.launch_state import LaunchState
from cron.leader.applier import StateApplier
from cron.leader.clocks import Jump, Steady
from cron.leader.dispatch import Dispatcher, reports_any
from cron.leader.executors import Executors
from cron.leader.far_tasks import FarTaskLoop, TaskFiles
from cron.leader.inbox import Inbox
from cron.leader.older_log import OlderLog
from cron.leader.overload import Overload, behind_text, held_text
from cron.leader.requests import (
    Build,
    Change,
    Changes,
    answer,
    as_change_error,
    as_entry,
    fail,
    halves,
    in_order,
    refusal_of,
    rows_of,
)
from cron.pace import WakeUp
from cron.scheduler.alerts import Observed
from cron.scheduler.budget import ROWS_MIN, Every, TurnPace
from cron.scheduler.far_tasks import USUAL, FarTasks, SpillSettings
from cron.scheduler.indexes import LeaderIndexes
from cron.scheduler.limits import Bucket
from cron.scheduler.plan import View, plan
from cron.scheduler.policy import FAILOVER_MS
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.alerts import RaiseAlerts, RemindAlerts, ResolveAlerts, SendAlerts
from cron.state.codec import encode_entry
from cron.state.formats import known_in
from cron.state.launches import RESULTS
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.pool import Drain
from cron.state.state import State
from launcher.pool.events import Event
from launcher.pool.pool import Pool
from launcher.protocol.reports import Greeting
from launcher.protocol.work import Epoch

_log = structlog.get_logger()

REPORTS_SHARE = 2
"""Reports per row of a turn: each launch begins and ends."""
STALE_SHARE = 8
"""The divisor of a turn's rows for jobs whose older instants it skips while they wait for room."""
HELD_LOGGED_MAX = 20
"""Jobs whose schedules cannot be read and that are logged by name; the others are counted."""
CONFIRM_MS = 2_000
"""How long a read waits for a majority; a client then asks another replica."""
JUMP_MS = 2_000
"""A wall clock that moves by so much more or less than time passes was set."""
WATERMARKS_MS = 30_000
"""How often the leader raises the watermarks of executors."""
_ALERTS = (RaiseAlerts, ResolveAlerts, SendAlerts, RemindAlerts)
RETRY_S = 0.2
"""Rest between a term that failed and the next try, while the log still says that we lead."""


class LeaderSettings(msgspec.Struct, frozen=True):
    """What the operator may set, and the times of the loop.

    `start_window_ms`: how long after its Begin an attempt may start (rule R7). `append_timeout_ms`:
    the outcome of an entry that takes longer is unknown. `turn_ms`: the rest between two turns,
    which a change ends. `gather_ms`: how long a busy leader gathers reports for the next entry,
    while nothing waits for them: half of the time for which executors offer slots ahead.
    `housekeeping_ms`: how often waiting and unanswered launches are looked at. `late_per_second`:
    the pace of late launches. `is_backed_up`: snapshots go to object storage, and executors
    remember what these may lack. `spill`: when tasks that are far ahead go to disk.
    """

    start_window_ms: int = FAILOVER_MS
    append_timeout_ms: int = 10_000
    turn_ms: int = 10
    gather_ms: int = 100
    housekeeping_ms: int = 500
    late_per_second: int = 100
    is_backed_up: bool = False
    spill: SpillSettings = USUAL


class Leader:
    """What one replica does while it leads. All of it runs on the event loop's thread."""

    def __init__(
        self,
        *,
        log: ReplicatedLog,
        applier: StateApplier,
        pool: Pool,
        clock: Clock,
        settings: LeaderSettings,
        about: c.Claim,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._replica = log.replica
        self._log = log
        self._applier = applier
        self.pool = pool
        self.executors = Executors(pool, applier, clock)
        self._clock = clock
        self._settings = settings
        self._about = about
        self._on_failure = on_failure
        self.epoch: Epoch | None = None
        self.note = ""
        self.leader_address: Callable[[], str | None] = lambda: None
        self.may_tick: Callable[[], str] = lambda: ""  # why not, "" if it may (rule R10)
        self.clock_error_ms: Callable[[], int] = lambda: 0  # ahead of the others, if too much
        self.shared_format: Callable[[], int] = lambda: 0  # what all replicas can apply
        self.task_files: TaskFiles | None = None  # none: all tasks stay in memory
        self.observe: Callable[[], Observed] = Observed  # what is known of the cell, for alerts
        self._observed = Observed()
        self.changes = Changes()
        self._owes_plan = False
        self.indexes = LeaderIndexes(applier.state)
        self._held: dict[int, str] = {}  # jobs that were logged: they get no rows
        self._wake = WakeUp()
        self._asked = WakeUp()  # for a change: somebody waits for the answer
        self._rows = 0  # of the newest turn
        self._beat = asyncio.Event()
        self._dispatcher, self._inbox = self._open_inbox()
        self._leader_term: asyncio.Task[None] | None = None
        self._term_number = 0
        self._housekeeping = Every(settings.housekeeping_ms)
        self._watermarks = Every(WATERMARKS_MS)
        self._jump = Jump(clock)
        self._steady = Steady(FAILOVER_MS)
        self._late = Bucket(1000 * settings.late_per_second, clock.mono_ms())
        self.pace = TurnPace()
        self.overload = Overload(log.replica)
        self.older_log = OlderLog(log.replica)
        pool.on_greeting = self._greeted
        applier.subscribe(self._applied)
        log.subscribe(self._on_leadership)

    # ---- beginning and end of a term

    def start(self) -> None:
        """Begin a term if this replica leads already."""
        self._on_leadership(self._log.leadership)

    async def stop(self) -> None:
        """End the term, if there is one, and wait for it."""
        leader_term = self._leader_term
        self._step_down("the replica stops")
        if leader_term is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await leader_term

    def _on_leadership(self, leadership: Leadership) -> None:
        if leadership.leads and self.older_log.in_term(leadership.term):
            return  # it has ended already, and nothing in this log can mend it
        if leadership.leads and self._leader_term is None:
            self._term_number = leadership.term
            self._leader_term = asyncio.get_running_loop().create_task(
                self._run(leadership.term), name=f"leader-term-{leadership.term}"
            )
            self._leader_term.add_done_callback(self._leader_term_ended)
        elif not leadership.leads or self._term_number != leadership.term:
            self._step_down("another leads" if leadership.leader else "leadership was lost")
            if leadership.leads:
                self._on_leadership(leadership)

    def _leader_term_ended(self, leader_term: asyncio.Task[None]) -> None:
        """Stop the replica after an unexpected error: that is a bug, and guessing is worse."""
        if not leader_term.cancelled() and (error := leader_term.exception()) is not None:
            self._on_failure(error)

    def _step_down(self, reason: str) -> None:
        """Stop acting at once: close the executors' streams first (cron/DESIGN.md)."""
        self.pool.close(reason, self.leader_address())
        if self.epoch is not None:
            _log.info("leader.deposed", replica=self._replica, term=self.epoch.term, error=reason)
        self.epoch = None
        leader_term, self._leader_term = self._leader_term, None
        if leader_term is not None:
            leader_term.cancel()
        self.changes.refuse_all(self._log.leadership.leader)
        # They would keep a State in memory that a snapshot may replace.
        self.indexes = LeaderIndexes(State())
        self.overload = Overload(self._replica)
        # Executors repeat to the next leader what this one has not recorded.
        self._dispatcher, self._inbox = self._open_inbox()

    def _open_inbox(self) -> tuple[Dispatcher, Inbox]:
        dispatcher = Dispatcher(self.pool)
        inbox = Inbox(
            self.pool,
            dispatcher,
            wake=self._wake.set,
            beat=self._beat.set,
            refused=self.executors.refused,
            mono_ms=self._clock.mono_ms,
            is_backed_up=self._settings.is_backed_up,
        )
        return dispatcher, inbox

    async def _run(self, term: int) -> None:
        """Run one term, from the Claim to the end."""
        try:
            epoch = await self._claim(term)
            self.pool.open(epoch)
            self.older_log.prove_orders(self.pool, self._applier.state)
            self.executors.grant_all()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._answer_beats(), name="leases")
                tasks.create_task(self._probe(), name="probes")
                if self.task_files is not None:
                    far_tasks = FarTaskLoop(self, self.task_files, self._settings.spill)
                    tasks.create_task(far_tasks.run(), name="far-tasks")
                while True:
                    began_ms = self._clock.mono_ms()
                    await self._turn()
                    await self._pause(began_ms)
        except* ConsensusError as group:
            why = "; ".join(str(error) for error in group.exceptions)
            _log.warning("leader_term.ended", replica=self._replica, term=term, error=why)
        if self._leader_term is asyncio.current_task():
            # Not cancelled: something failed while the log may still say that this replica leads.
            self._leader_term = None
            self._step_down("the term failed")
            await self._log.transfer()
            await asyncio.sleep(RETRY_S)
            self._on_leadership(self._log.leadership)

    async def _claim(self, term: int) -> Epoch:
        """Append the first entry of the term; once it is applied, everything older is (R3)."""
        hit("before-claim")
        generation = self._applier.state.epoch.generation or 1
        epoch = Epoch(generation, term, self._replica)
        about = self.older_log.claim(self._applier.state, self._about)
        entry = encode_entry(self.now_ms(), epoch, (about,))
        applied = await self._log.append(entry, timeout_ms=self._settings.append_timeout_ms)
        outcome: Outcome = applied.outcome
        if outcome.verdict is not Verdict.ACCEPTED and self._applier.state.epoch != epoch:
            raise NotLeader(self._applier.state.epoch.replica)
        hit("after-claim")
        self.epoch = epoch
        self.indexes = LeaderIndexes(self._applier.state, self._settings.spill)
        self._held.clear()
        self._jump = Jump(self._clock)
        self._steady = Steady(FAILOVER_MS)
        state = self._applier.state
        _log.info(
            "leader.elected",
            replica=self._replica,
            term=term,
            index=state.index,
            open=len(state.active) + len(state.due),
        )
        return epoch

    # ---- one turn: gather, plan, append, act

    def now_ms(self) -> int:
        """Return the leader's time: its wall clock, but never before any time in the log (rule R2).

        While its clock is off the leader uses the time of the others (rule R10): one entry from an
        hour ahead would hold the cell's time there for an hour.
        """
        return max(self._clock.wall_ms() - self.clock_error_ms(), self._applier.state.at_ms)

    async def _turn(self) -> None:
        """Append all that has come up in one entry, and act on the outcome."""
        began_ms, applied_ms = self._clock.mono_ms(), self._applier.busy_ms
        self._wake.clear()
        self._asked.clear()
        self._note_jump()
        self._note_held()
        now_ms = self.now_ms()
        state = self._applier.state
        epoch, shared = self.epoch, self.shared_format()
        if epoch is not None and shared > state.format:
            # An entry of its own: other commands were made for the format before.
            await self._commit(epoch, [self.older_log.raising(state, shared)], [], now_ms)
            self.older_log.prove_orders(self.pool, state)
            return
        commands = self._gather(now_ms)
        changes = [] if self._owes_plan else self.changes.take(state, now_ms)
        for change in changes:
            change.first = len(commands)
            commands += change.commands
        # The plan must see the changed jobs; but several changes in a row must not delay turns.
        self._owes_plan = any(change.changes_jobs for change in changes)
        if not self._owes_plan:
            planned = self._plan(now_ms, commands)
            # The rest is planned again once the format has risen.
            commands += planned if state.format == c.FORMAT else known_in(planned, state.format)
        self._rows = 0
        epoch = self.epoch
        if epoch is None:
            fail(changes, NotTheLeader(self.leader_address()))
        elif commands:
            # Lost launches are named, one by one or by their executor; usual rows are in columns.
            if any(
                isinstance(one, c.ExecutorLeft)
                or (isinstance(one, c.Report) and (one.items or one.executors))
                for one in commands
            ):
                self.executors.log_lost(commands)
            rows = self._rows = sum(rows_of(command, state) for command in commands)
            planned_ms = self._clock.mono_ms() - began_ms
            await self._commit(epoch, commands, changes, now_ms)
            busy_ms = planned_ms + self._applier.busy_ms - applied_ms
            ended_ms = self._clock.mono_ms()
            self.pace.took(rows, busy_ms, ended_ms - began_ms, ended_ms)

    async def _commit(
        self, epoch: Epoch, commands: list[c.Command], changes: list[Change], now_ms: int
    ) -> None:
        """Append one entry and answer its changes, whatever happens. What is too big for one entry
        is committed in halves, in the same order; so is what cannot be encoded, to find out which
        change it is."""
        try:
            entry = encode_entry(now_ms, epoch, tuple(commands))
            applied = await self._log.append(entry, timeout_ms=self._settings.append_timeout_ms)
        except (EntryTooBig, OverflowError, UnicodeError) as error:
            await self._commit_halves(epoch, in_order(commands, changes), now_ms, error)
            return
        except ConsensusError as error:
            fail(changes, as_change_error(error))
            raise
        except asyncio.CancelledError:
            fail(changes, as_change_error(ConsensusError("leadership was lost meanwhile")))
            raise
        outcome: Outcome = applied.outcome
        if outcome.verdict is not Verdict.ACCEPTED:
            fail(changes, NotTheLeader(self.leader_address()))
            raise NotLeader(self._applier.state.epoch.replica)
        if changes:
            answer(changes, applied.position.index, outcome.results)

    async def _commit_halves(
        self, epoch: Epoch, pieces: list[c.Command | Change], now_ms: int, error: Exception
    ) -> None:
        """Commit what did not fit into one entry as two entries. A change stays whole: one that
        cannot be an entry of its own is refused."""
        if len(pieces) == 1 and not isinstance(pieces[0], Change):
            pieces = list(halves(pieces[0]))
        if len(pieces) == 1:
            if isinstance(pieces[0], Change):
                fail([pieces[0]], refusal_of(error))
            else:
                command = type(pieces[0]).__name__
                _log.error("entry.refused", replica=self._replica, error=f"{command}: {error}")
            return
        middle = len(pieces) // 2
        for half in (pieces[:middle], pieces[middle:]):
            commands, changes = as_entry(half)
            try:
                await self._commit(epoch, commands, changes, now_ms)
            except BaseException:
                # Nothing of the other half was appended.
                fail(as_entry(pieces[middle:])[1], NotTheLeader(self.leader_address()))
                raise

    def _gather(self, now_ms: int) -> list[c.Command]:
        """Return the commands for reports since the last entry, and for what else needs no plan."""
        rows_max = REPORTS_SHARE * self.pace.rows_max
        reports = self._inbox.gather(self._applier.state, now_ms, self.may_tick(), rows_max)
        if any(reports_any(command, LaunchState.LAUNCHED, *RESULTS) for command in reports):
            hit("after-dispatch")  # not where orders never left, or were refused
        forget = self.indexes.forgetting.next(self._clock.mono_ms())
        return [*reports, *forget]

    def _plan(self, now_ms: int, reports: list[c.Command]) -> list[c.Command]:
        """Return the commands of the plan. `reports` are before them in the entry."""
        state = self._applier.state
        expired = self.executors.expired()
        if not self.indexes.let_go() or self.may_tick() or state.is_resolving:
            return plan(View(state, [], expired=expired, queues=Queues(State())), now_ms)
        now_mono = self._clock.mono_ms()
        is_housekeeping = self._housekeeping.is_due(now_mono)
        self.executors.place(self.indexes.queues)
        indexes, now_s, rows_max = self.indexes, now_ms // 1000, self.pace.rows_max
        # The rest of an instant may take a whole turn, unless launches wait for slots meanwhile.
        is_rest = indexes.due_heap.next_s() == 0 and not indexes.queues.fair.ready
        due_max = rows_max if is_rest else self.pace.portion
        view = View(
            state=state,
            due_jobs=indexes.due_heap.take(now_s, limit=due_max),
            expired=expired,
            late_budget=self._late.starts(now_mono),
            steady_ms=self._steady.since(now_ms),
            start_window_ms=self._settings.start_window_ms,
            queues=indexes.queues,
            rows_max=rows_max,
            lead_ms=self.pace.lead_ms(now_mono),
            stale_jobs=indexes.due_heap.stale(now_s, limit=rows_max // STALE_SHARE),
            why_behind=indexes.due_heap.why_behind,
            reports=reports,
        )
        commands = [*self.executors.drained(), *plan(view, now_ms)]
        indexes.due_heap.put_back(view.postponed)
        for number in view.again:
            indexes.due_heap.retry(number)
        if any(isinstance(command, c.Begin) for command in commands):
            hit("before-begin")
        commands += indexes.plan_tasks(now_ms, rows_max)
        if is_housekeeping:
            self._observed = self.observe()
        if alerts := indexes.plan_alerts(now_ms, self._observed):
            hit("before-alert")
            commands += alerts
        if is_housekeeping:
            self.overload.look(indexes.due_heap.behind(), now_s)
            self._inbox.stale(state, now_ms)
            if self._watermarks.is_due(now_mono):
                self._inbox.raise_watermarks(state)
        return commands

    def _note_held(self) -> None:
        held = self.indexes.due_heap.stuck()
        if held == self._held:
            return
        new = {number: why for number, why in held.items() if self._held.get(number) != why}
        self._held = held
        for number, why in islice(new.items(), HELD_LOGGED_MAX):
            job = self._applier.state.by_number[number].name
            _log.warning("job.held", replica=self._replica, job=job, error=why)
        if len(new) > HELD_LOGGED_MAX:
            error = f"the instants of {len(new)} jobs get no rows from this leader"
            _log.warning("jobs.held", replica=self._replica, error=error)

    @property
    def held_note(self) -> str:
        """The jobs whose instants get no rows from this leader, and why; "" if there are none."""
        return held_text(self._applier.state, self._held if self.epoch is not None else {})

    def behind(self) -> dict[tuple[str, int, str], int]:
        """Return how many jobs wait for rows in lines that are behind, by pool, priority and
        tenant."""
        counts: Counter[tuple[str, int, str]] = Counter()
        for line in self.indexes.due_heap.behind():
            key = line.key
            counts[key.pool, key.priority, key.tenant] += len(line.numbers)
        return dict(counts)

    def awaits_row(self, number: int) -> str:
        """Return why an instant of a job that fell due has no row yet, "" if no other launches
        delay it."""
        line = self.indexes.due_heap.line_of(number) if self.epoch is not None else None
        return behind_text(line) if line is not None and line.why else ""

    def _note_jump(self) -> None:
        jumped_ms = self._jump.since_last()
        if abs(jumped_ms) < JUMP_MS:
            return
        way = "forward" if jumped_ms > 0 else "back"
        self.note = f"its clock jumped {way} by {abs(jumped_ms) / 1000:.1f} s"
        _log.warning("clock.jumped", replica=self._replica, error=self.note)
        for record in self._applier.state.by_number.values():
            self.indexes.due_heap.retry(record.number)
        self.executors.measure_again()

    # ---- what applying brings

    def _applied(self, index: int, outcome: Outcome) -> None:
        """Act on an entry of this term as soon as it is applied."""
        if self.epoch is None or outcome.epoch != self.epoch or not outcome.commands:
            return
        state = self._applier.state
        if late := self._dispatcher.follow(state, outcome):
            self._late.take(late)
        self.indexes.follow(outcome)
        if state.alerts.is_used:
            self.indexes.alerts.follow(outcome)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Skip) or (
                isinstance(command, c.Account) and any(line.skipped for line in command.lines)
            ):
                self.overload.follow(command, result)
            elif isinstance(command, c.Report):
                self._inbox.follow(state, command, result)
            elif isinstance(command, c.ExecutorJoined):
                executor, ledger = command.executor, command.ledger
                inventory = self._inbox.resolving.wants_inventory(state, executor, ledger)
                self.pool.welcome(executor, ledger, inventory=inventory)
            elif isinstance(command, Drain):
                self.executors.look_at_all()
            elif isinstance(command, _ALERTS):
                hit("after-alert")
        # One log line for each change that a person made by this entry.
        for one in takewhile(lambda revision: revision.index == index, reversed(state.revisions)):
            _log.info(
                "change.applied",
                replica=self._replica,
                by=one.by or None,
                command=one.command,
                subject=one.subject,
                count=one.count,
                index=index,
            )
        if any(isinstance(command, c.ExecutorLeft) for command in outcome.commands):
            self.executors.let_go(self._inbox.joining())
        self._wake.set()

    # ---- waiting

    async def _pause(self, began_ms: int) -> None:
        """Wait for something to do: a report, a change, the next instant, or housekeeping. A change
        ends any wait; if several come at one time, they gather first for as long as the turn took.

        If reports arrive all the time, every few of them would make an entry. A leader that has
        appended many rows lately gathers them longer, if nobody waits for an answer, no instant
        falls due meanwhile, no task waits for the end of another one, and no launch waits for room,
        or launches wait at executors: then each slot that comes free has its next launch there. The
        turn, which began at `began_ms`, counts as rest if it left due jobs to the next one, or had
        so many rows that more of them would cost no less, while launches wait for the slots that
        come free.
        """
        if self.changes.taken:
            rest_ms = min(self._clock.mono_ms() - began_ms, self._settings.turn_ms)
            await self.changes.gather(rest_ms / 1000)
        if self.changes:
            return
        turn_ms, queues = self._settings.turn_ms, self.indexes.queues
        waits = bool(queues.fair.ready or queues.fair.parked)
        is_supplied = not waits or queues.places.may_wait > 0
        is_full = self._idle_ms() <= 0 or (self._rows >= ROWS_MIN and not is_supplied)
        took_ms = self._clock.mono_ms() - began_ms if is_full else 0
        # A change ends the rest, for its caller waits; others gather while its entry commits.
        await self._asked.wait(max(0, turn_ms - took_ms) / 1000)
        if self.changes:
            return
        delay_ms, wanted = self._idle_ms(), self._wake
        if self._wake.is_set:
            is_busy = self._clock.mono_ms() <= self.pace.busy_until_ms
            gathers = is_busy and is_supplied and not self._applier.state.holds
            delay_ms = min(delay_ms - turn_ms, self._settings.gather_ms) if gathers else 0
            wanted = self._asked
        if delay_ms > 0:
            await wanted.wait(delay_ms / 1000)

    def _idle_ms(self) -> int:
        """Return in how many ms the leader has something to do by itself."""
        delay_ms = self._settings.housekeeping_ms
        next_s = self.indexes.due_heap.next_s()
        if next_s is not None:
            delay_ms = min(delay_ms, next_s * 1000 - self._clock.wall_ms())
        next_ms = self.indexes.next_ms()
        if next_ms is not None:
            delay_ms = min(delay_ms, next_ms - self.now_ms())
        return delay_ms

    async def _answer_beats(self) -> None:
        """Answer heartbeats once a majority has confirmed this leader since they came (rule R5)."""
        while True:
            await self._beat.wait()
            self._beat.clear()
            asked_mono_ms = self._clock.mono_ms()
            await self._log.confirm(timeout_ms=self._settings.append_timeout_ms)
            # Most heartbeats only renew a lease: each would be a turn for nothing.
            if self.pool.answer_heartbeats(asked_mono_ms):
                self._wake.set()

    async def _probe(self) -> None:
        """Find out which executors answer, however long an entry takes (rule R7)."""
        while True:
            pause_ms = self.pool.probe()
            await asyncio.sleep(pause_ms / 1000)

    # ---- doors for others

    @property
    def resolving(self) -> str:
        """What a restored cell waits for before it launches; "" in any other cell."""
        return self._inbox.resolving.note

    @property
    def state(self) -> State:
        """State as it is applied here."""
        return self._applier.state

    @property
    def far_tasks(self) -> FarTasks:
        """The waiting tasks that are far ahead."""
        return self.indexes.tasks.far

    @property
    def wanted_tasks(self) -> tuple[int, Collection[str]]:
        """The tasks on disk that a restored cell needs before it can tell what ran."""
        return self._inbox.resolving.wanted_tasks

    @property
    def queues(self) -> Queues | None:
        """The queues, while this replica leads, else None."""
        return self.indexes.queues if self.epoch is not None else None

    def _greeted(self, greeting: Greeting) -> None:
        if self.epoch is not None and self.older_log.look(self.state, greeting, self.epoch):
            self._step_down("its log is old")

    def elsewhere(self) -> CronError | None:
        """Return the error of a replica that does not lead, None for one that does."""
        if self.epoch is not None:
            return None
        outdated = self.older_log.error(self._log.leadership.term)
        return outdated or NotTheLeader(self.leader_address())

    def on_event(self, event: Event) -> None:
        """Receive an event of the pool; returns at once."""
        self._inbox.on_event(event)

    @property
    def replica_id(self) -> str:
        """This replica's id."""
        return self._replica

    @property
    def freshness(self) -> Freshness:
        """How far this replica is behind what is committed, whether it leads or not."""
        return self._log.freshness

    async def confirm(self) -> None:
        """Return once a majority has confirmed this leader, and all that was committed before the
        call is applied. Calls at one time share the entry that this takes.

        Raises:
            NotLeader: another replica leads, or none. Unavailable: it cannot be confirmed.
            LimitExceeded: too many reads wait already.
        """
        if elsewhere := self.elsewhere():
            raise elsewhere
        try:
            await self._log.barrier(timeout_ms=CONFIRM_MS)
        except NotLeader as error:
            raise NotTheLeader(self.leader_address()) from error
        except QueueFull as error:
            hint = f"try again shortly; {STALE_HINT}"
            raise LimitExceeded("too many reads wait for a majority already", hint) from error
        except ConsensusError as error:
            text = f"{self._replica} cannot confirm that it leads: it reaches no majority"
            raise Unavailable(text, STALE_HINT) from error
        if elsewhere := self.elsewhere():
            raise elsewhere

    async def append(
        self, *commands: c.Command, changes_jobs: bool = False, while_resolving: bool = False
    ) -> tuple[int, tuple[Result, ...]]:
        """Commit commands that do not depend on State; returns and raises as `submit`."""
        return await self.submit(
            lambda _state, _now_ms: [*commands],
            changes_jobs=changes_jobs,
            while_resolving=while_resolving,
        )

    async def submit(
        self, build: Build, *, changes_jobs: bool = False, while_resolving: bool = False
    ) -> tuple[int, tuple[Result, ...]]:
        """Commit a change and return its log index and the results of its commands; in a restored
        cell that does not know yet what ran, only one for which `while_resolving` is set.

        Raises:
            NotLeader: nothing happened. OutcomeUnknown: it may happen. CronError: `build` refused.
        """
        if elsewhere := self.elsewhere():
            raise elsewhere
        if self._applier.state.is_resolving and not while_resolving:
            raise NotNow(f"the cell was restored: {self.resolving}", "try again in half a minute")
        change = Change(build, changes_jobs=changes_jobs)
        self.changes.put(change)
        self._asked.set()
        self._wake.set()
        return await change.done
