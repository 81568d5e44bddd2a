"""A State with its Machine, driven by commands as they would come out of the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from cron.job import Catchup, Job, Overlap, Schedule
from cron.launch_state import ACTIVE, LaunchState
from cron.notes import sentence
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.imaging import encode_state
from cron.state.launch_row import LaunchRow
from cron.state.machine import Machine
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.rows import Part, Row
from cron.state.state import ExecutorRecord, JobRecord, State
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch, WorkSpec
from tests.batches import (
    AttemptItem,
    BeginItem,
    answered,
    begin_of,
    launched_item,
    lost_item,
    refused_item,
)

T0 = 1_795_190_400
"""2026-11-20T16:00:00Z, the horizon that jobs begin with here."""
FIRST = Epoch(1, 1, "r1")
MINUTE = Schedule("* * * * *", "* * * * *")


def job(
    name: str = "backup",
    *,
    overlap: Overlap = Overlap.ALLOW,
    catchup: Catchup = Catchup.LAST,
    deadline_s: int = 300,
    schedule: Schedule = MINUTE,
    **fields: Any,
) -> Job:
    """A job of the default tenant."""
    work = WorkSpec(("/bin/sh", "-c", name))
    usual = {"work": work, "overlap": overlap, "catchup": catchup, "deadline_s": deadline_s}
    return Job(f"default/{name}", schedule, **usual | fields)


def but_place_and_time(state: State) -> list[Any]:
    """The image without position, digest and time: what refused input may not change."""
    head, *jobs = image_parts(encode_state(state))
    del head[2][:4]
    return [head, *jobs]


def image_parts(image: bytes) -> list[list[Any]]:
    """The parts of an image, decoded."""
    parts, offset = [], 0
    while offset < len(image):
        end = offset + 4 + int.from_bytes(image[offset : offset + 4], "big")
        parts.append(msgspec.msgpack.decode(image[offset + 4 : end]))
        offset = end
    return parts


def image_of(parts: list[list[Any]]) -> bytes:
    """The image that has these parts."""
    encoded = [msgspec.msgpack.encode(part) for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def said(one: Row | LaunchRow | Part) -> str:
    """What is shown of it beside its reason."""
    return sentence(one.note, one.detail)


def running_in(state: State) -> dict[int, int]:
    """How many launches run of each job that limits them, counted one by one."""
    runs = Counter(row.number for row in state.open_rows() if row.state in ACTIVE)
    assert runs == state.count_running()
    return {number: count for number, count in runs.items() if number in state.limited}


def executors_of(state: State) -> dict[int, tuple[ExecutorRecord, dict[c.Key, LaunchRow]]]:
    """The executors, and what is open on each."""
    return {
        number: (msgspec.structs.replace(record), open_on(record))
        for number, record in state.executors.items()
    }


def open_on(record: ExecutorRecord) -> dict[c.Key, LaunchRow]:
    """What is open on an executor."""
    return {row.key: row for row in record.launches()}


class StateRig:
    """A machine, the bytes that it was fed, and the leader's clock."""

    def __init__(self, *, is_claimed: bool = True, log_format: int = c.FORMAT) -> None:
        self.machine = Machine()
        self.log: list[bytes] = []
        self.base = 0  # log index before the first entry
        self.rows: list[Row] = []
        self.at_ms = T0 * 1000
        self.epoch = FIRST
        if is_claimed:
            self.append(c.Claim("2026b", "0.1.0", log_format))

    @property
    def state(self) -> State:
        return self.machine.state

    def append(self, *commands: c.Command, epoch: Epoch | None = None) -> Outcome:
        """Feed one entry in the leader's epoch and at its time."""
        entry = encode_entry(self.at_ms, epoch or self.epoch, commands)
        self.log.append(entry)
        outcome = self.machine.apply(1, self.base + len(self.log), entry)
        self.rows += outcome.rows
        self.outcome = outcome
        assert self.state.running == running_in(self.state)
        return outcome

    def answer(self, command: c.Command) -> Result:
        return self.append(command).results[0]

    def items(self, command: c.Command) -> list[Verdict]:
        """The verdicts on the items of a command."""
        result = self.answer(command)
        if isinstance(command, c.Begin):
            return [verdict for _, verdict in answered(command, result)]
        return [Verdict(item) for item in result.items]

    def item(self, command: c.Command) -> Verdict:
        (verdict,) = self.items(command)
        return verdict

    def to(self, second: int) -> StateRig:
        """Turn the leader's clock to `second` after T0."""
        self.at_ms = (T0 + second) * 1000
        return self

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Fail if what is done inside changes anything but place, digest and time."""
        before, rows = but_place_and_time(self.state), len(self.rows)
        yield
        assert but_place_and_time(self.state) == before
        assert len(self.rows) == rows

    # ---- commands, with what is usual in them

    def put(self, *jobs: Job, removed: tuple[str, ...] = (), **fields: Any) -> Result:
        usual = {
            "source": "crontab",
            "base": self.state.catalog,
            "effective_s": self.at_ms // 1000,
            "jobs": jobs,
            "removed": removed,
            "by": "anna",
        }
        return self.answer(c.PutJobs(**usual | fields))

    def record(self, name: str = "backup") -> JobRecord:
        return self.state.jobs[f"default/{name}"]

    def row(self, second: int, number: int = 1, trigger: int = 0) -> LaunchRow:
        found = self.state.row((number, T0 + second, trigger))
        assert found is not None
        return found

    def account(
        self,
        *due: int,
        number: int = 1,
        to: int | None = None,
        skipped: tuple[c.Instants, ...] = (),
        **fields: Any,
    ) -> Verdict:
        """Account for the seconds `due` after T0, up to `to` or to the last of them."""
        record = self.state.by_number.get(number)
        usual = {
            "jobs": (number,),
            "catalog": self.state.catalog,
            "from_s": record.horizon_s if record else 0,
            "to_s": T0 + (to if to is not None else due[-1]),
            "due": tuple(c.Instants(T0 + second) for second in due),
            "skipped": skipped,
        }
        return self.item(c.Account((c.AccountLine(**usual | fields),)))

    def join(self, executor: str = "e1", ledger: str = "l1") -> int:
        return self.answer(c.ExecutorJoined(executor, ledger, 4)).number

    def begin(self, second: int, attempt: int = 1, number: int = 1, **fields: Any) -> Verdict:
        key = (number, T0 + second, fields.pop("trigger", 0))
        row = self.state.row(key)
        usual = {
            "key": key,
            "attempt": attempt,
            "catalog": self.state.by_number[number].revision,
            "executor": 1,
            "not_after_ms": row.deadline_ms if row else self.at_ms,
        }
        return self.item(begin_of((BeginItem(**usual | fields),)))

    def launched(self, second: int, attempt: int = 1, number: int = 1) -> Verdict:
        item = launched_item((number, T0 + second, 0), attempt, self.at_ms)
        return self.item(c.Report((item,)))

    def finished(self, second: int, attempt: int = 1, number: int = 1, **fields: Any) -> Verdict:
        usual = {
            "key": (number, T0 + second, 0),
            "attempt": attempt,
            "state": LaunchState.SUCCEEDED,
            "reason": Reason.NONE,
            "exit_code": 0,
            "started_ms": self.at_ms - 500,
            "finished_ms": self.at_ms,
        }
        return self.item(c.Report((AttemptItem.of(**usual | fields),)))

    def refused(self, second: int, attempt: int = 1, number: int = 1) -> Verdict:
        item = refused_item((number, T0 + second, 0), attempt, "fenced")
        return self.item(c.Report((item,)))

    def lost(self, second: int, attempt: int = 1, held_until: int = 0, number: int = 1) -> Verdict:
        item = lost_item((number, T0 + second, 0), attempt, (T0 + held_until) * 1000, "silent")
        return self.item(c.Report((item,)))

    def skip(self, second: int, reason: Reason = Reason.DEADLINE, number: int = 1) -> Verdict:
        return self.item(c.Skip((c.SkippedItem((number, T0 + second, 0), reason),)))

    def cancel(self, second: int, number: int = 1, reason: Reason = Reason.KILLED) -> Verdict:
        return self.item(c.Cancel((c.CancelItem((number, T0 + second, 0), reason, "anna"),)))

    def trigger(self, request: str, name: str = "backup") -> Result:
        return self.answer(c.Trigger(f"default/{name}", request, "anna"))

    def reopen(self, second: int, was_state: int, was_attempt: int = 0, **fields: Any) -> Verdict:
        key = (fields.pop("number", 1), T0 + second, fields.pop("trigger", 0))
        read_at = fields.pop("read_at", self.state.index)
        item = c.ReopenItem(key, fields.pop("local_min", -1), was_state, was_attempt)
        return self.item(c.Reopen((item,), read_at, "anna"))


def with_job(*, log_format: int = c.FORMAT, **fields: Any) -> StateRig:
    """A rig with the job `backup` (number 1) and an executor (number 1)."""
    rig = StateRig(log_format=log_format)
    assert rig.put(job(**fields)).verdict is Verdict.ACCEPTED
    rig.join()
    return rig


def skips(first: int, last: int, count: int, local_min: int = -1) -> c.Instants:
    """A run of missed instants, in seconds after T0."""
    return c.Instants(T0 + first, local_min, False, Reason.MISSED, count, T0 + last)
