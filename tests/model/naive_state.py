"""What the replicated state should do, in dicts and lists, written from the rules and not the code.

Each item of a command is answered by the set of all objections that the rules have to it. The
machine must accept exactly what has none, and may name any one of them: which objection comes
first is no promise, that there is one is.
"""

from __future__ import annotations

from cron.job import Job, OnLost, Overlap
from cron.launch_state import LaunchState as S
from cron.limits import ATTEMPTS_MAX, DEADLINE_S_MAX
from cron.state import commands as c
from cron.state import pool
from cron.state.outcome import Verdict
from launcher.protocol.names import SCHEDULED_S_MAX
from launcher.protocol.status import Reason
from tests.batches import AttemptItem, BeginItem, items_of, verb_of
from tests.model.naive_pool import NaivePool
from tests.model.naive_rows import Answer, NaiveJob, NaiveLaunch

V = Verdict
ENDS = (S.SUCCEEDED, S.FAILED, S.CANCELLED)


class NaiveState(NaivePool):
    """The rules of jobs, instants and attempts."""

    # ---- entries

    def apply(self, index: int, entry: c.Entry) -> list[Answer] | None:
        """Answer each command; None where the whole entry comes from who does not lead (R3)."""
        self.index = index
        self.at_ms = max(self.at_ms, min(entry.at_ms, SCHEDULED_S_MAX * 1000))
        is_claim = bool(entry.commands) and isinstance(entry.commands[0], c.Claim)
        if is_claim and entry.epoch <= self.epoch:
            return None
        if not is_claim and entry.epoch != self.epoch:
            return None
        answers = []
        self.over.clear()
        for command in entry.commands:
            if isinstance(command, c.Claim):
                self.epoch = entry.epoch
                self.parts.clear()
                answers.append((set(), []))
            elif isinstance(command, c.Account):
                answers.append((set(), [self.account_line(line) for line in command.lines]))
            elif isinstance(command, c.Begin) or hasattr(command, "items"):
                told = [
                    getattr(self, f"{verb_of(command, item)}_one")(command, item)
                    for item in items_of(command)
                ]
                answers.append((set(), told))
                if isinstance(command, pool.SetLimits):
                    self.release_all()
            else:
                answers.append(getattr(self, type(command).__name__.lower())(command))
        self.count_failures()
        return answers

    def count_failures(self) -> None:
        """A job is paused for good once as many of its launches in a row have failed as it says."""
        for key, state in self.over:
            found = self.job_of(key[0])
            job = found[1].job if found is not None else None
            if found is None or job is None or not job.pause_after or key in self.open:
                continue
            if state is S.SUCCEEDED:
                found[1].failed = 0
            elif state in (S.FAILED, S.LOST):
                found[1].failed += 1
                if found[1].failed >= job.pause_after:
                    found[1].paused = 0

    # ---- rules of jobs

    def putjobs(self, put: c.PutJobs) -> Answer:
        jobs: list[Job] = list(put.jobs)
        if put.parts != 1:
            if put.part == 1:
                self.parts, self.parts_seen = {put.change: []}, 0
            if put.change not in self.parts or self.parts_seen != put.part - 1:
                self.parts.pop(put.change, None)
                return {V.INCOMPLETE}, []
            self.parts[put.change] += jobs
            self.parts_seen = put.part
            if put.part < put.parts:
                return set(), []
            jobs = self.parts.pop(put.change)
        objections = self.against_jobs(put, jobs)
        if objections:
            return objections, []
        self.catalog += 1
        for job in jobs:
            self.put_one(put, job)
        for name in put.removed:
            removed = self.jobs[name]
            removed.job, removed.revision, removed.paused = None, self.catalog, None
            removed.failed = 0
        return set(), []

    def waiting(self, number: int) -> list[c.Key]:
        return [k for k, v in self.open.items() if k[0] == number and v.state is S.DUE]

    def against_jobs(self, put: c.PutJobs, jobs: list[Job]) -> set[V]:
        objections = set()
        names = [job.name for job in jobs] + list(put.removed)
        if put.base != self.catalog:
            objections.add(V.STALE_REVISION)
        if not self.at_ms // 1000 <= put.effective_s <= SCHEDULED_S_MAX:
            objections.add(V.BAD_TIMES)
        if any(not 1 <= job.deadline_s <= DEADLINE_S_MAX for job in jobs):
            objections.add(V.BAD_TIMES)
        if len(set(names)) != len(names):
            objections.add(V.REPEATED)
        for name in names:
            known = self.jobs.get(name)
            if name in put.removed and (known is None or known.job is None):
                objections.add(V.UNKNOWN_JOB)
            if known is not None and known.job is not None:
                if known.source != put.source:
                    objections.add(V.WRONG_SOURCE)
                if known.horizon_s != put.effective_s:
                    objections.add(V.WRONG_HORIZON)
            if known is not None and known.horizon_s > put.effective_s:
                objections.add(V.WRONG_HORIZON)
            if known is not None and known.job is None and self.waiting(known.number):
                objections.add(V.LEAVING)
        return objections

    def put_one(self, put: c.PutJobs, job: Job) -> None:
        known = self.jobs.get(job.name)
        if known is None:
            number = len(self.jobs) + 1
            self.jobs[job.name] = NaiveJob(number, put.source, self.catalog, put.effective_s, job)
            return
        if known.job is None or known.job.schedule.zone != job.schedule.zone:
            known.local_min = -1
        known.source, known.revision = put.source, self.catalog
        known.horizon_s, known.job, known.failed = put.effective_s, job, 0

    def pause(self, command: c.Pause) -> Answer:
        return set(), [self.set_pause(name, command.until_ms) for name in command.jobs]

    def resume(self, command: c.Resume) -> Answer:
        return set(), [self.set_pause(name, None) for name in command.jobs]

    def set_pause(self, name: str, until_ms: int | None) -> set[V]:
        known = self.jobs.get(name)
        if known is None or known.job is None:
            return {V.UNKNOWN_JOB}
        old = known.paused
        if until_ms is None and old is None:
            return {V.ALREADY}
        if until_ms is not None and (old == 0 or self.at_ms < (old or 0) > until_ms > 0):
            return {V.ALREADY}  # what holds and lasts longer stays
        known.paused = until_ms
        if until_ms is None:
            known.failed = 0
        return set()

    # ---- rules of executors

    def executorjoined(self, command: c.ExecutorJoined) -> Answer:
        if (command.executor, command.ledger) in self.executors.values():
            return {V.ALREADY}, []
        self.executors_ever += 1
        self.executors[self.executors_ever] = (command.executor, command.ledger)
        return set(), []

    def executorleft(self, command: c.ExecutorLeft) -> Answer:
        if command.number not in self.executors:
            return {V.UNKNOWN_EXECUTOR}, []
        running = [v for v in self.open.values() if v.state is not S.DUE]
        if any(launch.executor == command.number for launch in running):
            return {V.STILL_OPEN}, []
        del self.executors[command.number]
        self.drained.pop(command.number, None)
        return set(), []

    # ---- rules of accounting

    def account_line(self, line: c.AccountLine) -> set[V]:
        numbers = [sum(line.jobs[: place + 1]) for place in range(len(line.jobs))]
        objections = self.against_rows(-1, line)
        if not numbers or numbers != sorted(set(numbers)) or numbers[0] <= 0:
            objections.add(V.REPEATED)
        if line.catalog > self.catalog:
            objections.add(V.STALE_REVISION)
        for number in numbers:
            objections |= self.against_member(number, line)
        if not objections:
            for number in numbers:
                self.account_one(number, line)
        return objections

    def against_member(self, number: int, line: c.AccountLine) -> set[V]:
        found = self.job_of(number)
        if found is None or found[1].job is None:
            return {V.UNKNOWN_JOB}
        known = found[1]
        objections = self.against_rows(known.local_min, line)
        if line.catalog < known.revision:
            objections.add(V.STALE_REVISION)
        if line.from_s != known.horizon_s:
            objections.add(V.WRONG_HORIZON)
        return objections

    def account_one(self, number: int, item: c.AccountLine) -> None:
        found = self.job_of(number)
        assert found is not None
        name, known = found
        assert known.job is not None
        for skip in item.skipped:
            kind = "ended" if skip.count == 1 else "range"
            self.row(
                kind, name, skip.scheduled_s, skip.last_s, skip.count, 0, 0, S.SKIPPED, skip.reason
            )
        for due in item.due:
            deadline_ms = (due.scheduled_s + known.job.deadline_s) * 1000
            key = (known.number, due.scheduled_s, 0)
            self.make_due(key, NaiveLaunch(S.DUE, deadline_ms, 0))
        known.horizon_s = item.to_s
        known.accounted.append((item.from_s, item.to_s))
        known.local_min = max([known.local_min, *(r.local_min for r in (*item.due, *item.skipped))])

    def against_rows(self, newest_min: int, item: c.AccountLine) -> set[V]:
        objections = set()
        if item.to_s <= item.from_s or item.to_s > SCHEDULED_S_MAX:
            objections.add(V.BAD_TIMES)
        rows = sorted(
            [(due.scheduled_s, due.scheduled_s, 1, due.local_min) for due in item.due]
            + [(skip.scheduled_s, skip.last_s, skip.count, skip.local_min) for skip in item.skipped]
        )
        ends = [item.from_s] + [last for _, last, _, _ in rows]
        for before, (first, last, count, _) in zip(ends, rows, strict=False):
            seconds = last - first + 1
            if not before < first <= last <= item.to_s:
                objections.add(V.BAD_TIMES)
            if not 1 <= count <= seconds or (count == 1) != (seconds == 1):
                objections.add(V.BAD_TIMES)
        times = [newest_min] + [row[3] for row in rows]
        for place, local_min in enumerate(times[1:], 1):
            if 0 <= local_min <= max(times[:place]):
                objections.add(V.REPEATED_LOCAL_TIME)
        return objections

    # ---- attempts

    def begin_one(self, _: c.Begin, item: BeginItem) -> set[V]:
        launch = self.open.get(item.key)
        if launch is not None and launch.state is not S.DUE and launch.attempt == item.attempt:
            return {V.ALREADY}
        if launch is None or launch.state is not S.DUE:
            return {V.NOT_DUE}
        found = self.job_of(item.key[0])
        if found is None or found[1].job is None:
            return {V.UNKNOWN_JOB}
        known, job = found[1], found[1].job
        objections = set()
        if not known.revision <= item.catalog <= self.catalog:
            objections.add(V.STALE_REVISION)
        if item.attempt != launch.attempt + 1:
            objections.add(V.WRONG_ATTEMPT)
        if item.executor not in self.executors:
            objections.add(V.UNKNOWN_EXECUTOR)
        if min(item.not_after_ms, launch.deadline_ms) < self.at_ms:
            objections.add(V.BAD_TIMES)
        if self.at_ms < launch.not_before_ms:
            objections.add(V.OVERLAP)
        if job.overlap is not Overlap.ALLOW and (
            self.running(known.number) or known.held_until_ms > self.at_ms
        ):
            objections.add(V.OVERLAP)
        if not objections:
            launch.state, launch.attempt, launch.executor = S.BEGUN, item.attempt, item.executor
            launch.revision, launch.overlap = known.revision, job.overlap
            launch.is_begun, launch.unpaid_ms = True, 0
        return objections

    def running(self, number: int) -> list[c.Key]:
        return [k for k, v in self.open.items() if k[0] == number and v.state is not S.DUE]

    def active(self, key: c.Key, attempt: int) -> tuple[NaiveLaunch | None, set[V]]:
        launch = self.open.get(key)
        if launch is None or launch.state is S.DUE:
            return None, {V.NOT_OPEN}
        return (launch, set()) if launch.attempt == attempt else (None, {V.WRONG_ATTEMPT})

    def launched_one(self, _: c.Report, item: AttemptItem) -> set[V]:
        launch, objections = self.active(item.key, item.attempt)
        if launch is None:
            return objections
        if launch.state is S.LAUNCHED:
            return {V.ALREADY}
        launch.state = S.LAUNCHED
        return set()

    def finished_one(self, _: c.Report, item: AttemptItem) -> set[V]:
        launch, objections = self.active(item.key, item.attempt)
        if item.state not in ENDS:
            return objections | {V.WRONG_STATE}
        if launch is not None:
            self.end(item.key, item.state, item.reason)
            self.after_end(launch, item)
            return set()
        if (item.key, item.attempt) not in self.lost:
            return objections
        self.lost.remove((item.key, item.attempt))  # late report, once (R9)
        found = self.job_of(item.key[0])
        assert found is not None
        _, second, trigger = item.key
        self.row(
            "amendment", found[0], second, second, 1, trigger, item.attempt, item.state, item.reason
        )
        self.after_report(item)
        return {V.AMENDED}

    def refused_one(self, _: c.Report, item: AttemptItem) -> set[V]:
        launch, objections = self.active(item.key, item.attempt)
        if launch is None:
            return objections
        if launch.state is S.LAUNCHED:
            return {V.WRONG_STATE}
        found = self.job_of(item.key[0])
        assert found is not None
        if launch.cancel is not Reason.NONE or found[1].job is None:
            self.end(item.key, S.CANCELLED, launch.cancel)
        else:
            launch.state = S.DUE
        return set()

    def skip_one(self, _: c.Skip, item: c.SkippedItem) -> set[V]:
        launch = self.open.get(item.key)
        if launch is None or launch.state is not S.DUE:
            return {V.NOT_DUE}
        self.end(item.key, S.SKIPPED, item.reason)
        self.after_skip(launch, item)
        return set()

    def lost_one(self, _: c.Report, item: AttemptItem) -> set[V]:
        launch, objections = self.active(item.key, item.attempt)
        if launch is None:
            return objections
        found = self.job_of(item.key[0])
        assert found is not None
        if launch.overlap is not Overlap.ALLOW:
            found[1].held_until_ms = max(found[1].held_until_ms, item.held_until_ms)
        self.end(item.key, S.LOST, Reason.EXECUTOR_LOST)
        if (item.key, item.attempt) not in self.lost:
            self.lost.append((item.key, item.attempt))
        job = found[1].job
        may_be = job is not None and job.on_lost is OnLost.RETRY and not launch.cancel
        if may_be and max(self.at_ms, item.held_until_ms) < launch.deadline_ms:
            self.try_again(item.key, launch, item.held_until_ms, launch.tries)
        else:
            self.after_loss(launch, item, is_late=may_be)
        return set()

    # ---- rules of what people ask for

    def cancel_one(self, _: c.Cancel, item: c.CancelItem) -> set[V]:
        launch = self.open.get(item.key)
        if launch is None:
            return {V.NOT_OPEN}
        is_removed = launch.state is S.DUE and self.job_of(item.key[0])[1].job is None
        if item.reason is Reason.NONE and not is_removed:
            return {V.WRONG_STATE}
        if launch.state is S.DUE:
            self.end(item.key, S.CANCELLED, item.reason)
        elif launch.cancel is not Reason.NONE:
            return {V.ALREADY}
        else:
            launch.cancel = item.reason
        return set()

    def trigger(self, command: c.Trigger) -> Answer:
        if command.request in self.requests:
            return {V.ALREADY}, []
        known = self.jobs.get(command.job)
        if known is None or known.job is None:
            return {V.UNKNOWN_JOB}, []
        second = self.at_ms // 1000
        before = known.last_trigger[1] if known.last_trigger[0] == second else 0
        known.last_trigger = (second, before + 1)
        key = (known.number, second, before + 1)
        deadline_ms = self.at_ms + known.job.deadline_s * 1000
        self.make_due(key, NaiveLaunch(S.DUE, deadline_ms, 0))
        self.requests[command.request] = key
        return set(), []

    def reopen_one(self, command: c.Reopen, item: c.ReopenItem) -> set[V]:
        found = self.job_of(item.key[0])
        if found is None or found[1].job is None:
            return {V.UNKNOWN_JOB}
        if item.key in self.open:
            return {V.ALREADY}
        known = found[1]
        _, second, trigger = item.key
        objections = set()
        if known.last_end > command.read_at:
            objections.add(V.STALE_REVISION)
        if second < 0:
            objections.add(V.BAD_TIMES)
        if not trigger and second > known.horizon_s:
            objections.add(V.WRONG_HORIZON)
        if item.was_state not in (0, S.SKIPPED, S.LOST, S.FAILED, S.CANCELLED):
            objections.add(V.WRONG_STATE)
        if trigger and (
            trigger < 0 or item.was_state == 0 or (second, trigger) > known.last_trigger
        ):
            objections.add(V.WRONG_STATE)
        if not 0 <= item.was_attempt < ATTEMPTS_MAX or (item.was_state == 0 < item.was_attempt):
            objections.add(V.WRONG_ATTEMPT)
        if not objections:
            assert known.job is not None
            deadline_ms = self.at_ms + known.job.deadline_s * 1000
            self.make_due(item.key, NaiveLaunch(S.DUE, deadline_ms, item.was_attempt))
            self.reopened.append(item.key)
        return objections
