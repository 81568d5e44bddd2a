"""An output as one object: what the executor packs is what snapshots reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from launcher.executor.commands.output import Output
from launcher.executor.uploads import FRAME_BYTES, pack
from launcher.protocol.names import AttemptName, parse_attempt_name
from snapshots.backup_store import BackupStore
from snapshots.format import OutputHeader
from tests.fakes.memory_store import MemoryStore
from tests.fakes.packed_output import packed_output

NAME = "acme/back-up.2@2026-11-20T15:00:00Z+t1#2"
LAUNCH = "acme/back-up.2@2026-11-20T15:00:00Z+t1"


def name() -> AttemptName:
    return parse_attempt_name(NAME)


def printed(folder: Path, content: bytes, bound: int = 8 << 20) -> str:
    stem = str(folder / "stem")
    output = Output(stem, bound)
    output.write(content)
    output.close()
    return stem


@pytest.mark.parametrize("size", [1, 5_000, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES + 7])
def test_it_is_the_object_that_snapshots_would_write(tmp_path: Path, size: int) -> None:
    content = bytes(n * n % 251 for n in range(size))
    packed = pack(printed(tmp_path, content), tmp_path / "packed", "prod", name())
    assert packed is not None
    made = packed.path.read_bytes()
    header = OutputHeader("prod", LAUNCH, 2, size, 0)
    assert made == packed_output(header, [content])
    assert (packed.size, packed.sha256) == (len(made), hashlib.sha256(made).digest())
    backup_store = BackupStore(MemoryStore(), "prod")
    backup_store.put_output(0, LAUNCH, 2, packed.path)
    assert backup_store.fetch_output(0, LAUNCH, 2, tmp_path / "read", 8 << 20) == header
    assert (tmp_path / "read").read_bytes() == content


def test_what_was_over_the_bound_is_told(tmp_path: Path) -> None:
    content = bytes(range(250)) * 100
    packed = pack(printed(tmp_path, content, bound=8_192), tmp_path / "packed", "prod", name())
    assert packed is not None
    backup_store = BackupStore(MemoryStore(), "prod")
    backup_store.put_output(0, LAUNCH, 2, packed.path)
    header = backup_store.fetch_output(0, LAUNCH, 2, tmp_path / "read", 1 << 20)
    assert header is not None
    assert header.size + header.dropped == len(content)
    assert header.dropped > 0
    assert (tmp_path / "read").read_bytes() == content[header.dropped :]


def test_no_output_is_no_object(tmp_path: Path) -> None:
    assert pack(str(tmp_path / "stem"), tmp_path / "packed", "prod", name()) is None
