"""Tasks and their queues as State keeps them, and the commands about them.

A task is work that a program hands over once. While it waits, it is one slim record. Once it is due
and there is room for it, it has a job of its own, which has one launch. Once that is over, the job
goes, and the record keeps the end for as long as its key is remembered.

A record is never changed: `TaskTable.put` replaces it. So an image that is being written has each
record as it was when the image began.

Evolution: as in `commands.py`.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from cron.errors import invariant
from cron.job import TRIES_UNLIMITED, OnLost, Retry
from cron.launch_state import LaunchState
from cron.limits import DEADLINE_S_MAX
from launcher.protocol.names import TASK_MARK
from launcher.protocol.status import Reason

if TYPE_CHECKING:
    from cron.state.chains import HoldTable
    from cron.state.groups import GroupRecord, GroupTable

DUE: Final = LaunchState.DUE  # members of an enumeration are slow to look up
LOST: Final = LaunchState.LOST
SUCCEEDED: Final = LaunchState.SUCCEEDED
_WITHOUT_LAUNCH: Final = (Reason.CANCELLED, Reason.PREDECESSOR)
_FAILURES: Final = (LaunchState.FAILED, LaunchState.LOST)
PRIORITY_USUAL: Final = 5
RESOLVED_FORMAT: Final = 12
"""The format from which the log says what a queue's tasks do that nobody has said."""
REMEMBER_S: Final = 86_400
"""How long the key of a task is remembered after its end, unless its queue says longer."""
REMEMBER_S_MAX: Final = 366 * 86_400
WAITING_MAX: Final = 100_000
"""How many tasks of a queue may wait, unless the queue says another number."""


class TaskOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a task runs. 0, "" and -1 (of `priority`, `on_lost`) mean what its queue says, or the
    default.

    `priority` is 0 (first) to 9. `tries` counts attempts, `on_lost` is a number of `OnLost`.
    """

    handler: str = ""
    priority: int = -1
    tries: int = 0
    backoff_ms: int = 0
    deadline_s: int = 0
    timeout_s: int = 0
    collection: str = ""
    on_lost: int = -1
    labels: tuple[tuple[str, str], ...] = ()
    traceparent: str = ""


NO_OPTIONS: Final = TaskOptions()
AT_LEAST_ONCE: Final = TaskOptions(
    priority=PRIORITY_USUAL,
    tries=TRIES_UNLIMITED,
    backoff_ms=1_000,
    deadline_s=DEADLINE_S_MAX,
    on_lost=OnLost.RETRY,
)
"""What a queue that is made or declared from format 12 on says of all that nobody has said: its
tasks are tried until they succeed, fail for good, or their deadline is over. The leader writes it
into the log. A queue of an older entry has 0 and -1 there, which mean what they always meant: one
try (`defaults_of`)."""
BEFORE: Final = TaskOptions(
    priority=PRIORITY_USUAL,
    tries=Retry().tries,
    backoff_ms=Retry().backoff_ms,
    deadline_s=DEADLINE_S_MAX,
    on_lost=OnLost.SKIP,
)
"""What 0 and -1 mean in the options of a queue: at most one try, as of jobs."""


def with_defaults(said: TaskOptions, usual: TaskOptions) -> TaskOptions:
    """Return options in which 0, "" and -1 are as `usual` has them; labels and the trace are of a
    task alone."""
    return TaskOptions(
        said.handler,
        said.priority if said.priority >= 0 else usual.priority,
        said.tries or usual.tries,
        said.backoff_ms or usual.backoff_ms,
        said.deadline_s or usual.deadline_s,
        said.timeout_s or usual.timeout_s,
        said.collection or usual.collection,
        said.on_lost if said.on_lost >= 0 else usual.on_lost,
        said.labels,
        said.traceparent,
    )


def defaults_of(queue: QueueRecord) -> TaskOptions:
    """Return what a queue says of its tasks, with all that it leaves open."""
    return with_defaults(queue.defaults, BEFORE)


def defaults_in(format_: int) -> TaskOptions | None:
    """Return what a leader writes into queues that are made or declared in a format of State; None
    in older ones, where it leaves that open."""
    return AT_LEAST_ONCE if format_ >= RESOLVED_FORMAT else None


def tenant_of(name: str) -> str:
    """Return the tenant in the full name of a queue, a task or its job."""
    return name.partition("/")[0]


def label_bytes(labels: Collection[tuple[str, str]]) -> int:
    """Return how many bytes labels have in UTF-8."""
    if not labels:
        return 0
    return sum(len(text.encode()) for label in labels for text in label)


class TaskSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task that is submitted. Its name is `queue:key`, where `queue` has its tenant.

    `at_ms` is when it is due; a time that is over means now. `digest` covers all that makes two
    tasks of one key the same task. `payload` is JSON. `group` is the group that it joins, with its
    tenant. `after` and `after_any` are the full names of tasks and of closed groups that it
    follows: the former have to succeed. A name without `:` is that of a group. `is_delay`: `at_ms`
    is a delay after the submission, and no time that somebody named.
    """

    queue: str
    key: str
    at_ms: int
    payload: bytes
    digest: bytes
    options: TaskOptions = NO_OPTIONS
    group: str = ""
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    is_delay: bool = False


class TaskRecord(msgspec.Struct, array_like=True, gc=False):
    """A task. Do not change it: `TaskTable.put` replaces it.

    `own` is None where all options are as the queue says. `job` is the number of its job, 0 while
    it waits and once its job is gone; the job has the payload then. `state` is DUE until the task
    is over. `revision` is the log index of its newest change. `group` is the full name of its group
    or "". `result` is the text with which it succeeded, for tasks that follow it. `timed_ms` is the
    log's time from which `at_ms` was counted, 0 if somebody named that time.
    """

    number: int
    queue: str
    key: str
    at_ms: int
    payload: bytes
    digest: bytes
    own: TaskOptions | None
    revision: int
    submitted_ms: int
    by: str = ""
    job: int = 0
    ended_ms: int = 0
    state: LaunchState = DUE
    reason: Reason = Reason.NONE
    group: str = ""
    result: str = ""
    timed_ms: int = 0

    @property
    def name(self) -> str:
        """Its full name, `tenant/queue:key`."""
        return f"{self.queue}{TASK_MARK}{self.key}"

    @property
    def options(self) -> TaskOptions:
        """The options that it was submitted with."""
        return self.own or NO_OPTIONS

    @property
    def weight(self) -> int:
        """The bytes of its payload, and of its labels while it is not over."""
        if self.own is None or not self.own.labels or self.state is not DUE:
            return len(self.payload)
        return len(self.payload) + label_bytes(self.own.labels)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state is not DUE

    def needs_payload(self, on_lost: OnLost) -> bool:
        """Whether its job, of which nothing is open or dead, may run again: a restored cell may
        learn of another lost attempt."""
        return self.state is DUE or (self.state is LOST and on_lost is OnLost.RETRY)

    @property
    def never_ran(self) -> bool:
        """Whether it has no launch and never had one."""
        return self.is_waiting or (self.reason in _WITHOUT_LAUNCH and not self.job)

    @property
    def is_waiting(self) -> bool:
        """Whether it has neither a launch nor an end."""
        return not self.job and self.state is DUE


class QueueSpec(msgspec.Struct, frozen=True, array_like=True):
    """A queue as its file declares it; fields as in QueueRecord."""

    name: str
    handler: str
    defaults: TaskOptions = NO_OPTIONS
    waiting_max: int = WAITING_MAX
    rate_per_s: int = 0
    burst: int = 0
    remember_s: int = REMEMBER_S
    waits_for_handler: bool = False


class QueueRecord(msgspec.Struct, array_like=True, dict=True):
    """Where the tasks of one kind wait. `name` has its tenant.

    `waiting_max` tasks may wait, `rate_per_s` may be submitted in a second and `burst` at once (0:
    any number); keys are remembered for `remember_s` after the end. `waits_for_handler`: tasks are
    taken though no worker serves their handler. `source` is the file that declares it, "" where a
    task made it. `revision` is the log index of its newest change. `done`, `failed` and `dropped`
    count the ends in its life: succeeded; failed or lost; cancelled or skipped.
    """

    name: str
    handler: str
    defaults: TaskOptions = NO_OPTIONS
    waiting_max: int = WAITING_MAX
    rate_per_s: int = 0
    burst: int = 0
    remember_s: int = REMEMBER_S
    waits_for_handler: bool = False
    revision: int = 0
    source: str = ""
    waiting: int = 0
    running: int = 0  # has a launch that is not over
    done: int = 0
    failed: int = 0
    dropped: int = 0
    spilled: int = 0  # of those that wait: how many are on disk

    def __post_init__(self) -> None:
        self.tenant = tenant_of(self.name)
        self.tasks: dict[str, TaskRecord] = {}  # by key
        self.options: dict[TaskOptions, TaskOptions] = {}  # equal ones of its tasks, kept once
        # Of the tasks in memory that wait: how many say a handler or a priority of their own.
        self.apart: dict[tuple[str, int], int] = {}

    def count_apart(self, own: TaskOptions | None, change: int) -> None:
        """Count a task with these options that waits in memory, or one fewer."""
        if own is None or (not own.handler and own.priority < 0):
            return
        key = (own.handler, own.priority)
        left = self.apart.get(key, 0) + change
        if left:
            self.apart[key] = left
        else:
            del self.apart[key]

    def waiting_for(self) -> Iterator[tuple[str, int, int]]:
        """Yield by which handler, and with which priority, how many of its tasks are to run that
        wait, whether their time has come or not. Those on disk count as those that say nothing."""
        usual, left = defaults_of(self).priority, self.waiting
        for (handler, priority), count in self.apart.items():
            left -= count
            yield handler or self.handler, priority if priority >= 0 else usual, count
        yield self.handler, usual, left

    def shared(self, options: TaskOptions | None) -> TaskOptions | None:
        """Return equal options that a task of the queue has already, None for the default ones."""
        if options is None or options == NO_OPTIONS:
            return None
        if len(self.options) >= _SHARED_MAX:
            self.options.clear()
        return self.options.setdefault(options, options)


DECLARED: Final = QueueSpec.__struct_fields__
"""The fields of a QueueRecord that its file declares."""
_SHARED_MAX: Final = 64
_STALE_MAX: Final = 1_024
_NO_NUMBERS: Final = array("Q")
_by_revision: Final = attrgetter("revision", "number")


class TaskTable(Mapping[str, TaskRecord]):
    """All tasks by name; `by_number` has them in ascending order.

    `waiting` counts those that wait, `over` those that are over and have no job. `payload_bytes` is
    what the payloads of all tasks and of their jobs take, and the labels of tasks that are not
    over. `result_bytes` is what the results of all tasks take.
    """

    def __init__(
        self, queues: dict[str, QueueRecord], groups: GroupTable, holds: HoldTable
    ) -> None:
        self.by_number: dict[int, TaskRecord] = {}
        self.waiting = 0
        self.payload_bytes = 0
        self.tenant_bytes: dict[str, int] = {}  # the same, by tenant
        self.result_bytes = 0
        self.over = 0
        # Those that are over and have no job, oldest first; with some that are forgotten.
        self._remembered: deque[int] = deque()
        # Of these: older ones that were passed over, because others follow them; and those that
        # nobody follows any more, as a heap of (revision, number).
        self._passed: dict[int, None] = {}
        self._returned: list[tuple[int, int]] = []
        self._queues, self._groups, self._holds = queues, groups, holds
        # The numbers of each group's tasks, ascending; with some that are gone. Derived.
        self._in_group: dict[str, array[int]] = {}

    def __len__(self) -> int:
        return len(self.by_number)

    def __iter__(self) -> Iterator[str]:
        return (task.name for task in self.by_number.values())

    def __getitem__(self, name: str) -> TaskRecord:
        queue_name, _, key = name.partition(TASK_MARK)
        return self._queues[queue_name].tasks[key]

    def put(self, task: TaskRecord) -> None:
        """Add a task, or replace the one that has its number."""
        known, queue = self.by_number.get(task.number), self._queues[task.queue]
        group = self._groups.changeable(task.group) if task.group else None
        if known is not None:
            self._count(queue, group, known, -1)
        elif group is not None:
            group.members += 1
            self._note_member(task)
        self._count(queue, group, task, 1)
        queue.tasks[task.key] = self.by_number[task.number] = task
        if self._holds and task.number in self._holds and not task.is_waiting:
            for one in self._holds.let_go(task.number):
                if isinstance(one, int) and one in self._passed:
                    del self._passed[one]
                    heapq.heappush(self._returned, (self.by_number[one].revision, one))

    def add(self, task: TaskRecord, queue: QueueRecord, weight: int) -> None:
        """Add a task that is new, waits in `queue`, follows no other and is in no group: as `put`
        would, in a third of the time."""
        self.waiting += 1
        queue.waiting += 1
        if weight:
            self.add_bytes(queue.tenant, weight)
        queue.count_apart(task.own, 1)
        queue.tasks[task.key] = self.by_number[task.number] = task

    def add_bytes(self, tenant: str, change: int) -> None:
        """Count payloads that are new, or fewer, of a tenant."""
        self.payload_bytes += change
        left = self.tenant_bytes.get(tenant, 0) + change
        if left:
            self.tenant_bytes[tenant] = left
        else:
            self.tenant_bytes.pop(tenant, None)

    def drop(self, task: TaskRecord) -> None:
        """Forget a task that is over and has no job."""
        self.over -= 1
        del self.by_number[task.number]
        del self._queues[task.queue].tasks[task.key]
        if task.group:
            group = self._groups.changeable(task.group)
            group.members -= 1
            self._prune_group(group)
        if task.result:
            self.result_bytes -= len(task.result.encode())
        self._passed.pop(task.number, None)
        if len(self._remembered) > 2 * self.over + _STALE_MAX:
            self._remembered = deque(filter(self.by_number.__contains__, self._remembered))

    def load(self, tasks: Iterable[TaskRecord]) -> None:
        """Take over tasks of an image, whose queues count them already.

        Raises:
            KeyError: a queue is not there.
        """
        people: dict[str, str] = {}
        for task in tasks:
            queue = self._queues[task.queue]
            task.by = people.setdefault(task.by, task.by)
            task.queue, task.own = queue.name, queue.shared(task.own)
            task.group = self._groups[task.group].name if task.group else ""
            invariant(task.key not in queue.tasks, f"two tasks have the name {task.name}")
            queue.tasks[task.key] = self.by_number[task.number] = task
            if task.group:
                self._note_member(task)
            self.add_bytes(queue.tenant, task.weight)
            self.result_bytes += len(task.result.encode())
            self.waiting += task.is_waiting
            if task.is_waiting:
                queue.count_apart(task.own, 1)
            self.over += task.is_over and not task.job
        over = (task for task in self.by_number.values() if task.is_over and not task.job)
        self._remembered = deque(task.number for task in sorted(over, key=_by_revision))

    def newest_of_group(self, name: str, below: int = 0, above: int = 0) -> Iterator[TaskRecord]:
        """Yield the tasks of a group that are in memory, those that came in last first: with a
        number below `below`, unless that is 0, and above `above`."""
        numbers = self._in_group.get(name, _NO_NUMBERS)
        end = bisect_left(numbers, below) if below else len(numbers)
        for number in reversed(numbers[bisect_right(numbers, above) : end]):
            task = self.by_number.get(number)
            if task is not None:
                yield task

    def _note_member(self, task: TaskRecord) -> None:
        self._in_group.setdefault(task.group, array("Q")).append(task.number)

    def _prune_group(self, group: GroupRecord) -> None:
        """Let go of the numbers of a group's tasks that are gone, once these are most of them."""
        numbers = self._in_group.get(group.name, _NO_NUMBERS)
        if not group.members:
            self._in_group.pop(group.name, None)
        elif len(numbers) > 2 * group.members + _STALE_MAX:
            kept = filter(self.by_number.__contains__, numbers)
            self._in_group[group.name] = array("Q", kept)

    def remember(self, numbers: Iterable[int], again: Collection[int] = ()) -> None:
        """Note tasks that are over and have no job from this entry on; and others, `again`, that
        this entry has changed: they are remembered as if they were new, as an image has them."""
        if again:
            self._remembered = deque(one for one in self._remembered if one not in again)
            self._passed = {one: None for one in self._passed if one not in again}
            self._returned = [one for one in self._returned if one[1] not in again]
            heapq.heapify(self._returned)
        self._remembered += sorted((*numbers, *again))

    def spill(self, task: TaskRecord) -> None:
        """Take a task that waits out of State; its queue counts it still."""
        queue = self._queues[task.queue]
        self.waiting -= 1
        self.add_bytes(queue.tenant, -task.weight)
        queue.count_apart(task.own, -1)
        queue.spilled += 1
        del self.by_number[task.number]
        del queue.tasks[task.key]

    def unspill(self, task: TaskRecord) -> None:
        """Take back a task that waits and was on disk; its number is the highest of all."""
        queue = self._queues[task.queue]
        self.waiting += 1
        self.add_bytes(queue.tenant, task.weight)
        queue.count_apart(task.own, 1)
        queue.spilled -= 1
        queue.tasks[task.key] = self.by_number[task.number] = task
        if task.group:
            self._note_member(task)
            self._prune_group(self._groups[task.group])

    def forget_oldest(self, count: int) -> list[TaskRecord]:
        """Forget so many tasks that nobody follows, those first that have been over longest;
        return them."""
        gone: list[TaskRecord] = []
        while len(gone) < count and (self._returned or self._remembered):
            if self._returned:
                number = heapq.heappop(self._returned)[1]
            else:
                number = self._remembered.popleft()
            task = self.by_number.get(number)
            if task is None:
                continue
            if number in self._holds.followed:
                self._passed[number] = None
                continue
            self.drop(task)
            gone.append(task)
        return gone

    def _count(
        self, queue: QueueRecord, group: GroupRecord | None, task: TaskRecord, change: int
    ) -> None:
        if weight := task.weight:
            self.add_bytes(queue.tenant, change * weight)
        if task.result:
            self.result_bytes += change * len(task.result.encode())
        is_over, counts = task.state is not DUE, (queue, group) if group is not None else (queue,)
        if not is_over and not task.job:
            self.waiting += change
            queue.count_apart(task.own, change)
        elif is_over and not task.job:
            self.over += change
        for count in counts:
            if not is_over:
                if task.job:
                    count.running += change
                else:
                    count.waiting += change
            elif task.state is SUCCEEDED:
                count.done += change
            elif task.state in _FAILURES:
                count.failed += change
            else:
                count.dropped += change


class SubmitTasks(msgspec.Struct, frozen=True, array_like=True, tag="submit-tasks"):
    """Tasks that programs hand over, each by itself; an item each. A queue that is not there is
    made where the task names a handler; `defaults` are those of queues that are made so, None in
    formats before 12."""

    tasks: tuple[TaskSpec, ...]
    by: str = ""
    defaults: TaskOptions | None = None


class CancelTasks(msgspec.Struct, frozen=True, array_like=True, tag="cancel-tasks"):
    """Tasks to be ended, by full name; an item each. What has begun is cancelled as any launch
    (rule R8)."""

    names: tuple[str, ...]
    by: str = ""


class RescheduleItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Another time, priority or payload of a task that waits: -1 and None leave what it has.
    `revision` is what the caller read, 0 for any. `is_delay` is as in TaskSpec."""

    name: str
    revision: int = 0
    at_ms: int = -1
    priority: int = -1
    payload: bytes | None = None
    is_delay: bool = False


class RescheduleTasks(msgspec.Struct, frozen=True, array_like=True, tag="reschedule-tasks"):
    """Changes of tasks that wait; an item each."""

    items: tuple[RescheduleItem, ...]
    by: str = ""


class RunTasks(msgspec.Struct, frozen=True, array_like=True, tag="run-tasks"):
    """Tasks that wait, by full name, become due; an item each."""

    names: tuple[str, ...]
    by: str = ""


class ReadyTasks(msgspec.Struct, frozen=True, array_like=True, tag="ready-tasks"):
    """Tasks that are due, by number, get a job and a launch that is due; an item each."""

    numbers: tuple[int, ...]


class ForgetTasks(msgspec.Struct, frozen=True, array_like=True, tag="forget-tasks"):
    """Tasks, by number, whose keys need not be remembered any more; an item each."""

    numbers: tuple[int, ...]


class SpillTasks(msgspec.Struct, frozen=True, array_like=True, tag="spill-tasks"):
    """Tasks that wait for a time far ahead, by number, leave State and become a segment on the
    replicas' disks; an item each."""

    numbers: tuple[int, ...]


class LoadItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task on disk, and the segment and row from which it was read."""

    slot: int
    row: int
    task: TaskRecord


class ReadTo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All rows of a segment of tasks before `next_row` are brought back, by this command or before;
    the next one is due at `next_ms`."""

    slot: int
    number: int
    next_row: int
    next_ms: int


class LoadTasks(msgspec.Struct, frozen=True, array_like=True, tag="load-tasks"):
    """Tasks on disk wait in State again; an item each. What is not on disk any more is left as it
    is."""

    items: tuple[LoadItem, ...]
    read: tuple[ReadTo, ...] = ()


class PutQueues(msgspec.Struct, frozen=True, array_like=True, tag="put-queues"):
    """A change of the queues that one source declares, all or nothing, made from revision `base` of
    the declared queues. A removed queue stays, without a source, while it has tasks."""

    source: str
    base: int
    queues: tuple[QueueSpec, ...] = ()
    removed: tuple[str, ...] = ()
    by: str = ""
