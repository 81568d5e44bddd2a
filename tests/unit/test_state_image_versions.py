"""Images of the version before: read as what they meant, and written as today's."""

from __future__ import annotations

from typing import Any

import pytest

from cron.errors import InvariantViolated
from cron.job import Job, Retry
from cron.state import pool
from cron.state.image import IMAGE_VERSION, decode_outline, decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.pool import Limits
from cron.state.state import ExecutorRecord, JobRecord, LaunchRow
from launcher.launch import LaunchState, Reason
from launcher.work import WorkSpec
from tests.unit.state_rig import StateRig, image_of, image_parts, job
from tests.unit.test_state_machine import everything

HEAD_3 = 17
"""Fields of the first part of version 3."""
LAST_3: dict[type, str] = {
    ExecutorRecord: "recalled",
    JobRecord: "recovered",
    LaunchRow: "not_before_ms",
    Job: "line",
    WorkSpec: "guarded",
}
"""The last field that each struct of version 3 had."""


def place(kind: type[Any], name: str) -> int:
    return kind.__struct_fields__.index(name)  # type: ignore[no-any-return]


def cut(kind: type, values: list[Any]) -> list[Any]:
    return values[: place(kind, LAST_3[kind]) + 1]


def cut_job(values: list[Any] | None) -> list[Any] | None:
    if values is None:
        return None
    at = place(Job, "work")
    return cut(Job, [*values[:at], cut(WorkSpec, values[at]), *values[at + 1 :]])


def cut_record(values: list[Any]) -> list[Any]:
    values = list(values)
    at, job_at = place(JobRecord, "open"), place(LaunchRow, "job")
    values[place(JobRecord, "job")] = cut_job(values[place(JobRecord, "job")])
    rows = {key: list(row) for key, row in values[at].items()}
    for row in rows.values():
        row[job_at] = cut_job(row[job_at])
    values[at] = {key: cut(LaunchRow, row) for key, row in rows.items()}
    return cut(JobRecord, values)


def version_3(image: bytes) -> bytes:
    """The image that version 3 wrote of a State that has nothing it did not know."""
    head, *parts = image_parts(image)
    head = [3, *head[1:HEAD_3]]
    head[9] = [cut(ExecutorRecord, one) for one in head[9]]
    head[13] = [
        [change, [[cut_job(one) for one in jobs] for jobs in staged]] for change, staged in head[13]
    ]
    return image_of([head, *([cut_record(one) for one in part] for part in parts)])


def pooled() -> StateRig:
    """A State with everything that version 4 brought."""
    rig = everything(1)
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
    rig.put(job("tried", work=work, retry=Retry(tries=3), deadline_s=4000))
    number = rig.record("tried").number
    rig.to(300).account(181, 182, 183, number=number, from_s=rig.record("tried").horizon_s)
    return rig


def test_version_3_knew_nothing_of_the_pool() -> None:
    old, new = version_3(encode_state(everything(1).state)), encode_state(everything().state)
    assert len(old) < len(new)
    assert [image_parts(image)[0][0] for image in (old, new)] == [3, IMAGE_VERSION]


def test_jobs_of_version_3_are_commands_that_are_tried_once() -> None:
    again = decode_state([version_3(encode_state(everything(1).state))])
    one = again.jobs["default/backup"].job
    assert one is not None
    assert (one.retry, one.pool, one.parts, one.concurrency) == (Retry(), "command", 1, 0)
    assert {row.tries for row in again.open_rows()} == {0}


def test_an_outline_of_version_3_is_read_too() -> None:
    rig = everything(1)
    outline, jobs = decode_outline([version_3(encode_state(rig.state))])
    assert (outline.index, jobs) == (rig.state.index, len(rig.state.jobs))


@pytest.mark.parametrize("version", [0, 1, 2, 6])
def test_other_versions_are_refused(version: int) -> None:
    head, *parts = image_parts(encode_state(everything(1).state))
    with pytest.raises(InvariantViolated, match=f"version {version}, this program knows 5"):
        decode_state([image_of([[version, *head[1:]], *parts])])


def test_an_image_of_version_4_is_the_state() -> None:
    rig = pooled()
    dead = {"state": LaunchState.FAILED, "reason": Reason.FATAL, "exit_code": 1}
    number = rig.record("tried").number
    for second in (183, 181):
        rig.begin(second, number=number)
        assert rig.finished(second, number=number, **dead) is Verdict.ACCEPTED
    rig.begin(182, number=number)
    rig.finished(182, number=number, state=LaunchState.FAILED, exit_code=1)
    state = rig.state
    again = decode_state([encode_state(state)])
    assert encode_state(again) == encode_state(state)
    assert again.jobs == state.jobs
    assert again.executors == state.executors
    assert list(again.limits.items()) == list(state.limits.items())
    assert list(again.gates.items()) == list(state.gates.items())
    assert list(again.dead.items()) == list(state.dead.items())
    assert [one.serial for one in again.dead.values()] == [1, 2]
    assert (again.gate_numbers, again.dead_numbers) == (2, 2)
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
    head[9] = [[*one, "new"] for one in head[9]]
    longer = [[*one, "new"] for part in parts for one in part]
    again = decode_state([image_of([[*head, "new"], longer])])
    assert encode_state(again) == encode_state(pooled().state)


@pytest.mark.parametrize(("log_format", "version"), [(1, 4), (2, 5)])
def test_a_release_that_knows_format_1_alone_refuses_the_image_of_a_later_one(
    log_format: int, version: int
) -> None:
    """It reads versions 3 and 4, and passes over fields that it does not know: the format too."""
    rig = StateRig(log_format=log_format)
    image = encode_state(rig.state)
    assert image_parts(image)[0][0] == version
    assert decode_state([image]).format == log_format
