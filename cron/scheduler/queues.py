"""The waiting and running launches of a leader, ready for the plan. Pure.

Theory of operation. State says which launches are due and which are active. After each entry,
`follow` receives the launches that the entry moved, and updates the queues. A plan judges new
launches (`take_new`), adds them to the fair queue, and takes out those that may begin; these count
as running from then on. `follow` looks at State alone, so it also returns what the entry did not
accept. A turn therefore costs what has changed, whatever waits.

After a takeover millions may wait. They are loaded in portions, oldest first, beside new launches.
If a new launch of a job arrives, the waiting launches of that job are loaded before it.

Of a job with overlap=queue only the oldest launch stands in the fair queue. The others are held
until it has left.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
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
"""How long a refused launch rests: it may be refused again at once, and each time costs two log
entries."""
FLOW_KEYS_MAX: Final = 100_000
PATIENT_S: Final = 15
"""A job is patient if its instants are so far apart and may begin so late: its rows wait apart from
those of other jobs (`due`)."""
DEADLINES_MIN: Final = 10_000
"""Fewer deadlines of launches that no longer wait are not worth removing."""


class Placed(NamedTuple):
    """What launches of a job need, and in which flows they wait. `is_usual`: a launch needs one
    slot and nothing else, and does not wait for other launches of its job."""

    wanted: Wanted
    live: FlowKey
    late: FlowKey
    is_usual: bool


def placed_of(name: str, job: Job) -> Placed:
    """Return what launches of a job need, and in which flows they wait."""
    tenant, _ = split_job_name(name)
    work, every_s = job.work, job.schedule.every_s
    needed = (job.pool, job.where, work.cpu_milli, work.memory_bytes)
    is_patient = job.deadline_s >= PATIENT_S and not 0 < every_s < PATIENT_S
    priority = min(max(work.priority, 0), 9)
    return _placed_alike(tenant, priority, needed, job.parts, job.each, job.is_limited, is_patient)


@lru_cache(FLOW_KEYS_MAX)
def _placed_alike(
    tenant: str,
    priority: int,
    needed: tuple[str, str, int, int],
    parts: int,
    each: str,
    is_limited: bool,
    is_patient: bool,
) -> Placed:
    """Return one object for all jobs that are alike: flows are compared for each launch."""
    wanted = Wanted(need := Need(*needed), parts, each)
    live = FlowKey(tenant, need.pool, priority, wanted, False, is_limited, is_patient)
    late = FlowKey(tenant, need.pool, priority, wanted, True, is_limited)
    is_usual = not (is_limited or wanted.has_parts or need.takes_resources)
    return Placed(wanted, live, late, is_usual)


class Queues:
    """All launches that wait or run, by what they wait for."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.fair = FairQueue(self._job_limit)
        self.placement = Placement(state.executors, self.fair.table.domains)
        self.places = self.placement.places
        self._groups: dict[str, Counter[str]] = {}  # handler -> groups of workers, by executors
        self._served: dict[int, dict[str, str]] = {}  # executor -> handler -> group
        self._mixed: set[str] = set()  # handlers in several groups
        self.gates = Gates(state)
        self.admission = Admission(state, self.fair.table)
        self._waiting: dict[Key, Candidate] = {}
        self.by_job = WaitingByJob()
        self._running = self.placement.running
        self._new: dict[Key, None] = {}
        self._removed = OrderedDict[Key, None]()  # of removed jobs, out of all queues
        self._deadlines: list[tuple[int, Key]] = []
        self._placed: dict[int, tuple[Job, Placed]] = {}  # by job number
        for scope, limits in state.limits.items():
            self.fair.set_limits(scope, limits)
        for row in state.active.values():
            self._run(row)
        self._taken: dict[Key, Candidate] = {}  # and neither begun nor put back yet
        # By the newest plan, before State has done so: which it ended, and which it made wait.
        self.given_up: list[Key] = []
        self.entered: dict[Key, None] = {}
        self._loading: Iterator[Key] = iter(list(state.due))
        self._is_loading = self.admission.is_loading = bool(state.due)

    # ---- what State says

    def follow(self, keys: Iterable[Key]) -> None:
        """Update the queues from State for these launches."""
        keys, running = list(keys), self._running
        due, by_number = self.state.due, self.state.by_number
        active = set(self.state.active.among(keys))
        over: dict[Key, None] = {}
        for key in keys:
            ran, is_active = running.get(key), key in active
            if ran is None and not is_active:
                if (row := due.get(key)) is not None:
                    self.offer(of_row(row, by_number[key[0]]))
                elif key in self._waiting:
                    self._forget_waiting(key)
                continue
            if key in self._waiting:  # if it is over, cancelled before the plan's entry, or in it
                self._forget_waiting(key, is_running=True)
            if not is_active:
                over[key] = None
            elif ran is None:
                self._run(self.state.active[key])
            elif len(ran.executors) > 1:
                starts = self.state.active[key].starts()
                self.placement.keep(key, [start.executor for start in starts])
        self.placement.vacate(over)
        self.fair.ended(over)
        for key in over:
            if (row := due.get(key)) is not None:
                candidate = of_row(row, by_number[key[0]])
                if candidate.refused_by:
                    candidate.outlasted = self.state.at_ms > row.not_after_ms
                    rests_until_ms = self.state.at_ms + REFUSED_REST_MS
                    candidate.not_before_ms = max(candidate.not_before_ms, rests_until_ms)
                self.offer(candidate)

    def look_again(self, number: int) -> None:
        """Judge all waiting launches of a job again: the job, or what holds it, has changed."""
        self._placed.pop(number, None)
        for key in self.by_job.of(number):
            if key not in self._running:
                self.fair.remove(key)
                self._new[key] = None

    def job_removed(self, number: int) -> None:
        """Forget what is known of a job beside its launches."""
        self._placed.pop(number, None)
        self.gates.forget(number)

    def serve(self, number: int, offers: Iterable[GroupOffer]) -> None:
        """Set the groups of workers of an executor, none if it gets no work: the handlers of a
        group share its slots."""
        before = self._served.pop(number, {})
        now = {handler: offer.group for offer in offers for handler in offer.handlers}
        if now:
            self._served[number] = now
        for served, count in ((before, -1), (now, 1)):
            for handler, group in served.items():
                self._groups.setdefault(handler, Counter())[group] += count
        for handler in before | now:
            groups = self._groups[handler] = +self._groups[handler]
            self._mixed.discard(handler)
            if len(groups) > 1:
                self._mixed.add(handler)
            if groups and self.fair.table.domains.get(handler) not in groups:
                self.fair.set_domain(handler, next(iter(groups)))

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
        """Add a launch that is due, or that this plan makes due."""
        key = candidate.key
        if self._is_loading and key[0] not in self.by_job:
            self._load_job(candidate.record)
        known = self._waiting.get(key)
        if known is not None and (known.attempt, known.detail, known.note) == (
            candidate.attempt, candidate.detail, candidate.note
        ):  # fmt: skip
            known.is_fresh = False
            return
        self._join(candidate)
        if candidate.record.job is None:
            self._removed[key] = None
        else:
            self._new[key] = None

    def wait(self, flow: FlowKey, candidates: Sequence[Candidate]) -> None:
        """Add live launches of one flow that this plan makes due, and that only room can keep from
        beginning; a plan judges those that a waiting limit may keep out."""
        if self.fair.table.waiting_limits(flow.tenant, flow.pool, flow.priority):
            for candidate in candidates:
                self.offer(candidate)
            return
        by_instant: dict[int, list[Key]] = {}
        for candidate in candidates:
            self._join(candidate)
            candidate.is_fresh, self.entered[candidate.key] = False, None
            by_instant.setdefault(candidate.enqueued_ms, []).append(candidate.key)
        for due_ms in sorted(by_instant):
            self.fair.add_alike(by_instant[due_ms], flow, due_ms)

    def _load_job(self, record: JobRecord) -> None:
        """Load the launches that a job had at the takeover before a new one, if their order
        counts."""
        if record.job is None or record.job.overlap is Overlap.ALLOW:
            return
        for row in self.state.open_of(record).values():
            if row.state is LaunchState.DUE:
                candidate = of_row(row, record)
                self._join(candidate)
                self._new[candidate.key] = None

    def _join(self, candidate: Candidate) -> None:
        """Add a launch to those that wait, or replace what was known of it."""
        key = candidate.key
        is_new = key not in self._waiting
        if is_new and is_queue(candidate.record.job):
            first = self.by_job.first(key[0])
            if first is not None and key < first.key:
                self.fair.hold(first.key, first.enqueued_ms, FOREVER_MS)
        self._waiting[key] = candidate
        self.by_job.put(candidate)
        if not is_new:
            return
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
        self.by_job.remove(key)
        if is_queue(candidate.record.job):
            first = self.by_job.first(key[0])
            if first is not None and key < first.key:  # the next one may have its turn
                self._new[first.key] = None
        if not is_running:
            self.fair.remove(key)

    def end(self, keys: Iterable[Key]) -> None:
        """Remove the running ones of these launches: the entry of this plan ends them."""
        self.given_up = [key for key in keys if key in self._running]
        self.placement.vacate(self.given_up)
        self.fair.ended(self.given_up)

    # ---- what the plan does

    def begin_plan(self, now_ms: int) -> None:
        """Begin a plan: count the free slots, load a portion, and find launches past their
        deadline."""
        self.entered = {}
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
        """Return the flows of which `counts` live launches that fall due now may begin, whatever
        else this plan does."""
        if self._mixed:
            # The names of groups do not tell which handlers share slots.
            counts = {flow: count for flow, count in counts.items() if flow.pool == COMMAND}
        if not counts or self._is_loading:
            return ()
        self.fair.tick(now_ms)
        return unbound(self.fair, counts, len(self._new), self.placement.room)

    def begin_alike(self, flow: FlowKey, keys: Sequence[Key]) -> dict[int, list[Key]]:
        """Begin launches that need a slot each and the same, the first ones as far as there is
        room: taken ones, or those of an unbound flow, which never waited. Return them by
        executor."""
        need = cast(Wanted, flow.need).need
        shares = self.places.spread(need, len(keys))
        # In round robin: neighbouring jobs are often of one kind.
        turns = zip_longest(*(repeat(executor, count) for executor, count in shares.items()))
        executors = [executor for turn in turns for executor in turn if executor is not None]
        keys = keys[: len(executors)]
        begun: dict[int, list[Key]] = {executor: [] for executor in shares}
        for key, executor in zip(keys, executors, strict=True):
            begun[executor].append(key)
        for executor, mine in begun.items():
            self.placement.occupy(mine, (executor,), need)
        if keys and keys[0] in self._taken:
            for key in keys:
                del self._taken[key]
        else:
            self.fair.begin_unbound(flow, keys)
        return begun

    def take_new(self, most: int) -> list[Candidate]:
        """Remove and return up to `most` launches that were not judged yet or are past their
        deadline."""
        new = list(islice(self._new, most))
        for key in new:
            del self._new[key]
        return [self._waiting[key] for key in new]

    def postpone(self, candidate: Candidate, until_ms: int) -> None:
        """Have the next plan judge a launch again; it does not begin before `until_ms`."""
        self._new[candidate.key] = None
        if not self.put_back(candidate, until_ms):
            self.fair.hold(candidate.key, candidate.enqueued_ms, until_ms)

    def judge_again(self, key: Key, at_ms: int) -> None:
        """Have a launch judged again at `at_ms`: gates stopped the clock of its deadline."""
        heapq.heappush(self._deadlines, (at_ms, key))

    def runs(self, number: int) -> int:
        """Return how many launches of a job run, including those that this plan begins."""
        taken = sum([key[0] == number for key in self._taken])
        return self.fair.runs.get(number, 0) - taken

    def enqueue(self, candidate: Candidate, job: Job, now_ms: int) -> None:
        """Add a judged launch to the fair queue, unless it is there already."""
        rests_until_ms = candidate.not_before_ms if candidate.not_before_ms > now_ms else 0
        held_until_ms = self._held_until_ms(candidate, job, rests_until_ms)
        is_new = self._add(candidate, job, held_until_ms)
        if not is_new and is_queue(job):
            self.fair.hold(candidate.key, candidate.enqueued_ms, held_until_ms or now_ms)

    def _held_until_ms(self, candidate: Candidate, job: Job, until_ms: int) -> int:
        """Return until when a launch is held: one that is not the first of its job with
        overlap=queue, until the first has left."""
        if not is_queue(job):
            return until_ms
        first = self.by_job.first(candidate.key[0])
        return until_ms if first is not None and first.key == candidate.key else FOREVER_MS

    def _add(self, candidate: Candidate, job: Job, not_before_ms: int) -> bool:
        placed = self.placed(candidate.record, job)
        flow = placed.late if candidate.is_late else placed.live
        is_new = self.fair.add(candidate.key, flow, candidate.enqueued_ms, not_before_ms)
        if is_new and not candidate.is_fresh:
            self.admission.entered(candidate.record.name, job)
        return is_new

    def hold(self, candidate: Candidate, job: Job, until_ms: int) -> None:
        """Hold a launch outside the fair queue until `until_ms`, whether it waited, was taken or is
        new. It is held at least as long as it has to rest, because it is not judged again when the
        hold ends."""
        until_ms = self._held_until_ms(candidate, job, max(until_ms, candidate.not_before_ms))
        if self.put_back(candidate, until_ms):
            return
        if not self.fair.hold(candidate.key, candidate.enqueued_ms, until_ms):
            self._add(candidate, job, until_ms)

    def drop(self, key: Key) -> None:
        """Remove a launch that this plan skips or cancels."""
        if key in self._taken:
            self.put_back(self._taken[key], 0)  # it starts nothing, and costs no rate
        self._forget_waiting(key)

    def set_aside(self, candidate: Candidate) -> None:
        """Take a launch of a removed job out of the fair queue, to be cancelled. Does nothing if
        the job was declared again or the launch is over."""
        key = candidate.key
        if candidate.record.job is None and key in self._waiting:
            self.put_back(candidate, FOREVER_MS)  # it starts nothing, and costs no rate
            self.fair.remove(key)
            self._new.pop(key, None)
            self._removed[key] = None

    def removed(self, most: int) -> list[Candidate]:
        """Return up to `most` launches of removed jobs. They stay until State has ended them."""
        return [self._waiting[key] for key in islice(self._removed, most)]

    def take(self, now_ms: int, late_budget: int, most: int = 1) -> list[Candidate]:
        """Return up to `most` launches that may begin next, in the order of service; several only
        if each needs one slot, and all need the same. They count as running. Launches that do not
        begin must be put back."""
        place = self.placement
        keys = self.fair.take(now_ms, place.room, late_budget, place.free, most)
        taken = [self._waiting[key] for key in keys]
        self._taken.update(zip(keys, taken, strict=True))
        return taken

    def put_back(self, candidate: Candidate, not_before_ms: int) -> bool:
        """Return a taken launch to its flow, held until `not_before_ms`. Returns False if it was
        not taken."""
        if self._taken.pop(candidate.key, None) is None:
            return False
        return self.fair.put_back(candidate.key, candidate.enqueued_ms, not_before_ms)

    def put_all_back(self) -> None:
        """Return all taken launches that have not begun to their flows."""
        for candidate in list(self._taken.values()):
            self.put_back(candidate, 0)

    def begin(self, candidate: Candidate, job: Job, late: Collection[int] = ()) -> tuple[int, ...]:
        """Occupy the executors that a taken launch goes to and return them; empty if there is no
        room on executors that are not in `late`."""
        key = candidate.key
        wanted = self.placed(candidate.record, job).wanted
        executors = self.placement.choose(wanted, candidate.refused_by, late)
        slots = len(executors)
        if slots > 1 and not self.fair.spares(key, slots, self.placement.free):
            # `take` has checked one slot against the reserved ones, not all of them.
            del self._taken[key]
            self.fair.put_aside(key, candidate.enqueued_ms)
            return ()
        if executors:
            self.placement.occupy([key], executors, wanted.need)
            self.placement.began(wanted)
            del self._taken[key]
        return executors

    def placed(self, record: JobRecord, job: Job) -> Placed:
        """Return what launches of a job need, and in which flows they wait."""
        known = self._placed.get(record.number)
        if known is None or known[0] is not job:
            known = self._placed[record.number] = (job, placed_of(record.name, job))
        return known[1]

    # ---- what decides how much more may fall due

    def is_served(self, flow: FlowKey) -> bool:
        """Return whether an executor that may get work has slots, free or not, for the launches of
        a flow."""
        groups = self.places.fit(cast(Wanted, flow.need).need).groups
        return any(group.slots for group in groups.values())

    def is_waiting(self, number: int) -> bool:
        """Return whether a live launch of a job waits only for room, for a limit of its pool or
        tenant, or for a rate."""
        ready, mine = self.fair.ready, self.by_job.of(number)
        return any(key in ready and not one.is_late for key, one in mine.items())

    # ---- what others ask

    def next_ms(self) -> int | None:
        """Return when there may be work that no entry brings about; None for never, 0 while more
        has to be loaded and judged than one plan takes."""
        is_more = self._new or self._removed or self._is_loading
        return 0 if is_more else self.fair.next_ms()

    def depths(self) -> list[Depth]:
        """Return how much waits and runs, by pool, priority and tenant."""
        return depths(self.fair)

    def position(self, key: Key) -> int | None:
        """Return how many launches of its tenant's queue wait before a launch, None if it does not
        wait."""
        return position(self.fair, key)

    def why(self, key: Key) -> Wait | None:
        """Return what a launch waits for in its queue, None if it does not wait."""
        return why(self.fair, key)

    def missing(self, key: Key) -> str:
        """Return why no executor has room for a launch; "" if one has, or if the launch does not
        wait."""
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
        """Note the end of a plan; it is complete if it has judged all launches."""
        self.admission.end_plan(is_complete=not self._new)


class WaitingByJob:
    """The waiting launches of each job, ordered by instant.

    They nearly always come in order. If one does not, the launches of its job are sorted when their
    order is next needed.
    """

    def __init__(self) -> None:
        # With several launches an OrderedDict: it finds its first item at once, whatever was
        # removed before that.
        self._of_job: dict[int, dict[Key, Candidate]] = {}
        self._unsorted: dict[int, None] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._of_job

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of all jobs with waiting launches."""
        return iter(self._of_job)

    def put(self, candidate: Candidate) -> None:
        """Add a launch, or replace what was known of it."""
        key = candidate.key
        number = key[0]
        mine = self._of_job.get(number)
        if mine is None:
            self._of_job[number] = {key: candidate}
            return
        if key not in mine and key < next(reversed(mine)):
            self._unsorted[number] = None
        if len(mine) == 1 and type(mine) is dict:
            mine = self._of_job[number] = OrderedDict(mine)
        mine[key] = candidate

    def remove(self, key: Key) -> None:
        """Remove a launch that was added."""
        number = key[0]
        mine = self._of_job[number]
        del mine[key]
        if not mine:
            del self._of_job[number]
            self._unsorted.pop(number, None)

    def of(self, number: int) -> dict[Key, Candidate]:
        """Return the launches of a job, the oldest first; to be read before the next change."""
        if number in self._unsorted:
            del self._unsorted[number]
            self._of_job[number] = OrderedDict(sorted(self._of_job[number].items()))
        return self._of_job.get(number, {})

    def first(self, number: int) -> Candidate | None:
        """Return the oldest launch of a job, None if it has none."""
        return next(iter(self.of(number).values()), None)

    def newer(self, key: Key) -> Iterator[Candidate]:
        """Yield the launches of the same job that are newer, the newest first."""
        mine = self.of(key[0])
        return map(mine.__getitem__, takewhile(lambda other: other > key, reversed(mine)))

    def older(self, key: Key) -> list[Key]:
        """Return the launches of the same job that are older, the oldest first."""
        return list(takewhile(lambda other: other < key, self.of(key[0])))
