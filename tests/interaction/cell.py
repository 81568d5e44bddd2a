"""A cell for stories: one log and State, a leader's parts as the leader uses them, executors.

What stands between them (wires, time, the loop) is the story's: nothing happens by itself.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from cron.job import Catchup, Job, Overlap, Retry, Schedule
from cron.leader.dispatch import Dispatcher
from cron.leader.inbox import Inbox
from cron.notes import sentence
from cron.scheduler.alerts import Observed
from cron.scheduler.due import DueHeap
from cron.scheduler.plan import View, plan
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.deliveries import MAIL
from cron.state.machine import Machine
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.pool import DropDead, Redrive
from cron.state.rows import Row, RowKind
from cron.state.state import State
from cron.state.tasks import CancelTasks, RunTasks, SubmitTasks
from launcher.pool.events import Reported, Unsent
from launcher.protocol.names import AttemptName, format_time, parse_attempt_name, parse_time
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch, WorkSpec
from tests.batches import BeginItem, answered, items_of, verb_of
from tests.interaction.datadriven import Step
from tests.interaction.executors import FakeExecutor, FakePool, FakeSession, Message
from tests.interaction.tasks import HANDLER, QUEUE, LeadersTasks, close_of, said_of, spec_of
from tests.unit import pool_rig
from tests.unit.queues_rig import queues_with

DAY = "2026-11-20"
NO_KEY = (0, 0, 0)
"""The key of no launch."""


class Cell:
    """Plays the steps of one story."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.index = 0
        self.now_ms = parse_time(f"{DAY}T12:00:00Z") * 1000
        self.term = 0
        self.pool = FakePool()
        self.executors: dict[str, FakeExecutor] = {}
        self.expired: list[int] = []
        self.observed = Observed()
        self.rows: list[Row] = []
        self.printed: list[str] = []
        self.in_flight: dict[str, list[Message]] = {}
        self._build_leader()

    @property
    def state(self) -> State:
        return self.machine.state

    def _build_leader(self) -> None:
        pool: Any = self.pool
        self.dispatcher = Dispatcher(pool)
        self.inbox = Inbox(
            pool,
            self.dispatcher,
            wake=lambda: None,
            beat=lambda: None,
            refused=lambda *_: None,
            mono_ms=lambda: 0,
        )
        self.due_heap = DueHeap(self.state)
        self.tasks = LeadersTasks(self.state)

    def play(self, step: Step) -> str:
        """Do what a step says and return what is seen of it."""
        name, positional, named = step.parse()
        self.printed = []
        getattr(self, f"do_{name.replace('-', '_')}")(*positional, **named)
        return "\n".join(self.printed)

    def say(self, text: str) -> None:
        self.printed.append(text)

    # ---- the leader

    def append(self, commands: list[c.Command]) -> tuple[Result, ...]:
        """Commit an entry of the leader, follow it, and say what became of it."""
        self.index += 1
        entry = encode_entry(self.now_ms, self.pool.epoch, tuple(commands))
        meant = [items_of(command, self.state) for command in commands]
        outcome = self.machine.apply(self.term, self.index, entry)
        if outcome.verdict is not Verdict.ACCEPTED:
            self.say(f"{self.index}: refused, {outcome.verdict.label}")
            return ()
        for command, result, items in zip(outcome.commands, outcome.results, meant, strict=True):
            self._say_command(command, result, items)
        for row in outcome.rows:
            self.say(f"   row {shown_row(row)}")
        self.rows += outcome.rows
        self._follow(outcome)
        return outcome.results

    def _follow(self, outcome: Outcome) -> None:
        before = len(self.pool.sent)
        self.dispatcher.follow(self.state, outcome)
        self.tasks.follow(outcome)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.ExecutorJoined):
                self.pool.welcome(command.executor)
            elif isinstance(command, c.PutJobs):
                for job in command.jobs:
                    self.due_heap.put(self.state.jobs[job.name])
            elif isinstance(command, c.Report):
                self.inbox.follow(self.state, command, result)
        self._say_sent(before)

    def _say_sent(self, before: int) -> None:
        for executor, message in self.pool.sent[before:]:
            self.say(f"   to {executor}: {message.verb} {shown(message.name)}")

    def _say_command(self, command: c.Command, result: Result, items: list[Any]) -> None:
        words = said_of(self.state, command, result)
        is_listed = words is None and (isinstance(command, c.Begin) or hasattr(command, "items"))
        words = words or []
        if isinstance(command, c.Account):
            words += self._shown_lines(command, result)
        elif not words and not is_listed:
            words.append(f"{type(command).__name__.lower()} {result.verdict.label}")
        for item, verdict in answered(command, result, items) if is_listed else ():
            what = self._shown_item(command, item)
            words.append(what + ("" if verdict == Verdict.ACCEPTED else f": {label(verdict)}"))
        for word in words:
            self.say(f"{self.index}: {word}")

    def _shown_lines(self, command: c.Account, result: Result) -> list[str]:
        words = []
        for line, verdict in zip(command.lines, result.items, strict=True):
            rows = [f"due {clock(due.scheduled_s)}" for due in line.due]
            rows += [f"{skip.count} {skip.reason.label}" for skip in line.skipped]
            what = f"to {clock(line.to_s)}: {', '.join(rows) or 'nothing'}"
            what += "" if verdict == Verdict.ACCEPTED else f": {label(verdict)}"
            records = map(self.state.by_number.__getitem__, accumulate(line.jobs))
            words += [f"account {short(record.name)} {what}" for record in records]
        return words

    def _shown_item(self, command: c.Command, item: Any) -> str:
        verb = verb_of(command, item)
        name = short(str(self.state.launch_name(item.key))).replace(f"{DAY}T", "")[:-1]
        name = name if not item.key[2] else name + item_suffix(item.key)
        words = [verb, name + (f"#{item.attempt}" if hasattr(item, "attempt") else "")]
        if getattr(item, "part", 1) != 1:
            words[1] += f"/{item.part}"
        if isinstance(item, BeginItem):
            record = self.state.executors.get(item.executor)
            others = [self.state.executors[number].executor for number in item.others]
            names = [record.executor if record else "nobody", *others]
            words.append(f"on {', '.join(names)}")
            row = self.state.active.get(item.key)
            until_ms = item.not_after_ms if row is None else row.not_after_ms
            words.append(f"until {clock(until_ms // 1000)}")
        if verb == "finished":
            words.append(item.state.label)
        if getattr(item, "reason", Reason.NONE):
            words.append(item.reason.label)
        return " ".join(words)

    def do_leader(self, replica: str) -> None:
        """Another replica leads: the old streams end, what was on its wires may still arrive."""
        self.in_flight = {name: list(wire) for name, wire in self.pool.wires.items() if wire}
        self.pool.close()
        self.pool.wires.clear()
        self.term += 1
        self.pool.epoch = Epoch(1, self.term, replica)
        self._build_leader()
        self.append([c.Claim(format=c.FORMAT)])
        for row in self.state.open_rows():
            for start in row.starts():
                launch = self.state.launch_name(row.key)
                name = AttemptName(launch, row.attempt or 1, start.number)
                self.say(f"   open {shown(name)} {start.state.label}")

    def do_turn(self) -> None:
        """One turn of the leader's loop; orders that need no entry leave before it."""
        before = len(self.pool.sent)
        commands = self.inbox.gather(self.state, self.now_ms)
        self._say_sent(before)
        gone, self.expired = self.expired, []
        slots = {}
        for session in self.pool.sessions():
            record = self.state.executor_of(session.executor, session.ledger)
            if record is not None and session.gets_work:
                slots[record.number] = session.slots - record.count_open()
        now_s = self.now_ms // 1000
        due, queues = (
            self.due_heap.take(now_s, limit=100),
            queues_with(self.state, slots, HANDLER, MAIL),
        )
        view = View(self.state, due, queues, expired=gone, late_budget=10)
        commands += plan(view, self.now_ms)
        commands += self.tasks.plan(self.now_ms, self.observed)
        if commands:
            self.append(commands)

    def do_at(self, time: str) -> None:
        """Turn the clock, and the leader once."""
        self.now_ms = parse_time(f"{DAY}T{time}Z") * 1000
        self.do_turn()

    def do_stale(self) -> None:
        """The leader asks again about what nobody answered."""
        before = len(self.pool.sent)
        self.inbox.stale(self.state, self.now_ms)
        self._say_sent(before)

    # ---- what people do

    def do_job(self, name: str, schedule: str = "* * * * *", **fields: str) -> None:
        deadline_s = int(fields.get("deadline", "60"))
        job = Job(
            f"default/{name}",
            Schedule(schedule, schedule),
            WorkSpec(("/bin/sh", "-c", fields.get("command", name))),
            Overlap[fields.get("overlap", "allow").upper()],
            Catchup[fields.get("catchup", "last").upper()],
            deadline_s=deadline_s,
            parts=int(fields.get("parts", "1")),
            after=tuple(f"default/{name}" for name in fields.get("after", "").split(",") if name),
            retry=Retry(
                int(fields.get("tries", "1")),
                backoff_ms=1_000,
                fatal_codes=tuple(int(code) for code in fields.get("fatal", "").split(",") if code),
            ),
        )
        known = self.state.jobs.get(job.name)
        effective_s = max(self.now_ms // 1000, known.horizon_s if known else 0)
        commands: list[c.Command] = []
        if known is not None and known.horizon_s < effective_s:
            item = c.AccountLine((known.number,), known.revision, known.horizon_s, effective_s)
            commands.append(c.Account((item,)))
        put = c.PutJobs("crontab", self.state.catalog, effective_s, (job,))
        self.append([*commands, put])

    def do_trigger(self, name: str, request: str = "q1") -> None:
        result = self.append([c.Trigger(f"default/{name}", request, "anna")])[0]
        self.say(f"   name {name}@{clock(result.scheduled_s)}+t{result.number}")

    def do_pause(self, name: str) -> None:
        self.append([c.Pause((f"default/{name}",), "", 0, "anna")])

    def do_kill(self, launch: str) -> None:
        key = self._key(launch)
        self.append([c.Cancel((c.CancelItem(key, Reason.KILLED, "anna"),))])

    def do_backfill(self, launch: str, attempt: str = "0") -> None:
        """Make an instant due again: what its newest row says is what the leader has read."""
        key = self._key(launch)
        name = self.state.launch_name(key)
        mine = [
            row
            for row in self.rows
            if row.job == name.job and row.scheduled_s <= name.scheduled_s <= row.last_s
        ]
        was = int(mine[-1].state) if mine else 0
        item = c.ReopenItem(key, -1, was, int(attempt))
        self.append([c.Reopen((item,), self.state.index, "anna")])

    def do_submit(self, *keys: str, **ties: str) -> None:
        """A program hands over tasks, all with the same ties."""
        tasks = tuple(spec_of(key, self.now_ms, **ties) for key in keys)
        self.append([SubmitTasks(tasks, "shop")])

    def do_close(self, group: str, hook: str = "") -> None:
        spec = spec_of(hook, self.now_ms) if hook else None
        self.append([close_of(group, spec)])

    def do_cancel_task(self, key: str) -> None:
        self.append([CancelTasks((f"{QUEUE}:{key}",), "anna")])

    def do_run_now(self, key: str) -> None:
        (result,) = self.append([RunTasks((f"{QUEUE}:{key}",), "anna")])
        self.say(f"   run {key}: {label(result.items[0])}")

    def do_redrive(self, *names: str) -> None:
        """A person launches dead letters again: those of launches, or of tasks by their keys."""
        self._change_letters(Redrive, "redrive", names)

    def do_drop_dead(self, *names: str) -> None:
        self._change_letters(DropDead, "drop", names)

    def _change_letters(
        self, command: type[Redrive | DropDead], verb: str, names: tuple[str, ...]
    ) -> None:
        keys = []
        for name in names:
            record = self.state.record_of(f"{QUEUE}:{name}")
            mine = [(record.number, *place) for place in record.dead] if record else []
            keys += [self._key(name)] if "@" in name else mine or [NO_KEY]
        (result,) = self.append([command(tuple(keys), "anna")])
        for name, verdict in zip(names, result.items, strict=True):
            self.say(f"   {verb} {name}: {label(verdict)}")

    def _key(self, launch: str) -> c.Key:
        key = self.state.key_of(attempt_name(launch).launch)
        assert key is not None
        return key

    # ---- executors and their wires

    def do_executor(self, name: str, slots: str = "4", ledger: str = "") -> None:
        """An executor connects to the leader and reports its ledger."""
        known = self.executors.get(name)
        if known is None or (ledger and ledger != known.ledger):
            started = known.started if known else []
            known = FakeExecutor(name, ledger or "l1", int(slots), started=started)
            self.executors[name] = known
        self.pool.connected[name] = FakeSession(name, known.ledger, known.slots)
        report = known.report()
        for attempt, fact in report.items():
            self.say(f"   {name} reports {fact.status.name.lower()} {shown(attempt)}")
        told = tuple(map(RowReport.as_batch, report.values()))
        self.inbox.on_event(pool_rig.joined(name, known.ledger, told, slots=known.slots))
        self.do_turn()
        self.do_turn()

    def do_deliver(self, name: str) -> None:
        """The executor reads its wire; its answers wait for the leader's next turn."""
        wire, self.pool.wires[name] = self.pool.wires.get(name, []), []
        self._receive(name, wire)

    def do_deliver_late(self, name: str) -> None:
        """What the leader before had on the wire arrives after all."""
        self._receive(name, self.in_flight.pop(name, []))

    def _receive(self, name: str, wire: list[Message]) -> None:
        executor = self.executors[name]
        answers = []
        for message in wire:
            known = executor.rows.get(message.name)
            runs = len(executor.started)
            fact = executor.receive(message, self.now_ms)
            what = f"{name} {message.verb} {shown(message.name)}"
            if fact is None:
                word = "done" if message.verb == "ack" else "ignored: an old epoch"
                self.say(f"{what}: {word}")
                continue
            again = " again" if known is not None and message.verb != "kill" else ""
            ran = ", it runs" if len(executor.started) > runs else ""
            self.say(f"{what}: {fact.status.name.lower()}{again}{ran}")
            answers.append(fact)
        if answers and name in self.pool.connected:
            self.inbox.on_event(
                Reported(name, executor.ledger, tuple(map(RowReport.as_batch, answers)))
            )

    def do_drop(self, name: str) -> None:
        """What is on the wire to an executor is lost."""
        for message in self.pool.wires.pop(name, []):
            self.say(f"lost on the way: {message.verb} {shown(message.name)}")

    def do_claims(self, name: str, attempt: str, code: str = "0") -> None:
        """An executor reports the end of an attempt, whether it ever got it or not."""
        ledger = self.executors[name].ledger
        claimed = attempt_name(attempt)
        places = {known: place[1:] for place, known in self.pool.names.items()}
        index, row = places.get(claimed, (1, 0))
        self.pool.names.setdefault((name, index, row), claimed)
        fact = RowReport(index, row, Status.ENDED, Reason.NONE, int(code), self.now_ms, self.now_ms)
        self.inbox.on_event(Reported(name, ledger, (fact.as_batch(),)))
        self.do_turn()

    def do_unsent(self, name: str) -> None:
        """An executor falls silent before its stream has taken the orders for it."""
        places = [message.place for message in self.pool.wires.pop(name, [])]
        batches = tuple((index, (row,)) for index, row in places)
        self.pool.connected[name].gets_work = False
        self.inbox.on_event(Unsent(name, self.executors[name].ledger, batches))

    def do_exit(self, name: str, attempt: str, code: str = "0") -> None:
        """A command ends; the executor says so if it is connected."""
        executor = self.executors[name]
        fact = executor.end(attempt_name(attempt), int(code), self.now_ms)
        if name in self.pool.connected:
            self.inbox.on_event(Reported(name, executor.ledger, (fact.as_batch(),)))

    def do_disconnect(self, name: str) -> None:
        """The stream breaks; the executor and what it runs go on."""
        self.pool.connected.pop(name, None)
        self.pool.wires.pop(name, None)

    def do_restart(self, name: str) -> None:
        """The executor's process dies, and its commands with it."""
        self.do_disconnect(name)
        self.executors[name].restart()

    def do_lease_ends(self, name: str, ledger: str = "") -> None:
        """A ledger was silent for too long."""
        now = self.executors[name].ledger
        if ledger in ("", now):
            self.do_disconnect(name)
        record = self.state.executor_of(name, ledger or now)
        assert record is not None
        self.expired.append(record.number)
        self.do_turn()

    # ---- what can be seen

    def do_history(self) -> None:
        for row in self.rows:
            self.say(shown_row(row))

    def do_dead(self) -> None:
        """The dead letters, the oldest first."""
        for key, letter in self.state.dead.items():
            name = shown(AttemptName(self.state.launch_name(key), letter.attempt))
            why = letter.reason.label or letter.state.label
            record = self.state.by_number[key[0]]
            many = record.repeats.get(key[1:])
            more = f", with {many.count - 1} more since {clock(many.first_s)}" if many else ""
            payload = record.job.work.payload.decode() if record.task and record.job else ""
            more += f", payload {payload}" if payload else ""
            self.say(f"{name} {why} after {letter.tries} tries{more}")

    def do_starts(self) -> None:
        """What really ran, and where."""
        for name, executor in sorted(self.executors.items()):
            for attempt in executor.started:
                self.say(f"{name} ran {shown(attempt)}")


def label(verdict: int) -> str:
    return Verdict(verdict).label


def clock(scheduled_s: int) -> str:
    return format_time(scheduled_s).removeprefix(f"{DAY}T").removesuffix("Z")


def short(name: str) -> str:
    return name.removeprefix("default/")


def item_suffix(key: c.Key) -> str:
    return f"+t{key[2]}"


def shown(attempt: AttemptName) -> str:
    """`backup@12:01:00#1` for the full name."""
    name = attempt.launch
    suffix = f"+t{name.trigger}" if name.trigger else ""
    part = f"/{attempt.part}" if attempt.part != 1 else ""
    return f"{short(name.job)}@{clock(name.scheduled_s)}{suffix}#{attempt.attempt}{part}"


def attempt_name(text: str) -> AttemptName:
    """The full name of `backup@12:01:00+t1#1`."""
    job, _, rest = text.partition("@")
    return parse_attempt_name(f"{job}@{DAY}T{rest[:8]}Z{rest[8:]}")


def shown_row(row: Row) -> str:
    """A row of history on a line."""
    when = f"{short(row.job)}@{clock(row.scheduled_s)}"
    when += f"+t{row.trigger}" if row.trigger else ""
    when += f"#{row.attempt}" if row.attempt else ""
    words = [when, row.state.label + (f"/{row.reason.label}" if row.reason else "")]
    if row.kind is RowKind.RANGE:
        words.append(f"{row.count} instants to {clock(row.last_s)}")
    if row.kind is RowKind.AMENDMENT:
        words.append("(late report)")
    if row.begun_index:
        words.append(f"begun {row.begun_index} launched {row.launched_index or '-'}")
    if row.exit_code >= 0 and row.finished_ms:
        words.append(f"exit {row.exit_code}")
    if detail := sentence(row.note, row.detail):
        words.append(f"({detail})")
    return " ".join(words)
