"""How long does a page of the console take at the server, and how large is it?

    python -m bench.console [--jobs 100000] [--launches 10000000] [--rounds 5] [--readme]

One process has State, history in segments on the disk, the queues of a leader, and the HTTP
application that serves the pages; there is no network and no log. Some jobs have names of the
greatest length and commands full of what HTML gives a meaning; they are the first of the list. Each
page is asked for once. Then the replica reads how the launches of all jobs ended, and each page is
asked for several times, one request at a time. Prints a row for each page, and with `--readme`
writes the table into README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from bench.keeping_history import History, rss_mb
from bench.keeping_state import EPOCH, T0, finished, job, large_state
from bench.section import figure, write_section
from consensus.leadership import Freshness, Leadership, Position
from cron.alert_rules import AlertKind, Channel, ChannelKind, Condition, Rule
from cron.api.admission import Shown
from cron.api.callers import open_admission
from cron.api.members import StatusRow
from cron.api.readiness import Readiness
from cron.garbage import Garbage
from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.leader.applier import StateApplier
from cron.scheduler.indexes import LeaderIndexes
from cron.service.replica import Replica
from cron.service.service import CellService
from cron.state import alerts as a
from cron.state import tasks as t
from cron.state.codec import encode_entry
from cron.state.imaging import encode_state
from cron.state.rows import Row, RowKind
from cron.state.state import JobRecord, Span, State
from cron.web.application import Application
from cron.web.console.events import Events
from cron.web.console.page_request import FORM, Serving
from cron.web.console.sessions import form_token
from cron.web.console.site import Console
from cron.web.forwarding import Forwarding
from cron.web.health import HealthChecks
from cron.web.turns import Turns
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.protocol.names import format_time
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec

README: Final = Path(__file__).resolve().parent / "README.md"
BEGIN: Final = "<!-- console: written by `python -m bench.console --readme` -->"
END: Final = "<!-- end of console -->"
JOBS: Final = 100_000
LAUNCHES: Final = 10_000_000
ROUNDS: Final = 5
LONG: Final = 60
"""Jobs with the longest names and hostile commands: more than a page has."""
TASKS: Final = 1_000
GROUPED: Final = 400
LONG_KEY: Final = "k" * 90
DEAD: Final = 4
"""Dead letters of each job with the longest name."""
SETTLE_S: Final = 900
MARKUP: Final = """</td><script>alert(1)</script>"'><svg onload=alert(2)>&amp;%3C{{7*7}}"""
NOBODY: Final[Any] = None
FORM_KEY: Final = "0" * 32
FORM_COOKIE: Final = f"raftcron-form={FORM_KEY}".encode()


class Clock:
    """The time at which the last launches of history ended."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        """Return that time."""
        return self.now_ms

    def mono_ms(self) -> int:
        """Return the process's own time: what is measured is real."""
        return time.monotonic_ns() // 1_000_000


class LoneLeader:
    """What pages ask of a leader, of one that has no log and is its own majority."""

    replica_id, note, held_note = "r1", "", ""
    overload = SimpleNamespace(view=None, note="")

    def __init__(self, state: State, clock: Clock) -> None:
        self.epoch = EPOCH
        self.indexes = LeaderIndexes(state)
        self.pool = Pool(
            cell="bench",
            lease=LeaseTimes(),
            mono_ms=clock.mono_ms,
            wall_ms=clock.wall_ms,
            on_event=lambda _: None,
        )
        self.executors = SimpleNamespace(connected=lambda: frozenset(state.executors))
        self.freshness = Freshness(state.index, state.index, 0)
        self._place = Leadership(EPOCH.term, leads=True, leader=self.replica_id)

    def elsewhere(self) -> None:
        """Nobody else leads."""

    @property
    def queues(self) -> Any:
        """The queues of the leader."""
        return self.indexes.queues

    @property
    def leadership(self) -> Leadership:
        """Who leads: this replica."""
        return self._place

    def behind(self) -> dict[tuple[str, int, str], int]:
        """Return that no line is behind."""
        return {}

    def awaits_row(self, _number: int) -> str:
        """Return that every instant has its row."""
        return ""

    async def confirm(self) -> None:
        """Return at once."""

    def leader_address(self) -> None:
        """Return None: there is no other replica."""


def long_jobs(first: int) -> list[JobRecord]:
    """Return jobs with the longest names and commands that mean something to HTML."""
    records = []
    for place in range(LONG):
        plain = job(first + place)
        name = f"{'0' * 97}{place:03}/{'long-name.' * 9}{place:010}"
        work = WorkSpec(("/bin/sh", "-c", f"{MARKUP} {place} " * 20), plain.work.env)
        declared = msgspec.structs.replace(plain, name=name, work=work)
        span = Span(1, T0 - 86_400, 0, declared.schedule, Overlap.ALLOW)
        record = JobRecord(first + place, name, MARKUP[:60], 1, T0, declared, [span])
        records.append(record)
    return records


def state_of(jobs: int) -> State:
    """Return a State with so many jobs, each with a launch that waits."""
    state = large_state(jobs - LONG, open_per_job=1)
    for record in long_jobs(jobs - LONG + 1):
        state.jobs[record.name] = state.by_number[record.number] = record
        state.note_job(record)
    state.job_numbers = jobs
    return state


def submitted(state: State) -> bytes:
    """Return the entry with which programs hand over tasks."""
    queue = t.QueueSpec("acme/mail", "mail", waits_for_handler=True)
    tasks = tuple(
        t.TaskSpec(
            "acme/mail", f"key-{number}", state.at_ms + 3_600_000,
            msgspec.json.encode({"to": MARKUP, "number": number}), number.to_bytes(16, "big"),
        )
        for number in range(TASKS)
    )  # fmt: skip
    members = tuple(
        t.TaskSpec(
            "acme/mail", f"{LONG_KEY}{number}", state.at_ms + 3_600_000, b"{}",
            (TASKS + number).to_bytes(16, "big"), group="acme/import",
        )
        for number in range(GROUPED)
    )  # fmt: skip
    put = t.PutQueues("queues.toml", state.queues_revision, (queue,), by="bench")
    rule = Rule("dead", Condition(AlertKind.DEAD), (), ("ops",))
    told = a.ApplyAlerts(0, (Channel("ops", ChannelKind.MAIL, ("ops@example.com",)),), (rule,))
    subjects = tuple(name for name in state.jobs if name.startswith("0000"))
    fires = a.RaiseAlerts((a.RaiseLine("dead", subjects, (a.Evidence(DEAD),) * len(subjects)),))
    commands = (put, t.SubmitTasks((*tasks, *members), "bench"), told, fires)
    return encode_entry(state.at_ms, EPOCH, commands)


def give_up(state: State) -> None:
    """Let launches of the jobs with the longest names be dead letters, with text that is full of
    what HTML gives a meaning."""
    for record in list(state.jobs.values())[-LONG:]:
        for number in range(DEAD):
            at_s = T0 - 60 * number
            row = Row(
                RowKind.ENDED, record.name, 1, at_s, 0, 3, LaunchState.FAILED, Reason.NONE,
                1, T0 * 1000, exit_code=1, executor="e7", detail=(MARKUP * 4)[:200], tries=3,
            )  # fmt: skip
            record.dead[at_s, 0] = state.dead[record.number, at_s, 0] = row


class Served:
    """The pages of one replica, asked for in process."""

    def __init__(self, data: Path, jobs: int, launches: int) -> None:
        of = state_of(jobs)
        give_up(of)
        kept = History(data, of)
        kept.grow(finished(jobs - LONG, launches))
        last_s = T0 + launches // (jobs - LONG) * 60
        kept.row_store.stop()
        kept.state.at_ms = last_s * 1000
        kept.start()
        self.launch = f"tenant1/report-1@{format_time(T0)}"
        applier = StateApplier(kept.row_store)
        applier.restore(Position(7, kept.state.index), [encode_state(kept.state)])
        self.state = applier.state
        entry = submitted(self.state)
        outcome = applier.apply(Position(7, self.state.index + 1), entry)
        if any(one.verdict or any(one.items) for one in outcome.results):
            raise RuntimeError(str(outcome.results))
        clock = Clock(last_s * 1000 + 60_000)
        self.row_store = kept.row_store
        leader: Any = LoneLeader(self.state, clock)
        rows = [StatusRow(kind="replica", id=f"r{n}", role="follower") for n in (1, 2, 3)]

        async def status() -> list[StatusRow]:
            return rows

        cluster: Any = SimpleNamespace(status=status)
        saving: Any = SimpleNamespace(outputs=None)  # no object storage
        replica = Replica(
            leader, applier, kept.row_store, clock, cluster_status=cluster, saving=saving
        )
        admission = open_admission("bench", is_open=True)
        readiness = Readiness(lambda: leader.leadership, lambda: leader.freshness)

        def serving() -> Serving:
            return Serving("r1", leader.leadership, leader.freshness)

        service = CellService(replica)
        self._outcomes = service.replica.outcomes
        self._application = Application(
            Forwarding(service, NOBODY),
            admission,
            HealthChecks("r1", readiness),
            clock.wall_ms,
            turns=Turns(),  # without the rests that are there for the leader's sake
            console=Console(
                "bench", admission, serving, clock.wall_ms, is_secure=False, events=Events(serving)
            ),
        )
        self._garbage = Garbage(lambda: self.state)
        self._garbage.begin()  # as a replica does: old objects are not looked at again

    async def settle(self) -> None:
        """Wait until the strips of all jobs have been read from history."""
        began_s, used_s = time.perf_counter(), time.process_time()
        self._outcomes.wait_s = SETTLE_S
        if not (await self._outcomes.of(self.state.jobs))[1]:
            raise RuntimeError(f"outcomes are not read after {SETTLE_S} s")
        took_s, used_s = time.perf_counter() - began_s, time.process_time() - used_s
        text = f"outcomes read in {took_s:.0f} s, {used_s:.1f} s of CPU, {rss_mb():.0f} MB"
        print(text, flush=True)

    async def get(self, path: str) -> tuple[int, int, float]:
        """Return status, bytes and seconds of a page, or of the plan that a form of a page leads to
        where `path` is `/acts/ACT?FIELDS`."""
        query, sent = path.partition("?")[2], 0
        status, form, bodies = 0, b"", [b""]
        headers = [(b"host", b"localhost"), (b"accept", b"text/html")]
        if path.startswith("/acts/"):
            form = f"csrf={form_token(FORM_KEY, Shown())}&{query}".encode()
            headers += [(b"content-type", FORM.encode()), (b"cookie", FORM_COOKIE),
                        (b"content-length", str(len(form)).encode())]  # fmt: skip
            query, bodies = "", [form]

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await asyncio.Event().wait()
            return {}

        async def send(message: dict[str, Any]) -> None:
            nonlocal sent, status
            status = message.get("status", status)
            sent += len(message.get("body", b""))

        place = path.partition("?")[0]
        scope: dict[str, Any] = {
            "type": "http", "method": "POST" if form else "GET", "scheme": "http",
            "http_version": "1.1", "path": place, "raw_path": place.encode(),
            "query_string": query.encode(), "headers": headers,
            "client": ("127.0.0.1", 7), "server": ("127.0.0.1", 7480), "state": {},
        }  # fmt: skip
        began_s = time.perf_counter()
        await self._application(scope, receive, send)  # type: ignore[arg-type]
        return status, sent, time.perf_counter() - began_s

    def paths(self) -> dict[str, str]:
        """Return the pages that are asked for, by what the table calls them."""
        long_names = [name for name in self.state.jobs if name.startswith("0000")]
        long_name = long_names[0]
        chosen = urlencode([("job", name) for name in long_names])
        return {
            "Now": "/",
            "Jobs": "/jobs",
            "Jobs, in the middle": "/jobs?after=tenant25/report-50",
            "Jobs, found by text": "/jobs?text=report-777",
            "Jobs, of a state": "/jobs?state=running",
            "Job": "/jobs/tenant1/report-1",
            "Job with the longest name": f"/jobs/{long_name}",
            "Launch": f"/launches/{self.launch}",
            "Queues": "/queues",
            "Executors": "/executors",
            "Dead letters": "/dead",
            "Tasks": "/tasks",
            "Task": "/tasks/acme/mail:key-7",
            "Group": "/groups/acme/import",
            "Alerts": "/alerts",
            "Plan of a pause": f"/acts/pause?{chosen}",
            "Plan for dead letters": "/acts/drop?everything=1",
            "Cell": "/cell",
        }


class PageTime(msgspec.Struct, frozen=True):
    """What one page took: the first time, and of the following rounds the median and the longest,
    in ms, and their mean CPU time, which other programs change less; and its bytes."""

    page: str
    size: int
    first_ms: float
    median_ms: float
    longest_ms: float
    cpu_ms: float


async def measure(served: Served, rounds: int) -> list[PageTime]:
    """Return how long each page took.

    Raises:
        RuntimeError: a page was refused.
    """
    paths = served.paths()
    firsts = {page: (await served.get(path))[2] * 1000 for page, path in paths.items()}
    await served.settle()
    found = []
    for page, path in paths.items():
        times, began_s = [], time.process_time()
        for _ in range(rounds):
            status, size, took_s = await served.get(path)
            if status != 200:
                raise RuntimeError(f"{path} says {status}")
            times.append(took_s * 1000)
        cpu_ms = (time.process_time() - began_s) * 1000 / rounds
        median_ms = statistics.median(times)
        found.append(PageTime(page, size, firsts[page], median_ms, max(times), cpu_ms))
    return found


async def run(jobs: int, launches: int, rounds: int) -> list[PageTime]:
    """Make the cell, and measure its pages."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        served = Served(Path(folder), jobs, launches)
        gc.collect()
        print(f"{jobs:,} jobs, {launches:,} launches, {rss_mb():.0f} MB", flush=True)
        try:
            return await measure(served, rounds)
        finally:
            served.row_store.stop()


def table(times: list[PageTime]) -> str:
    """Return the table of README.md."""
    columns = ("page", "KB", "first ms", "median ms", "longest ms", "CPU ms")
    lines = [" | ".join(("", *columns, "")).strip(), "| --- |" + " --: |" * (len(columns) - 1)]
    for one in times:
        numbers = (one.size / 1000, one.first_ms, one.median_ms, one.longest_ms, one.cpu_ms)
        lines.append(f"| {one.page} | {' | '.join(map(figure, numbers))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--launches", type=int, default=LAUNCHES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--readme", action="store_true")
    options = parser.parse_args()
    written = table(asyncio.run(run(options.jobs, options.launches, options.rounds)))
    print(written)
    if options.readme:
        write_section(README, BEGIN, END, written)


if __name__ == "__main__":
    main()
