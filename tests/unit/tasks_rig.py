"""A State with tasks, driven by commands as they would come out of the log."""

from __future__ import annotations

import hashlib
from typing import Any

from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import tasks as t
from cron.state.alerts import is_own
from cron.state.chains import ReleaseTasks, name_of, work_bytes
from cron.state.groups import CloseGroups, GroupClose, GroupRecord
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.state import JobRecord, State
from tests.unit.state_rig import T0, StateRig

QUEUE = "default/mail"


def name(key: str = "a", queue: str = QUEUE) -> str:
    return f"{queue}:{key}"


def task(key: str = "a", after_ms: int = 0, queue: str = QUEUE, **fields: Any) -> t.TaskSpec:
    """A task of the handler `mail.send`, due `after_ms` after T0."""
    options = fields.pop("options", t.TaskOptions(handler="mail.send"))
    payload = fields.pop("payload", b'{"to":"anna"}')
    content = repr((queue, key, after_ms, payload, options)).encode()
    digest = fields.pop("digest", hashlib.blake2b(content, digest_size=16).digest())
    return t.TaskSpec(queue, key, T0 * 1000 + after_ms, payload, digest, options, **fields)


def own_numbers(state: State) -> set[int]:
    """The numbers of the jobs of the cell itself, found one by one."""
    return {number for number, one in state.by_number.items() if is_own(one.name)}


class TasksRig(StateRig):
    """A rig with an executor (number 1), and what is usual of tasks."""

    def __init__(self, log_format: int = c.FORMAT) -> None:
        super().__init__(log_format=log_format)
        self.join()

    def append(self, *commands: c.Command, **fields: Any) -> Any:
        outcome = super().append(*commands, **fields)
        self.check()
        return outcome

    def check(self) -> None:
        """Fail unless what State counts is so, and what an image gives is the same State."""
        state, queues = self.state, self.state.queues.values()
        tasks = list(state.tasks_by_number.values())
        assert state.tasks.waiting == sum(one.is_waiting for one in tasks)
        assert state.tasks.over == sum(one.is_over and not one.job for one in tasks)
        jobs = [one.job for one in state.by_number.values() if one.task and one.job is not None]
        sizes = [one.weight for one in tasks] + [work_bytes(one.work) for one in jobs]
        assert state.tasks.payload_bytes == sum(sizes)
        assert sum(state.tasks.tenant_bytes.values()) == sum(sizes)
        for queue in queues:
            mine = [one for one in tasks if one.queue == queue.name]
            assert queue.waiting == sum(one.is_waiting for one in mine) + queue.spilled
            assert queue.running == sum(not one.is_over and one.job > 0 for one in mine)
            assert list(queue.tasks.values()) == mine
        self._check_groups(tasks)
        image = encode_state(state)
        again = decode_state([image])
        for name in state.groups:
            mine, loaded = (one.tasks.newest_of_group(name) for one in (state, again))
            assert [task.number for task in mine] == [task.number for task in loaded]
        assert encode_state(again) == image
        found = again.tasks
        assert (found.waiting, found.over) == (state.tasks.waiting, state.tasks.over)
        assert found.payload_bytes == state.tasks.payload_bytes
        assert found.tenant_bytes == state.tasks.tenant_bytes
        assert again.lost_tasks == state.lost_tasks
        assert set(again.own) == set(state.own) == own_numbers(state)
        assert found.result_bytes == state.tasks.result_bytes
        assert (again.holds, again.groups) == (state.holds, state.groups)
        assert again.holds.followed == state.holds.followed
        assert again.holds.edges == state.holds.edges
        assert again.spilled.count == sum(queue.spilled for queue in queues)
        assert set(again.over_jobs) <= set(state.over_jobs)

    def _check_groups(self, tasks: list[t.TaskRecord]) -> None:
        state = self.state
        for group in state.groups.values():
            mine = [one for one in tasks if one.group == group.name]
            segments = state.history.spilled.values()
            on_disk = sum(one.groups.get(group.name, 0) for one in segments)
            assert group.members == len(mine) + on_disk
            assert group.waiting == sum(one.is_waiting for one in mine) + on_disk
            assert group.running == sum(not one.is_over and one.job > 0 for one in mine)
            assert group.done >= sum(one.state is LaunchState.SUCCEEDED for one in mine)
            assert group.is_complete == (group.completed_ms > 0)
            assert [*state.tasks.newest_of_group(group.name)] == mine[::-1]
        assert state.tasks.result_bytes == sum(len(one.result.encode()) for one in tasks)
        for hold in state.holds.values():
            assert state.tasks_by_number[hold.number].is_waiting
            assert all(one in state.holds.followed for one in hold.predecessors)
            assert all(name_of(state, one) for one in hold.predecessors), "all of them are known"

    def submit(self, *tasks: t.TaskSpec) -> list[Verdict]:
        return self.items(t.SubmitTasks(tasks, "shop"))

    def task(self, key: str = "a", queue: str = QUEUE) -> t.TaskRecord:
        return self.state.tasks[name(key, queue)]

    def number(self, key: str = "a") -> int:
        return self.task(key).number

    def ready(self, *keys: str) -> list[Verdict]:
        return self.items(t.ReadyTasks(tuple(map(self.number, keys or ("a",)))))

    def job(self, key: str = "a") -> JobRecord:
        """The record of a task's job."""
        found = self.state.record_of(name(key))
        assert found is not None
        return found

    def begun(self, key: str = "a", attempt: int = 1) -> JobRecord:
        """Make a task ready, if it waits, and begin its launch."""
        if self.task(key).is_waiting:
            assert self.ready(key) == [Verdict.ACCEPTED]
        record = self.job(key)
        second = record.horizon_s - T0
        assert self.begin(second, attempt, record.number) is Verdict.ACCEPTED
        return record

    def ended(self, key: str = "a", attempt: int = 1, **fields: Any) -> JobRecord:
        """Have the launch of a task begin and end."""
        record = self.begun(key, attempt)
        at = record.horizon_s - T0
        assert self.finished(at, attempt, record.number, **fields) is Verdict.ACCEPTED
        return record

    def cancel_tasks(self, *keys: str) -> list[Verdict]:
        names = tuple(name(key) for key in keys)
        return self.items(t.CancelTasks(names, "anna"))

    def forget(self, *numbers: int) -> list[Verdict]:
        return self.items(t.ForgetTasks(numbers))

    def release(self, *keys: str) -> list[Verdict]:
        return self.items(ReleaseTasks(tuple(map(self.number, keys))))

    def close(self, group: str = "default/g", hook: t.TaskSpec | None = None) -> Verdict:
        (verdict,) = self.items(CloseGroups((GroupClose(group, hook),), "anna"))
        return verdict

    def group(self, group: str = "default/g") -> GroupRecord:
        return self.state.groups[group]

    def put_queues(self, *queues: t.QueueSpec, **fields: Any) -> Verdict:
        usual = {"source": "queues.toml", "base": self.state.queues_revision, "queues": queues}
        return Verdict(self.answer(t.PutQueues(**usual | {"by": "anna"} | fields)).verdict)
