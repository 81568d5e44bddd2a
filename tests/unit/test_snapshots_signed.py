"""Signed manifests and markers: who can write the store cannot write jobs (docs/backup.md)."""

from __future__ import annotations

import hashlib
import json
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cron.certs.making import DAY_S
from cron.clock import SystemClock
from cron.storage.trust import trust_of
from cron.storage.uploads import Uploads
from launcher.identity import certificate_digest
from launcher.tls import Credentials
from snapshots.backup_store import BackupStore
from snapshots.directory import DirectoryStore
from snapshots.disk import write_snapshot
from snapshots.errors import SnapshotCorrupt, SnapshotError, SnapshotUnsigned, SnapshotUntrusted
from snapshots.layout import generation_object, manifest_object, snapshot_object
from snapshots.manifest import Generation, Manifest
from snapshots.retention import SnapshotPolicy
from snapshots.signed import Trust
from tests.fakes.memory_store import MemoryStore
from tests.unit.api_rig import run_cli
from tests.unit.backup_store_rig import back_up, segment_file, snapshot_file
from tests.unit.certs_rig import Certs
from tests.unit.restore_rig import CELL, Backed
from tests.unit.test_restore_command import Place, told

SUM = re.compile(rb'(.*),\n "sum": "[0-9a-f]{64}"\n}\n', re.DOTALL)


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path / "certs")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def trust(ours: Credentials, **how: Any) -> Trust:
    return trust_of(CELL, lambda: ours, SystemClock(), **({"takes_unsigned": False} | how))


def replica(certs: Certs, name: str = "r1", **how: Any) -> Credentials:
    return certs.credentials("replica", name, **({"cell": CELL} | how))


def digest_of(ours: Credentials) -> str:
    return certificate_digest(ssl.PEM_cert_to_DER_cert(ours.certificate.decode()))


def stored(store: MemoryStore, folder: Path, index: int, signer: Trust | None) -> str:
    """Store a snapshot as a replica does; return the name of its manifest."""
    back_up(BackupStore(store, CELL, signer), folder, index, [])
    return manifest_object(CELL, 1, 3, index)


def forge(store: MemoryStore, name: str, change: Callable[[bytes], bytes], to: str = "") -> None:
    """Change an object as somebody does who has no key: the checksum is right afterwards."""
    match = SUM.fullmatch(store.get(name, 1 << 20))
    assert match is not None
    body = change(match[1])
    ending = b',\n "sum": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode()
    store.put(to or name, body + ending)


def refusal(store: MemoryStore, reader: Trust) -> SnapshotError:
    """Why the only manifest does not count."""
    found, (error,) = BackupStore(store, CELL, reader).manifests()
    assert found == []
    return error


def test_a_signed_manifest_counts_for_every_replica_and_for_an_older_release(
    certs: Certs, store: MemoryStore, tmp_path: Path
) -> None:
    name = stored(store, tmp_path, 100, trust(replica(certs)))
    for reader in (trust(replica(certs, "r2")), None):
        (manifest,), skipped = BackupStore(store, CELL, reader).manifests()
        assert (manifest.index, skipped) == (100, [])
    shown = json.loads(store.get(name, 1 << 20))
    assert list(shown)[-3:] == ["signed", "signature", "sum"]
    assert shown["signed"]["certificate"].startswith("-----BEGIN CERTIFICATE-----")


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b'"jobs": 0', b'"jobs": 1'),
        lambda body: body.replace(b'"at_ms":1', b'"at_ms":2'),
        lambda body: re.sub(
            rb'"checksum": "[0-9a-f]{64}"', b'"checksum": "%s"' % (b"0" * 64), body
        ),
        lambda body: body.replace(b'"signature": "ME', b'"signature": "MF'),
        lambda body: body + b',\n "jobs": 7',
    ],
)
def test_a_manifest_that_was_changed_does_not_count(
    certs: Certs, store: MemoryStore, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    ours = trust(replica(certs))
    name = stored(store, tmp_path, 100, ours)
    before = store.get(name, 1 << 20)
    forge(store, name, change)
    assert store.get(name, 1 << 20) != before
    assert isinstance(refusal(store, ours), SnapshotUntrusted)


def test_an_old_manifest_under_a_new_name_does_not_count(
    certs: Certs, store: MemoryStore, tmp_path: Path
) -> None:
    ours = trust(replica(certs))
    name = stored(store, tmp_path, 100, ours)
    newer = manifest_object(CELL, 1, 3, 900)
    forge(store, name, lambda body: body, to=newer)
    forge(
        store, name, lambda body: body.replace(b'"index": 100', b'"index": 901'),
        to=manifest_object(CELL, 1, 3, 901),
    )  # fmt: skip
    (manifest,), skipped = BackupStore(store, CELL, ours).manifests()
    assert manifest.index == 100
    copied, renamed = skipped
    assert copied.name == newer
    assert "it is the manifest of another snapshot" in str(copied)
    assert renamed.name == manifest_object(CELL, 1, 3, 901)
    assert "not of these bytes under this name" in str(renamed)


def test_another_snapshot_in_the_place_of_the_one_that_was_signed_is_refused(
    certs: Certs, store: MemoryStore, tmp_path: Path
) -> None:
    ours = BackupStore(store, CELL, trust(replica(certs)))
    back_up(ours, tmp_path, 100, [])
    (manifest,), _ = ours.manifests()
    (tmp_path / "theirs").mkdir()
    theirs = snapshot_file(tmp_path / "theirs", 100)
    content = theirs.path.read_bytes()
    other = MemoryStore()
    header = msgspec.structs.replace(theirs.header, digest=b"x" * 16)
    (tmp_path / "evil").mkdir()
    evil = write_snapshot(tmp_path / "evil", header, [b"state at 100"])
    assert evil.file_bytes == len(content)
    other.put_file("x", evil.path)
    store.put(snapshot_object(CELL, 1, 3, 100), other.get("x", 1 << 20))
    with pytest.raises(SnapshotCorrupt, match="not the snapshot of its manifest"):
        ours.fetch_snapshot(manifest, tmp_path)


@pytest.mark.parametrize(
    ("signer", "why"),
    [
        (lambda certs: replica(certs, authority="theirs"), "not come from the cell's authority"),
        (lambda certs: replica(certs, cell="other"), "not that of raftcron://prod/replica/"),
        (lambda certs: certs.credentials("person", "ada", cell=CELL), "not that of raftcron://"),
        (lambda certs: certs.credentials("executor", "e1", cell=CELL), "not that of raftcron://"),
    ],
)
def test_only_a_replica_of_the_cell_can_sign(
    certs: Certs,
    store: MemoryStore,
    tmp_path: Path,
    signer: Callable[[Certs], Credentials],
    why: str,
) -> None:
    stored(store, tmp_path, 100, trust(signer(certs)))
    error = refusal(store, trust(replica(certs), takes_unsigned=True))
    assert isinstance(error, SnapshotUntrusted)
    assert why in str(error)


def test_a_backup_outlives_the_certificate_of_its_writer_but_nobody_signs_after_its_end(
    certs: Certs, store: MemoryStore, tmp_path: Path
) -> None:
    ours, now_ms = replica(certs), SystemClock().wall_ms()
    day_ms = DAY_S * 1000
    long_ago = msgspec.structs.replace(trust(ours), now_ms=lambda: now_ms - 20 * day_ms)
    later = msgspec.structs.replace(trust(ours), now_ms=lambda: now_ms + 20 * day_ms)
    for index, signer in enumerate((long_ago, trust(ours), later), 100):
        stored(store, tmp_path, index, signer)
    renewed = trust(replica(certs, begins_days=0))
    (manifest,), skipped = BackupStore(store, CELL, renewed).manifests()
    assert manifest.index == 101
    assert all("was not valid at" in str(one) for one in skipped)
    assert len(skipped) == 2


def test_a_revoked_certificate_does_not_count(
    certs: Certs, store: MemoryStore, tmp_path: Path
) -> None:
    stolen, renewed = replica(certs, "r2"), replica(certs, "r2")
    stored(store, tmp_path, 900, trust(stolen))
    revoked = [digest_of(stolen)]
    error = refusal(store, trust(replica(certs), revoked=lambda: revoked))
    assert f"is revoked: {revoked[0]}" in str(error)
    # A cell that has revoked it says so in each of its manifests.
    stored(store, tmp_path, 200, trust(renewed, revoked=lambda: revoked))
    (manifest,), (later,) = BackupStore(store, CELL, trust(replica(certs))).manifests()
    assert (manifest.index, manifest.revoked) == (200, revoked)
    assert "was revoked later" in str(later)


def test_what_nobody_signed_counts_only_where_a_person_says_so(
    certs: Certs, store: MemoryStore, tmp_path: Path
) -> None:
    ours = trust(replica(certs))
    name = stored(store, tmp_path, 100, None)
    error = refusal(store, ours)
    assert isinstance(error, SnapshotUnsigned)
    assert "--unsigned" in error.hint
    lenient = msgspec.structs.replace(ours, takes_unsigned=True)
    assert [one.index for one in BackupStore(store, CELL, lenient).manifests()[0]] == [100]
    stored(store, tmp_path, 100, ours)
    forge(store, name, lambda body: body.partition(b',\n "signed"')[0])
    assert isinstance(refusal(store, ours), SnapshotUnsigned), "the signature was cut off"


# ---- retention


def indexes(store: MemoryStore) -> list[int]:
    """The positions of all manifests that are stored, whoever wrote them."""
    return [one.index for one in BackupStore(store, CELL).manifests()[0]]


def test_forged_manifests_take_the_place_of_none_that_count(
    certs: Certs, store: MemoryStore, tmp_path: Path
) -> None:
    ours = trust(replica(certs), takes_unsigned=True)
    for index in (100, 101, 102):
        stored(store, tmp_path, index, ours)
    for index in range(900, 905):
        stored(store, tmp_path, index, None)
    backup_store = BackupStore(store, CELL, ours)
    pruned = backup_store.prune(SnapshotPolicy(newest=2, daily=0), 0, ())
    assert len(pruned.snapshots) == 1
    assert indexes(store) == [904, 903, 902, 901, 900, 102, 101]


@pytest.mark.parametrize("how", ["unsigned", "other authority", "revoked"])
def test_what_counts_no_more_goes_with_time_and_keeps_no_segment_for_ever(
    certs: Certs, store: MemoryStore, tmp_path: Path, how: str
) -> None:
    before = replica(certs, authority="old") if how == "other authority" else replica(certs)
    revoked = [digest_of(before)] if how == "revoked" else []
    segment = segment_file(tmp_path, 1)
    for index in (100, 101, 102):
        signer = None if how == "unsigned" else trust(before)
        back_up(BackupStore(store, CELL, signer), tmp_path, index, [segment])
    ours = trust(replica(certs), takes_unsigned=True, revoked=lambda: revoked)
    backup_store, policy = BackupStore(store, CELL, ours), SnapshotPolicy(newest=3, daily=0)
    left = []
    for index in (103, 104, 105):
        stored(store, tmp_path, index, ours)
        pruned = backup_store.prune(policy, 1 << 50, ())
        assert pruned.skipped == []
        left.append(indexes(store))
    assert left == [[103, 102, 101], [104, 103, 102], [105, 104, 103]]
    assert backup_store.segments() == {}, "the last manifest that named it is gone"


# ---- markers of generations


def claim(store: MemoryStore, generation: int, signer: Trust | None) -> None:
    marker = Generation(cell=CELL, generation=generation, id=f"life {generation}")
    BackupStore(store, CELL, signer).claim_generation(marker)


def test_a_marker_that_no_replica_signed_does_not_end_the_cell(
    certs: Certs, store: MemoryStore
) -> None:
    ours = trust(replica(certs), takes_unsigned=True)
    uploads = Uploads(
        BackupStore(store, CELL, ours), "", SnapshotPolicy(), lambda: "", "r1", "0.2.0"
    )
    assert uploads.claim(1, "life 1") == 1
    claim(store, 9_000, None)
    with pytest.raises(SnapshotUnsigned, match=re.escape(generation_object(CELL, 9_000))):
        uploads.claim(1, "life 1")
    claim(store, 2, trust(replica(certs, "r3")))
    assert uploads.claim(1, "life 1") > 1, "a restore with a certificate was there, too"


def test_without_certificates_every_marker_counts(store: MemoryStore) -> None:
    uploads = Uploads(BackupStore(store, CELL), "", SnapshotPolicy(), lambda: "", "r1", "0.2.0")
    claim(store, 2, None)
    assert uploads.claim(1, "life 1") == 2


# ---- a restore


class SecuredPlace(Place):
    """A machine of a cell with certificates, whose store has one signed snapshot."""

    def __init__(self, folder: Path, certs: Certs) -> None:
        self.ours = replica(certs)
        self.signer: Trust | None = trust(self.ours)
        super().__init__(folder)
        files = self.ours.files
        tls = f'\n[tls]\nca = "{files.ca}"\ncert = "{files.cert}"\nkey = "{files.key}"\n'
        self.write(f'\n[object_storage]\nurl = "{self.url}"\n{tls}')

    def sign(self, signer: Trust | None) -> Manifest:
        """Store a snapshot with one more job, signed like this."""
        backed = self.backed
        backed.backup_store = BackupStore(backed.store, CELL, signer)
        backed.seal()
        return backed.snapshot()


@pytest.fixture
def secured(tmp_path: Path, certs: Certs) -> SecuredPlace:
    return SecuredPlace(tmp_path, certs)


async def test_a_restore_takes_what_is_signed_and_nothing_newer_that_is_not(
    secured: SecuredPlace, certs: Certs
) -> None:
    signed = secured.sign(trust(secured.ours))
    forged = secured.sign(trust(replica(certs, authority="theirs")))
    secured.sign(None)
    result = await secured.restore("--yes", "-o", "json")
    assert result.exit_code == 0, result.stderr
    row = json.loads(result.stdout)
    assert row["index"] == signed.index < forged.index
    assert "no replica of the cell has signed it" in "".join(row["passed_over"])
    assert "does not come from the cell's authority" in "".join(row["passed_over"])


async def test_a_restore_of_unsigned_backups_needs_to_be_told(secured: SecuredPlace) -> None:
    result = await secured.restore("--yes")
    assert result.exit_code == 3
    error, hint = told(result)
    assert "has no snapshot" in error
    assert "`raftcron restore --unsigned` takes it" in hint
    assert not (secured.data / "raft").exists()
    taken = await secured.restore("--yes", "--unsigned")
    assert taken.exit_code == 0, taken.stderr


async def test_a_restore_takes_nothing_that_a_revoked_certificate_signed(
    secured: SecuredPlace, certs: Certs
) -> None:
    stolen = replica(certs, "r2")
    signed = secured.sign(trust(secured.ours))
    secured.sign(trust(stolen))
    bad = await secured.restore("--yes", "--revoked", "abc")
    assert bad.exit_code == 2
    assert "is no digest of a certificate" in bad.stderr
    result = await secured.restore("--yes", "-o", "json", "--revoked", digest_of(stolen))
    assert result.exit_code == 0, result.stderr
    row = json.loads(result.stdout)
    assert row["index"] == signed.index
    assert "is revoked" in "".join(row["passed_over"])


async def test_a_list_of_a_store_with_a_certificate_at_hand_checks_the_signatures(
    secured: SecuredPlace, certs: Certs
) -> None:
    signed = secured.sign(trust(secured.ours))
    person = certs.issued("person", "ada", cell=CELL)
    arguments = ["snapshot", "list", "--from", secured.url, "--cell", CELL, "-o", "json"]
    plain = await run_cli(*arguments)
    checked = await run_cli(*arguments, "--tls", str(person))
    assert [json.loads(line)["index"] for line in checked.stdout.splitlines()] == [signed.index]
    assert len(plain.stdout.splitlines()) == 2
    assert "no replica of the cell has signed it" in checked.stderr


async def test_a_restored_cell_signs_its_generation(secured: SecuredPlace) -> None:
    secured.sign(trust(secured.ours))
    assert (await secured.restore("--yes")).exit_code == 0
    ours = BackupStore(DirectoryStore(secured.store), CELL, trust(secured.ours))
    assert [one.generation for one in ours.generations()] == [2], "the first one is unsigned"


def test_a_cell_without_certificates_signs_nothing(tmp_path: Path) -> None:
    backed = Backed(tmp_path)
    one = backed.snapshot()
    shown = json.loads(backed.store.get(manifest_object(CELL, *one.place), 1 << 20))
    assert "signature" not in shown
