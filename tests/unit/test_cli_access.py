"""role, token and changes on the command line, against a cell with its guard."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from cron.access import Role, token_id
from cron.cli import exits
from cron.state import commands as c
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import run_cli
from tests.unit.state_rig import job


async def cli(world: AccessWorld, line: str, *, is_json: bool = True) -> Result:
    async with world.serving() as server:
        return await run_cli(*line.split(), *(("-o", "json") if is_json else ()), server=server)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_a_token_is_printed_once_and_opens_what_its_role_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = AccessWorld()
    world.rig.put(job("backup"))
    (row,) = rows(await cli(world, "token create ci --role viewer --tenant default --days 7"))
    assert list(row)[:5] == ["name", "role", "tenant", "token", "expires_at"]
    assert (row["name"], row["role"], row["tenant"]) == ("ci", "viewer", "default")
    assert row["expires_at"] == "2026-11-27T16:00:00.000Z"
    token = row["token"]
    assert row["id"] == token_id(token)
    assert token not in str(world.rig.log)
    (listed,) = rows(await cli(world, "token list"))
    assert (listed["id"], listed["state"]) == (row["id"], "live")
    assert "token" not in listed

    monkeypatch.setenv("RAFTCRON_TOKEN", token)
    assert rows(await cli(world, "changes backup"))[0]["action"] == "put"
    denied = await cli(world, "pause backup")
    assert denied.exit_code == exits.NOT_ALLOWED
    assert "may not use Pause: it needs a role that may operate" in denied.stderr

    monkeypatch.setenv("RAFTCRON_TOKEN", token[:-3])
    cut = await cli(world, "changes")
    assert cut.exit_code == exits.NOT_ALLOWED
    assert "hint: copy it whole" in cut.stderr
    monkeypatch.setenv("RAFTCRON_TOKEN", "rc1_\u00e4")
    assert "has characters that no token has" in (await cli(world, "changes")).stderr

    monkeypatch.delenv("RAFTCRON_TOKEN")
    assert rows(await cli(world, "token revoke ci"))[0]["state"] == "revoked"
    monkeypatch.setenv("RAFTCRON_TOKEN", token)
    assert "was revoked" in (await cli(world, "changes")).stderr


async def test_people_get_the_token_alone_on_stdout() -> None:
    world = AccessWorld()
    made = await cli(world, "token create ci --role editor", is_json=False)
    (token,) = made.stdout.splitlines()
    assert token_id(token)
    assert "ci is editor in the whole cell until" in made.stderr
    shown = await cli(world, "token list", is_json=False)
    assert f"rc1_{token_id(token)}  ci" in shown.stdout
    assert token not in shown.stdout


async def test_roles_are_granted_and_listed() -> None:
    world = AccessWorld()
    refused = await cli(world, "role grant bob viewer")
    assert refused.exit_code == exits.CONFLICT
    assert "hint: `raftcron role grant" in refused.stderr
    assert rows(await cli(world, "role grant ada admin"))[0]["tenant"] is None
    (row,) = rows(await cli(world, "role grant bob operator --job billing/m*"))
    assert (row["name"], row["role"], row["jobs"]) == ("bob", "operator", "billing/m*")
    said = await cli(world, "role list", is_json=False)
    assert [line.split()[:3] for line in said.stdout.splitlines()][1:] == [
        ["ada", "admin", "the"],
        ["bob", "operator", "jobs"],
    ]
    gone = await cli(world, "role revoke bob operator --job billing/m*", is_json=False)
    assert gone.stdout == "bob is no operator any more in jobs billing/m*\n"
    assert (await cli(world, "role revoke bob operator")).exit_code == exits.NOT_FOUND


@pytest.mark.parametrize(
    "line",
    [
        "role grant ada root",
        "role grant ada viewer --tenant a --job b/*",
        "token create ci",
        "token create ci --role viewer --days 0",
        "token revoke",
        "token revoke ci/x",
        "role grant a/b viewer",
    ],
)
async def test_what_cannot_be_meant_is_refused(line: str) -> None:
    world = AccessWorld()
    assert (await cli(world, line)).exit_code == exits.USAGE
    assert world.state.access.revision == 0


async def test_unknown_tokens_are_named() -> None:
    world = AccessWorld()
    world.token(Role.VIEWER, name="ci")
    result = await cli(world, "token revoke ci other")
    assert result.exit_code == exits.NOT_FOUND
    assert "other: no token that is live" in result.stderr
    assert json.loads(result.stdout)["name"] == "ci"


async def test_changes_are_rows_for_programs_and_a_table_for_people() -> None:
    world = AccessWorld()
    world.rig.put(job("backup"))
    world.rig.to(60)
    world.rig.append(c.Pause(("default/backup",), "why", 0, "ada"))
    newest, oldest = rows(await cli(world, "changes"))
    assert newest == {
        "at": "2026-11-20T16:01:00.000Z",
        "index": world.state.index,
        "by": "ada",
        "from": None,
        "action": "pause",
        "object": "default/backup",
        "before": None,
        "after": "paused",
        "more": None,
    }
    assert oldest["by"] == "anna"
    assert [one["by"] for one in rows(await cli(world, "changes --by anna"))] == ["anna"]
    since = rows(await cli(world, "changes --since 2026-11-20T16:00:30Z"))
    assert [one["action"] for one in since] == ["pause"]
    shown = await cli(world, "changes backup -n 1", is_json=False)
    assert shown.stdout.splitlines()[1].split()[2:] == [
        str(newest["index"]), "ada", "-", "pause", "backup", "-", "paused"
    ]  # fmt: skip
    assert "1 more" in shown.stderr
