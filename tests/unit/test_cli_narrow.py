"""Tables of the pool on a terminal of 80 columns: what a person came for is there, whole."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cron.api.dead import DeadReport, DeadView
from cron.api.executors import ExecutorsReport, ExecutorView, GroupView
from cron.api.gates import GatesReport, GateView
from cron.api.queues import QueuesReport, QueueView
from cron.cli import render
from cron.cli.needs import show_about
from tests.unit.api_rig import NOON_S, FakeBackend, run_cli, serving

NOON_MS = NOON_S * 1000
WEB = GroupView(group="web", slots=8, handlers=["a"])


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(render, "is_terminal", lambda: True)


async def shown(*arguments: str, **answers: Any) -> str:
    async with serving(FakeBackend(**answers)) as server:
        result = await run_cli(*arguments, server=server)
    assert result.exit_code == 0, result.stderr
    return re.sub(r"\x1b\[[0-9]*m", "", result.stdout)


async def test_which_limit_is_reached_in_a_queue(narrow):
    view = QueueView(
        pool="billing.invoice", tenant="acme-corporation", waiting=120_000, running=20,
        oldest_ms=NOON_MS, blocked_by="tenant acme-corporation in pool billing.invoice",
    )  # fmt: skip
    text = await shown("queue", queues=QueuesReport(queues=[view], now_ms=NOON_MS + 9_000))
    assert (
        "billing.invoice: the limit of tenant acme-corporation in pool billing.invoice is reached"
        in text.splitlines()
    )


async def test_what_a_gate_holds_and_until_when(narrow):
    view = GateView(
        number=12, action="pause", pool="billing.invoice", tenant="acme-corporation",
        since_ms=NOON_MS, until_ms=NOON_MS + 3_600_000, by="ada", reason="the disk is full",
    )  # fmt: skip
    lines = (await shown("gate", "list", gates=GatesReport(gates=[view]))).splitlines()
    assert "pool billing.invoice, tenant acme-corporation  2026-11-20 16:00:00" in lines[2]
    assert lines[3] == "12: the disk is full"


async def test_why_a_launch_was_given_up(narrow):
    view = DeadView(
        launch="default/billing-invoices@2026-11-20T15:00:00Z", job="default/billing-invoices",
        pool="billing.invoice", tries=6, state="failed", reason="raised", died_at_ms=NOON_MS,
        detail='ValueError: no number at File "/srv/tasks.py", line 17, in invoice',
    )  # fmt: skip
    text = await shown("dead", "list", dead=DeadReport(letters=[view], total=1))
    assert text.splitlines()[-1] == (
        "billing-invoices@2026-11-20T15:00:00Z: ValueError: no number "
        'at File "/srv/tasks.py", line 17, in invoice'
    )


async def test_slots_for_commands_are_told_beside_those_of_workers_and_without_any(narrow):
    views = [
        ExecutorView(id="e1", role="connected", slots=4, memory_bytes=8_347_299_840),
        ExecutorView(id="e2", role="connected", slots=4, groups=[WEB]),
        ExecutorView(id="e3", role="connected", groups=[WEB]),
    ]
    text = await shown("executors", executors=ExecutorsReport(executors=views))
    first, second, third = text.splitlines()[2:]
    assert "  command 4  " in first
    assert "  command 4, web 8: a  " in second
    assert "  web 8: a  " in third
    assert "7.8G" in text


@pytest.mark.parametrize(
    ("size_bytes", "said"), [(0, "-"), (1023, "1023"), (8 << 30, "8G"), (8_347_299_840, "7.8G")]
)
def test_memory_of_a_host_is_said_for_people(size_bytes, said):
    assert show_about(size_bytes) == said
