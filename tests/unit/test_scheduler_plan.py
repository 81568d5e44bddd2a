"""The plan: what begins, what waits, what is skipped, in which order, and that it only reads."""

from __future__ import annotations

from itertools import accumulate

from cron.calendar.schedule import compile as compile_schedule
from cron.job import Catchup, Overlap, Schedule
from cron.launch_state import LaunchState
from cron.notes import sentence
from cron.scheduler.due import DueJobs
from cron.scheduler.places import Need
from cron.scheduler.plan import View, plan
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from tests.batches import BeginItem, begun, items_of
from tests.unit.queues_rig import queues_with
from tests.unit.state_rig import T0, StateRig, job, with_job


def view_of(rig: StateRig, *due_jobs: int, **fields: object) -> View:
    """All that the leader would show: four free slots on executor 1, unless said otherwise."""
    due = []
    for number in due_jobs:
        declared = rig.state.by_number[number].job
        assert declared is not None
        due.append(DueJobs((number,), compile_schedule(declared.schedule)))
    queues = queues_with(rig.state, fields.pop("slots", {1: 4}))  # type: ignore[arg-type]
    usual: dict[str, object] = {"late_budget": 100, "queues": queues}
    return View(rig.state, due, **usual | fields)  # type: ignore[arg-type]


def told(rig: StateRig, *due_jobs: int, **fields: object) -> list[str]:
    """The plan in words, seconds after T0."""
    words = []
    for command in plan(view_of(rig, *due_jobs, **fields), rig.at_ms):
        if isinstance(command, c.ExecutorLeft):
            words.append(f"left {command.number}")
        elif isinstance(command, c.Account):
            words += [
                f"account {number} to {line.to_s - T0}"
                for line in command.lines
                for number in accumulate(line.jobs)
            ]
        elif isinstance(command, c.Begin):
            words += [f"begin {shown(i.key)}#{i.attempt} on {on(i)}" for i in begun(command)]
        elif isinstance(command, c.Skip | c.Cancel):
            verb = type(command).__name__.lower()
            words += [f"{verb} {shown(item.key)} {item.reason.label}" for item in command.items]
        elif isinstance(command, c.Report):
            lost = items_of(command, rig.state)
            words += [f"lost {shown(item.key)}#{item.attempt}" for item in lost]
    return words


def on(item: BeginItem) -> str:
    return ", ".join(map(str, (item.executor, *item.others)))


def shown(key: c.Key) -> str:
    number, scheduled_s, trigger = key
    return f"{number}@{scheduled_s - T0}" + (f"+t{trigger}" if trigger else "")


def follow(rig: StateRig, *due_jobs: int, **fields: object) -> list[str]:
    """Plan, commit the plan, and expect that all of it is accepted."""
    words = told(rig, *due_jobs, **fields)
    commands = plan(view_of(rig, *due_jobs, **fields), rig.at_ms)
    if commands:
        for command, result in zip(commands, rig.append(*commands).results, strict=True):
            assert result.verdict is Verdict.ACCEPTED, command
            assert set(result.items) <= {Verdict.ACCEPTED}, command
    return words


def test_an_instant_is_accounted_and_begun_in_one_entry() -> None:  # design 3
    rig = with_job().to(60)
    assert follow(rig, 1) == ["account 1 to 60", "begin 1@60#1 on 1"]
    assert rig.row(60).state is LaunchState.BEGUN


def test_the_window_ends_with_the_deadline_or_sooner() -> None:  # R7
    for deadline_s, window_ms in ((300, 5_000), (3, 3_000)):
        rig = with_job(deadline_s=deadline_s).to(60)
        rig.append(*plan(view_of(rig, 1), rig.at_ms))
        assert rig.row(60).not_after_ms == rig.at_ms + window_ms


# ---- room


def test_without_a_slot_launches_wait_and_get_their_row_all_the_same() -> None:  # R1
    rig = with_job().to(60)
    assert follow(rig, 1, slots={}) == ["account 1 to 60"]
    assert rig.row(60).state is LaunchState.DUE
    assert follow(rig) == ["begin 1@60#1 on 1"]


def test_the_oldest_goes_first_and_catch_up_behind_what_is_live() -> None:
    rig = with_job(catchup=Catchup.ALL).to(180)
    rig.account(due=tuple(c.Instants(T0 + s, is_late=s < 180) for s in (60, 120, 180)), to=180)
    assert told(rig, slots={1: 2}) == ["begin 1@180#1 on 1", "begin 1@60#1 on 1"]


def test_one_entry_begins_no_more_than_its_bound() -> None:
    rig = with_job().to(180)
    rig.account(60, 120, 180)
    assert len(told(rig, rows_max=2)) == 2


def test_what_could_not_start_in_time_does_not_begin() -> None:
    """Its order left too late, it was refused, and the executor rested: half a second for each."""
    rig = with_job(deadline_s=30).to(60)
    rig.account(60)
    rig.to(89)
    assert told(rig, lead_ms=999) == ["begin 1@60#1 on 1"]
    assert told(rig, lead_ms=1_000) == ["skip 1@60 deadline"]
    for why in (Reason.OVERLOAD, Reason.NO_EXECUTOR):
        behind = told(rig, lead_ms=1_000, why_behind=lambda number, why=why: why)
        assert behind == [f"skip 1@60 {why.label}"]


def with_clocks(rig: StateRig, ahead_ms: dict[int, int], **slots: int) -> Queues:
    """Queues with executors 1 and 2, whose clocks are so far ahead of the leader's."""
    queues = queues_with(rig.state, {1: slots.get("first", 4), 2: slots.get("second", 0)})
    for number, one_ms in ahead_ms.items():
        queues.places.set_clock(number, one_ms)
    return queues


def test_a_launch_that_its_executors_clock_forbids_does_not_begin() -> None:
    """A leader whose clock was 1.5 s behind began the oldest launch of a full queue, which the
    executor refused as too late, each time that a rate allowed one: nothing ever started."""
    rig = with_job(deadline_s=30).to(60)
    rig.account(60)
    rig.to(89)
    for ahead_ms in (-5_000, 999):
        words = told(rig, queues=with_clocks(rig, {1: ahead_ms, 2: ahead_ms}))
        assert words == ["begin 1@60#1 on 1"]
    queues = with_clocks(rig, {1: 1_000, 2: 1_500})
    (skip,) = plan(view_of(rig, queues=queues), rig.at_ms)
    assert isinstance(skip, c.Skip)
    assert skip.items[0].reason is Reason.DEADLINE
    clocks = "the clocks of its executors are 1.0 s ahead of the leader's"
    assert sentence(skip.items[0].note, skip.items[0].detail) == clocks


def test_a_launch_goes_to_the_executor_whose_clock_allows_it() -> None:
    rig = with_job(deadline_s=30).to(60)
    rig.join("e2", "l2")
    rig.account(60)
    rig.to(89)
    assert told(rig, queues=with_clocks(rig, {1: 1_500}, second=1)) == ["begin 1@60#1 on 2"]


def test_a_launch_goes_again_to_the_executor_that_refused_it_if_the_others_clocks_forbid_it() -> (
    None
):
    rig = with_job(deadline_s=30).to(60)
    rig.join("e2", "l2")
    rig.account(60)
    rig.begin(60, executor=2)
    rig.refused(60)
    rig.to(89)
    queues = with_clocks(rig, {1: 1_500}, second=4)
    queues.places.take(2, Need())
    assert told(rig, queues=queues) == ["begin 1@60#2 on 2"]


def test_a_launch_that_waits_for_such_an_executor_holds_up_no_other() -> None:
    rig = with_job(deadline_s=30).to(60)
    rig.join("e2", "l2")
    rig.account(60, 70)
    rig.to(89)
    queues = with_clocks(rig, {1: 1_500}, second=1)
    queues.places.take(2, Need())
    assert told(rig, queues=queues) == ["begin 1@70#1 on 1"]


def test_what_is_past_its_deadline_is_skipped_without_room_too() -> None:
    rig = with_job(deadline_s=60).to(60)
    rig.account(60)
    rig.to(120)
    assert told(rig, slots={}) == ["skip 1@60 deadline"]


# ---- skips


def test_a_paused_job_skips_what_waits_but_not_what_a_person_triggers() -> None:
    rig = with_job().to(60)
    rig.account(60)
    rig.trigger("q1")
    rig.append(c.Pause(("default/backup",), "", 0, "anna"))
    assert follow(rig) == ["skip 1@60 paused", "begin 1@60+t1#1 on 1"]
    rig.to(120)
    assert told(rig, 1) == ["account 1 to 120"]


# ---- overlap


def overlapping(overlap: Overlap) -> StateRig:
    """A launch runs, and the next one is due."""
    rig = with_job(overlap=overlap).to(60)
    follow(rig, 1)
    rig.to(120)
    return rig


def test_what_is_filled_back_is_launched_although_its_job_is_paused() -> None:
    """A person asks for it, as with a trigger; and pausing the job meanwhile makes room for it."""
    rig = with_job().to(60)
    rig.account(60)
    rig.skip(60)
    rig.append(c.Pause(("default/backup",), "", 0, "anna"))
    rig.reopen(60, LaunchState.SKIPPED)
    assert follow(rig) == ["begin 1@60#1 on 1"]


def test_overlap_allow() -> None:
    assert follow(overlapping(Overlap.ALLOW), 1) == ["account 1 to 120", "begin 1@120#1 on 1"]


def test_overlap_forbid() -> None:
    assert follow(overlapping(Overlap.FORBID), 1) == ["account 1 to 120", "skip 1@120 overlap"]


def test_what_is_filled_back_waits_its_turn_where_overlap_is_forbidden() -> None:
    """A backfill of six hours began the first and skipped the five others at once."""
    rig = with_job(overlap=Overlap.FORBID).to(120)
    rig.account(120)
    rig.skip(120)
    rig.reopen(60, 0)
    rig.reopen(120, LaunchState.SKIPPED)
    assert follow(rig) == ["begin 1@60#1 on 1"]
    assert follow(rig) == []
    rig.finished(60)
    assert follow(rig) == ["begin 1@120#1 on 1"]


def test_all_that_was_missed_waits_its_turn_where_overlap_is_forbidden() -> None:
    """Of six missed instants the newest ran alone, and five were skipped for overlap with it."""
    rig = with_job(overlap=Overlap.FORBID, catchup=Catchup.ALL, deadline_s=600).to(180)
    assert follow(rig, 1) == ["account 1 to 180", "begin 1@180#1 on 1"]
    rig.finished(180)
    assert follow(rig) == ["begin 1@60#1 on 1"]
    rig.finished(60)
    assert follow(rig) == ["begin 1@120#1 on 1"]


def test_a_queue_is_first_in_first_out_also_for_what_was_missed() -> None:
    """The live instant went before those that were missed, and a queue is there for its order."""
    rig = with_job(overlap=Overlap.QUEUE, catchup=Catchup.ALL, deadline_s=600).to(180)
    assert follow(rig, 1) == ["account 1 to 180", "begin 1@60#1 on 1"]
    rig.finished(60)
    assert follow(rig) == ["begin 1@120#1 on 1"]
    rig.finished(120)
    assert follow(rig) == ["begin 1@180#1 on 1"]


def test_who_waits_in_a_queue_holds_those_behind_it() -> None:
    rig = with_job(overlap=Overlap.QUEUE, catchup=Catchup.ALL, deadline_s=600).to(180)
    assert follow(rig, 1, late_budget=0) == ["account 1 to 180"]
    assert follow(rig, late_budget=1) == ["begin 1@60#1 on 1"]


def test_overlap_queue() -> None:
    rig = overlapping(Overlap.QUEUE)
    assert follow(rig, 1) == ["account 1 to 120"]
    rig.to(180)
    assert follow(rig, 1) == ["account 1 to 180"]
    rig.finished(60)
    assert follow(rig) == ["begin 1@120#1 on 1"]
    assert follow(rig) == []
    rig.finished(120)
    assert follow(rig) == ["begin 1@180#1 on 1"]


def test_overlap_replace_begins_only_after_the_old_one_is_dead() -> None:  # R8
    rig = overlapping(Overlap.REPLACE)
    assert follow(rig, 1) == ["account 1 to 120", "cancel 1@60 replaced"]
    assert follow(rig) == []
    rig.finished(60, state=LaunchState.CANCELLED, reason=Reason.REPLACED)
    assert follow(rig) == ["begin 1@120#1 on 1"]


def test_overlap_replace_ends_what_waits_from_before() -> None:  # R8
    rig = overlapping(Overlap.REPLACE)
    follow(rig, 1)
    rig.to(180)
    words = follow(rig, 1)
    assert words == ["account 1 to 180", "cancel 1@120 replaced"]
    rig.finished(60, state=LaunchState.CANCELLED, reason=Reason.REPLACED)
    assert follow(rig) == ["begin 1@180#1 on 1"]


def test_a_forbidden_launch_that_finds_no_executor_is_not_called_an_overlap() -> None:
    rig = with_job(overlap=Overlap.FORBID).to(60)
    assert follow(rig, 1, slots={}) == ["account 1 to 60"]
    assert follow(rig, slots={}) == []
    assert follow(rig) == ["begin 1@60#1 on 1"]


def test_the_slot_of_a_lost_launch_is_held_until_it_must_be_dead() -> None:  # R6
    rig = overlapping(Overlap.QUEUE)
    rig.lost(60, held_until=130)
    assert follow(rig, 1) == ["account 1 to 120"]
    rig.to(130)
    assert follow(rig) == ["begin 1@120#1 on 1"]


# ---- executors that are gone


def test_what_was_open_on_an_expired_executor_is_lost_and_it_leaves() -> None:
    rig = with_job().to(60)
    follow(rig, 1)
    rig.to(120)
    words = follow(rig, expired=[1], slots={})
    assert words == ["lost 1@60#1", "left 1"]
    assert not rig.state.executors


def test_the_slot_of_what_is_lost_in_this_plan_is_free_in_it() -> None:
    rig = overlapping(Overlap.FORBID)
    rig.join("e2", "l2")
    words = follow(rig, 1, expired=[1], slots={2: 1})
    assert words == ["lost 1@60#1", "left 1", "account 1 to 120", "begin 1@120#1 on 2"]


def test_nothing_begins_on_an_executor_that_is_lost_until_it_has_joined_again() -> None:
    rig = with_job().to(60)
    follow(rig, 1)
    rig.to(120)
    follow(rig, expired=[1], slots={})
    rig.account(120)
    assert rig.begin(120) is Verdict.UNKNOWN_EXECUTOR
    number = rig.join("e1", "l1")
    assert number != 1
    assert rig.begin(120) is Verdict.UNKNOWN_EXECUTOR
    assert rig.begin(120, executor=number) is Verdict.ACCEPTED


# ---- bounds of one entry


SECONDS = Schedule("@every 1s", every_s=1)


TENTH = 10  # of the real bounds and sizes


def test_a_great_outage_of_many_jobs_comes_in_several_entries() -> None:
    """A day of seconds of a dozen jobs did not fit into an entry; the leader failed, led again
    and failed again, for ever."""
    day = 86_400 // TENTH
    rig = StateRig()
    jobs = [
        job(f"j{n}", schedule=SECONDS, catchup=Catchup.ALL, deadline_s=2 * day) for n in range(4)
    ]
    rig.put(*jobs)
    rig.to(day)
    left, entries = [1, 2, 3, 4], 0
    while left:
        view = view_of(rig, *left, slots={}, rows_max=10_000)
        rig.append(*plan(view, rig.at_ms))
        assert len(rig.log[-1]) < (2 << 20) // TENTH
        left, entries = [number for due in view.postponed for number in due.numbers], entries + 1
    assert entries == 4  # one job's instants are spread over two of them
    assert len(rig.state.due) == 4 * day
