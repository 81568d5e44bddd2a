"""Gates and limits on launches of real workers, as the command line sets and tells them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell
from tests.cluster.worker_rig import Shop, command_job, handler_job, most_at_once

pytestmark = pytest.mark.timeout(180)

NUMBER = 5
MANY = 10
HELD = FIRST, SECOND = "acme/first", "acme/second"
SOON = 'deadline = "1h"'


def pass_by(shop: Shop) -> None:
    """Have a launch that nothing holds back begin and end: what could begin beside it has begun."""
    (name,) = shop.trigger("free")
    shop.wait_row(name, "succeeded")


def free(shop: Shop) -> str:
    """The job of `pass_by`."""
    return command_job("free", shop.folder, ":", SOON)


def test_a_gate_that_pauses_holds_launches_until_it_is_opened(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        cell = shop.cell
        shop.apply(handler_job("held", "work", "payload = 0.0", SOON) + free(shop))
        shop.serve()
        scope = ("--handler", "work", "--action", "pause", "--reason", "the bank is closed")
        (gate,) = cell.rows("gate", "close", *scope)
        names = shop.trigger("held", times=NUMBER)
        pass_by(shop)
        waits: list[dict[str, Any]] = cell.rows("queue", "held")
        assert {row["launch"] for row in waits} == set(names)
        for row in waits:
            assert f"gate {gate['gate']}" in row["waiting"], row
            assert "the bank is closed" in row["waiting"]
        assert f"gate {gate['gate']}" in cell.cli("show", names[0]).stdout
        assert shop.runs(["held"]) == []
        cell.cli("gate", "open", str(gate["gate"]))
        for name in names:
            assert shop.wait_row(name, "succeeded").attempt == 1
        assert cell.rows("gate", "list") == []
        assert shop.wrong() == []


def test_a_gate_that_drops_leaves_rows_that_say_so(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        cell = shop.cell
        ticks = handler_job("ticks", "work", "payload = 0.0", schedule="@every 1s")
        shop.apply(handler_job("held", "work", "payload = 0.0", SOON) + ticks + free(shop))
        shop.serve()
        shop.wait_runs(1, "ticks")
        scope = ("--handler", "work", "--action", "drop", "--reason", "not today")
        (gate,) = cell.rows("gate", "close", *scope)
        names = shop.trigger("held", times=NUMBER)
        dropped = [shop.wait_row(name, "skipped") for name in names]
        cell.wait_launches(2, "ticks", "skipped")
        ran = shop.runs(["ticks"])
        dropped += [row for row in shop.history("ticks") if row.state == "skipped"]
        for row in dropped:
            assert row.reason == "gated", row
            assert f"gate {gate['gate']}" in row.detail, row
            assert "not today" in row.detail
        assert "not today" in cell.cli("show", names[0]).stdout
        instant = dropped[-1].launch.partition("@")[2]
        assert "not today" in cell.cli("why", "ticks", instant).stdout
        cell.cli("gate", "open", str(gate["gate"]))
        shop.wait_runs(len(ran) + 2, "ticks")
        assert shop.runs(["held"]) == [], "what was dropped does not come back"
        assert cell.rows("dead", "list") == []
        assert shop.wrong() == []


def test_a_tenants_limit_is_never_exceeded_and_its_end_lets_the_rest_go(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        cell = shop.cell
        jobs = [handler_job(job, "hold", f'payload = "go-{job[5:]}"', SOON) for job in HELD]
        shop.apply("".join(jobs) + free(shop))
        shop.serve(threads=2 * MANY)
        cell.cli("limit", "set", "--tenant", "acme", "--concurrent", "1")
        names = [name for job in HELD for name in shop.trigger(job, times=MANY)]
        shop.wait_running(FIRST)
        pass_by(shop)
        waits = [row for job in HELD for row in cell.rows("queue", job) if row["waiting"]]
        assert len(waits) == 2 * MANY - 1
        assert {row["waiting"] for row in waits} == {
            "the limit of tenant acme is reached: 1 at once"
        }
        (queue,) = cell.rows("queue", "--tenant", "acme")
        assert (queue["waiting"], queue["running"]) == (2 * MANY - 1, 1)
        shop.make("go-first")
        shop.wait_running(SECOND)
        pass_by(shop)
        so_far = shop.runs(HELD)
        assert len(so_far) == MANY + 1, "one after the other, in their order"
        assert most_at_once(so_far) == 1, "the limit was exceeded"

        cell.cli("limit", "remove", "--tenant", "acme")
        shop.wait_running(SECOND, number=MANY)
        shop.make("go-second")
        rows = [row for row in shop.wait_over() if row.launch in names]
        assert {(row.state, row.attempt) for row in rows} == {("succeeded", 1)}
        assert len(rows) == 2 * MANY
        assert shop.wrong() == []
