"""Many gates: a job is compared with few of them, and the answer is that of comparing with all."""

from __future__ import annotations

from random import Random

import pytest

from cron.scheduler.gates import Gates, gate_of
from cron.state.pool import CloseGate, Gate, GateAction, LiftGates
from launcher.protocol.work import WorkSpec
from tests.unit.state_rig import StateRig, job
from tests.unit.test_fairness_cost import calls

NAMES = tuple(f"{word}{number}" for word in ("mail", "bill") for number in range(3))
MANY = 500


def rig_of(*names: str) -> StateRig:
    rig = StateRig()
    rig.put(*(job(name) for name in names))
    return rig


def close(rig: StateRig, **fields: object) -> None:
    rig.append(CloseGate(Gate(0, GateAction.PAUSE, "", "", 0, **fields)))  # type: ignore[arg-type]


def drawn(chance: Random) -> dict[str, object]:
    """What a gate names."""
    return {
        "tenant": chance.choice(["", "", "default", "acme"]),
        "jobs": chance.choice(["", "default/mail*", "*1", "*/bill?", "acme/*", "[z-a]", "*(*"]),
        "pool": chance.choice(["", "", "command", "h"]),
        "priority": chance.choice([-1, -1, 5, 0]),
        "until_ms": chance.choice([0, 9_999_999_999_999]),
    }


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_and_goes_each_job_has_the_gate_that_it_should(seed: int) -> None:
    chance, rig = Random(seed), rig_of(*NAMES)
    state, gates = rig.state, Gates(rig.state)
    had: dict[int, Gate | None] = dict.fromkeys(state.by_number)
    for step in range(30):
        if state.gates and chance.random() < 0.45:
            rig.append(LiftGates((chance.choice(list(state.gates)),)))
        else:
            close(rig, **drawn(chance))
        if chance.random() < 0.2:
            other = WorkSpec(("/bin/true",), priority=chance.choice([0, 5]))
            rig.put(*(job(name, work=other) for name in NAMES))
        waiting = [number for number in state.by_number if chance.random() < 0.7]
        told = gates.changed(waiting)
        for number, record in state.by_number.items():
            assert record.job is not None
            wanted = gate_of(state, record, record.job, rig.at_ms)
            assert gates.of(record, record.job, rig.at_ms) == wanted, (step, record.name)
            if number in waiting and wanted != had[number] and had[number] is not None:
                assert number in told, (step, record.name)
            had[number] = wanted


def judged(rig: StateRig) -> int:
    """What it costs to find that no gate holds a job, once somebody has asked for another."""
    gates = Gates(rig.state)
    first, other = rig.state.by_number[1], rig.state.by_number[2]
    assert first.job is not None
    gates.of(first, first.job, rig.at_ms)
    job_of = other.job
    assert job_of is not None
    cost = calls(lambda: gates.of(other, job_of, rig.at_ms))
    assert gates.of(other, job_of, rig.at_ms) is None
    return cost


@pytest.mark.parametrize("named", ["jobs", "tenant"])
def test_a_job_is_not_compared_with_gates_of_others(named: str) -> None:
    """A hundred thousand jobs and a thousand gates took a new leader a minute and a half."""
    few, many = rig_of("a", "b"), rig_of("a", "b")
    for rig, count in ((few, 2), (many, MANY)):
        for number in range(count):
            close(rig, **{named: f"t{number}" + "/*" * (named == "jobs")})
    assert judged(many) <= judged(few)
