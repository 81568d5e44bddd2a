"""States and rows as large as the bench wants them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from cron.job import Job, Overlap, Schedule
from cron.launch_state import LaunchState
from cron.state.batches import COLUMNS
from cron.state.launch_row import LaunchRow
from cron.state.rows import Chunk, column
from cron.state.state import ExecutorRecord, JobRecord, Span, State
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch, WorkSpec

T0: Final = 1_795_190_400
EPOCH: Final = Epoch(1, 7, "r2")
OPEN_PER_JOB: Final = 10
ENTRY_ROWS: Final = 50
"""Launches that end in one entry."""


def job(number: int) -> Job:
    """One job of many, with a command and an environment of its own."""
    schedule = Schedule(f"{number % 60} * * * *", f"{number % 60} * * * *", "Europe/Berlin")
    work = WorkSpec(
        ("/bin/sh", "-c", f"/usr/local/bin/report --customer {number} --since yesterday"),
        (("MAILTO", "ops@example.com"), ("CUSTOMER", str(number))),
    )
    return Job(f"tenant{number % 50}/report-{number}", schedule, work, line=number)


def large_state(jobs: int, open_per_job: int = OPEN_PER_JOB) -> State:
    """Return a State of so many jobs, each with launches that are due, begun or launched."""
    state = State()
    state.term, state.index, state.at_ms, state.epoch = 7, 1_000_000, T0 * 1000, EPOCH
    for number in range(1, 101):
        state.executors[number] = ExecutorRecord(
            number, f"e{number}", f"ledger-{number}", 100_000, "host", T0 * 1000
        )
    for number in range(1, jobs + 1):
        declared = job(number)
        span = Span(1, T0 - 86_400, 0, declared.schedule, Overlap.ALLOW)
        record = JobRecord(number, declared.name, "crontab", 1, T0, declared, [span])
        state.jobs[record.name] = state.by_number[number] = record
        state.note_job(record)
        for place in range(0, open_per_job, 2):
            row = LaunchRow(
                number, T0 - 60 * place, 0, LaunchState.DUE, (T0 + 3600) * 1000, revision=1
            )
            state.due.detailed[row.key] = record.open[(row.scheduled_s, 0)] = row
    state.job_numbers = jobs
    for executor in state.executors:
        numbers = [number for number in state.by_number if number % 100 + 1 == executor]
        instants = [T0 - 60 * place for place in range(1, open_per_job, 2)]
        if numbers and instants:
            _launch(state, executor, numbers, instants)
    return state


def _launch(state: State, executor: int, numbers: list[int], instants: list[int]) -> None:
    """Let launches of these jobs and instants run on an executor, as rows of one batch."""
    rows = len(numbers) * len(instants)
    batch = state.batch(executor, 999_000, T0 * 1000, EPOCH)
    deadlines_ms = [(T0 + 3600) * 1000] * rows
    for name in COLUMNS:
        getattr(batch, name).extend([0] * rows)
    batch.numbers[:] = array("q", numbers * len(instants))
    batch.scheduled_s[:] = array("q", [at_s for at_s in instants for _ in numbers])
    batch.attempts[:] = array("q", [1] * rows)
    batch.deadlines_ms[:] = batch.not_after_ms[:] = array("q", deadlines_ms)
    batch.local_mins[:] = array("q", [-1] * rows)
    batch.lates += bytes(rows)
    batch.states += bytes((LaunchState.LAUNCHED,)) * rows
    batch.usual = rows
    batch.start(range(rows), 999_001, T0 * 1000, [T0 * 1000] * rows)
    for at_s in instants:
        state.active.put(at_s, numbers, batch)
    for number in numbers:
        for _ in instants:
            state.start_running(number)


def finished(jobs: int, launches: int) -> Iterator[Chunk]:
    """Yield launches that ended, in log order, as chunks of an entry of 50: one in a hundred
    failed."""
    names = [f"tenant{number % 50}/report-{number}" for number in range(jobs)]
    for begin in range(0, launches, ENTRY_ROWS):
        rows = range(begin, min(begin + ENTRY_ROWS, launches))
        ran = [at for at in rows if at % 100 != 99]
        failed = [at for at in rows if at % 100 == 99]
        for number, mine in ((0, ran), (len(ran), failed)):
            if mine:
                yield _chunk(names, mine, number)


def _chunk(names: list[str], mine: list[int], number: int) -> Chunk:
    """Return launches of one entry that ended alike, given by their places among all."""
    jobs, index = len(names), mine[0] // ENTRY_ROWS + 1
    seconds = [T0 + at // jobs * 60 for at in mine]
    scatter = [at * 2_654_435_761 % 2**32 for at in mine]  # does not repeat, as real times do not
    started_ms = [s * 1000 + 11 + one % 97 for s, one in zip(seconds, scatter, strict=True)]
    ended_ms = [ms + 40 + one // 97 % 9_973 for ms, one in zip(started_ms, scatter, strict=True)]
    fails = number > 0
    return Chunk(
        LaunchState.FAILED if fails else LaunchState.SUCCEEDED,
        Reason.NONE,
        int(fails),
        index,
        max(ended_ms) + 10,
        index,
        seconds[0] * 1000 + 8,
        EPOCH,
        f"e{index % 7}",
        "0d7c4b1e-5a4e-4f0e-9f3a-6f8a1d1c2b3a",
        "\n".join(names[at % jobs] for at in mine),
        1,
        column(seconds),
        local_mins=column([second // 60 for second in seconds]),
        launched_index=index,
        launched_at_ms=seconds[0] * 1000 + 12,
        started_ms=column(started_ms),
        finished_ms=column(ended_ms),
        number=number,
    )
