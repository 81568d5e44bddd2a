"""All disks are lost under load, and the cell begins a new life from object storage: an independent
witness sees nothing run twice, the ledger knows of all that ran, and every instant has its row.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshots.backup_store import BackupStore
from snapshots.directory import DirectoryStore
from snapshots.layout import segment_object, snapshot_object
from snapshots.manifest import Manifest
from tests.cluster.harness import SHORT_TIMES, Cell, wait_until
from tests.cluster.witness import read_runs, witnessed
from tests.fakes.faulty_http import FaultyHttp, faulty_http
from tests.fakes.s3_server import S3Server, nightly_minio, s3_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def extra(url: str) -> str:
    return f"""{SHORT_TIMES}
[object_storage]
url = "{url}"

[snapshots]
interval_s = 2

[history]
segment_rows = 20
segment_age_s = 3
"""


def crontab(file: Path) -> str:
    lines = [f"#: name=tick-{n}\n@every 1s {witnessed(file)}\n" for n in range(3)]
    lines.append(f"#: name=slow overlap=forbid\n@every 2s {witnessed(file, 'sleep 5')}\n")
    queued = "name=queue overlap=queue deadline=2m"
    lines.append(f"#: {queued}\n@every 2s {witnessed(file, 'sleep 3')}\n")
    lines.append(f"#: name=fails\n@every 2s {witnessed(file, exit_code=3)}\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def minio(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(nightly_minio(tmp_path / "minio")) as running:
        yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultyHttp]:
    with faulty_http(server.port) as spoiling:
        yield spoiling


def leader_row(cell: Cell) -> Any:
    """What the leader says of itself, if there is one that says what it keeps."""
    rows = [row for row in cell.status() if row.role == "leader" and row.keeping]
    return rows[0] if rows else None


def stored(cell: Cell) -> int:
    """The index of the newest snapshot in object storage, as the leader knows it."""
    row = leader_row(cell)
    return row.keeping.stored_index if row is not None else 0


def folder_of(cell: Cell, name: str) -> Path:
    return cell.members[name].config.with_name(name)


def lose_disks(cell: Cell) -> None:
    cell.kill(*cell.replicas)
    for name in cell.replicas:
        shutil.rmtree(folder_of(cell, name))


def restore(cell: Cell, *arguments: str, expect: int = 0) -> dict[str, object]:
    """`raftcron restore` for r1; the report."""
    config = str(cell.members["r1"].config)
    done = cell.cli("restore", "--config", config, "--yes", "-o", "json", *arguments, expect=expect)
    return dict(json.loads(done.stdout)) if done.stdout else {"error": done.stderr}


def has_history(backup_store: BackupStore) -> list[Manifest]:
    """The stored snapshots that name segments, newest first."""
    return [one for one in backup_store.manifests()[0] if one.segments]


def damage(store: Path, manifest: Manifest, how: Callable[[bytes], bytes]) -> None:
    at = (manifest.cell, manifest.generation, manifest.term, manifest.index)
    path = store / snapshot_object(*at)
    path.write_bytes(how(path.read_bytes()))


def wait_resolved(cell: Cell) -> None:
    """Return once the restored cell launches again."""

    def launches() -> bool:
        row = leader_row(cell)
        return row is not None and row.applied > 10**12 and not row.keeping.resolving

    wait_until(launches, 60, "a cell that has resolved")


def under_load(cell: Cell, file: Path) -> None:
    """Start, apply, and wait until a snapshot is stored that has some history."""
    cell.start()
    cell.wait_connected()
    cell.apply(crontab(file))
    cell.wait_launches(15)
    before = stored(cell)
    wait_until(lambda: stored(cell) > before > 0, 30, "two stored snapshots")


def check(cell: Cell, file: Path, *, forget: bool = False) -> None:
    """Witness and ledger agree, but for what nobody can know."""
    runs = read_runs(file)
    assert not [key for key, run in runs.items() if len(run.starts) > 1], "something ran twice"
    attempts = [launch for launch, _ in runs]
    assert len(attempts) == len(set(attempts)), "a launch ran again as another attempt"
    problems = cell.judge(file)
    if forget:  # without any ledger nobody knows of them; they are lost, and not repeated
        problems = [one for one in problems if "is not in the ledger" not in one]
    assert problems == []


@pytest.mark.parametrize("kind", ["file", "server", "minio"], ids=["file", "s3", "minio"])
def test_all_disks_are_lost_and_nothing_that_ran_runs_again(
    make_cell: Callable[..., Cell], tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = (tmp_path / "store").as_uri()
    if kind != "file":
        url = request.getfixturevalue(kind).url(prefix="lost")
    cell, file = make_cell(replica_extra=extra(url)), tmp_path / "witness"
    under_load(cell, file)
    rows_before = {(view.launch, view.attempt) for view in cell.history(states=["succeeded"])}
    time.sleep(1.5)  # something happens that no snapshot has
    lose_disks(cell)
    report = restore(cell)
    assert (report["generation"], report["new_generation"]) == (1, 2)
    assert report["missing"] == report["passed_over"] == []
    cell.start()
    wait_resolved(cell)
    cell.wait_connected()
    ran = len(read_runs(file))
    wait_until(lambda: len(read_runs(file)) > ran + 5, 60, "launches of the new life")
    after = {(view.launch, view.attempt): view.state for view in cell.history()}
    assert rows_before <= after.keys(), "history that was stored is there"
    assert {row.term for row in cell.status() if row.id in cell.replicas}
    check(cell, file)
    wait_until(lambda: stored(cell) > 10**12, 60, "a snapshot of the new life")


def test_with_the_ledgers_lost_as_well_nothing_is_repeated(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=extra((tmp_path / "store").as_uri()))
    file = tmp_path / "witness"
    under_load(cell, file)
    time.sleep(1.0)
    cell.kill(*cell.executors)
    lose_disks(cell)
    for name in cell.executors:
        shutil.rmtree(folder_of(cell, name))
    restore(cell)
    cell.start()
    wait_resolved(cell)
    ran = len(read_runs(file))
    wait_until(lambda: len(read_runs(file)) > ran + 5, 60, "launches of the new life")
    check(cell, file, forget=True)
    assert cell.history(states=["lost"]), "what nobody remembers is lost"


def test_a_store_that_is_away_holds_nothing_up_and_gets_the_backlog(
    make_cell: Callable[..., Cell], tmp_path: Path, server: S3Server, proxy: FaultyHttp
) -> None:
    proxied = S3Server(proxy.port).url(prefix="away")
    variables = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    cell, file = make_cell(replica_extra=extra(proxied)), tmp_path / "witness"
    for name in cell.replicas:
        cell.variables[name] = variables
    under_load(cell, file)
    proxy.fault = "slow-down"

    def failing() -> bool:
        row = leader_row(cell)
        return row is not None and bool(row.keeping.failing and row.keeping.failing_since_ms)

    wait_until(failing, 60, "a status that tells of the failing store")
    ran = len(read_runs(file))
    wait_until(lambda: len(read_runs(file)) > ran + 15, 60, "launches without the store")
    before = stored(cell)
    proxy.fault = "hang"
    ran = len(read_runs(file))
    wait_until(lambda: len(read_runs(file)) > ran + 10, 60, "launches while the store hangs")
    proxy.fault = ""
    proxy.let_go.set()
    wait_until(lambda: stored(cell) > before and not failing(), 90, "the backlog in the store")

    def all_stored() -> bool:
        row = leader_row(cell)
        return row is not None and not row.keeping.segments_waiting

    wait_until(all_stored, 60, "all segments in the store")
    check(cell, file)


@pytest.mark.parametrize("fault", ["hang", "reset"])
def test_a_save_into_a_store_that_does_not_answer_ends_in_time_and_status_names_the_upload(
    make_cell: Callable[..., Cell], server: S3Server, proxy: FaultyHttp, fault: str
) -> None:
    rare = extra(S3Server(proxy.port).url(prefix=fault)).replace(
        "interval_s = 2", "interval_s = 60"
    )
    cell = make_cell(replica_extra=rare)
    for name in cell.replicas:
        cell.variables[name] = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    cell.start()
    cell.wait_connected()
    cell.apply("0 0 1 1 * true\n")
    cell.cli("snapshot", "save")
    proxy.fault = fault
    said = cell.cli("snapshot", "save", "--timeout", "3s", expect=6)  # not the minutes of --wait
    assert "is not in s3://" in said.stderr

    def named() -> str:
        row = leader_row(cell)
        return row.keeping.failing if row is not None else ""

    failing = wait_until(named, 10, "a status that names the upload")
    assert failing.startswith("s3://")
    assert failing in " ".join(cell.cli("status").stdout.split())
    proxy.fault = ""
    proxy.let_go.set()
    wait_until(lambda: not named(), 90, "the snapshot in the store")


def test_damage_is_found_and_the_next_older_snapshot_is_used(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    cell, file = make_cell(replica_extra=extra(store.as_uri())), tmp_path / "witness"
    under_load(cell, file)
    backup_store = BackupStore(DirectoryStore(store), "default")
    wait_until(lambda: len(has_history(backup_store)) > 2, 60, "three snapshots that name segments")
    lose_disks(cell)
    cell.kill(*cell.executors)
    newest, second, used = has_history(backup_store)[:3]
    damage(store, newest, lambda content: content[:-7])
    damage(store, second, lambda content: content[:99] + bytes([content[99] ^ 1]) + content[100:])
    segment = store / segment_object("default", used.segments[0].name)
    segment.write_bytes(b"\0" * 10)
    report = restore(cell)
    assert len(report["passed_over"]) == 2  # type: ignore[arg-type]
    assert report["missing"] == [segment.name]
    cell.start()
    wait_resolved(cell)
    ran = len(read_runs(file))
    wait_until(lambda: len(read_runs(file)) > ran + 5, 60, "launches of the new life")
    runs = read_runs(file)
    assert not [key for key, run in runs.items() if len(run.starts) > 1]


def test_a_restore_that_is_killed_goes_on_and_a_second_one_is_refused(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=extra((tmp_path / "store").as_uri()))
    file = tmp_path / "witness"
    under_load(cell, file)
    lose_disks(cell)
    config = str(cell.members["r1"].config)
    for point in ("restore-claimed", "restore-seeded"):
        os.environ["RAFTCRON_FAILPOINTS"] = f"{point}=kill"
        try:
            done = cell.cli("restore", "--config", config, "--yes", expect=None)
        finally:
            del os.environ["RAFTCRON_FAILPOINTS"]
        assert done.returncode == -signal.SIGKILL
    elsewhere = str(tmp_path / "elsewhere")
    refused = restore(cell, "--data", elsewhere, expect=4)
    assert "restored already" in str(refused["error"])
    report = restore(cell)
    assert report["new_generation"] == 2, "the same claim, not another one"
    assert restore(cell, expect=2), "the folder is not empty any more"
    cell.start()
    wait_resolved(cell)
    check(cell, file)


def test_the_old_leader_learns_that_its_cell_was_restored_elsewhere(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=extra((tmp_path / "store").as_uri()))
    under_load(cell, tmp_path / "witness")
    elsewhere = str(tmp_path / "elsewhere")
    refused = restore(cell, "--data", elsewhere, expect=4)
    assert "r1, r2, r3 answer at their addresses" in str(refused["error"])
    assert cell.leader(), "and nothing happened to it"
    assert not any(map(cell.is_down, cell.replicas))
    restore(cell, "--data", elsewhere, "--even-if-running")

    def learned() -> list[str]:
        return [name for name in cell.replicas if "restored elsewhere" in cell.log(name)]

    for name in wait_until(learned, 60, "a leader that learns of it"):
        cell.wait_down(name)


def test_one_disk_of_three_is_enough(make_cell: Callable[..., Cell], tmp_path: Path) -> None:
    cell = make_cell(replica_extra=extra((tmp_path / "store").as_uri()))
    file = tmp_path / "witness"
    under_load(cell, file)
    kept = cell.follower()
    cell.kill(*cell.replicas)
    left = tmp_path / "left"
    folder_of(cell, kept).rename(left)
    for name in cell.replicas:
        shutil.rmtree(folder_of(cell, name), ignore_errors=True)
    report = restore(cell, "--from-data", str(left))
    assert report["new_generation"] == 2
    cell.start()
    wait_resolved(cell)
    ran = len(read_runs(file))
    wait_until(lambda: len(read_runs(file)) > ran + 5, 60, "launches of the new life")
    check(cell, file)
