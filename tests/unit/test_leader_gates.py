"""Gates, limits and workers as the queues go by them, and what the indexes make of entries."""

from __future__ import annotations

from typing import Any

import pytest

from cron.job import Catchup, Job, Overlap, Retry
from cron.launch_state import LaunchState
from cron.notes import sentence
from cron.scheduler.candidates import is_exempt
from cron.scheduler.gates import FOREVER_MS, fits, note_of
from cron.scheduler.places import Capacity, Place
from cron.state import commands as c
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Verdict
from cron.state.pool import Gate, GateAction, LiftGates
from launcher.protocol.reports import GroupOffer
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.queues_rig import SECONDS
from tests.unit.queues_rig import QueuesRig as Rig
from tests.unit.state_rig import T0, job


def work(name: str = "backup", handler: str = "", **fields: Any) -> Job:
    """A job whose launches may overlap."""
    spec = WorkSpec((), handler=handler) if handler else WorkSpec(("true",))
    return job(name, schedule=SECONDS, deadline_s=10_000, **{"work": spec} | fields)


# ---- gates


def test_of_two_gates_the_one_that_lasts_longer_holds() -> None:
    rig = Rig(work())
    rig.close(until_ms=(T0 + 60) * 1000)
    forever = rig.close()
    rig.to(5).account(1)
    assert rig.turn() == []
    assert rig.to(61).turn() == []
    rig.append(LiftGates((forever,), "anna"))
    assert rig.turn() == ["begin 1@1#1"]


def test_a_gate_that_drops_goes_before_one_that_pauses() -> None:
    rig = Rig(work())
    rig.close()
    rig.close(action=GateAction.DROP, reason="a leak")
    rig.to(5).account(1)
    assert rig.turn() == ["skip 1@1 gated"]
    assert sentence(rig.rig.rows[-1].note).endswith("until it is opened: a leak")


def test_a_launch_that_rests_longer_than_a_gate_is_closed_rests_on() -> None:
    """It was begun when the gate opened, which State refused: another attempt might have run."""
    rig = Rig(work(retry=Retry(3, backoff_ms=60_000)))
    rig.to(5).account(1)
    assert rig.turn() == ["begin 1@1#1"]
    rig.end(1, code=1)
    rig.close(until_ms=(T0 + 10) * 1000)
    assert rig.turn() == []
    assert rig.to(11).turn() == []
    assert rig.to(75).turn() == ["begin 1@1#2"]


@pytest.mark.parametrize("action", list(GateAction))
def test_a_gate_that_is_closed_until_the_end_of_days_stops_no_leader(action: GateAction) -> None:
    """Its time has no name; the plan failed over it, and so did that of each next leader."""
    rig = Rig(work())
    rig.close(action=action, until_ms=10**18)
    rig.to(5).account(1)
    assert rig.turn() == (["skip 1@1 gated"] if action is GateAction.DROP else [])
    assert "until 9999" in sentence(note_of(rig.state.gates[1]))


GATE = Gate(1, GateAction.PAUSE, "", "", 0)


@pytest.mark.parametrize(
    ("named", "fitting"),
    [
        ({}, True),
        ({"tenant": "default"}, True),
        ({"tenant": "acme"}, False),
        ({"jobs": "default/b*"}, True),
        ({"jobs": "backup"}, False),
        ({"jobs": "[z-a]*"}, False),
        ({"pool": "command"}, True),
        ({"pool": "h"}, False),
        ({"collection": "night"}, True),
        ({"collection": "day"}, False),
        ({"priority": 5}, True),
        ({"priority": 0}, False),
        ({"tenant": "default", "priority": 0}, False),
    ],
)
def test_a_gate_is_for_what_fits_all_that_it_names(named: dict[str, Any], fitting: bool) -> None:
    rig = Rig(work(collection="night"))
    record = rig.state.by_number[1]
    gate = Gate(1, GateAction.PAUSE, "", "", 0, **named)
    assert record.job is not None
    assert fits(gate, record, record.job) is fitting


def test_a_gate_says_who_closed_it() -> None:
    assert sentence(note_of(GATE)) == "gate 1, closed by somebody until it is opened"
    assert FOREVER_MS > 10**18


# ---- limits


def test_a_new_leader_counts_what_runs_against_the_limits() -> None:
    rig = Rig(work())
    rig.limit(("", "command", -1), concurrent=2)
    rig.to(5).account(1, 2, 3)
    assert len(rig.turn()) == 2
    rig.lead()
    assert rig.turn() == []
    rig.end(1)
    assert rig.turn() == ["begin 1@3#1"]


# ---- workers


def offer(rig: Rig, group: str, slots: int, *handlers: str) -> None:
    """Executor 1 has these workers from now on."""
    rig.queues.places.put(Place(1, {}, (Capacity(4), Capacity(slots, handlers))))
    rig.queues.serve(1, [GroupOffer(group, slots, handlers)])


def test_handlers_of_one_group_share_its_slots() -> None:
    rig = Rig(work("a", handler="a"), work("b", handler="b"))
    offer(rig, "g", 1, "a", "b")
    rig.to(5).account(1)
    rig.account(2, number=2)
    assert rig.turn() == ["begin 1@1#1"]
    rig.end(1)
    assert rig.turn() == ["begin 2@2#1"]


# ---- what an entry did not accept


def test_a_skip_that_came_too_late_changes_nothing() -> None:
    rig = Rig(work())
    rig.to(5).account(1)
    rig.turn()
    skip = c.Skip((c.SkippedItem((1, T0 + 1, 0), Reason.DEADLINE),))
    assert rig.append(skip) == [[Verdict.NOT_DUE]]
    assert rig.agrees()


# ---- launches that are due


def row(**fields: Any) -> LaunchRow:
    usual = {"number": 1, "scheduled_s": T0 + 1, "trigger": 0, "state": LaunchState.DUE}
    return LaunchRow(deadline_ms=(T0 + 60) * 1000, **usual | fields)


@pytest.mark.parametrize(
    ("late", "refused", "reason"),
    [
        (False, False, Reason.DEADLINE),
        (True, False, Reason.MISSED),
        (False, True, Reason.FENCED),
        (True, True, Reason.FENCED),
    ],
)
def test_why_a_launch_is_past_its_deadline(late: bool, refused: bool, reason: Reason) -> None:
    rig = Rig(work()).to(5)
    rig.account(1, late=late)
    if refused:
        assert rig.turn() == ["begin 1@1#1"]
        rig.refuse(1)
    rig.to(20_000)
    assert rig.turn() == [f"skip 1@1 {reason.label}"]


def test_what_is_exempt_where_overlap_is_forbidden() -> None:
    every, last = (
        work(overlap=Overlap.FORBID, catchup=catchup) for catchup in (Catchup.ALL, Catchup.LAST)
    )
    late, live = row(is_late=True), row()
    assert (is_exempt(late, every), is_exempt(late, last)) == (True, False)
    assert not is_exempt(live, every)
    assert is_exempt(row(by="anna"), last)
