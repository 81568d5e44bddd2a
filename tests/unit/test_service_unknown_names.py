"""Names in limits and gates that nobody has: taken, and told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.api.gates import GateRequest
from cron.api.limits import LimitChange
from cron.service import unknown_names
from launcher.protocol.reports import GroupOffer
from launcher.protocol.work import WorkSpec
from tests.unit.pool_people_rig import World
from tests.unit.state_rig import StateRig, job


def work(handler: str, priority: int = 5) -> WorkSpec:
    return WorkSpec((), handler=handler, priority=priority)


def world() -> World:
    """Jobs of two tenants; e1 serves a handler that no job names."""
    rig = StateRig()
    rig.put(
        job("invoices", work=work("app.tasks", priority=3), collection="nightly"),
        job("backup"),
        msgspec.structs.replace(job("sync", work=work("app.sync")), name="acme/sync"),
    )
    rig.join()
    w = World(rig)
    w.seat(offers=(GroupOffer("web", 8, ("app.thumbs",)),))
    return w


@pytest.mark.parametrize(
    ("named", "notes"),
    [
        ({"pool": "app.tasks"}, []),
        ({"pool": "command"}, []),
        ({"pool": "app.thumbs"}, []),
        (
            {"pool": "app.tsaks"},
            [
                "no job names handler app.tsaks, and no worker serves it; "
                "did you mean app.tasks?"
            ],
        ),
        (
            {"pool": "app.thunbs"},
            [
                "no job names handler app.thunbs, and no worker serves it; "
                "did you mean app.thumbs?"
            ],
        ),
        (
            {"pool": "comand"},
            ["no job names handler comand, and no worker serves it; did you mean command?"],
        ),
        ({"pool": "zzz"}, ["no job names handler zzz, and no worker serves it"]),
        ({"tenant": "acme"}, []),
        ({"tenant": "default", "pool": "app.tasks", "priority": 3}, []),
        ({"tenant": "acmee"}, ["no job is of tenant acmee; did you mean acme?"]),
        ({"priority": 3}, []),
        ({"priority": 9}, ["no job has priority 9"]),
        ({"tenant": "acme", "pool": "app.tasks"}, ["no job has all of what is named"]),
        (
            {"tenant": "nobody", "pool": "zzz"},
            [
                "no job is of tenant nobody",
                "no job names handler zzz, and no worker serves it",
            ],
        ),
    ],
)  # fmt: skip
async def test_a_limit_and_a_gate_say_which_names_nobody_has(
    named: dict[str, Any], notes: list[str]
) -> None:
    w = world()
    gate = await w.service.close_gate(GateRequest(**named))
    assert (gate.notes, gate.number) == (notes, 1)
    if "priority" not in named or "pool" in named or len(named) == 1:
        limit = await w.service.set_limit(LimitChange(**named, concurrent=5))
        assert (limit.notes, limit.concurrent) == (notes, 5)


@pytest.mark.parametrize(
    ("named", "notes"),
    [
        ({"collection": "nightly"}, []),
        ({"collection": "nigthly"}, ["no job has collection nigthly; did you mean nightly?"]),
        ({"jobs": "default/in*"}, []),
        ({"jobs": "default/invoces"}, ["no job matches invoces; did you mean invoices?"]),
        ({"jobs": "acme/snyc"}, ["no job matches acme/snyc; did you mean acme/sync?"]),
        ({"jobs": "acme/in*"}, ["no job matches acme/in*"]),
        ({"jobs": "*/*", "tenant": "acme"}, []),
        ({"jobs": "acme/*", "collection": "nightly"}, ["no job has all of what is named"]),
    ],
)
async def test_a_gate_says_it_of_collections_and_jobs(
    named: dict[str, Any], notes: list[str]
) -> None:
    assert (await world().service.close_gate(GateRequest(**named))).notes == notes


async def test_what_is_for_everybody_is_never_misspelt() -> None:
    """Also in a cell that has no jobs yet: its limits are set first."""
    for w in (world(), World(StateRig())):
        assert (await w.service.close_gate(GateRequest(is_everything=True))).notes == []
        for change in (
            LimitChange(concurrent=5),
            LimitChange(tenant="*", concurrent=5),
            LimitChange(pool="command", concurrent=5),
            LimitChange(tenant="*", pool="command", concurrent=5),
        ):
            assert (await w.service.set_limit(change)).notes == []


async def test_a_job_that_was_removed_has_no_names_any_more() -> None:
    w = world()
    w.rig.put(removed=("acme/sync",))
    assert (await w.service.close_gate(GateRequest(tenant="acme"))).notes == [
        "no job is of tenant acme"
    ]


async def test_among_very_many_names_there_is_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_names, "GUESSED_MAX", 9)
    (note,) = (await world().service.close_gate(GateRequest(pool="app.tsaks"))).notes
    assert note == "no job names handler app.tsaks, and no worker serves it"


async def test_the_list_has_no_notes() -> None:
    """They are about a moment: by now the name may have come."""
    w = world()
    await w.service.close_gate(GateRequest(tenant="nobody"))
    await w.service.set_limit(LimitChange(tenant="nobody", concurrent=5))
    assert [view.notes for view in (await w.service.gates()).gates] == [[]]
    assert [view.notes for view in (await w.service.limits()).limits] == [[]]
