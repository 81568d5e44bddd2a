"""Stored outputs that are damaged, cut, altered or another's: told, and never shown."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapshots import zstd
from snapshots.backup_store import BackupStore
from snapshots.errors import (
    ObjectDamaged,
    OutputDamaged,
    SnapshotForeign,
    SnapshotUnsupported,
    StoreAway,
)
from snapshots.format import LEAD, OutputHeader
from snapshots.layout import output_object
from tests.fakes.memory_store import MemoryStore
from tests.fakes.packed_output import put_output

AT_MS = 1_795_219_200_000
MAX = 1 << 20
LAUNCH = "default/backup@2026-11-20T15:00:00Z"
NAME = output_object("prod", AT_MS, LAUNCH, 1)
CONTENT = b"".join(b"line %d of what was printed\n" % n for n in range(50))


class Stored:
    """A store with one output in it."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.backup_store = BackupStore(self.store, "prod")
        self.path = folder / "output"
        put_output(self.backup_store, AT_MS, header(), CONTENT)
        self.packed = self.store.objects[NAME]

    def fetch(self) -> OutputHeader | None:
        return self.backup_store.fetch_output(AT_MS, LAUNCH, 1, self.path, MAX)

    def check_refused(self, packed: bytes) -> None:
        """It is told of, and nothing of it is left to be shown."""
        self.store.objects[NAME] = packed
        with pytest.raises(OutputDamaged, match=r"default/backup@2026-11-20T15:00:00Z\+a1"):
            self.fetch()
        assert list(self.path.parent.iterdir()) == []


def header(**fields: object) -> OutputHeader:
    known = {"cell": "prod", "launch": LAUNCH, "attempt": 1, "size": len(CONTENT), "dropped": 3}
    return OutputHeader(**{**known, **fields})  # type: ignore[arg-type]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_it_is_smaller_than_what_was_printed(stored: Stored) -> None:
    assert len(stored.packed) < len(CONTENT) / 2
    assert stored.fetch() == header()
    assert stored.path.read_bytes() == CONTENT


@settings(suppress_health_check=list(HealthCheck))
@given(place=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_no_flipped_bit_is_shown(stored: Stored, place: int, flip: int) -> None:
    packed = bytearray(stored.packed)
    packed[place % len(packed)] ^= flip
    stored.check_refused(bytes(packed))


@pytest.mark.parametrize("part", [0, 1, 7, 20, 100])
def test_no_part_of_it_is_shown(stored: Stored, part: int) -> None:
    stored.check_refused(stored.packed[:part])
    stored.check_refused(stored.packed[: -part - 1])
    stored.check_refused(stored.packed + b"x" * (part + 1))


def test_a_small_object_that_unpacks_to_a_large_one_is_refused(stored: Stored) -> None:
    bomb = header(size=MAX + 1)
    put_output(stored.backup_store, AT_MS, bomb, bytes(MAX + 1))
    packed = stored.store.objects[NAME]
    assert len(packed) < 1_000
    stored.check_refused(packed)


def test_a_large_object_is_not_even_fetched(stored: Stored) -> None:
    stored.store.calls.clear()
    stored.check_refused(bytes(2 * MAX))
    assert [operation for operation, _ in stored.store.calls] == ["head"]


def test_what_is_no_output_is_not_shown(stored: Stored) -> None:
    chance = random.Random(5)
    stored.check_refused(chance.randbytes(5_000))
    stored.check_refused(zstd.compress(CONTENT))
    stored.check_refused(CONTENT)


@pytest.mark.parametrize(
    "other", [{"launch": LAUNCH.replace("15:", "16:")}, {"attempt": 2}, {"launch": ""}]
)
def test_the_output_of_another_attempt_is_not_shown(
    stored: Stored, other: dict[str, object]
) -> None:
    elsewhere = MemoryStore()
    whose = header(**other)
    put_output(BackupStore(elsewhere, "prod"), AT_MS, whose, CONTENT)
    (packed,) = elsewhere.objects.values()
    stored.check_refused(packed)


def test_the_output_of_another_cell_is_not_shown(stored: Stored) -> None:
    elsewhere = MemoryStore()
    put_output(BackupStore(elsewhere, "dev"), AT_MS, header(cell="dev"), CONTENT)
    (stored.store.objects[NAME],) = elsewhere.objects.values()
    with pytest.raises(SnapshotForeign, match="of cell 'dev', not 'prod'"):
        stored.fetch()
    assert not stored.path.exists()


def test_another_version_is_told_of_as_that(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshots.format.FORMAT_VERSION", 9)
    put_output(stored.backup_store, AT_MS, header(), CONTENT)
    assert LEAD.unpack_from(stored.store.objects[NAME])[1] == 9
    monkeypatch.undo()
    with pytest.raises(SnapshotUnsupported, match="format 9, and this release reads 3"):
        stored.fetch()
    assert not stored.path.exists()


def test_a_transfer_that_is_cut_once_is_tried_again(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_file, cuts = stored.store.get_file, [True]

    def cut(name: str, path: Path, **more: object) -> int:
        if cuts.pop():
            path.write_bytes(b"half")
            raise ObjectDamaged(stored.store.url, name, "its transfer was cut")
        return get_file(name, path)

    monkeypatch.setattr(stored.store, "get_file", cut)
    cuts[:] = [False, True]
    assert stored.fetch() == header()
    cuts[:] = [True, True]
    with pytest.raises(OutputDamaged, match="its transfer was cut"):
        stored.fetch()
    assert not list(stored.path.parent.glob("*.unfinished"))


def test_a_store_that_is_away_is_no_damage(stored: Stored) -> None:
    stored.store.away = "connection refused"
    with pytest.raises(StoreAway):
        stored.fetch()
