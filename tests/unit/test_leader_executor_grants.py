"""An executor has what the cell grants to its id, whatever it says of itself."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
from click.testing import Result

from cron.access import Role
from cron.api import table
from cron.cli import exits
from cron.executor_grants import GRANT_CHARS_MAX, ExecutorGrant, ExecutorGrants
from cron.job import COMMAND
from cron.leader.executors import Executors
from cron.scheduler.places import Need
from cron.scheduler.queues import Queues
from cron.scheduler.shortage import why_not
from cron.state import access as a
from cron.state import commands as c
from cron.state import granting
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from launcher.protocol.reports import GroupOffer
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import run_cli
from tests.unit.state_rig import StateRig
from tests.unit.test_leader_executors import FakePool

CLAIMED = (("disk", "ssd"), ("zone", "eu"))
OFFERS = (GroupOffer("", 6, ()), GroupOffer("app", 7, ("mail.send", "mail.sort", "pay")))


def grant_of(executor: str = "e1", **fields: Any) -> a.GrantExecutor:
    return a.GrantExecutor(ExecutorGrant(executor, **({"pools": (COMMAND,)} | fields)), "ada")


class World:
    """Executors e1, e2 and so on that claim the labels, and offer the handlers, above."""

    def __init__(self, *ids: str) -> None:
        self.rig = StateRig()
        for one in ids or ("e1",):
            joined = c.ExecutorJoined(one, one.replace("e", "l"), 4, f"host-{one}", "", CLAIMED)
            self.rig.append(joined)
        self.pool: Any = FakePool(*(one.replace("e", "l") for one in ids or ("e1",)))
        self.pool.offers = OFFERS
        applier: Any = self.rig
        clock: Any = SimpleNamespace(mono_ms=lambda: 1_000_000)
        self.executors = Executors(self.pool, applier, clock)
        self.queues = Queues(self.rig.state)

    def grant(self, executor: str = "e1", **fields: Any) -> None:
        assert self.rig.answer(grant_of(executor, **fields)).verdict is Verdict.ACCEPTED

    def look(self) -> Any:
        self.executors.place(self.queues)
        return self.queues.places

    def chosen(self, pool: str = COMMAND, where: str = "", user: str = "") -> int | None:
        return self.look().choose(Need(pool, where, user=user))

    def why(self, pool: str = COMMAND, where: str = "", user: str = "") -> str:
        return why_not(self.look(), Need(pool, where, user=user))


def test_claims_count_until_the_first_grant_of_the_cell() -> None:
    world = World("e1", "e2")
    assert world.chosen(where="zone=eu,executor=e1", user="app") == 1
    assert world.chosen("mail.send", "host=host-e2") == 2
    world.grant("e1", users=("app",))
    assert world.chosen(user="app") == 1
    assert world.chosen(where="executor=e2") is None
    assert world.chosen("mail.send") is None


def test_granted_labels_stand_in_place_of_claimed_ones() -> None:
    world = World()
    world.grant(labels=(("zone", "us"), ("gpu", "")))
    assert world.chosen(where="zone=us,gpu") == 1
    assert world.chosen(where="executor=e1") == 1
    for where in ("zone=eu", "disk", "disk=ssd", "host=host-e1"):
        assert world.chosen(where=where) is None, where
    assert world.why(where="zone=eu").endswith("fits zone=eu (there: zone=us)")


def test_labels_may_be_left_to_the_executor() -> None:
    world = World()
    world.grant(labels=(("zone", "*"), ("host", "*"), ("rack", "*")))
    assert world.chosen(where="zone=eu,host=host-e1") == 1
    assert world.chosen(where="disk") is None
    assert world.chosen(where="rack") is None
    world.grant(labels=(("*", ""), ("zone", "us")))
    assert world.chosen(where="disk=ssd,zone=us,host=host-e1") == 1


def test_offers_are_cut_to_the_granted_pools() -> None:
    world = World()
    world.grant(pools=("mail.*",))
    assert world.chosen("mail.send") == world.chosen("mail.sort") == 1
    assert world.chosen("pay") is None
    assert world.chosen() is None
    assert world.why("pay") == (
        "no executor serves handler pay; 1 would, which is not granted that: "
        "`raftcron executor grant` grants pools"
    )
    assert world.why().startswith("no executor runs commands; 1 would, which is not granted that")
    [view] = world.queues.places.views.values()
    assert view.by_pool["mail.send"].slots == 7


def test_a_command_goes_nowhere_but_where_its_user_is_granted() -> None:
    world = World("e1", "e2", "e3")
    world.grant("e1", users=("app",))
    world.grant("e2", users=("www", "app"))
    world.grant("e3")
    assert world.chosen(user="www") == 2
    assert world.look().choose_each(Need(user="app"), "executor") == [1, 2]
    assert world.look().choose_parts(Need(user="www"), 2) is None
    assert world.chosen(user="App") is world.chosen(user="root") is None
    assert world.why(user="root") == (
        "none of the 3 executors that match is granted user root: "
        "`raftcron executor grant` grants users"
    )
    assert world.chosen(where="executor=e3") == 3, "its own user is no matter of grants"


def test_a_revoke_counts_without_a_rejoin_and_opens_nothing() -> None:
    world = World()
    world.grant(users=("app",))
    assert world.chosen(user="app") == 1
    assert world.rig.answer(a.RevokeExecutor("e1", "ada")).verdict is Verdict.ACCEPTED
    assert world.chosen() is None
    assert world.chosen("mail.send") is None
    assert world.rig.answer(a.RevokeExecutor("e1", "ada")).verdict is Verdict.ALREADY


def test_a_revoke_counts_at_once_among_many_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cron.leader.executors.FEW", 0)
    world = World("e1", "e2")
    world.grant("*", users=("*",))
    assert world.chosen(user="any") == 1
    world.rig.append(a.RevokeExecutor("*"))
    assert world.chosen() is None


def test_an_id_counts_before_patterns_and_the_longest_pattern_before_others() -> None:
    patterns = ("*", "db-*", "db-1?", "db-1")
    grants = ExecutorGrants({one: ExecutorGrant(one) for one in patterns}, are_needed=True)
    found = [grants.of(one) for one in ("db-1", "db-10", "db-2", "web", "DB-1")]
    assert [one.executor if one else None for one in found] == ["db-1", "db-1?", "db-*", "*", "*"]
    assert ExecutorGrants({}, are_needed=True).of("db-1") == ExecutorGrant("db-1")


def test_what_is_refused_is_logged_once_for_each_change() -> None:
    world = World()
    with structlog.testing.capture_logs() as logs:
        world.look()
        world.grant(labels=(("zone", "eu"),), pools=("pay",))
        for _ in range(3):
            world.look()
        world.rig.append(a.GrantRole("ada", Role.ADMIN))
        world.look()
    [line] = [one for one in logs if one["event"] == "executor.claims_refused"]
    claims = "label disk=ssd, label host=host-e1, handler mail.send, handler mail.sort, commands"
    assert (line["executor"], line["claims"], line["count"]) == ("e1", claims, 5)
    assert "raftcron executor grant e1" in line["hint"]


# ---- in the log


@pytest.mark.parametrize(
    "fields",
    [
        {"executor": ""},
        {"executor": "\u04351"},
        {"executor": "a b"},
        {"labels": (("zo ne", "eu"),)},
        {"labels": (("zone", "e\nu"),)},
        {"labels": (("*", "eu"),)},
        {"labels": (("zone", "eu"), ("zone", "us"))},
        {"pools": ("ma il",)},
        {"users": ("a b",)},
        {"pools": ("p" * 100,) * (1 + GRANT_CHARS_MAX // 100)},
    ],
)
def test_grants_that_are_none_are_refused(fields: dict[str, Any]) -> None:
    rig = StateRig()
    command = grant_of()
    command = msgspec.structs.replace(
        command, grant=msgspec.structs.replace(command.grant, **fields)
    )
    with rig.unchanged():
        assert rig.answer(command).verdict is Verdict.BAD_ACCESS


def test_grants_are_bounded_replaced_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granting, "EXECUTOR_GRANTS_MAX", 2)
    monkeypatch.setattr(granting, "PATTERNS_MAX", 1)
    rig = StateRig()
    rig.append(grant_of("e*"))
    with rig.unchanged():
        assert rig.answer(grant_of("e*")).verdict is Verdict.ALREADY
        assert rig.answer(grant_of("f*")).verdict is Verdict.TOO_MANY
    rig.append(grant_of("e1"))
    with rig.unchanged():
        assert rig.answer(grant_of("e2")).verdict is Verdict.TOO_MANY
    rig.append(grant_of("e1", users=("app",), labels=(("zone", "eu"), ("ssd", ""))))
    assert rig.state.access.executors["e1"].users == ("app",)
    assert decode_state([encode_state(rig.state)]).access == rig.state.access
    change = rig.state.revisions[-1]
    assert (change.command, change.subject, change.by) == ("grant-executor", "e1", "ada")
    assert change.changed[0].after == "zone=eu,ssd; pools command; users app"
    rig.append(a.RevokeExecutor("e1", "bob"))
    assert rig.state.revisions[-1].changed[0].after == ""


# ---- asked for


async def cli(world: AccessWorld, line: str, *more: str) -> Result:
    async with world.serving() as server:
        return await run_cli(*line.split(), *(more or ("-o", "json")), server=server)


def granted_world() -> AccessWorld:
    world = AccessWorld()
    world.rig.append(c.ExecutorJoined("e1", "l1", 4, "h1", "", CLAIMED))
    world.rig.append(c.ExecutorJoined("e2", "l2", 4, "h2", "", ()))
    return world


async def test_executors_are_granted_listed_and_revoked_on_the_command_line() -> None:
    world = granted_world()
    listed = await cli(world, "executor grants", "-o", "table")
    assert "what executors say of themselves counts" in listed.stderr
    made = await cli(
        world, "executor grant e1 --labels zone=eu,ssd --pools command,mail* --users app,www"
    )
    assert made.exit_code == exits.OK, made.stderr
    row = json.loads(made.stdout)
    assert (row["labels"], row["pools"]) == (["ssd", "zone=eu"], ["command", "mail*"])
    assert row["users"] == ["app", "www"]
    assert "e2 get no new launches before" in row["notes"][0]
    (kept,) = (await cli(world, "executor grants")).stdout.splitlines()
    assert json.loads(kept)["executor"] == "e1"
    shown = [json.loads(one) for one in (await cli(world, "executors")).stdout.splitlines()]
    assert shown[0]["labels"] == {"ssd": "", "zone": "eu"}
    assert shown[0]["not_granted"] == ["label disk=ssd", "label host=h1"]
    assert "no work pool is granted to it" in shown[1]["note"]
    assert (await cli(world, "executor revoke e1")).exit_code == exits.OK
    gone = await cli(world, "executor revoke e1")
    assert gone.exit_code == exits.NOT_FOUND
    assert "nothing is granted to executor e1" in gone.stderr


@pytest.mark.parametrize(
    "line",
    [
        "grant e1",
        "grant e1 --pools ,",
        "grant \u0435 --pools command",
        "grant e1 --pools command --labels executor=e2",
        "grant e1 --pools command --labels zone=a,zone=b",
        "grant e1 --pools command --users a;b",
    ],
)
async def test_what_cannot_be_granted_is_refused(line: str) -> None:
    world = granted_world()
    assert (await cli(world, f"executor {line}")).exit_code == exits.USAGE
    assert not world.state.access.limits_executors


def test_grants_are_a_matter_of_admins() -> None:
    for rpc in (table.GRANT_EXECUTOR, table.REVOKE_EXECUTOR, table.EXECUTOR_GRANTS):
        assert rpc.action is table.GRANT_ROLE.action
