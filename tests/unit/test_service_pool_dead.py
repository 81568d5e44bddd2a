"""Dead letters as the leader finds, launches again and forgets them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.api.dead import DeadChange, DeadQuery
from cron.errors import NotFound
from cron.job import Retry
from cron.launch_state import LaunchState
from cron.limits import ATTEMPTS_MAX
from cron.service import dead
from cron.state.letters import LETTERS
from cron.state.state import State
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.pool_people_rig import World
from tests.unit.state_rig import T0, StateRig, job

MAIL = WorkSpec(argv=(), handler="mail.send", payload=b"1")


def world() -> World:
    """Four dead letters: three of mails, the last of which took too long, and one of a command.
    Each launch of a job has one, as before the format of all letters."""
    rig = StateRig(log_format=LETTERS - 1)
    rig.put(job("mail", work=MAIL), job("backup", retry=Retry(tries=2), collection="nightly"))
    rig.join()
    w = World(rig)
    w.die(60)
    w.die(120)
    w.die(180, number=2)
    w.die(240, state=LaunchState.FAILED, reason=Reason.TIMEOUT, exit_code=-1, detail="")
    return w


def name(second: int, of: str = "mail") -> str:
    number = {"mail": 1, "backup": 2}[of]
    return str(world().state.launch_name((number, T0 + second, 0)))


ALL = [name(60), name(120), name(180, "backup"), name(240)]


async def test_a_dead_letter_says_why_it_was_given_up() -> None:
    (letter,) = (await world().service.dead(DeadQuery(launch=ALL[0]))).letters
    known = dict(
        launch=ALL[0],
        job="mail",
        tenant="default",
        scheduled_s=T0 + 60,
        pool="mail.send",
        attempt=1,
        tries=1,
        state="failed",
        reason="fatal",
        ended_at_ms=(T0 + 60) * 1000,
        exit_code=3,
        detail="no such customer",
        executor="e1",
        output_bytes=12,
    )
    assert {name: getattr(letter, name) for name in known} == known


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, [0, 1, 2, 3]),
        ({"jobs": "default/b*"}, [2]),
        ({"jobs": "*/*"}, [0, 1, 2, 3]),
        ({"jobs": "acme/*"}, []),
        ({"tenant": "default"}, [0, 1, 2, 3]),
        ({"tenant": "acme"}, []),
        ({"pool": "mail.send"}, [0, 1, 3]),
        ({"pool": "command"}, [2]),
        ({"collection": "nightly"}, [2]),
        ({"collection": "nightly", "pool": "mail.send"}, []),
        ({"reason": "timeout"}, [3]),
        ({"reason": "fatal"}, [0, 1, 2]),
        ({"since_ms": (T0 + 120) * 1000}, [1, 2, 3]),
        ({"until_ms": (T0 + 120) * 1000}, [0]),
        ({"since_ms": (T0 + 61) * 1000, "until_ms": (T0 + 181) * 1000, "pool": "mail.send"}, [1]),
    ],
)
async def test_filters_find_what_fits_all_of_them(
    filters: dict[str, Any], found: list[int]
) -> None:
    report = await world().service.dead(DeadQuery(**filters))
    assert [one.launch for one in report.letters] == [ALL[n] for n in found]
    assert report.total == len(found)


async def test_a_bound_cuts_what_is_shown_and_says_how_many_there_are() -> None:
    report = await world().service.dead(DeadQuery(limit=2))
    assert [one.launch for one in report.letters] == ALL[:2]
    assert report.total == 4


async def test_the_newest_may_come_first_and_the_bound_leaves_out_the_oldest() -> None:
    report = await world().service.dead(DeadQuery(limit=3, is_newest=True))
    assert [one.launch for one in report.letters] == [ALL[3], ALL[2], ALL[1]]
    assert report.total == 4


@pytest.mark.parametrize("launch", [name(300), "acme/other@2026-11-20T16:00:00Z"])
async def test_a_launch_that_is_no_dead_letter_is_not_found(launch: str) -> None:
    query = DeadQuery(launch=launch)
    change, service = DeadChange(query=query), world().service
    for call in (service.dead(query), service.redrive(change), service.drop_dead(change)):
        with pytest.raises(NotFound, match="is not a dead letter"):
            await call


async def test_what_ended_without_a_reason_is_found_by_its_state() -> None:
    w = World(StateRig())
    w.rig.put(job("mail", work=MAIL))
    w.rig.join()
    w.die(60, reason=Reason.NONE)
    assert (await w.service.dead(DeadQuery(reason="failed"))).total == 1
    assert (await w.service.dead(DeadQuery(reason="lost"))).total == 0


# ---- launching again, forgetting


def due(state: State) -> list[str]:
    return [str(state.launch_name(key)) for key in state.due]


async def test_redriven_letters_are_due_again_and_dead_no_more() -> None:
    w = world()
    outcome = await w.service.redrive(DeadChange(query=DeadQuery(pool="mail.send"), by="ada"))
    assert outcome.launches == [ALL[0], ALL[1], ALL[3]]
    assert (outcome.kept, outcome.left, outcome.is_dry_run) == ([], 0, False)
    assert due(w.state) == outcome.launches
    assert [row.by for row in w.state.due.values()] == ["ada"] * 3
    assert (await w.service.dead(DeadQuery())).total == 1


async def test_dropped_letters_are_forgotten_and_not_launched() -> None:
    w = world()
    outcome = await w.service.drop_dead(DeadChange(query=DeadQuery(reason="timeout")))
    assert outcome.launches == [ALL[3]]
    assert due(w.state) == []
    assert [one.launch for one in (await w.service.dead(DeadQuery())).letters] == ALL[:3]


@pytest.mark.parametrize("method", ["redrive", "drop_dead"])
async def test_a_dry_run_says_what_would_be_and_writes_nothing(method: str) -> None:
    w = world()
    change = DeadChange(query=DeadQuery(), is_dry_run=True)
    outcome = await getattr(w.service, method)(change)
    assert (outcome.launches, outcome.is_dry_run) == (ALL, True)
    assert w.submitted == 0
    assert await getattr(w.service, method)(DeadChange(query=DeadQuery())) == type(outcome)(
        launches=ALL
    )


async def test_a_change_that_finds_nothing_writes_nothing() -> None:
    w = world()
    outcome = await w.service.redrive(DeadChange(query=DeadQuery(tenant="acme")))
    assert (outcome.launches, w.submitted) == ([], 0)


async def test_a_letter_whose_job_was_removed_cannot_be_launched_but_forgotten() -> None:
    w = world()
    w.rig.put(removed=("default/mail",))
    assert [not one.pool for one in (await w.service.dead(DeadQuery())).letters] == [
        True, True, False, True,
    ]  # fmt: skip
    for is_dry_run in (True, False):
        change = DeadChange(query=DeadQuery(), is_dry_run=is_dry_run)
        outcome = await w.service.redrive(change)
        assert outcome.launches == [ALL[2]]
        assert outcome.kept == [f"{ALL[n]}: its job was removed" for n in (0, 1, 3)]
    outcome = await w.service.drop_dead(DeadChange(query=DeadQuery()))
    assert outcome.launches == [ALL[0], ALL[1], ALL[3]]


async def test_a_launch_that_has_no_attempt_left_says_so() -> None:
    w = world()
    key = next(iter(w.state.dead))
    letter = w.state.dead[key]
    letter = msgspec.structs.replace(letter, attempt=ATTEMPTS_MAX)
    w.state.dead[key] = w.state.by_number[key[0]].dead[key[1:]] = letter
    for is_dry_run in (True, False):
        change = DeadChange(query=DeadQuery(launch=ALL[0]), is_dry_run=is_dry_run)
        outcome = await w.service.redrive(change)
        assert outcome.launches == []
        assert "as many attempts" in outcome.kept[0]


async def test_more_than_fit_into_a_request_are_left_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead, "DEAD_MAX", 3)
    w = world()
    dry = await w.service.redrive(DeadChange(query=DeadQuery(), is_dry_run=True))
    assert (dry.launches, dry.left) == (ALL[:3], 1)
    outcome = await w.service.redrive(DeadChange(query=DeadQuery()))
    assert (outcome.launches, outcome.left) == (ALL[:3], 1)
    outcome = await w.service.redrive(DeadChange(query=DeadQuery()))
    assert (outcome.launches, outcome.left) == (ALL[3:], 0)


async def test_what_somebody_else_was_faster_with_is_told() -> None:
    w = world()
    submit = w.submit

    async def overtaken(build: Any) -> Any:
        w.state.dead.pop((1, T0 + 60, 0))
        del w.state.by_number[1].dead[(T0 + 60, 0)]
        return await submit(build)

    w.submit = overtaken  # type: ignore[method-assign]
    outcome = await w.service.drop_dead(DeadChange(query=DeadQuery()))
    assert outcome.launches == ALL[1:]
    assert outcome.kept == [f"{ALL[0]}: somebody has launched or forgotten it meanwhile"]


async def test_letters_of_the_cell_itself_are_listed_and_changed_by_name_alone() -> None:
    w = world()
    beat = msgspec.structs.replace(job(retry=Retry(tries=2)), name="raftcron/heartbeat-ops")
    w.rig.put(beat)
    w.die(300, number=w.state.jobs[beat.name].number)
    report = await w.service.dead(DeadQuery())
    assert ([one.launch for one in report.letters], report.total) == (ALL, 4)
    assert report.own == 1
    assert (await w.service.dead(DeadQuery(reason="timeout"))).own == 0
    for query in (DeadQuery(tenant="raftcron"), DeadQuery(jobs=beat.name)):
        named = await w.service.dead(query)
        assert ([one.tenant for one in named.letters], named.own) == (["raftcron"], 0)
    assert (await w.service.dead(DeadQuery(pool="command"))).total == 2, "a pool names some"
    everything = DeadChange(query=DeadQuery(), by="ann", is_everything=True)
    assert (await w.service.drop_dead(everything)).launches == ALL
    assert [w.state.by_number[key[0]].name for key in w.state.dead] == [beat.name]
    own = DeadChange(query=DeadQuery(tenant="raftcron"), by="ann")
    assert len((await w.service.drop_dead(own)).launches) == 1
