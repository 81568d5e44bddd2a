"""The waiting and running launches of a leader, ready for the plan. Pure.

Theory of operation. State says which launches are due and which are active. After each entry,
`applied` receives what the entry moved, and updates the queues. A plan judges new launches
(`take_new`), adds them to the fair queue, and takes out those that may begin; these count as
running from then on. `applied` looks at State alone, so it also returns what the entry did not
accept. A turn therefore costs what has changed, whatever waits.

Launches that begin without having waited are only counted, by flow and executor, from the plan that
begins them to their end: they are live launches of jobs that limit nothing, usual rows of batches.
Each other launch that runs has an entry of its own. An active launch without one is counted in the
flow in which its job's live launches are; when a job changes, what runs of it gets entries.

After a takeover millions may wait. They are loaded in portions, oldest first, beside new launches.
If a new launch of a job arrives, the waiting launches of that job are loaded before it.

Of a job with overlap=queue only the oldest launch stands in the fair queue. The others are held
until it has left.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from types import MappingProxyType
from typing import Final, cast

from cron.errors import invariant
from cron.job import COMMAND, Job, Overlap
from cron.launch_state import ACTIVE, LaunchState
from cron.scheduler.admission import Admission
from cron.scheduler.candidates import is_queue
from cron.scheduler.fair_queue import FairQueue
from cron.scheduler.flows import FlowKey
from cron.scheduler.gates import FOREVER_MS, Gates
from cron.scheduler.placed import Placed, placed_of
from cron.scheduler.placement import Placement, Running
from cron.scheduler.places import Need, Wanted
from cron.scheduler.shortage import why_not
from cron.scheduler.views import Depth, Wait, depths, position, unbound, why
from cron.scheduler.waiting import WaitingByJob
from cron.state.commands import Key
from cron.state.launch_row import LaunchRow
from cron.state.outcome import EndedRows, Outcome
from cron.state.state import JobRecord, State
from launcher.protocol.reports import GroupOffer

LOADED_AT_ONCE: Final = 20_000
"""Waiting launches that one turn lets in after a takeover: about 0.1 s."""
REFUSED_REST_MS: Final = 500
"""How long a refused launch rests: it may be refused again at once, and each time costs two log
entries."""
DEADLINES_MIN: Final = 10_000
"""Fewer deadlines of launches that no longer wait are not worth removing."""
_NOBODY: Final[Mapping[Key, int]] = MappingProxyType({})


class _Flows(dict[int, FlowKey]):
    """The flows of live launches by job."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state

    def __missing__(self, number: int) -> FlowKey:
        record = self._state.by_number[number]
        invariant(record.job is not None, f"job {number} was removed and launches")
        flow = self[number] = placed_of(record.name, cast(Job, record.job)).live
        return flow


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
        self._waiting: dict[Key, LaunchRow] = {}
        self.by_job = WaitingByJob()
        self._running = self.placement.running
        self._new: dict[Key, None] = {}
        self._removed = OrderedDict[Key, None]()  # of removed jobs, out of all queues
        self._deadlines: list[tuple[int, Key]] = []
        self._placed: dict[int, tuple[Job, Placed]] = {}  # by job number
        self._flows = _Flows(state)
        for scope, limits in state.limits.items():
            self.fair.set_limits(scope, limits)
        self._taken: dict[Key, LaunchRow] = {}  # and neither begun nor put back yet
        self.outlasted: dict[Key, None] = {}  # never ran, as was known after the window only
        self._given_up: dict[int, None] = {}  # executors, by the newest plan
        self._planned: dict[tuple[int, int], list[int]] = {}  # what it began by count
        self._ended: list[EndedRows] = []  # what its entry ends
        self._lost: Mapping[Key, int] = {}
        self._over: set[Key] | None = None  # these, once somebody has asked
        for row in state.active.values():
            self._run(row)
        # By the newest plan, before State has done so: which it made wait.
        self.entered: dict[Key, None] = {}
        self._loading: Iterator[Key] = iter(list(state.due))
        self._is_loading = self.admission.is_loading = bool(state.due)

    # ---- what State says

    def applied(self, outcome: Outcome) -> None:
        """Update the queues from State after an entry."""
        planned, self._planned = self._planned, {}
        lines = {(executor, at_s): numbers for executor, at_s, numbers in outcome.begun_rows}
        uncounted: list[Key] = []
        if outcome.begun or len(planned) != len(outcome.begun_rows) or lines != planned:
            uncounted = self._follow_begun(planned, outcome)
        ended, self._ended = self._ended, []
        moved, others, place = outcome.moved, [], 0
        for rows in outcome.ended_rows:
            if place < len(ended) and ended[place] == rows:
                place += 1
            else:
                others.append(rows)
        if uncounted or place < len(ended):
            uncounted += chain.from_iterable(map(_keys_of, ended[place:]))
            others, moved = self._take_back(uncounted, others, moved)
        if others:
            self._end_rows(others)
        if moved:
            self.follow(moved, moved)
        for number in outcome.following:
            self.look_again(number)

    def _take_back(
        self, uncounted: Iterable[Key], ended: list[EndedRows], moved: Mapping[Key, int]
    ) -> tuple[list[EndedRows], Mapping[Key, int]]:
        """Count those launches that are active after all, though the plan has ended them. Return
        the rows of other launches that State has ended, and what has moved, with no executor for
        these launches."""
        known = dict.fromkeys(uncounted)
        for key in known:
            row = self.state.active.get(key)
            if row is not None:
                self._run(row)
        others: list[EndedRows] = []
        for rows in ended:
            keys = [key for key in _keys_of(rows) if key not in known]
            if keys:
                others.append((rows[0], [key[0] for key in keys], [key[1] for key in keys]))
        return others, {key: 0 if key in known else executor for key, executor in moved.items()}

    def _end_rows(self, ended: Iterable[EndedRows]) -> None:
        """Forget rows that are over."""
        over: dict[Key, None] = {}
        counts: dict[int, Counter[FlowKey]] = {}
        for executor, numbers, instants in ended:
            if self._running:
                keys = list(zip(numbers, instants, repeat(0)))
                mine = dict.fromkeys(filter(self._running.__contains__, keys))
                numbers = [key[0] for key in keys if key not in mine] if mine else numbers
                over |= mine
            if numbers and executor not in self._given_up:
                counts.setdefault(executor, Counter()).update(map(self._flows.__getitem__, numbers))
        self._uncount(counts)
        self.placement.vacate(over)
        self.fair.ended(over)

    def _follow_begun(
        self, planned: dict[tuple[int, int], list[int]], outcome: Outcome
    ) -> list[Key]:
        """Count what an entry has begun, if that is not what the plan began by count. Return what
        it has ended as well, and is not counted."""
        begun = dict.fromkeys(outcome.begun)
        for executor, at_s, numbers in outcome.begun_rows:
            if planned.get((executor, at_s)) == numbers:
                del planned[executor, at_s]
            else:
                begun.update(dict.fromkeys(zip(numbers, repeat(at_s), repeat(0))))
        for (executor, _), numbers in planned.items():  # not accepted as they were planned
            self._uncount({executor: Counter(map(self._flows.__getitem__, numbers))})
        over: list[Key] = []
        for key in begun:
            self._forget_waiting(key, is_running=key in self._running)
            row = self.state.active.get(key) if key not in self._running else None
            if row is not None:
                self._run(row)
            elif key not in self._running:
                over.append(key)
        return over

    def _uncount(self, counts: Mapping[int, Counter[FlowKey]]) -> None:
        """Forget running launches that were only counted, by executor and flow."""
        whole: Counter[FlowKey] = Counter()
        for executor, flows in counts.items():
            self.placement.count(executor, flows, -1)
            whole.update(flows)
        self.fair.uncount(whole)

    def follow(self, keys: Iterable[Key], left: Mapping[Key, int] = _NOBODY) -> None:
        """Update the queues from State for launches that have not begun just now; `left`: the
        executors that they have left."""
        keys, running, due = list(keys), self._running, self.state.due
        active = set(self.state.active.among(keys))
        over: dict[Key, None] = {}
        counts: dict[int, Counter[FlowKey]] = {}
        for key in keys:
            ran, executor = running.get(key), left.get(key, 0)
            if key in active:
                if ran is not None and len(ran.executors) > 1:
                    starts = [start.executor for start in self.state.active[key].starts()]
                    self.placement.keep(key, starts)
            elif ran is not None or executor:
                # If it waits, it was cancelled before the plan's entry, or in it.
                self._forget_waiting(key, is_running=ran is not None)
                over[key] = None
                if ran is None and executor not in self._given_up:
                    counts.setdefault(executor, Counter()).update((self._flows[key[0]],))
            elif (row := due.get(key)) is not None:
                self.offer(copy(row))
            elif key in self._waiting:
                self._forget_waiting(key)
        self._uncount(counts)
        ran_alone = [key for key in over if key in running]
        self.placement.vacate(ran_alone)
        self.fair.ended(ran_alone)
        for key in over:
            if (row := due.get(key)) is not None:
                launch, at_ms = copy(row), self.state.at_ms
                if row.refused_by:
                    launch.not_before_ms = max(row.not_before_ms, at_ms + REFUSED_REST_MS)
                self.offer(launch)
                if row.refused_by and at_ms > row.not_after_ms:
                    self.outlasted[key] = None

    def look_again(self, number: int) -> None:
        """Judge all waiting launches of a job again: the job, or what holds it, has changed."""
        self._tell_apart(number)
        for key in self.by_job.of(number):
            if key not in self._running:
                self.fair.remove(key)
                self._new[key] = None

    def job_removed(self, number: int) -> None:
        """Forget what is known of a job beside its launches."""
        self._tell_apart(number)
        self.gates.forget(number)

    def jobs_gone(self, numbers: Iterable[int]) -> None:
        """Forget jobs that State has forgotten."""
        for number in numbers:
            self._placed.pop(number, None)
            self._flows.pop(number, None)
            self.gates.forget(number)

    def _tell_apart(self, number: int) -> None:
        """Give what runs of a job, and was only counted, entries of its own, if the job may have
        changed: State has objects for it then."""
        record, known = self.state.by_number[number], self._placed.get(number)
        for row in record.open.values():
            is_counted = row.state in ACTIVE and row.key not in self._running
            if is_counted and row.job is not None and row.executor not in self._given_up:
                placed = placed_of(record.name, row.job)
                self.fair.tell_apart(row.key, placed.live)
                self._running[row.key] = Running((row.executor,), placed.wanted.need)
        if known is not None and known[0] is not record.job:
            del self._placed[number]
            self._flows.pop(number, None)

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
        record, key = self.state.by_number[row.number], row.key
        job = row.job or record.job
        if job is None:
            return
        if job is not record.job:
            placed = placed_of(record.name, job)
        else:
            placed = self.placed(record, job)
            if placed.is_usual and not row.is_late and key not in self.state.active.detailed:
                self.fair.count(placed.live, 1)
                self.placement.count(row.executor, {placed.live: 1})
                return
        self.fair.add_running(key, placed.late if row.is_late else placed.live)
        executors = tuple(start.executor for start in row.starts())
        self.placement.occupy([key], executors, placed.wanted.need)

    def job_of(self, number: int) -> Job | None:
        """Return a job as it is now, None if it was removed."""
        return record.job if (record := self.state.by_number.get(number)) else None

    def offer(self, launch: LaunchRow) -> None:
        """Add a launch that is due, or that this plan makes due."""
        key = launch.key
        if self._is_loading and key[0] not in self.by_job:
            self._load_job(self.state.by_number[key[0]])
        known = self._waiting.get(key)
        if known is not None and (known.attempt, known.detail, known.note, known.unpaid_ms) == (
            launch.attempt, launch.detail, launch.note, launch.unpaid_ms
        ):  # fmt: skip
            return
        if known is not None and known.unpaid_ms:  # it is held until it would wait no more
            self.fair.remove(key)
        self._join(launch)
        if known is None:
            self.admission.came(self.state.by_number[key[0]])
        if self.job_of(key[0]) is None:
            self._removed[key] = None
        else:
            self._new[key] = None

    def wait(self, flow: FlowKey, launches: Sequence[LaunchRow]) -> None:
        """Add live launches of one flow that this plan makes due, and that only room can keep from
        beginning; a plan judges those that a waiting limit may keep out."""
        if self.fair.table.waiting_limits(flow.tenant, flow.pool, flow.priority):
            for launch in launches:
                self.offer(launch)
            return
        by_instant: dict[int, list[Key]] = {}
        for launch in launches:
            self._join(launch)
            by_instant.setdefault(launch.enqueued_ms, []).append(launch.key)
        for due_ms in sorted(by_instant):
            self.entered.update(dict.fromkeys(by_instant[due_ms]))
            self.fair.add_alike(by_instant[due_ms], flow, due_ms)

    def _load_job(self, record: JobRecord) -> None:
        """Load the launches that a job had at the takeover before a new one, if their order
        counts."""
        if record.job is None or record.job.overlap is Overlap.ALLOW:
            return
        for row in self.state.open_of(record).values():
            if row.state is LaunchState.DUE:
                self._join(copy(row))
                self._new[row.key] = None

    def _join(self, launch: LaunchRow) -> None:
        """Add a launch to those that wait, or replace what was known of it."""
        key = launch.key
        is_new = key not in self._waiting
        if is_new and is_queue(self.job_of(key[0])):
            first = self.by_job.first(key[0])
            if first is not None and key < first.key:
                self.fair.hold(first.key, first.enqueued_ms, FOREVER_MS)
        self._waiting[key] = launch
        self.outlasted.pop(key, None)
        self.by_job.put(launch)
        if not is_new:
            return
        if len(self._deadlines) > 2 * len(self._waiting) + DEADLINES_MIN:
            self._deadlines = [(one.deadline_ms, one.key) for one in self._waiting.values()]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (launch.deadline_ms, key))

    def _forget_waiting(self, key: Key, *, is_running: bool = False) -> None:
        if self._waiting.pop(key, None) is None:
            return
        self.outlasted.pop(key, None)
        self._new.pop(key, None)
        self._removed.pop(key, None)
        self.by_job.remove(key)
        if is_queue(self.job_of(key[0])):
            first = self.by_job.first(key[0])
            if first is not None and key < first.key:  # the next one may have its turn
                self._new[first.key] = None
        if not is_running:
            self.fair.remove(key)

    def end(self, rows: list[EndedRows], lost: Mapping[Key, int]) -> None:
        """Forget running launches that the entry of this plan ends: usual rows, and lost launches,
        by their executors."""
        self._given_up, self._ended = dict.fromkeys(lost.values()), rows
        self._end_rows(rows)
        running = [key for key in lost if key in self._running]
        counts: dict[int, Counter[FlowKey]] = {}
        for key, executor in lost.items():
            if key not in self._running and key in self.state.active:
                counts.setdefault(executor, Counter()).update((self._flows[key[0]],))
        self._lost, self._over = lost, None
        self._uncount(counts)
        self.placement.vacate(running)
        self.fair.ended(running)

    def is_ended(self, key: Key) -> bool:
        """Return whether the entry of this plan ends a launch."""
        if self._over is None:
            self._over = {*self._lost, *chain.from_iterable(map(_keys_of, self._ended))}
        return key in self._over

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
        """Begin taken launches that need a slot each and the same, the first ones as far as there
        is room; return them by executor."""
        need = cast(Wanted, flow.need).need
        begun: dict[int, list[Key]] = {}
        for executor, turns in _in_turns(self.places.spread(need, len(keys))).items():
            mine = begun[executor] = [*chain.from_iterable(map(keys.__getitem__, turns))]
            self.placement.occupy(mine, (executor,), need)
            for key in mine:
                del self._taken[key]
        return begun

    def begin_unbound(
        self, waiting: Iterable[tuple[FlowKey, int, list[int]]]
    ) -> tuple[dict[tuple[int, int], list[int]], list[tuple[FlowKey, int, list[int]]]]:
        """Begin launches of unbound flows, the first ones as far as there is room. `waiting` are
        flows, an instant, and the jobs whose launches fall due then.

        Return the jobs that begin, in ascending order, by executor and instant; and those for whose
        launches there is no room, as in `waiting`.
        """
        # What goes to the same slots is spread over them at once.
        alike: dict[tuple[int, tuple[int, ...]], list[tuple[FlowKey, list[int]]]] = {}
        for flow, at_s, numbers in waiting:
            groups = self.places.fit(cast(Wanted, flow.need).need).groups
            place = (at_s, tuple(map(id, groups.values())))
            alike.setdefault(place, []).append((flow, numbers))
        begun: dict[tuple[int, int], list[int]] = {}
        rest: list[tuple[FlowKey, int, list[int]]] = []
        for (at_s, _), some in alike.items():
            jobs = [*chain.from_iterable(numbers for _, numbers in some)]
            flows = [*chain.from_iterable(repeat(flow, len(numbers)) for flow, numbers in some)]
            shares = self.places.spread(cast(Wanted, flows[0].need).need, len(jobs))
            whole: Counter[FlowKey] = Counter()
            for executor, turns in _in_turns(shares).items():
                counts = Counter(chain.from_iterable(map(flows.__getitem__, turns)))
                self.placement.count(executor, counts)
                mine = begun.setdefault((executor, at_s), [])
                mine += chain.from_iterable(map(jobs.__getitem__, turns))
                whole.update(counts)
            for flow, count in whole.items():
                self.fair.begin_unbound(flow, count)
            begin = sum(shares.values())
            later = groupby(zip(flows[begin:], jobs[begin:], strict=True), key=itemgetter(0))
            rest += [(flow, at_s, [job for _, job in some]) for flow, some in later]
        for numbers in begun.values():
            numbers.sort()
        self._planned = begun
        return begun, rest

    def take_new(self, most: int) -> list[LaunchRow]:
        """Remove and return up to `most` launches that were not judged yet or are past their
        deadline."""
        new = list(islice(self._new, most))
        for key in new:
            del self._new[key]
        return [self._waiting[key] for key in new]

    def postpone(self, launch: LaunchRow, until_ms: int) -> None:
        """Have the next plan judge a launch again; it does not begin before `until_ms`."""
        self._new[launch.key] = None
        if not self.put_back(launch, until_ms):
            self.fair.hold(launch.key, launch.enqueued_ms, until_ms)

    def judge_again(self, key: Key, at_ms: int) -> None:
        """Have a launch judged again at `at_ms`: gates stopped the clock of its deadline."""
        heapq.heappush(self._deadlines, (at_ms, key))

    def runs(self, number: int) -> int:
        """Return how many launches of a job run, including those that this plan begins."""
        taken = sum([key[0] == number for key in self._taken])
        return self.fair.runs.get(number, 0) - taken

    def enqueue(self, launch: LaunchRow, job: Job, now_ms: int) -> None:
        """Add a judged launch to the fair queue, unless it is there already."""
        rests_until_ms = launch.not_before_ms if launch.not_before_ms > now_ms else 0
        held_until_ms = self._held_until_ms(launch, job, rests_until_ms)
        is_new = self._add(launch, job, held_until_ms)
        if not is_new and is_queue(job):
            self.fair.hold(launch.key, launch.enqueued_ms, held_until_ms or now_ms)

    def _held_until_ms(self, launch: LaunchRow, job: Job, until_ms: int) -> int:
        """Return until when a launch is held: one that is not the first of its job with
        overlap=queue, until the first has left."""
        if not is_queue(job):
            return until_ms
        first = self.by_job.first(launch.key[0])
        return until_ms if first is not None and first.key == launch.key else FOREVER_MS

    def _add(self, launch: LaunchRow, job: Job, not_before_ms: int) -> bool:
        key, record = launch.key, self.state.by_number[launch.number]
        placed = self.placed(record, job)
        flow = placed.late if launch.is_late else placed.live
        is_new = self.fair.add(key, flow, launch.enqueued_ms, not_before_ms)
        if is_new and key in self.state.due:
            self.admission.entered(record.name, job)
        return is_new

    def hold(self, launch: LaunchRow, job: Job, until_ms: int) -> None:
        """Hold a launch outside the fair queue until `until_ms`, whether it waited, was taken or is
        new. It is held at least as long as it has to rest, because it is not judged again when the
        hold ends."""
        until_ms = self._held_until_ms(launch, job, max(until_ms, launch.not_before_ms))
        if self.put_back(launch, until_ms):
            return
        if not self.fair.hold(launch.key, launch.enqueued_ms, until_ms):
            self._add(launch, job, until_ms)

    def drop(self, key: Key) -> None:
        """Remove a launch that this plan skips or cancels."""
        if key in self._taken:
            self.put_back(self._taken[key], 0)  # it starts nothing, and costs no rate
        self._forget_waiting(key)

    def set_aside(self, launch: LaunchRow) -> None:
        """Take a launch of a removed job out of the fair queue, to be cancelled. Does nothing if
        the job was declared again or the launch is over."""
        key = launch.key
        if key in self._waiting and self.job_of(key[0]) is None:
            self.put_back(launch, FOREVER_MS)  # it starts nothing, and costs no rate
            self.fair.remove(key)
            self._new.pop(key, None)
            self._removed[key] = None

    def removed(self, most: int) -> list[LaunchRow]:
        """Return up to `most` launches of removed jobs. They stay until State has ended them."""
        return [self._waiting[key] for key in islice(self._removed, most)]

    def take(self, now_ms: int, late_budget: int, most: int = 1) -> list[LaunchRow]:
        """Return up to `most` launches that may begin next, in the order of service; several only
        if each needs one slot, and all need the same. They count as running. Launches that do not
        begin must be put back."""
        place = self.placement
        keys = self.fair.take(now_ms, place.room, late_budget, place.free, most)
        taken = [self._waiting[key] for key in keys]
        self._taken.update(zip(keys, taken, strict=True))
        return taken

    def put_back(self, launch: LaunchRow, not_before_ms: int) -> bool:
        """Return a taken launch to its flow, held until `not_before_ms`. Returns False if it was
        not taken."""
        if self._taken.pop(launch.key, None) is None:
            return False
        return self.fair.put_back(launch.key, launch.enqueued_ms, not_before_ms)

    def put_all_back(self) -> None:
        """Return all taken launches that have not begun to their flows."""
        for launch in list(self._taken.values()):
            self.put_back(launch, 0)

    def begin(self, launch: LaunchRow, job: Job, unreached: Collection[int]) -> tuple[int, ...]:
        """Occupy the executors that a taken launch goes to and return them; empty if there is no
        room on executors that its order reaches in time, so not on those of `unreached`."""
        key = launch.key
        wanted = self.placed(self.state.by_number[key[0]], job).wanted
        executors = self.placement.choose(wanted, launch.refused_by, unreached)
        slots = len(executors)
        if slots > 1 and not self.fair.spares(key, slots, self.placement.free):
            # `take` has checked one slot against the reserved ones, not all of them.
            del self._taken[key]
            self.fair.put_aside(key, launch.enqueued_ms)
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
            self._flows[record.number] = known[1].live
        return known[1]

    # ---- what decides how much more may fall due

    def slots_of(self, pool: str) -> int:
        """Return how many launches of a work pool may run at once on the executors that may get
        work, full slots included."""
        return sum(group.slots for group in self.places.fit(Need(pool)).groups.values())

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
        job = self.job_of(key[0]) if key in self._waiting else None
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


def _keys_of(rows: EndedRows) -> Iterator[Key]:
    """Return the keys of rows that are over."""
    _, numbers, instants = rows
    return zip(numbers, instants, repeat(0))


def _in_turns(shares: Mapping[int, int]) -> dict[int, list[slice]]:
    """Return which launches of a row each executor gets if all take turns until they have their
    shares: neighbouring jobs are often of one kind."""
    found: dict[int, list[slice]] = {executor: [] for executor in shares}
    among, begin, before = list(shares), 0, 0
    for share in sorted(set(shares.values())):
        among = [executor for executor in among if shares[executor] >= share]
        end = begin + len(among) * (share - before)
        for turn, executor in enumerate(among, begin):
            found[executor].append(slice(turn, end, len(among)))
        begin, before = end, share
    return found
