"""`raftcron snapshot`: save, list and verify, of a cell and of a store without one."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest

from cron.api.members import StatusReport, StatusRow
from cron.api.snapshots import (
    KeepingView,
    SaveReport,
    SnapshotsReport,
    SnapshotsRequest,
    SnapshotView,
)
from cron.api.table import STATUS
from cron.cli import snapshots as cli_snapshots
from cron.cli.options import Settings
from cron.errors import Conflict, NotFound, OutcomeUnknown, Unavailable
from tests.unit.api_rig import NOON_S, FakeBackend, asks, run_cli, serving

URL = "s3://bucket/prefix"
LOCAL = SnapshotView(
    name="0000000000000003-0000000000000058.snap", place="local", generation=1, term=3, index=88,
    taken_ms=NOON_S * 1000, size=12_345, content_size=99_999, digest="ab" * 16,
)  # fmt: skip
REMOTE = msgspec.structs.replace(
    LOCAL, name="0001-0000000000000003-0000000000000058.snap", place="remote", segments=4
)
KEYS = [
    "name", "place", "taken_at", "generation", "term", "index", "size", "content_size", "segments",
    "state", "problem", "digest",
]  # fmt: skip


def at(view: SnapshotView, index: int, **fields: Any) -> SnapshotView:
    return msgspec.structs.replace(view, index=index, **fields)


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
    backend = FakeBackend(
        save_snapshot=SaveReport(generation=1, term=3, index=88, store=URL),
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
    assert backend.calls[0] == ("save_snapshot", (asks("save_snapshot", "ada"),))


async def test_a_newer_one_is_as_good_and_one_of_a_later_life_too():
    for newer in (at(REMOTE, 99), at(REMOTE, 5, generation=2)):
        backend = FakeBackend(
            save_snapshot=SaveReport(generation=1, term=3, index=88, store=URL),
            snapshots=report(newer),
        )
        async with serving(backend) as server:
            result = await run_cli("snapshot", "save", "--wait", "5s", "-o", "json", server=server)
        assert json.loads(result.stdout)["index"] == newer.index
        assert json.loads(result.stdout)["store"] == URL


async def test_without_a_store_it_is_enough_that_the_leader_has_it_and_that_is_said():
    backend = FakeBackend(
        save_snapshot=SaveReport(generation=1, term=3, index=88),
        snapshots=Turns(report(store=""), report(LOCAL, store="")),
        status=leader(),
    )
    async with serving(backend) as server:
        table = await run_cli("snapshot", "save", "--wait", "5s", server=server)
        row = await run_cli("snapshot", "save", "--wait", "5s", "-o", "json", server=server)
    assert "and nowhere else: no object storage is configured" in table.stdout
    assert table.stderr == "waits for the snapshot to be on the leader's disk\n"
    assert json.loads(row.stdout)["store"] is None
    assert list(json.loads(row.stdout)) == [*KEYS, "store"]


async def test_who_waits_long_enough_is_told_that_it_goes_on():
    backend = FakeBackend(
        save_snapshot=SaveReport(generation=1, term=3, index=88, store=URL),
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

    def ask(self, rpc: Any) -> SnapshotsReport | StatusReport:
        if rpc is STATUS:
            return StatusReport(rows=leader())
        answer = self.turns()
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_store_that_is_away_is_said_once_and_not_at_every_look(
    capsys: pytest.CaptureFixture[str],
):
    client: Any = Away()
    wanted = SaveReport(generation=1, term=3, index=88, store=URL)
    found = cli_snapshots._until_safe(Settings(), client, wanted, 10_000)
    assert found == REMOTE
    assert capsys.readouterr().err == f"{URL}: timed out\n"


class Silent:
    """A client whose store hangs, and which gets no answer about the cell after the first one."""

    def __init__(self) -> None:
        self.lists = 0
        self.status = Turns(StatusReport(rows=leader(failing="hangs")), Unavailable("no answer"))

    def ask(self, rpc: Any) -> SnapshotsReport | StatusReport:
        if rpc is not STATUS:
            self.lists += 1
            return report(LOCAL)
        answer = self.status()
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_nobody_who_answers_about_the_cell_is_no_leader_that_is_gone(
    capsys: pytest.CaptureFixture[str],
):
    client: Any = Silent()
    wanted = SaveReport(generation=1, term=3, index=88, store=URL)
    with pytest.raises(OutcomeUnknown):
        cli_snapshots._until_safe(Settings(), client, wanted, 300)
    assert client.lists == 1
    assert capsys.readouterr().err == "cannot upload: hangs\n"


@pytest.mark.parametrize("status", [[], [StatusRow(kind="replica", id="r1", role="follower")]])
async def test_while_nobody_leads_it_waits(status: list[StatusRow]):
    backend = FakeBackend(
        save_snapshot=SaveReport(generation=1, term=3, index=88, store=URL),
        snapshots=Turns(report(), report(REMOTE)),
        status=status,
    )
    async with serving(backend) as server:
        result = await run_cli("snapshot", "save", "--wait", "5s", server=server)
    assert result.stderr.splitlines() == ["waits for a leader"]


@pytest.mark.parametrize(
    ("length", "what"), [("soon", "'soon' cannot be read"), ("0s", "'0s' is zero")]
)
async def test_a_length_that_is_none_is_a_matter_of_usage(length: str, what: str):
    result = await run_cli("snapshot", "save", "--wait", length)
    assert result.exit_code == 2
    assert what in result.stderr


async def test_a_save_waits_no_longer_than_its_timeout_says_and_names_what_fails():
    hangs = KeepingView(failing=f"{URL}: no answer yet: stores segment 1 of 1")
    backend = FakeBackend(
        save_snapshot=SaveReport(generation=1, term=3, index=88, store=URL),
        snapshots=report(LOCAL),
        status=[StatusRow(kind="replica", id="r1", role="leader", keeping=hangs)],
    )
    async with serving(backend) as server:
        result = await run_cli("snapshot", "save", "--timeout", "1s", server=server)
    assert result.exit_code == 6  # and not after the five minutes of --wait
    assert result.stderr.splitlines()[:2] == [
        f"cannot upload: {URL}: no answer yet: stores segment 1 of 1",
        f"raftcron: the snapshot at index 88 is not in {URL} yet",
    ]
    asked = [name for name, _ in backend.calls]
    assert asked.count("snapshots") == 1, "the store would hang for each list, too"


async def test_a_list_that_the_store_does_not_give_ends_the_wait_in_time():
    backend = FakeBackend(
        save_snapshot=SaveReport(generation=1, term=3, index=88, store=URL),
        snapshots=lambda _: asyncio.Event().wait(),
        status=leader(),
    )
    async with serving(backend) as server:
        result = await run_cli("snapshot", "save", "--timeout", "1s", server=server)
    assert result.exit_code == 6
    assert f"the snapshot at index 88 is not in {URL} yet" in result.stderr


def test_a_store_that_hangs_ends_a_direct_question_in_time(monkeypatch: pytest.MonkeyPatch):
    settings, goes_on = Settings(), threading.Event()
    settings.timeout_ms = 50
    with pytest.raises(Unavailable, match=f"{URL}: no answer within 0.05 s"):
        cli_snapshots._in_time(settings, goes_on.wait, URL)
    goes_on.set()

    def refuse() -> None:
        raise Conflict("no")

    settings.timeout_ms = 60_000
    assert cli_snapshots._in_time(settings, goes_on.wait, URL)
    with pytest.raises(Conflict):
        cli_snapshots._in_time(settings, refuse, URL)


async def test_what_became_of_the_request_may_be_unknown():
    backend = FakeBackend(save_snapshot=OutcomeUnknown("the change may happen", "look"))
    async with serving(backend) as server:
        result = await run_cli("snapshot", "save", "--timeout", "0.2s", server=server)
    assert result.exit_code == 6


# --- list and verify, of a cell


async def test_a_list_as_a_table_and_as_json():
    backend = FakeBackend(snapshots=report(LOCAL, REMOTE, problems=("x.json: it is cut",)))
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
    assert backend.calls == [("snapshots", (SnapshotsRequest(),))] * 2


async def test_where_there_are_none_it_says_so():
    async with serving(FakeBackend(snapshots=report())) as server:
        assert (await run_cli("snapshot", "list", server=server)).stdout == "no snapshots\n"


@pytest.mark.parametrize(("error", "code"), [(Unavailable("away"), 5), (Conflict("no"), 4)])
async def test_errors_of_the_store_have_their_exit_codes(error: Exception, code: int):
    async with serving(FakeBackend(snapshots=error)) as server:
        result = await run_cli("snapshot", "list", "--timeout", "0.2s", server=server)
    assert result.exit_code == code


async def test_verify_exits_with_one_where_anything_is_damaged():
    good = msgspec.structs.replace(LOCAL, state="verified")
    bad = msgspec.structs.replace(REMOTE, state="damaged", problem="checksum")
    backend = FakeBackend(verify_snapshots=[good, bad])
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
    asked = [(one.name, one.is_remote) for _, (one,) in backend.calls]
    assert asked == [("", False), ("", True), (LOCAL.name, False)]


async def test_a_snapshot_whose_time_cannot_be_read_has_no_age():
    bad = msgspec.structs.replace(REMOTE, taken_ms=0, state="damaged", problem="checksum")
    async with serving(FakeBackend(verify_snapshots=[bad])) as server:
        result = await run_cli("snapshot", "verify", server=server)
    assert result.stdout.splitlines()[1].split()[1:3] == ["-", "-"]


async def test_verify_of_a_name_that_is_not_there():
    async with serving(FakeBackend(verify_snapshots=NotFound("there is no snapshot x"))) as server:
        result = await run_cli("snapshot", "verify", "x", server=server)
    assert result.exit_code == 3


@pytest.mark.parametrize(("flags", "place"), [([], "at all"), (["--remote"], "in object storage")])
async def test_a_cell_without_anything_to_verify_is_not_verified(flags: list[str], place: str):
    async with serving(FakeBackend(verify_snapshots=[])) as server:
        result = await run_cli("snapshot", "verify", *flags, server=server)
    assert result.exit_code == 3
    assert result.stderr.startswith(f"raftcron: the cell has no snapshot {place}\n  hint: ")
