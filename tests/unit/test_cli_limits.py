"""limit and gate on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from cron.api.gates import GateOpening, GateRequest, GatesReport, GateView
from cron.api.limits import LimitChange, LimitRemoval, LimitsReport, LimitView
from cron.cli.limits import parse_rate, show_rate
from cron.errors import InvalidInput, NotFound
from tests.unit.api_rig import NOON_S, FakeBackend, run_cli, serving


async def cli(backend: FakeBackend, *arguments: str) -> Result:
    async with serving(backend) as server:
        return await run_cli(*arguments, server=server)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- limit set


def shown(change: LimitChange) -> LimitView:
    """What a leader answers that knew no limits before."""
    fields = {name: getattr(change, name) or 0 for name in change.__struct_fields__[3:-1]}
    return LimitView(tenant=change.tenant, pool=change.pool, priority=change.priority, **fields)


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ("--tenant a --concurrent 5 --burst 9", {"tenant": "a", "concurrent": 5, "burst": 9}),
        ("--each-tenant --weight 2", {"tenant": "*", "weight": 2}),
        ("--handler mail.send --rate 90/m", {"pool": "mail.send", "rate_milli": 1_500}),
        ("--pool command --waiting 500", {"pool": "command", "waiting_max": 500}),
        ("--priority 0 --concurrent 4", {"priority": 0, "concurrent": 4}),
        ("--handler m --priority 3 --reserve 2", {"pool": "m", "priority": 3, "reserved": 2}),
        ("--tenant acme --retry-budget 100", {"tenant": "acme", "retry_budget": 100}),
        ("--all --rate 0", {"rate_milli": 0}),
        ("--tenant a --handler m --concurrent 0", {"tenant": "a", "pool": "m", "concurrent": 0}),
    ],
)  # fmt: skip
async def test_limit_set_asks_for_what_was_named_and_nothing_else(arguments, change):
    backend = FakeBackend(set_limit=shown)
    result = await cli(backend, "limit", "set", *arguments.split())
    assert result.exit_code == 0, result.stderr
    assert backend.calls == [("set_limit", (LimitChange(**change, by="ada"),))]


async def test_limit_set_shows_the_limits_as_they_are_now():
    view = LimitView(tenant="acme", pool="mail", priority=5, concurrent=10, rate_milli=1_500)
    backend = FakeBackend(set_limit=view)
    arguments = ("limit", "set", "--tenant", "acme", "--handler", "mail", "--priority", "5")
    result = await cli(backend, *arguments, "--concurrent", "10")
    assert result.stdout == "tenant acme in queue mail/5: concurrent 10, rate 90/m\n"
    (row,) = rows(await cli(backend, *arguments, "--weight", "1", "-o", "json"))
    assert row == {
        "tenant": "acme", "pool": "mail", "priority": 5, "concurrent": 10, "burst": None,
        "starts_per_s": 1.5, "waiting": None, "reserve": None, "weight": None, "retry_budget": None,
        "notes": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--concurrent 1", "nothing is named"),
        ("--tenant a", "nothing to limit"),
        ("--tenant a --each-tenant --weight 1", "it is one or the other"),
        ("--tenant * --weight 1", "is written --each-tenant"),
        ("--handler a --pool b --weight 1", "say the same thing"),
        ("--all --tenant a --weight 1", "name nothing else"),
        ("--tenant a --rate fast", "is not a rate; write 100/s, 90/m, 20/h or none"),
        ("--tenant a --rate 1/d", "is not a rate"),
        ("--tenant a --concurrent -1", "is not a whole number from"),
        ("--priority 10 --weight 1", "is not a whole number from"),
    ],
)
async def test_limit_set_refuses_what_cannot_be_meant_without_asking_anybody(arguments, message):
    backend = FakeBackend()
    result = await cli(backend, "limit", "set", *arguments.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert backend.calls == []


async def test_what_the_leader_refuses_is_a_usage_error_with_its_way_out():
    backend = FakeBackend(set_limit=InvalidInput("burst 5 is below concurrent 10", "raise it"))
    result = await cli(backend, "limit", "set", "--tenant", "a", "--burst", "5")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "raftcron: burst 5 is below concurrent 10\n  hint: raise it\n"


NOTE = "no job names handler app.tsaks, and no worker serves it; did you mean app.tasks?"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("limit", "set", "--concurrent", "5"), {"set_limit": LimitView(notes=[NOTE])}),
        (("gate", "close"), {"close_gate": GateView(number=3, notes=[NOTE])}),
    ],
)
async def test_a_name_that_nobody_has_is_noted_beside_what_was_done(arguments, answer):
    command = (*arguments, "--handler", "app.tsaks")
    result = await cli(FakeBackend(**answer), *command)
    assert result.exit_code == 0
    assert result.stdout
    assert result.stderr == f"note: {NOTE}\n"
    result = await cli(FakeBackend(**answer), *command, "-o", "json")
    assert result.stderr == ""
    (row,) = rows(result)
    assert row["notes"] == [NOTE]


def rate_of(text: str) -> int:
    return parse_rate(text)


@pytest.mark.parametrize(
    ("text", "rate_milli"),
    [("1/s", 1_000), ("100/s", 100_000), ("90/m", 1_500), ("20/h", 6), ("1/h", 1), ("0/s", 0)],
)
def test_rates_are_starts_in_a_thousand_seconds(text, rate_milli):
    assert rate_of(text) == rate_milli


@given(st.integers(1, 10**6), st.sampled_from("sm"))
def test_a_rate_is_shown_as_one_that_reads_the_same(number, unit):
    rate_milli = rate_of(f"{number}/{unit}")
    assert rate_of(show_rate(rate_milli)) == rate_milli


@given(st.text(max_size=12))
def test_no_text_is_a_rate_by_accident(text):
    try:
        rate_milli = rate_of(text)
    except InvalidInput as refused:
        assert "100/s" in refused.hint  # noqa: PT017 - the other outcome is checked as well
        return
    assert rate_milli >= 0
    assert text == "0" or text[:-2].isdigit()


# ---- limit list, limit remove


async def test_limit_list_shows_each_scope_and_blanks_for_what_is_not_limited():
    views = [LimitView(tenant="*", weight=2), LimitView(pool="mail", concurrent=5, waiting_max=9)]
    backend = FakeBackend(limits=LimitsReport(limits=views))
    lines = (await cli(backend, "limit", "list")).stdout.splitlines()
    assert lines[0].split()[:3] == ["WHOSE", "CONCURRENT", "BURST"]
    assert lines[1].split() == ["each", "tenant", "-", "-", "-", "-", "-", "2", "-"]
    assert lines[2].split() == ["pool", "mail", "5", "-", "-", "9", "-", "-", "-"]
    assert [row["tenant"] for row in rows(await cli(backend, "limit", "list", "-o", "json"))] == [
        "*", None,
    ]  # fmt: skip


async def test_limit_list_says_that_there_are_none():
    backend = FakeBackend(limits=LimitsReport())
    assert (await cli(backend, "limit", "list")).stdout == "no limits\n"


async def test_limit_remove_says_what_was():
    backend = FakeBackend(remove_limit=LimitView(pool="mail", priority=3, concurrent=4))
    result = await cli(backend, "limit", "remove", "--handler", "mail", "--priority", "3")
    assert result.stdout == ("queue mail/3: its own limits are removed; they were: concurrent 4\n")
    assert backend.calls == [("remove_limit", (LimitRemoval(pool="mail", priority=3, by="ada"),))]
    backend = FakeBackend(remove_limit=NotFound("tenant a has no limits"))
    assert (await cli(backend, "limit", "remove", "--tenant", "a")).exit_code == 3
    assert (await cli(backend, "limit", "remove")).exit_code == 2


# ---- gate


GATE = GateView(
    number=3, action="pause", reason="disk full", by="ada", since_ms=NOON_S * 1000,
    collection="nightly", priority=0,
)  # fmt: skip


async def test_gate_close_says_its_number_what_it_holds_and_how_to_open_it():
    backend = FakeBackend(close_gate=GATE)
    result = await cli(
        backend,
        "gate",
        "close",
        "--collection",
        "nightly",
        "--priority",
        "0",
        "--reason",
        "disk full",
    )
    assert result.stdout.splitlines() == [
        "gate 3 is closed: launches of collection nightly, priority 0 wait",
        "open it with: raftcron gate open 3",
    ]
    request = GateRequest(collection="nightly", priority=0, reason="disk full", by="ada")
    assert backend.calls == [("close_gate", (request,))]


async def test_gate_close_takes_each_filter_and_an_end():
    backend = FakeBackend(close_gate=GATE)
    arguments = "--handler mail --tenant acme --job acme/b* --action drop"
    until = ("--until", "2100-01-01T00:00:00Z")
    assert (await cli(backend, "gate", "close", *arguments.split(), *until)).exit_code == 0
    ((_, (request,)),) = backend.calls
    assert (request.pool, request.tenant, request.jobs) == ("mail", "acme", "acme/b*")
    assert (request.action, request.priority, request.until_ms) == ("drop", -1, 4_102_444_800_000)


async def test_gate_close_for_a_time_is_from_now_on():
    backend = FakeBackend(close_gate=lambda request: GateView(number=1, until_ms=request.until_ms))
    first = await cli(backend, "gate", "close", "--all", "--for", "2h")
    await cli(backend, "gate", "close", "--all", "--for", "3h")
    (_, (shorter,)), (_, (longer,)) = backend.calls
    assert 0 <= longer.until_ms - shorter.until_ms - 3_600_000 < 60_000
    assert shorter.is_everything
    assert " UTC: launches of everything wait" in first.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "something, or --all and nothing else"),
        ("--all --tenant a", "something, or --all and nothing else"),
        ("--tenant a --for 2h --until 2100-01-01T00:00:00Z", "say the same thing"),
        ("--tenant a --until 5m", "is over already"),
        ("--tenant a --action stop", "is not one of"),
        ("--handler a --pool b", "say the same thing"),
    ],
)
async def test_gate_close_refuses_what_cannot_be_meant(arguments, message):
    backend = FakeBackend()
    result = await cli(backend, "gate", "close", *arguments.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert backend.calls == []


async def test_gate_list_shows_who_closed_what_when_and_why():
    other = GateView(number=4, action="drop", until_ms=NOON_S * 1000 + 60_000)
    backend = FakeBackend(gates=GatesReport(gates=[GATE, other]))
    lines = (await cli(backend, "gate", "list")).stdout.splitlines()
    assert lines[1].split("  ")[0] == "3"
    for part in ("collection nightly, priority 0", "2026-11-20 15:00:00", "ada", "disk full"):
        assert part in lines[1]
    assert "everything" in lines[2]
    assert "2026-11-20 15:01:00" in lines[2]
    first, second = rows(await cli(backend, "gate", "list", "-o", "json"))
    assert (first["priority"], first["until"], first["tenant"]) == (0, None, None)
    assert (second["priority"], second["until"]) == (None, "2026-11-20T15:01:00.000Z")
    backend = FakeBackend(gates=GatesReport())
    assert (await cli(backend, "gate", "list")).stdout == "no gate is closed\n"


async def test_gate_open_opens_what_is_closed_and_tells_what_is_not():
    backend = FakeBackend(open_gates=GatesReport(gates=[GATE], unknown=[7]))
    result = await cli(backend, "gate", "open", "3", "7")
    assert result.stdout == "gate 3 is open: collection nightly, priority 0\n"
    assert result.exit_code == 3
    assert "gate 7: not closed" in result.stderr
    assert backend.calls == [("open_gates", (GateOpening(numbers=[3, 7], by="ada"),))]
    backend = FakeBackend(open_gates=GatesReport(gates=[GATE]))
    assert (await cli(backend, "gate", "open", "3")).exit_code == 0
    assert (await cli(backend, "gate", "open")).exit_code == 2
    assert (await cli(backend, "gate", "open", "x")).exit_code == 2
