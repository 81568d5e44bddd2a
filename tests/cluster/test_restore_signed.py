"""A cell with certificates loses all disks, and somebody else can write its bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.clock import SystemClock
from cron.storage.trust import trust_of
from launcher.tls import files_of, load_credentials
from snapshots.backup_store import BackupStore
from snapshots.layout import generation_object, manifest_object
from snapshots.manifest import Generation, Manifest, encode
from snapshots.signed import Trust
from snapshots.urls import open_store
from tests.cluster.harness import SHORT_TIMES, wait_until
from tests.cluster.secured_cell import Secured
from tests.cluster.test_restore import lose_disks, restore, wait_resolved
from tests.fakes.s3_server import nightly_minio, s3_server

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]

SLOW_SNAPSHOTS = "\n[snapshots]\ninterval_s = 3600\nentries = 1000000\n"


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store: a directory, or a real S3 server."""
    if request.param == "file":
        yield (tmp_path / "store").as_uri()
        return
    with s3_server(nightly_minio(tmp_path / "minio")) as running:
        yield running.url(prefix="signed")


@pytest.fixture
def secured(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    kept = f'{SHORT_TIMES}\n[object_storage]\nurl = "{url}"\n{SLOW_SNAPSHOTS}'
    made = Secured(tmp_path, replica_extra=kept)
    monkeypatch.setenv("RAFTCRON_TLS", str(made.person))
    with made.cell:
        yield made


def save(secured: Secured) -> int:
    """Store a snapshot; return its index."""
    (row,) = secured.cell.rows("snapshot", "save")
    return int(row["index"])


def trust(secured: Secured, name: str, **how: str) -> Trust:
    """The trust of a replica, or of somebody with a certificate of another authority."""
    folder = secured.folders[name]
    if how:
        folder = secured.certs.issued("replica", name, cell="default", **how)
    ours = load_credentials(files_of(str(folder)))
    return trust_of("default", lambda: ours, SystemClock(), takes_unsigned=False)


def manifests(url: str, signer: Trust) -> list[Manifest]:
    return BackupStore(open_store(url), "default", signer).manifests()[0]


@pytest.mark.parametrize("url", ["file", "minio"], indirect=True)
def test_who_writes_the_bucket_brings_no_job_into_the_restored_cell(
    secured: Secured, url: str
) -> None:
    cell = secured.cell
    cell.start()
    cell.wait_connected()
    cell.apply("#: name=old\n@every 1h true\n")
    save(secured)
    cell.apply("#: name=ours\n@every 1h true\n")
    newest = save(secured)
    one, older = manifests(url, trust(secured, "r1"))[:2]
    assert (one.index, older.index) == (newest, older.index)
    lose_disks(cell)

    store = open_store(url)
    newer = Manifest(**{**{name: getattr(older, name) for name in older.__struct_fields__},
                        "index": newest + 1_000})  # fmt: skip
    as_newest = manifest_object("default", *newer.place)
    thief = BackupStore(store, "default", trust(secured, "r1", authority="theirs"))
    signed_by_them = encode(newer, lambda body: trust(secured, "r1", authority="theirs").sign(
        as_newest, body
    ))  # fmt: skip
    replayed = store.get(manifest_object("default", *older.place), 1 << 20)
    for number, content in enumerate((encode(newer), signed_by_them, replayed)):
        place = (newer.generation, newer.term, newer.index + number)
        store.put(manifest_object("default", *place), content)
    report = restore(cell)
    assert report["index"] == newest
    passed_over = report["passed_over"]
    assert isinstance(passed_over, list)
    assert len(passed_over) == 3

    cell.start()
    wait_resolved(cell)
    assert sorted(row["job"] for row in cell.rows("jobs")) == ["old", "ours"]

    # A marker of a later generation does not end the cell that runs.
    forged = Generation(cell="default", generation=7, id="theirs")
    thief.claim_generation(forged, unconditional=True)
    wait_until(
        lambda: any(generation_object("default", 7) in str(row.keeping) for row in cell.status()),
        90, "a status that names the marker",
    )  # fmt: skip
    assert sorted(row["job"] for row in cell.rows("jobs")) == ["old", "ours"]
    cell.wait_connected()  # a leader is there, with its executor


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_what_a_revoked_replica_signed_is_not_restored(secured: Secured, url: str) -> None:
    cell = secured.cell
    cell.start()
    cell.wait_connected()
    cell.apply("#: name=ours\n@every 1h true\n")
    kept = save(secured)
    stolen = trust(secured, "r3")
    cell.cli("certs", "revoke", str(secured.folders["r3"]), "--yes")
    cell.apply("#: name=more\n@every 1h true\n", name="other")
    newest = save(secured)
    lose_disks(cell)
    store = open_store(url)
    one = manifests(url, trust(secured, "r1"))[0]
    assert (one.index, len(one.revoked)) == (newest, 1)
    at = manifest_object("default", *one.place)
    store.put(at, encode(one, lambda body: stolen.sign(at, body)))
    report = restore(cell)
    assert report["index"] in (kept, newest - 1)
    assert "revoked" in str(report["passed_over"])
