"""Outputs as they stand in object storage, written by the code of snapshots: the executors' own
packing is compared with it."""

from __future__ import annotations

import io
from collections.abc import Iterable

from snapshots import disk, zstd
from snapshots import format as form
from snapshots.backup_store import BackupStore
from snapshots.format import OutputHeader
from snapshots.layout import output_object
from snapshots.outputs import OUTPUT_MAGIC


def packed_output(header: OutputHeader, pieces: Iterable[bytes]) -> bytes:
    """Return the object of an output, whatever its header says."""
    file = io.BytesIO()
    frames = ((block, zstd.compress(block)) for block in zstd.blocks(pieces))
    disk.put_frames(file, form.encode_lead(OUTPUT_MAGIC, header), frames)
    return file.getvalue()


def put_output(
    backup_store: BackupStore, ended_at_ms: int, header: OutputHeader, *pieces: bytes
) -> None:
    """Store an output of an attempt that ended then."""
    name = output_object(backup_store.cell, ended_at_ms, header.launch, header.attempt)
    backup_store.store.put(name, packed_output(header, pieces))
