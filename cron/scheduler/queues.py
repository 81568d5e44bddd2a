"""What waits and what runs, ready for the plan: in the leader's memory, derived from State.

Theory of operation. State says which launches are due and which are active; `follow` is told which
of them an entry has moved, and makes the queues agree. A plan judges what is new (`take_new`), puts
it into the fair queue, and takes out what may begin; from then on it counts as running. What the
entry then does not accept comes back by `follow`, since that looks at State alone. So every turn
costs what has changed, whatever waits.

At a takeover millions may wait: they are let in by and by, oldest first, beside what is new; a job
of which something new comes is let in whole before it.

Of a job with overlap=queue only the oldest launch stands in the fair queue; those behind it are
held there until it has left, whatever it waits for.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice, repeat, takewhile, zip_longest
from typing import Final, NamedTuple, cast

from cron.job import COMMAND, Job, Overlap
from cron.launch_state import LaunchState
from cron.scheduler.admission import Admission
from cron.scheduler.candidates import Candidate, is_queue, of_row
from cron.scheduler.fair_queue import FairQueue
from cron.scheduler.flows import FlowKey
from cron.scheduler.gates import FOREVER_MS, Gates
from cron.scheduler.placement import Placement
from cron.scheduler.places import Need, Wanted
from cron.scheduler.shortage import why_not
from cron.scheduler.views import Depth, Wait, depths, position, unbound, why
from cron.state.commands import Key
from cron.state.state import JobRecord, LaunchRow, State
from launcher.protocol.names import split_job_name
from launcher.protocol.reports import GroupOffer

LOADED_AT_ONCE: Final = 20_000
"""Waiting launches that one turn lets in after a takeover: about 0.1 s."""
REFUSED_REST_MS: Final = 500
"""What an executor refused may be refused again at once, and each time is two entries of log."""


FLOW_KEYS_MAX: Final = 100_000
PATIENT_S: Final = 15
"""A job is patient whose instants lie so far apart and may begin so late: its rows wait apart from
those of others (`due`)."""
DEADLINES_MIN: Final = 10_000
"""Fewer deadlines of launches that do not wait any more are not worth looking for."""
_NO_KEYS: Final[dict[Key, None]] = {}


class Placed(NamedTuple):
    """What launches of a job need, and in which flows they wait. `is_usual`: what begins needs one
    slot and nothing else, and no other launch of the job to be over."""

    job: Job
    wanted: Wanted
    live: FlowKey
    late: FlowKey
    is_usual: bool


def placed_of(name: str, job: Job) -> Placed:
    """Return what launches of a job need, and where they wait."""
    tenant, _ = split_job_name(name)
    need = Need(job.pool, job.where, job.work.cpu_milli, job.work.memory_bytes)
    wanted = Wanted(need, job.parts, job.each)
    priority = min(max(job.work.priority, 0), 9)
    is_often = 0 < job.schedule.every_s < PATIENT_S
    is_patient = job.deadline_s >= PATIENT_S and not is_often
    live, late = _flow_keys(tenant, need.pool, priority, wanted, job.is_limited, is_patient)
    is_usual = not (job.is_limited or job.has_parts or need.takes_resources)
    return Placed(job, wanted, live, late, is_usual)


@lru_cache(FLOW_KEYS_MAX)
def _flow_keys(
    tenant: str, pool: str, priority: int, need: Wanted, is_limited: bool, is_patient: bool
) -> tuple[FlowKey, FlowKey]:
    """Return one object for equal keys, live and late: they are compared for each launch."""
    live = FlowKey(tenant, pool, priority, need, False, is_limited, is_patient)
    return live, FlowKey(tenant, pool, priority, need, True, is_limited)


class Queues:
    """All launches that wait or run, by what they wait for."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.fair = FairQueue(self._job_limit)
        self.placement = Placement(state.executors, self.fair.table.domains)
        self.places = self.placement.places
        self._is_mixed = False  # a handler was in two groups: its slots are not those of one name
        self.gates = Gates(state)
        self.admission = Admission(state, self.fair.table)
        self._waiting: dict[Key, Candidate] = {}
        self._by_job = WaitingByJob()
        self._running = self.placement.running
        self._new: dict[Key, None] = {}
        self._removed: dict[Key, None] = {}  # of removed jobs, out of all queues
        self._deadlines: list[tuple[int, Key]] = []
        self._needs: dict[int, Placed] = {}
        for scope, limits in state.limits.items():
            self.fair.set_limits(scope, limits)
        for row in state.active.values():
            self._run(row)
        self._taken: dict[Key, Candidate] = {}  # and neither begun nor put back yet
        self._loading: Iterator[Key] = iter(list(state.due))
        self._is_loading = self.admission.is_loading = bool(state.due)

    # ---- what State says

    def follow(self, keys: Iterable[Key]) -> None:
        """Agree with State on these launches."""
        keys, running, waiting = list(keys), self._running, self._waiting
        active, due = set(self.state.active.among(keys)), set(self.state.due.among(keys))
        over: list[Key] = []
        for key in keys:
            ran = running.get(key)
            if ran is None or (len(ran.executors) > 1 if key in active else key in due):
                self._follow(key)
                continue
            if key in waiting:  # cancelled before the plan's entry, or in it
                self._forget_waiting(key, is_running=True)
            if key not in active:
                over.append(key)
        self.placement.vacate(over)
        self.fair.ended(over)

    def _follow(self, key: Key) -> None:
        """Agree with State on a launch, whatever it was before."""
        row = self.state.active.get(key)
        if row is not None:
            self._forget_waiting(key, is_running=True)
            if key not in self._running:
                self._run(row)
            elif row.parts:
                self.placement.keep(key, [start.executor for start in row.starts()])
            return
        was_running = self.end(key)
        row = self.state.due.get(key)
        if row is None or was_running:
            self._forget_waiting(key)
        if row is not None:
            candidate = of_row(row, self.state.by_number[row.number])
            if was_running and candidate.refused_by:
                candidate.outlasted = self.state.at_ms > row.not_after_ms
                rests_until_ms = self.state.at_ms + REFUSED_REST_MS
                candidate.not_before_ms = max(candidate.not_before_ms, rests_until_ms)
            self.offer(candidate)

    def look_again(self, number: int) -> None:
        """Have everything judged anew that waits of a job: it, or what holds it, has changed."""
        self._needs.pop(number, None)
        for key in self._by_job.of(number):
            if key not in self._running:
                self.fair.remove(key)
                self._new[key] = None

    def job_removed(self, number: int) -> None:
        """Let go of what is known of a job beside its launches."""
        self._needs.pop(number, None)
        self.gates.forget(number)

    def gates_changed(self) -> None:
        """Have everything judged anew that a gate holds, or has held."""
        for number in self.gates.changed(self._by_job):
            self.look_again(number)

    def serve(self, offers: Iterable[GroupOffer]) -> None:
        """Learn which handlers share the slots of a group of workers."""
        for offer in offers:
            for handler in offer.handlers:
                known = self.fair.table.domains.get(handler)
                if known != offer.group:
                    self._is_mixed = self._is_mixed or known is not None
                    self.fair.set_domain(handler, offer.group)

    def _job_limit(self, number: Hashable) -> int:
        """Return how many launches of a job may run at once, 0 for any number."""
        job = self.state.by_number[cast(int, number)].job
        if job is None:
            return 0
        return job.concurrency if job.overlap is Overlap.ALLOW else 1

    def _run(self, row: LaunchRow) -> None:
        """Count a launch that was begun, by this leader or by one before."""
        record = self.state.by_number[row.number]
        job = row.job or record.job
        if job is None:
            return
        placed = self.placed(record, job)
        self.fair.add_running(row.key, placed.late if row.is_late else placed.live)
        executors = tuple(start.executor for start in row.starts())
        self.placement.occupy([row.key], executors, placed.wanted.need)

    def offer(self, candidate: Candidate) -> None:
        """Let in a launch that is due, or that this plan makes due."""
        key = candidate.key
        if self._is_loading and key[0] not in self._by_job:
            self._load_job(candidate.record)
        known = self._waiting.get(key)
        if known is None:
            self._join(candidate)
        elif (known.attempt, known.detail, known.note) == (
            candidate.attempt, candidate.detail, candidate.note
        ):  # fmt: skip
            known.is_fresh = False
            return
        self._waiting[key] = candidate
        if candidate.record.job is None:
            self._removed[key] = None
        else:
            self._new[key] = None

    def _load_job(self, record: JobRecord) -> None:
        """Let in what was there at the takeover of a job whose order counts, before what is new."""
        if record.job is None or record.job.overlap is Overlap.ALLOW:
            return
        for row in self.state.open_of(record).values():
            if row.state is LaunchState.DUE:
                candidate = of_row(row, record)
                self._join(candidate)
                self._waiting[candidate.key] = candidate
                self._new[candidate.key] = None

    def _join(self, candidate: Candidate) -> None:
        """Let a launch stand among those of its job that wait."""
        key = candidate.key
        if is_queue(candidate.record.job):
            first = self._by_job.first(key[0])
            if first is not None and key < first:
                self.fair.hold(first, self._waiting[first].enqueued_ms, FOREVER_MS)
        self._by_job.add(key)
        if len(self._deadlines) > 2 * len(self._waiting) + DEADLINES_MIN:
            self._deadlines = [(one.deadline_ms, one.key) for one in self._waiting.values()]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (candidate.deadline_ms, key))

    def _forget_waiting(self, key: Key, *, is_running: bool = False) -> None:
        candidate = self._waiting.pop(key, None)
        if candidate is None:
            return
        self._new.pop(key, None)
        self._removed.pop(key, None)
        self._by_job.remove(key)
        if is_queue(candidate.record.job):
            first = self._by_job.first(key[0])
            if first is not None and key < first:  # whoever was behind it may be next
                self._new[first] = None
        if not is_running:
            self.fair.remove(key)

    def end(self, key: Key) -> bool:
        """Count a launch no more that has ended, or that this plan gives up. False if it did not
        run."""
        if key not in self._running:
            return False
        self.placement.vacate([key])
        self.fair.ended([key])
        return True

    # ---- what the plan does

    def begin_plan(self, now_ms: int) -> None:
        """Begin a plan: count anew what is free, and find what is past its deadline."""
        starving = self.fair.starving(now_ms)
        self.fair.begin_round()
        self.placement.begin_round(starving, self.fair.table.kept, now_ms)
        if self._is_loading:
            loaded = list(islice(self._loading, LOADED_AT_ONCE))
            self._is_loading = len(loaded) == LOADED_AT_ONCE
            self.admission.is_loading = self._is_loading
            self.follow(key for key in loaded if key not in self._waiting)
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, key = heapq.heappop(deadlines)
            if key in self._waiting and key not in self._running:
                self._new[key] = None

    def unbound(self, counts: Mapping[FlowKey, int], now_ms: int) -> Container[FlowKey]:
        """Return the flows of which so many live launches may begin that fall due now, whatever
        else this plan does."""
        if self._is_mixed:
            # Who shares slots with whom cannot be told by the names of groups.
            counts = {flow: count for flow, count in counts.items() if flow.pool == COMMAND}
        if not counts or self._is_loading:
            return ()
        self.fair.tick(now_ms)
        return unbound(self.fair, counts, len(self._new), self.placement.room)

    def begin_unbound(self, flow: FlowKey, keys: list[Key]) -> dict[int, list[Key]]:
        """Let launches of a flow, which is unbound, begin at once: the first of them, as far as
        there is room. Return them by executor."""
        need = cast(Wanted, flow.need).need
        shares = self.places.spread(need, len(keys))
        # In turns: jobs that follow each other are often of one kind.
        turns = zip_longest(*(repeat(executor, count) for executor, count in shares.items()))
        executors = [executor for turn in turns for executor in turn if executor is not None]
        keys = keys[: len(executors)]
        begun: dict[int, list[Key]] = {executor: [] for executor in shares}
        for key, executor in zip(keys, executors, strict=True):
            begun[executor].append(key)
        for executor, mine in begun.items():
            self.placement.occupy(mine, (executor,), need)
        self.fair.begin_unbound(flow, keys)
        return begun

    def take_new(self, most: int) -> list[Candidate]:
        """Return what was not judged yet, and what is past its deadline; so many at the most, and
        the others to the next plan."""
        new = list(islice(self._new, most))
        for key in new:
            del self._new[key]
        return [self._waiting[key] for key in new]

    def postpone(self, candidate: Candidate, until_ms: int) -> None:
        """Have it judged once more, by the next plan, and let it not begin before."""
        self._new[candidate.key] = None
        if not self.put_back(candidate, until_ms):
            self.fair.hold(candidate.key, candidate.enqueued_ms, until_ms)

    def judge_again(self, key: Key, at_ms: int) -> None:
        """Have a launch judged anew at that time: gates hold the clock of its deadline."""
        heapq.heappush(self._deadlines, (at_ms, key))

    def waiting_of(self, number: int) -> list[Candidate]:
        """Return what waits of a job, the oldest first."""
        return [self._waiting[key] for key in self._by_job.of(number)]

    def newer(self, key: Key) -> Iterator[Candidate]:
        """Yield what waits of a launch's job and is newer, the newest first."""
        return (self._waiting[other] for other in self._by_job.newer(key))

    def older(self, key: Key) -> list[Key]:
        """Return what waits of a launch's job and is older."""
        return self._by_job.older(key)

    def runs(self, number: int) -> int:
        """Return how many launches of a job run, with those that this plan begins."""
        taken = sum([key[0] == number for key in self._taken])
        return self.fair.runs.get(number, 0) - taken

    def enqueue(self, candidate: Candidate, job: Job, now_ms: int) -> None:
        """Let it wait for its turn; nothing if it does already."""
        rests_until_ms = candidate.not_before_ms if candidate.not_before_ms > now_ms else 0
        held_until_ms = self._held_until_ms(candidate, job, rests_until_ms)
        is_new = self._add(candidate, job, held_until_ms)
        if not is_new and is_queue(job):
            self.fair.hold(candidate.key, candidate.enqueued_ms, held_until_ms or now_ms)

    def _held_until_ms(self, candidate: Candidate, job: Job, until_ms: int) -> int:
        """A queue is first in, first out: whoever is not the first of its job waits for that."""
        if not is_queue(job) or self._by_job.first(candidate.key[0]) == candidate.key:
            return until_ms
        return FOREVER_MS

    def _add(self, candidate: Candidate, job: Job, not_before_ms: int) -> bool:
        placed = self.placed(candidate.record, job)
        flow = placed.late if candidate.is_late else placed.live
        is_new = self.fair.add(candidate.key, flow, candidate.enqueued_ms, not_before_ms)
        if is_new and not candidate.is_fresh:
            self.admission.entered(candidate.record.name, job)
        return is_new

    def hold(self, candidate: Candidate, job: Job, until_ms: int) -> None:
        """Let it wait outside of all queues until then, whether it waited, was taken or is new; and
        not less long than it rests by itself: when the hold ends, it is not judged again."""
        until_ms = self._held_until_ms(candidate, job, max(until_ms, candidate.not_before_ms))
        if self.put_back(candidate, until_ms):
            return
        if not self.fair.hold(candidate.key, candidate.enqueued_ms, until_ms):
            self._add(candidate, job, until_ms)

    def drop(self, key: Key) -> None:
        """Let go of a launch that this plan skips or cancels."""
        if key in self._taken:
            self.put_back(self._taken[key], 0)  # it starts nothing, and costs no rate
        self._forget_waiting(key)

    def set_aside(self, candidate: Candidate) -> None:
        """Take a launch out of the fair queue whose job was removed: it is to be cancelled. Nothing
        where the job has come back, or the launch is over."""
        key = candidate.key
        if candidate.record.job is None and key in self._waiting:
            self.put_back(candidate, FOREVER_MS)  # it starts nothing, and costs no rate
            self.fair.remove(key)
            self._new.pop(key, None)
            self._removed[key] = None

    def removed(self, most: int) -> list[Candidate]:
        """Return up to `most` launches of removed jobs, which stay until State has ended them."""
        return [self._waiting[key] for key in islice(self._removed, most)]

    def take(self, now_ms: int, late_budget: int, most: int = 1) -> list[Candidate]:
        """Return up to `most` launches that may begin next, several only where nothing is to be
        decided between launches; they count as running from here on. Those that do not begin have
        to be put back."""
        place = self.placement
        keys = self.fair.take(now_ms, place.room, late_budget, place.free, most)
        taken = [self._waiting[key] for key in keys]
        self._taken.update(zip(keys, taken, strict=True))
        return taken

    def put_back(self, candidate: Candidate, not_before_ms: int) -> bool:
        """Let a launch wait again that was taken. False if it was not."""
        if self._taken.pop(candidate.key, None) is None:
            return False
        return self.fair.put_back(candidate.key, candidate.enqueued_ms, not_before_ms)

    def put_all_back(self) -> None:
        """Let all launches wait again that were taken and have not begun."""
        for candidate in list(self._taken.values()):
            self.put_back(candidate, 0)

    def begin(self, candidate: Candidate, job: Job) -> tuple[int, ...]:
        """Return the executors that a launch which was taken goes to, now occupied by it; none
        where it finds no room."""
        key = candidate.key
        wanted = self.placed(candidate.record, job).wanted
        executors = self.placement.choose(wanted, candidate.refused_by or None)
        slots = len(executors)
        if slots > 1 and not self.fair.spares(key, slots, self.placement.free):
            # One slot is nobody else's, which the fair queue has seen to; not all of them.
            del self._taken[key]
            self.fair.put_aside(key, candidate.enqueued_ms)
            return ()
        if executors:
            self.placement.occupy([key], executors, wanted.need)
            self.placement.began(wanted)
            del self._taken[key]
        return executors

    def placed(self, record: JobRecord, job: Job) -> Placed:
        """Return what launches of a job need, and where they wait."""
        placed = self._needs.get(record.number)
        if placed is None or placed.job is not job:
            placed = self._needs[record.number] = placed_of(record.name, job)
        return placed

    # ---- what decides how much more may fall due

    def is_served(self, flow: FlowKey) -> bool:
        """Return whether an executor may get work that has slots for the launches of a flow, free
        or not."""
        groups = self.places.fit(cast(Wanted, flow.need).need).groups
        return any(group.slots for group in groups.values())

    def is_waiting(self, number: int) -> bool:
        """Return whether a launch of a job, no catch-up, waits for nothing but room, a limit of its
        pool or tenant, or a rate."""
        ready, waiting = self.fair.ready, self._waiting
        return any(key in ready and not waiting[key].is_late for key in self._by_job.of(number))

    # ---- what others ask

    def next_ms(self) -> int | None:
        """Return when something may be to be done that no entry brings about; None for never, 0
        while there is more to be let in and judged than one plan takes."""
        is_more = self._new or self._removed or self._is_loading
        return 0 if is_more else self.fair.next_ms()

    def depths(self) -> list[Depth]:
        """Return what waits and runs, by pool, priority and tenant."""
        return depths(self.fair)

    def position(self, key: Key) -> int | None:
        """Return how many of its tenant's queue wait before a launch, None where it waits not."""
        return position(self.fair, key)

    def why(self, key: Key) -> Wait | None:
        """Return what a launch waits for in its queue, None where it waits in none."""
        return why(self.fair, key)

    def missing(self, key: Key) -> str:
        """Return why no executor has room for a launch, "" where one has, or where it waits not."""
        candidate = self._waiting.get(key)
        job = candidate.record.job if candidate is not None else None
        if job is None:
            return ""
        wanted = self.placed(self.state.by_number[key[0]], job).wanted
        if absent := self.placement.absent(wanted):
            return f"it runs on executor {absent} as well, which gets no work now"
        text = why_not(self.places, wanted.need, wanted.parts, wanted.each)
        return text and text + self.placement.kept_for(wanted)

    def end_plan(self) -> None:
        """Note that a plan has judged all that it could."""
        self.admission.end_plan(is_complete=not self._new)


class WaitingByJob:
    """The launches of each job that wait, in the order of their instants.

    They nearly always come in order. Where one does not, those of its job are sorted when somebody
    next asks for their order.
    """

    def __init__(self) -> None:
        self._of_job: dict[int, dict[Key, None]] = {}
        self._unsorted: dict[int, None] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._of_job

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of all jobs of which something waits."""
        return iter(self._of_job)

    def add(self, key: Key) -> None:
        """Let a launch stand among those of its job; it must not yet."""
        number = key[0]
        mine = self._of_job.get(number)
        if mine is None:
            mine = self._of_job[number] = {}
        elif key < next(reversed(mine)):
            self._unsorted[number] = None
        mine[key] = None

    def remove(self, key: Key) -> None:
        """Let go of a launch that was added."""
        number = key[0]
        mine = self._of_job[number]
        del mine[key]
        if not mine:
            del self._of_job[number]
            self._unsorted.pop(number, None)

    def of(self, number: int) -> dict[Key, None]:
        """Return the launches of a job, the oldest first; to be read before the next change."""
        if number in self._unsorted:
            del self._unsorted[number]
            self._of_job[number] = dict.fromkeys(sorted(self._of_job[number]))
        return self._of_job.get(number, _NO_KEYS)

    def first(self, number: int) -> Key | None:
        """Return the oldest launch of a job, None where it has none."""
        return next(iter(self.of(number)), None)

    def newer(self, key: Key) -> Iterator[Key]:
        """Yield what is newer than a launch of the same job, the newest first."""
        return takewhile(lambda other: other > key, reversed(self.of(key[0])))

    def older(self, key: Key) -> list[Key]:
        """Return what is older than a launch of the same job, the oldest first."""
        return list(takewhile(lambda other: other < key, self.of(key[0])))
