"""What an image has beside the jobs, and which versions of it are read."""

from __future__ import annotations

import pytest

from cron.errors import InvariantViolated, TooOld
from cron.job import Retry
from cron.launch_state import LaunchState
from cron.state import pool
from cron.state.image import IMAGE_VERSION, decode_outline, decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.pool import Limits
from cron.state.state import State
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.state_rig import StateRig, executors_of, image_of, image_parts, job
from tests.unit.test_state_machine import everything


def pooled() -> StateRig:
    """A State with something of all that the pool has."""
    rig = everything()
    limits = (
        pool.LimitItem(("*", "", -1), Limits(1, 2, 3, 4, 5, 6, 7)),
        pool.LimitItem(("", "command", 9), Limits(rate_milli=9)),
    )
    rig.append(pool.SetLimits(limits, "anna"))
    rig.append(pool.CloseGate(pool.Gate(0, pool.GateAction.DROP, "why", "anna", 0, jobs="x/*")))
    rig.append(pool.CloseGate(pool.Gate(0, pool.GateAction.PAUSE, "why", "bea", 0)))
    rig.append(pool.LiftGates((1,)))
    rig.append(pool.Drain("e2", "anna"))
    work = WorkSpec((), handler="billing.invoice", payload=b"{}", priority=3)
    rig.put(job("tried", work=work, retry=Retry(tries=3, fatal_codes=(7,)), deadline_s=4000))
    number = rig.record("tried").number
    rig.to(300).account(181, 182, 183, number=number, from_s=rig.record("tried").horizon_s)
    return rig


@pytest.mark.parametrize("version", [0, 1, 5])
def test_an_image_of_an_earlier_version_is_refused_with_the_way_out(version: int) -> None:
    head, *parts = image_parts(encode_state(everything().state))
    with pytest.raises(InvariantViolated, match=f"version {version}, .* start a new cell"):
        decode_state([image_of([[version, *head[1:]], *parts])])


def test_an_image_of_a_later_version_asks_for_an_upgrade() -> None:
    head, *parts = image_parts(encode_state(everything().state))
    with pytest.raises(TooOld, match=f"version {IMAGE_VERSION + 1}.*upgrade this replica"):
        decode_state([image_of([[IMAGE_VERSION + 1, *head[1:]], *parts])])


def test_an_image_is_the_state() -> None:
    rig = pooled()
    dead = {"state": LaunchState.FAILED, "exit_code": 7}
    number = rig.record("tried").number
    for second, reason in ((183, Reason.FATAL), (181, Reason.NONE)):
        rig.begin(second, number=number)
        assert rig.finished(second, number=number, reason=reason, **dead) is Verdict.ACCEPTED
    rig.begin(182, number=number)
    rig.finished(182, number=number, state=LaunchState.FAILED, exit_code=1)
    state = rig.state
    again = decode_state([encode_state(state)])
    assert encode_state(again) == encode_state(state)
    assert again.jobs == state.jobs
    assert executors_of(again) == executors_of(state)
    assert list(again.limits.items()) == list(state.limits.items())
    assert list(again.gates.items()) == list(state.gates.items())
    assert list(again.dead.items()) == list(state.dead.items())
    assert [one.scheduled_s for one in again.dead.values()] == [key[1] for key in state.dead]
    assert (again.gate_numbers, len(again.dead)) == (2, 2)
    assert again.budgets == state.budgets == {"default": 1000}
    assert [row.tries for row in again.due.values() if row.number == number] == [1]


def test_letters_of_an_image_are_those_of_its_jobs() -> None:
    rig = pooled()
    number = rig.record("tried").number
    rig.begin(181, number=number)
    rig.finished(181, number=number, state=LaunchState.FAILED, reason=Reason.FATAL)
    again = decode_state([encode_state(rig.state)])
    for key, letter in again.dead.items():
        assert again.by_number[key[0]].dead[key[1:]] is letter


def test_the_first_part_tells_limits_and_gates_without_the_jobs() -> None:
    rig = pooled()
    outline, _ = decode_outline([encode_state(rig.state)])
    assert (outline.limits, outline.gates) == (rig.state.limits, rig.state.gates)
    assert outline.dead == {}


def test_a_later_release_may_append_to_every_struct() -> None:
    """Evolution: new fields come at the end; who does not know them ignores them."""
    head, *parts = image_parts(encode_state(pooled().state))
    head[2].append("new")
    at = State.__struct_fields__.index("executors")
    head[2][at] = {number: [*one, "new"] for number, one in head[2][at].items()}
    longer = [[*one, "new"] for part in parts for one in part]
    again = decode_state([image_of([[*head, "new"], longer])])
    assert encode_state(again) == encode_state(pooled().state)
