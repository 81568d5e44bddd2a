"""`raftcron snapshot`: save, list and verify, of a cell and of a store without one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cron.api.snapshot_views import KeepingView, SaveReport, SnapshotsReport, SnapshotView
from cron.api.views import StatusRow
from cron.cli import snapshots as cli_snapshots
from cron.cli.options import Settings
from cron.errors import Conflict, NotFound, OutcomeUnknown, Unavailable
from snapshots.directory import DirectoryStore
from snapshots.errors import StoreAway
from snapshots.layout import manifest_object, segment_object, snapshot_object
from snapshots.manifest import Manifest
from snapshots.vault import Vault
from tests.unit.api_rig import NOON_S, FakeBackend, closed_address, run_cli, serving
from tests.unit.restore_rig import CELL, Backed, tree

URL = "s3://bucket/prefix"
LOCAL = SnapshotView(
    name="0000000000000003-0000000000000058.snap", place="local", lineage=1, term=3, index=88,
    taken_ms=NOON_S * 1000, size=12_345, content_size=99_999, digest="ab" * 16,
)  # fmt: skip
REMOTE = msgspec.structs.replace(
    LOCAL, name="0001-0000000000000003-0000000000000058.snap", place="remote", segments=4
)
KEYS = [
    "name", "place", "taken_at", "lineage", "term", "index", "size", "content_size", "segments",
    "state", "problem", "digest",
]  # fmt: skip


def at(view: SnapshotView, index: int, **fields: Any) -> SnapshotView:
    return msgspec.structs.replace(view, index=index, **fields)


class Keeper(FakeBackend):
    """A leader that keeps snapshots."""

    async def save_snapshot(self, by: str) -> SaveReport:
        return await self._answer("save_snapshot", by)

    async def snapshots(self, *, is_remote: bool) -> SnapshotsReport:
        return await self._answer("snapshots", is_remote)

    async def verify_snapshots(self, name: str, *, is_remote: bool) -> AsyncIterator[SnapshotView]:
        for view in await self._answer("verify_snapshots", name, is_remote):
            yield view


class Turns:
    """Answers one after the other; the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)

    def __call__(self, *_: Any) -> Any:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def report(*views: SnapshotView, store: str = URL, problems: tuple[str, ...] = ()) -> Any:
    return SnapshotsReport(snapshots=list(views), problems=list(problems), store=store)


def leader(**fields: Any) -> list[StatusRow]:
    return [StatusRow(kind="replica", id="r1", role="leader", keeping=KeepingView(**fields))]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_snapshots, "LOOK_S", 0.001)


# --- save


async def test_a_save_returns_once_the_snapshot_is_stored():
    backend = Keeper(
        save_snapshot=SaveReport(lineage=1, term=3, index=88, store=URL),
        snapshots=Turns(report(at(REMOTE, 60)), report(LOCAL, at(REMOTE, 60)), report(REMOTE)),
        status=Turns(leader(segments_waiting=2), leader()),
    )
    async with serving(backend) as server:
        result = await run_cli("snapshot", "save", "--wait", "5s", server=server)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"saved: {REMOTE.name}, with all history up to it, in {URL}\n"
    assert result.stderr.splitlines() == [
        "waits for 2 segments and the snapshot to be uploaded",
        "waits for the snapshot to be uploaded",
    ]
    assert backend.calls[0] == ("save_snapshot", ("ada",))


async def test_a_newer_one_is_as_good_and_one_of_a_later_life_too():
    for newer in (at(REMOTE, 99), at(REMOTE, 5, lineage=2)):
        backend = Keeper(
            save_snapshot=SaveReport(lineage=1, term=3, index=88, store=URL),
            snapshots=report(newer),
        )
        async with serving(backend) as server:
            result = await run_cli("snapshot", "save", "--wait", "5s", "-o", "json", server=server)
        assert json.loads(result.stdout)["index"] == newer.index
        assert json.loads(result.stdout)["store"] == URL


async def test_without_a_store_it_is_enough_that_the_leader_has_it_and_that_is_said():
    backend = Keeper(
        save_snapshot=SaveReport(lineage=1, term=3, index=88),
        snapshots=Turns(report(store=""), report(LOCAL, store="")),
        status=leader(),
    )
    async with serving(backend) as server:
        table = await run_cli("snapshot", "save", "--wait", "5s", server=server)
        row = await run_cli("snapshot", "save", "--wait", "5s", "-o", "json", server=server)
    assert "and nowhere else: no object storage is configured" in table.stdout
    assert json.loads(row.stdout)["store"] is None
    assert list(json.loads(row.stdout)) == [*KEYS, "store"]


async def test_who_waits_long_enough_is_told_that_it_goes_on():
    backend = Keeper(
        save_snapshot=SaveReport(lineage=1, term=3, index=88, store=URL),
        snapshots=report(LOCAL, at(REMOTE, 87)),
        status=leader(failing="s3://bucket: access denied"),
    )
    async with serving(backend) as server:
        result = await run_cli("snapshot", "save", "--wait", "1s", server=server)
    assert result.exit_code == 6
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "cannot upload: s3://bucket: access denied",
        f"raftcron: the snapshot at index 88 is not in {URL} yet",
        "  hint: it is still under way; `raftcron status` shows how far",
    ]


class Away:
    """A client whose leader cannot reach the store for a while."""

    def __init__(self) -> None:
        self.turns = Turns(*[Unavailable(f"{URL}: timed out")] * 4, report(REMOTE))

    def snapshots(self, *, is_remote: bool) -> SnapshotsReport:
        answer = self.turns()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def status(self) -> list[StatusRow]:
        return leader()


def test_a_store_that_is_away_is_said_once_and_not_at_every_look(
    capsys: pytest.CaptureFixture[str],
):
    client: Any = Away()
    settings = Settings()
    wanted = SaveReport(lineage=1, term=3, index=88, store=URL)
    found = cli_snapshots._await(client, wanted, settings.now_ms() + 10_000, settings)
    assert found == REMOTE
    assert capsys.readouterr().err == f"{URL}: timed out\n"


@pytest.mark.parametrize("status", [[], [StatusRow(kind="replica", id="r1", role="follower")]])
async def test_while_nobody_leads_it_waits(status: list[StatusRow]):
    backend = Keeper(
        save_snapshot=SaveReport(lineage=1, term=3, index=88, store=URL),
        snapshots=Turns(report(), report(REMOTE)),
        status=status,
    )
    async with serving(backend) as server:
        result = await run_cli("snapshot", "save", "--wait", "5s", server=server)
    assert result.stderr.splitlines() == ["waits for a leader"]


async def test_a_length_that_cannot_be_read_is_a_matter_of_usage():
    result = await run_cli("snapshot", "save", "--wait", "soon")
    assert result.exit_code == 2
    assert "soon" in result.stderr


async def test_what_became_of_the_request_may_be_unknown():
    backend = Keeper(save_snapshot=OutcomeUnknown("the change may happen", "look"))
    async with serving(backend) as server:
        result = await run_cli("snapshot", "save", "--timeout", "0.2s", server=server)
    assert result.exit_code == 6


# --- list and verify, of a cell


async def test_a_list_as_a_table_and_as_json():
    backend = Keeper(snapshots=report(LOCAL, REMOTE, problems=("x.json: it is cut",)))
    async with serving(backend) as server:
        table = await run_cli("snapshot", "list", server=server)
        rows = await run_cli("snapshot", "list", "-o", "json", server=server)
    head, local, remote = table.stdout.splitlines()
    assert head.split()[:3] == ["PLACE", "TAKEN", "UTC"]
    assert local.split()[:3] == ["local", "2026-11-20", "15:00:00"]
    assert remote.split()[4:8] == ["1", "88", "12,345", "present"]
    assert remote.endswith(REMOTE.name)
    assert table.stderr == rows.stderr == "cannot be read: x.json: it is cut\n"
    one, two = map(json.loads, rows.stdout.splitlines())
    assert list(one) == KEYS
    assert one["taken_at"] == "2026-11-20T15:00:00.000Z"
    assert (one["problem"], one["digest"], two["segments"]) == (None, "ab" * 16, 4)
    assert backend.calls == [("snapshots", (False,))] * 2


async def test_where_there_are_none_it_says_so():
    async with serving(Keeper(snapshots=report())) as server:
        assert (await run_cli("snapshot", "list", server=server)).stdout == "no snapshots\n"


@pytest.mark.parametrize(("error", "code"), [(Unavailable("away"), 5), (Conflict("no"), 4)])
async def test_errors_of_the_store_have_their_exit_codes(error: Exception, code: int):
    async with serving(Keeper(snapshots=error)) as server:
        result = await run_cli("snapshot", "list", "--timeout", "0.2s", server=server)
    assert result.exit_code == code


async def test_verify_exits_with_one_where_anything_is_damaged():
    good = msgspec.structs.replace(LOCAL, state="verified")
    bad = msgspec.structs.replace(REMOTE, state="damaged", problem="checksum")
    backend = Keeper(verify_snapshots=[good, bad])
    async with serving(backend) as server:
        result = await run_cli("snapshot", "verify", server=server)
        rows = await run_cli("snapshot", "verify", "--remote", "-o", "json", server=server)
        backend.answers["verify_snapshots"] = [good]
        well = await run_cli("snapshot", "verify", LOCAL.name, server=server)
    assert (result.exit_code, rows.exit_code, well.exit_code) == (1, 1, 0)
    assert result.stdout.splitlines()[2].endswith("checksum")
    assert [json.loads(line)["state"] for line in rows.stdout.splitlines()] == [
        "verified", "damaged",
    ]  # fmt: skip
    assert [call[1] for call in backend.calls] == [("", False), ("", True), (LOCAL.name, False)]


async def test_verify_of_a_name_that_is_not_there():
    async with serving(Keeper(verify_snapshots=NotFound("there is no snapshot x"))) as server:
        result = await run_cli("snapshot", "verify", "x", server=server)
    assert result.exit_code == 3


# --- of a store, without a cell


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    made = Backed(tmp_path, DirectoryStore(tmp_path / "store"))
    made.seal()
    made.snapshot()
    return made


def arguments(backed: Backed, verb: str, *more: str) -> list[str]:
    return ["snapshot", verb, "--from", backed.store.url, "--cell", CELL, *more]


def object_of(backed: Backed, tmp_path: Path, name: Callable[..., str], one: Manifest) -> Path:
    return tmp_path / "store" / name(CELL, one.lineage, one.term, one.index)


async def test_a_store_is_listed_and_verified_without_a_cell(backed: Backed, tmp_path: Path):
    second = backed.snapshot()
    before = tree(tmp_path)
    listed = await run_cli(*arguments(backed, "list", "-o", "json"), server=closed_address())
    verified = await run_cli(*arguments(backed, "verify", "-o", "json"), server=closed_address())
    assert listed.exit_code == verified.exit_code == 0, verified.stderr
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [row["index"] for row in rows] == [second.index, second.index - 1], "newest first"
    assert rows[0]["digest"] == second.state_digest
    assert (rows[0]["size"], rows[0]["segments"]) == (second.file_bytes, 2)
    done = [json.loads(line) for line in verified.stdout.splitlines()]
    assert done == [row | {"state": "verified"} for row in rows]
    assert verified.stderr.count("reads 0001-") == 2
    assert tree(tmp_path) == before


@pytest.mark.parametrize("verb", ["list", "verify"])
async def test_a_store_with_nothing_of_the_cell_is_never_well(backed: Backed, verb: str):
    """A check that runs every night must not be green for a name that was misspelt."""
    url = backed.store.url
    result = await run_cli("snapshot", verb, "--from", url, "--cell", "prod2")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert f"raftcron: {url} has no snapshot of cell prod2\n" in result.stderr
    assert result.stderr.endswith("  hint: check cell name and URL\n")


@pytest.mark.parametrize(("flags", "place"), [([], "at all"), (["--remote"], "in object storage")])
async def test_a_cell_without_anything_to_verify_is_not_verified(flags: list[str], place: str):
    async with serving(Keeper(verify_snapshots=[])) as server:
        result = await run_cli("snapshot", "verify", *flags, server=server)
    assert result.exit_code == 3
    assert result.stderr.startswith(f"raftcron: the cell has no snapshot {place}\n  hint: ")


async def test_one_of_them_is_verified_by_name(backed: Backed):
    newest = backed.snapshot()
    name = f"0001-{newest.term:016x}-{newest.index:016x}.snap"
    result = await run_cli(*arguments(backed, "verify", name, "-o", "json"))
    (row,) = map(json.loads, result.stdout.splitlines())
    assert row["name"] == name
    unknown = await run_cli(*arguments(backed, "verify", "x.snap"))
    assert unknown.exit_code == 3
    assert "there is no snapshot x.snap" in unknown.stderr


@pytest.mark.parametrize("how", ["cut", "flipped", "gone", "manifest", "segment"])
async def test_damage_in_a_store_exits_with_one_and_is_named(
    backed: Backed, tmp_path: Path, how: str
):
    """A manifest that cannot be read is a snapshot that cannot be restored."""
    newest = backed.snapshot()
    path = object_of(backed, tmp_path, snapshot_object, newest)
    if how == "manifest":
        object_of(backed, tmp_path, manifest_object, newest).write_bytes(b"{}")
    elif how == "segment":
        (tmp_path / "store" / segment_object(CELL, newest.segments[0].name)).unlink()
    elif how == "gone":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[:-1] if how == "cut" else content[:-40] + b"?" + content[-39:])
    result = await run_cli(*arguments(backed, "verify", "-o", "json"))
    assert result.exit_code == 1
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    states = [row["state"] for row in rows]
    assert states == (["damaged", "damaged"] if how == "segment" else ["damaged", "verified"])
    assert rows[0]["index"] == newest.index
    assert rows[0]["name"].endswith(f"{newest.index:016x}.snap")
    assert rows[0]["problem"]


async def test_what_retention_deletes_meanwhile_is_no_damage(
    backed: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = backed.snapshot()
    real = Vault.fetch_snapshot

    def fetch(self: Vault, manifest: Manifest, folder: Path) -> Any:
        if manifest.index != kept.index:
            for name in (manifest_object, snapshot_object):
                object_of(backed, tmp_path, name, manifest).unlink()
        return real(self, manifest, folder)

    monkeypatch.setattr(Vault, "fetch_snapshot", fetch)
    result = await run_cli(*arguments(backed, "verify", "-o", "json"))
    assert result.exit_code == 0
    (row,) = map(json.loads, result.stdout.splitlines())
    assert (row["index"], row["state"]) == (kept.index, "verified")


async def test_a_store_that_goes_away_is_not_called_damaged(
    backed: Backed, monkeypatch: pytest.MonkeyPatch
):
    def away(self: DirectoryStore, name: str, path: Path, **_: Any) -> int:
        raise StoreAway(self.url, "connection reset")

    monkeypatch.setattr(DirectoryStore, "get_file", away)
    result = await run_cli(*arguments(backed, "verify"))
    assert result.exit_code == 5
    assert "connection reset" in result.stderr
    assert "damaged" not in result.stdout


async def test_a_full_disk_here_is_not_called_damage(
    backed: Backed, monkeypatch: pytest.MonkeyPatch
):
    def full(self: DirectoryStore, name: str, path: Path, **_: Any) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(DirectoryStore, "get_file", full)
    result = await run_cli(*arguments(backed, "verify"))
    assert result.exit_code == 5
    assert "No space left on device\n  hint: set TMPDIR to a disk with room" in result.stderr


@pytest.mark.parametrize("verb", ["list", "verify"])
async def test_a_url_that_cannot_be_meant_is_a_matter_of_usage(verb: str):
    result = await run_cli("snapshot", verb, "--from", "ftp://host/x")
    assert result.exit_code == 2
    assert "ftp" in result.stderr
    assert "  hint: s3://BUCKET" in result.stderr


async def test_a_manifest_that_cannot_be_read_is_told_in_a_list(backed: Backed, tmp_path: Path):
    newest = backed.snapshot()
    object_of(backed, tmp_path, manifest_object, newest).write_bytes(b"{}")
    result = await run_cli(*arguments(backed, "list"))
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.startswith("cannot be read: ")
    assert f"{newest.index:016x}.json" in result.stderr
