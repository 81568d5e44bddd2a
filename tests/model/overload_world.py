"""A cell that is offered more than it bears, over simulated time: no real clock, no chance.

One leader whose work costs time, by a table; executors with slots that start one launch after the
other, refuse what comes too late, and are rested when they refuse, as `Executors` does. The leader
is slower than a real one, so that an overload takes few launches.
"""

from __future__ import annotations

import heapq
from collections import Counter

from cron.history.audit import audit
from cron.job import Catchup, Job, Schedule
from cron.launch_state import LaunchState
from cron.leader.executors import REST_MAX_MS, REST_MIN_MS
from cron.scheduler.budget import TurnPace
from cron.scheduler.indexes import LeaderIndexes
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import View, plan
from cron.service.proofs import audited_job
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.context import row_of
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.rows import Row
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch, WorkSpec
from tests.batches import AttemptItem, begun, items_of, refused_item

T0 = 1_795_190_400
COSTS_US = {"row": 400, "skipped": 400, "begin": 2_000, "ended": 2_000, "entry": 5_000}
"""What the leader spends on one of each, in simulated microseconds: it bears about 220 launches a
second, and gives 2,500 of them rows that it then skips."""
SPAN_MS = 10_000


class Executor:
    """Slots, a queue of starts that is served one by one, and its rests."""

    def __init__(self, number: int, slots: int, start_ms: int, service_ms: int) -> None:
        self.number = number
        self.slots = slots
        self.start_ms = start_ms
        self.service_ms = service_ms
        self.busy_ms = 0
        self.rest_ms = 0
        self.rests_until_ms = 0

    def rest(self, now_ms: int) -> None:
        """Get no work for a while: it has refused some."""
        if now_ms < self.rests_until_ms:
            return
        is_again = now_ms < self.rests_until_ms + 2 * self.rest_ms
        self.rest_ms = min(2 * self.rest_ms, REST_MAX_MS) if is_again else REST_MIN_MS
        self.rests_until_ms = now_ms + self.rest_ms


class Overload:
    """A leader, its executors, and jobs that are due every second."""

    def __init__(
        self,
        *jobs: Job,
        slots: int = 64,
        service_ms: int = 50,
        start_ms: int = 1,
        executors: int = 1,
    ) -> None:
        self.machine = Machine()
        self.now_ms = T0 * 1000
        self.index = 0
        self.epoch = Epoch(1, 1, "r1")
        self.rows: list[Row] = []
        self.steady_ms = self.now_ms - 5_000
        self.reports: list[tuple[int, c.Key, int, int]] = []  # when, of which attempt, where
        self.refusals: list[tuple[int, c.Key, int, int]] = []
        self.ends: Counter[int] = Counter()  # by span of 10 s
        self.of_job: Counter[int] = Counter()
        self.due_most = 0
        self.turn_most_ms = 0
        self.pace = TurnPace()
        self.indexes: LeaderIndexes | None = None
        self.append(c.Claim(format=c.FORMAT), c.PutJobs("a", 0, T0, jobs))
        self.executors = {
            number: Executor(number, slots, start_ms, service_ms)
            for number in range(1, executors + 1)
        }
        for number in self.executors:
            self.append(c.ExecutorJoined(f"e{number}", f"l{number}", slots))
        self.indexes = LeaderIndexes(self.machine.state)

    def run(self, seconds: int) -> None:
        """Let turns follow each other for so long."""
        end_ms = self.now_ms + seconds * 1000
        while self.now_ms < end_ms:
            self._turn()

    def pause(self, names: list[str]) -> None:
        """Let these jobs fall due no more."""
        self.append(c.Pause(tuple(names), "", 0, "anna"))

    def take_over(self) -> None:
        """Let another leader begin, who derives everything from State."""
        self.indexes = LeaderIndexes(self.machine.state)
        self.steady_ms = self.now_ms - 5_000

    def starts_a_second(self) -> list[float]:
        """Launches that succeeded, a second, by spans of 10 s that are over."""
        spans = range((self.now_ms - T0 * 1000) // SPAN_MS)
        return [self.ends[span] * 1000 / SPAN_MS for span in spans]

    def findings(self) -> list[str]:
        """What an audit finds wrong; instants behind the horizons of their jobs have no row yet."""
        by_job: dict[str, list[Row]] = {}
        for row in self.rows:
            by_job.setdefault(row.job, []).append(row)
        found = []
        for record in self.machine.state.by_number.values():
            state = self.machine.state
            open_rows = [row_of(state, row) for row in state.open_of(record).values()]
            rows = [*by_job.get(record.name, []), *open_rows]
            rows.sort(key=lambda row: row.scheduled_s)
            found += [
                str(one)
                for one in audit(audited_job(record), rows, T0, self.now_ms // 1000)
                if one.is_violation
            ]
        return found

    def behind_s(self) -> int:
        """How far the horizon of the job is behind that is furthest."""
        horizons = [one.horizon_s for one in self.machine.state.by_number.values() if one.job]
        return self.now_ms // 1000 - min(horizons)

    # ---- one turn

    def _turn(self) -> None:
        news = self._news()
        state, queues = self.machine.state, self.indexes.queues
        for executor in self.executors.values():
            if executor.rests_until_ms > self.now_ms:
                queues.places.drop(executor.number)
            else:
                queues.places.put(Place(executor.number, {}, (Capacity(executor.slots),)))
        now_s = self.now_ms // 1000
        view = View(
            state,
            self.indexes.due_heap.take(now_s, limit=self.pace.rows_max),
            queues=queues,
            steady_ms=self.steady_ms,
            late_budget=2,
            rows_max=self.pace.rows_max,
            lead_ms=self.pace.lead_ms(self.now_ms),
            stale_jobs=self.indexes.due_heap.stale(now_s, limit=self.pace.rows_max // 8),
            why_behind=self.indexes.due_heap.why_behind,
        )
        commands = [*news, *plan(view, self.now_ms)]
        self.indexes.due_heap.put_back(view.postponed)
        cost_ms = 10
        if commands:
            busy_ms = self._cost_us(commands) // 1000
            cost_ms += busy_ms
            self.append(*commands)
            rows = sum(len(items_of(one)) for one in commands)
            self.pace.took(rows, busy_ms, cost_ms, self.now_ms + cost_ms)
        self.turn_most_ms = max(self.turn_most_ms, cost_ms)
        self.now_ms += cost_ms
        self._dispatch(commands)
        self.due_most = max(self.due_most, len(state.due))

    def _cost_us(self, commands: list[c.Command]) -> int:
        total = COSTS_US["entry"]
        for command in commands:
            if isinstance(command, c.Account):
                total += sum(
                    COSTS_US["row"] * len(line.due) + COSTS_US["skipped"] * len(line.skipped)
                    for line in command.lines
                    for _ in line.jobs
                )
            elif isinstance(command, c.Begin):
                total += COSTS_US["begin"] * len(begun(command))
            elif isinstance(command, c.Skip):
                total += COSTS_US["skipped"] * len(command.items)
            elif isinstance(command, c.Report):
                ran = sum(end.state is LaunchState.SUCCEEDED for _, _, end in command.items)
                total += COSTS_US["ended"] * ran
                total += COSTS_US["skipped"] * (len(command.items) - ran)
        return total

    def _news(self) -> list[c.Command]:
        """What executors have reported by now."""
        finished, refused = [], []
        while self.reports and self.reports[0][0] <= self.now_ms:
            at_ms, key, attempt, _ = heapq.heappop(self.reports)
            self.ends[(at_ms - T0 * 1000) // SPAN_MS] += 1
            self.of_job[key[0]] += 1
            finished.append(
                AttemptItem.of(key, attempt, LaunchState.SUCCEEDED, Reason.NONE, 0, at_ms, at_ms)
            )
        while self.refusals and self.refusals[0][0] <= self.now_ms:
            _, key, attempt, number = heapq.heappop(self.refusals)
            self.executors[number].rest(self.now_ms)
            refused.append(refused_item(key, attempt, "too late"))
        commands: list[c.Command] = []
        if finished:
            commands.append(c.Report(tuple(finished)))
        if refused:
            commands.append(c.Report(tuple(refused)))
        return commands

    def _dispatch(self, commands: list[c.Command]) -> None:
        """Send what began; each executor starts one after the other."""
        active = self.machine.state.active
        for command in commands:
            for item in begun(command) if isinstance(command, c.Begin) else ():
                if item.key not in active:
                    continue
                executor = self.executors[item.executor]
                executor.busy_ms = max(executor.busy_ms, self.now_ms) + executor.start_ms
                if executor.busy_ms > item.not_after_ms:
                    report = (executor.busy_ms, item.key, item.attempt, item.executor)
                    heapq.heappush(self.refusals, report)
                    executor.busy_ms -= executor.start_ms
                else:
                    end_ms = executor.busy_ms + executor.service_ms
                    heapq.heappush(self.reports, (end_ms, item.key, item.attempt, item.executor))

    def append(self, *commands: c.Command) -> None:
        """Commit one entry."""
        entry = encode_entry(self.now_ms, self.epoch, commands)
        self.index += 1
        outcome = self.machine.apply(self.epoch.term, self.index, entry)
        assert outcome.verdict is Verdict.ACCEPTED
        self.rows += outcome.rows
        if self.indexes is not None:
            self.indexes.follow(outcome)


def every_second(name: str, *, catchup: Catchup = Catchup.LAST, deadline_s: int = 20) -> Job:
    """A job that is due every second."""
    schedule = Schedule("@every 1s", every_s=1)
    return Job(name, schedule, WorkSpec(("true",)), catchup=catchup, deadline_s=deadline_s)
