"""What `limit` says is what holds: the command line over a State, its hints followed."""

from __future__ import annotations

import re
import shlex

import msgspec
import pytest
from click.testing import Result

from cron.state.pool import Limits
from tests.unit.api_rig import FakeBackend, run_cli, serving
from tests.unit.pool_people_rig import World
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import StateRig, job


class Cell:
    """A command line whose limits are those of a State."""

    def __init__(self) -> None:
        self.world = World(StateRig())
        service = self.world.service
        self.backend = FakeBackend(
            set_limit=service.set_limit, remove_limit=service.remove_limit, limits=service.limits
        )

    async def limit(self, said: str, exit_code: int = 0) -> Result:
        async with serving(self.backend) as server:
            result = await run_cli("limit", *shlex.split(said), server=server)
        assert result.exit_code == exit_code, result.output
        return result

    def own(self, tenant: str) -> Limits | None:
        return self.world.state.limits.get((tenant, "", -1))


@pytest.mark.parametrize("none", ["0", "none"])
async def test_a_tenant_that_is_not_limited_is_not_although_each_tenant_is(none):
    cell = Cell()
    await cell.limit("set --each-tenant --concurrent 20")
    result = await cell.limit(f"set --tenant acme --concurrent {none}")
    assert result.stdout == "tenant acme: not limited\n"
    assert cell.own("acme") == Limits()
    assert "this replaces the limits of each tenant, concurrent 20" in result.stderr
    shown = (await cell.limit("list")).stdout
    assert re.search(r"tenant acme +none +none", shown)
    (hint,) = re.findall(r"`raftcron limit (.*?)`", result.stderr)
    result = await cell.limit(hint)
    assert cell.own("acme") is None
    assert "the limits of each tenant: concurrent 20" in result.stderr


async def test_one_limit_of_several_that_is_taken_away_leaves_the_others():
    cell = Cell()
    await cell.limit("set --each-tenant --concurrent 20 --rate 100/s")
    result = await cell.limit("set --tenant acme --concurrent none")
    assert result.stdout == "tenant acme: rate 100/s\n"
    assert cell.own("acme") == Limits(rate_milli=100_000)
    result = await cell.limit("set --tenant acme --rate none")
    assert result.stdout == "tenant acme: not limited\n"
    assert cell.own("acme") == Limits(), "those of each tenant do not come back by that"


@pytest.mark.parametrize("concurrent", ["none", "100"])
async def test_an_inherited_burst_is_no_obstacle_and_goes_with_a_note(concurrent):
    cell = Cell()
    await cell.limit("set --each-tenant --concurrent 20 --burst 60")
    result = await cell.limit(f"set --tenant acme --concurrent {concurrent}")
    number = 0 if concurrent == "none" else 100
    assert cell.own("acme") == Limits(concurrent=number)
    assert "burst 60" in result.stderr
    assert "is taken away" in result.stderr


async def test_an_inherited_burst_can_be_taken_away_alone():
    cell = Cell()
    await cell.limit("set --each-tenant --concurrent 20 --burst 60")
    result = await cell.limit("set --tenant acme --burst none")
    assert result.stdout == "tenant acme: concurrent 20\n"
    assert cell.own("acme") == Limits(concurrent=20)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("--tenant acme --concurrent 10 --burst 20", "--tenant acme --concurrent 30"),
        ("--tenant acme --concurrent 10", "--tenant acme --burst 9"),
        ("--tenant other --concurrent 10", "--tenant acme --burst 9"),
        ("--pool mail --reserve 4", "--pool mail --concurrent 2"),
        ("--pool mail --concurrent 2", "--pool mail --reserve 4"),
    ],
)
async def test_every_way_out_that_a_refusal_names_is_one(before, said):
    refused = Cell()
    await refused.limit(f"set {before}")
    result = await refused.limit(f"set {said}", exit_code=2)
    hint = result.stderr.split("hint:")[1]
    ways = re.findall(r"--[a-z]+ (?:\d+|none)", hint)
    if "to at most" in hint:
        ways = [f"--concurrent {hint.split()[-1]}"]
    assert ways
    for way in ways:
        cell = Cell()
        await cell.limit(f"set {before}")
        option = way.split()[0]
        kept = re.sub(rf"{option} \S+", "", said)
        await cell.limit(f"set {kept} {way}")


async def test_a_scope_without_own_limits_says_what_else_counts():
    cell = Cell()
    await cell.limit("set --all --concurrent 7")
    await cell.limit("set --tenant acme --concurrent 5")
    result = await cell.limit("set --tenant acme --concurrent none")
    assert cell.own("acme") is None
    assert "its launches also count for everything: concurrent 7" in result.stderr


async def test_a_weight_of_each_tenant_is_not_overridden_and_said():
    cell = Cell()
    await cell.limit("set --each-tenant --weight 3")
    result = await cell.limit("set --tenant acme --weight none")
    assert "but a weight of 3 is still theirs" in result.stderr


async def test_help_names_the_way_to_remove_a_limit():
    for command in ("limit --help", "limit set --help"):
        assert "limit remove" in (await run_cli(*command.split())).stdout


def test_limits_without_a_number_let_a_tenant_run_beside_limited_ones() -> None:
    acme, other = (msgspec.structs.replace(job(), name=name) for name in ("acme/a", "other/b"))
    rig = QueuesRig(acme, other).to(60)
    rig.limit(("*", "", -1), concurrent=1)
    rig.limit(("acme", "", -1))
    for number in (1, 2):
        rig.account(1, 2, 3, number=number)
    rig.turn()
    running = [key[0] for key in rig.state.active]
    assert (running.count(1), running.count(2)) == (3, 1)
