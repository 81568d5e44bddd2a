"""An image is of the moment it was begun at, whatever is applied while it is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from cron.job import Overlap, Retry, Schedule
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import imaging, pool, retries
from cron.state.codec import encode_entry
from cron.state.commands import Forget
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.letters import LETTERS
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from tests.model.test_state_totality import COMMANDS, absurd, steered
from tests.states import is_imaging
from tests.unit.state_rig import T0, StateRig, image_parts, job, with_job


def many_jobs(count: int) -> StateRig:
    """A machine with jobs of all policies, each with launches in all states."""
    rig = StateRig()
    policies = list(Overlap)
    rig.put(*(job(f"j{n}", overlap=policies[n % len(policies)]) for n in range(count)))
    return rig


@pytest.mark.parametrize("seed", range(12))
def test_no_command_changes_an_image_that_is_under_way(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # every command of the table, steered so that it mostly fits; a change without `touch` shows
    monkeypatch.setattr(imaging, "PART_BYTES", 1)
    chance, rig = Random(seed), with_job(retry=Retry(tries=3), deadline_s=86_400)
    machine, changed = rig.machine, 0
    for index in range(rig.machine.state.index + 1, 1200):
        if not is_imaging(machine.state) and chance.random() < 0.1:
            expected = encode_state(machine.state)
            pieces = Imaging.begin(machine.state).pieces()
            taken = [next(pieces)]
            begun = machine.state.digest
        commands = (steered(absurd(chance.choice(COMMANDS), chance), machine, chance),)
        at_ms = rig.at_ms + index * 700
        machine.apply(1, index, encode_entry(at_ms, machine.state.epoch, commands))
        if is_imaging(machine.state) and chance.random() < 0.3:
            piece = next(pieces, None)
            if piece is not None:
                taken.append(piece)
                continue
            changed += machine.state.digest != begun
            assert b"".join(taken) == expected
    assert changed > 3


def busy() -> StateRig:
    """One job with launches that are due, begun, launched and ended."""
    rig = with_job(overlap=Overlap.ALLOW)
    rig.join()
    rig.account(60, 120, 180, 240)
    rig.begin(120)
    rig.begin(180)
    rig.launched(180)
    rig.begin(240)
    rig.lost(240)
    return rig


def asked() -> StateRig:
    """The same with a launch that somebody asked for: in no column, but in the job's record."""
    rig = busy()
    rig.trigger("q0")
    return rig


def guarded() -> StateRig:
    """One job that forbids overlap, with a launch that runs."""
    rig = with_job(overlap=Overlap.FORBID)
    rig.join()
    rig.account(60)
    rig.begin(60)
    return rig


def failing(reason: Reason = Reason.NONE) -> Callable[[StateRig], object]:
    """The launch at 60 fails for that reason."""
    return lambda rig: rig.finished(60, state=LaunchState.FAILED, reason=reason, exit_code=1)


def tried() -> StateRig:
    """One job with retries and a budget, with a launch that runs."""
    rig = with_job(retry=Retry(tries=3), deadline_s=3600)
    limits = pool.LimitItem(("default", "", -1), pool.Limits(retry_budget=5))
    rig.append(pool.SetLimits((limits,)))
    rig.account(60, 120)
    rig.begin(60)
    return rig


def dead() -> StateRig:
    """The same with a launch that was given up, and one more."""
    rig = tried()
    rig.begin(120)
    for second in (120, 60):
        end = {"state": LaunchState.FAILED, "reason": Reason.FATAL}
        assert rig.finished(second, **end) is Verdict.ACCEPTED
    return rig


def rescheduled() -> StateRig:
    """One job whose schedule was another one before."""
    rig = with_job()
    rig.to(60).account(60)
    rig.skip(60)
    rig.put(job(schedule=Schedule("0 * * * *", "0 * * * *")))
    return rig


CHANGES: dict[str, tuple[Callable[[], StateRig], Callable[[StateRig], object]]] = {
    "put": (with_job, lambda rig: rig.put(job("backup", deadline_s=99))),
    "remove": (with_job, lambda rig: rig.put(removed=("default/backup",))),
    "pause": (busy, lambda rig: rig.append(c.Pause(("default/backup",), "why", 0, "anna"))),
    "account": (busy, lambda rig: rig.account(300)),
    "begin": (asked, lambda rig: rig.begin(0, trigger=1)),
    "launched": (busy, lambda rig: rig.launched(120)),
    "finished": (busy, lambda rig: rig.finished(180)),
    "finished before log point 2": (busy, lambda rig: rig.finished(120)),
    "refused": (busy, lambda rig: rig.refused(120)),
    "skip": (busy, lambda rig: rig.skip(60)),
    "lost": (guarded, lambda rig: rig.lost(60, held_until=900)),
    "cancel what is due": (busy, lambda rig: rig.cancel(60)),
    "cancel what runs": (busy, lambda rig: rig.cancel(180)),
    "trigger": (busy, lambda rig: rig.trigger("q1")),
    "reopen": (busy, lambda rig: rig.reopen(240, LaunchState.LOST, 1)),
    "try again": (tried, failing()),
    "give up": (tried, failing(Reason.FATAL)),
    "redrive": (dead, lambda rig: rig.append(pool.Redrive(((1, T0 + 60, 0),)))),
    "drop a dead one": (dead, lambda rig: rig.append(pool.DropDead(((1, T0 + 60, 0),)))),
    "forget a schedule": (rescheduled, lambda rig: rig.append(Forget((1,), T0 + 60))),
    "reopen a dead one": (dead, lambda rig: rig.reopen(60, LaunchState.FAILED, 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_of_a_job_or_its_launches_reaches_an_image_under_way(change: str) -> None:
    prepare, act = CHANGES[change]
    rig = prepare()
    expected = encode_state(rig.state)
    taken = Imaging.begin(rig.state)
    act(rig)
    assert b"".join(taken.pieces()) == expected
    parts = [image_parts(image)[1:] for image in (expected, encode_state(rig.state))]
    assert parts[0] != parts[1], "the command has changed the job"


def test_the_oldest_letter_goes_while_an_image_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It is another job's than the one whose launch dies. Before the format of all letters.
    monkeypatch.setattr(retries, "DEAD_KEPT", 2)
    monkeypatch.setattr(imaging, "PART_BYTES", 1)
    rig = many_jobs(9)
    rig.state.format = LETTERS - 1
    rig.join()
    end = {"state": LaunchState.FAILED, "reason": Reason.RETRY, "exit_code": 1}
    for number in range(9, 0, -1):
        rig.account(60, number=number)
        rig.begin(60, number=number)
    for number in (9, 8):
        rig.finished(60, number=number, **end)
    expected = encode_state(rig.state)
    pieces = Imaging.begin(rig.state).pieces()
    taken = [next(pieces) for _ in range(3)]
    for number in (7, 1):
        rig.finished(60, number=number, **end)
    assert [key[0] for key in rig.state.dead] == [7, 1]
    assert b"".join([*taken, *pieces]) == expected
    assert [key[0] for key in decode_state([expected]).dead] == [9, 8]


POOL: dict[str, Callable[[StateRig], object]] = {
    "limits": lambda rig: rig.append(
        pool.SetLimits((pool.LimitItem(("a", "", -1), pool.Limits(weight=2)),))
    ),
    "a gate": lambda rig: rig.append(
        pool.CloseGate(pool.Gate(0, pool.GateAction.PAUSE, "why", "anna", 0))
    ),
    "a lifted gate": lambda rig: rig.append(pool.LiftGates((1,))),
    "a drain": lambda rig: rig.append(pool.Drain("e1", "anna")),
    "a budget": failing(),
}
"""What is in the first part, which is encoded at once."""


@pytest.mark.parametrize("change", POOL)
def test_no_change_of_the_pool_reaches_an_image_under_way(change: str) -> None:
    rig = tried()
    POOL["a gate"](rig)
    expected = encode_state(rig.state)
    taken = Imaging.begin(rig.state)
    POOL[change](rig)
    assert b"".join(taken.pieces()) == expected
    heads = [image_parts(image)[0] for image in (expected, encode_state(rig.state))]
    assert heads[0][2][4:] != heads[1][2][4:]


def test_launches_that_go_their_whole_way_meanwhile_are_in_it_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(imaging, "PART_BYTES", 1)
    rig = many_jobs(9)
    rig.join()
    state = rig.state
    for number in range(1, 10):
        rig.account(60, number=number)
        if number % 3:
            rig.begin(60, number=number)
        if number % 3 == 2:
            rig.launched(60, number=number)
    expected = encode_state(state)
    pieces = Imaging.begin(state).pieces()
    taken = [next(pieces) for _ in range(3)]
    for number in range(9, 0, -1):
        if number % 3 == 0:
            rig.begin(60, number=number)
        rig.finished(60, number=number, state=LaunchState.SUCCEEDED)
    rig.append(c.Pause(tuple(state.jobs), "why", 0, "anna"))
    rig.put(job("late"))
    assert b"".join([*taken, *pieces]) == expected
    assert encode_state(state) != expected
    assert not is_imaging(state)


def test_a_thread_takes_the_image_while_another_applies() -> None:
    rig = many_jobs(400)
    state = rig.state
    names = tuple(state.jobs)
    expected = encode_state(state)
    pieces = Imaging.begin(state).pieces()
    taken: list[bytes] = []
    reader = threading.Thread(target=lambda: taken.extend(pieces))
    reader.start()
    round_ = 0
    while reader.is_alive() or round_ == 0:
        round_ += 1
        rig.append(c.Pause(names, f"round {round_}", 0, "anna"), c.Resume(names, "anna"))
    reader.join()
    assert b"".join(taken) == expected


def test_an_image_that_is_given_up_keeps_nothing_any_more() -> None:
    rig = many_jobs(3)
    pieces = Imaging.begin(rig.state).pieces()
    next(pieces)
    pieces.close()
    assert not is_imaging(rig.state)


def test_a_replica_that_was_restored_from_it_goes_on_like_the_others() -> None:
    rig = with_job()
    imaging_ = Imaging.begin(rig.state)
    at = len(rig.log)
    rig.account(60)
    rig.skip(60, Reason.GATED)
    duplicate_id = Machine(decode_state(imaging_.pieces()))
    for index, entry in enumerate(rig.log[at:], at + 1):
        duplicate_id.apply(1, index, entry)
    assert duplicate_id.state.digest == rig.state.digest
