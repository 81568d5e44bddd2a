"""The backup store of one cell: its segments, snapshots and generations in object storage.

A crash after any step leaves the store consistent, because of the order of the steps: the segments
of a snapshot are stored before the snapshot, and its manifest after it; deletion goes the other way
round. Everything is verified before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from snapshots import layout, outputs
from snapshots.disk import UNFINISHED, SnapshotFile, move_into_place, verify_snapshot
from snapshots.errors import (
    GenerationTaken,
    NotConditional,
    ObjectDamaged,
    ObjectMissing,
    OutputDamaged,
    SegmentClash,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMissing,
    SnapshotRefused,
    SnapshotUntrusted,
    StoreRefused,
    invariant,
)
from snapshots.format import OutputHeader
from snapshots.manifest import (
    GENERATION_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    Generation,
    Manifest,
    body_of,
    decode,
    encode,
)
from snapshots.outputs import PackedOutput
from snapshots.retention import (
    DAY_MS,
    GRACE_MS,
    SnapshotPolicy,
    segments_to_delete,
    snapshots_to_delete,
)
from snapshots.segments import SEGMENT_BYTES_MAX, SegmentFile, verify_segment
from snapshots.signed import Trust
from snapshots.store import ObjectEntry, ObjectStore, SignedPut, Tell

COMPARED_BYTES_MAX: Final = 16 << 20
"""Segments above this size are compared on the disk, not in memory."""

SEGMENT_FILE_BYTES_MAX: Final = SEGMENT_BYTES_MAX + (SEGMENT_BYTES_MAX >> 6)
"""An upper bound for the size of a segment's object."""

T = TypeVar("T")
M = TypeVar("M", Manifest, Generation)


class Pruned(msgspec.Struct, frozen=True):
    """The names of deleted snapshots and segments.

    `skipped` are the errors of unreadable manifests; while there are any, no segment is deleted.
    """

    snapshots: list[str] = []
    segments: list[str] = []
    skipped: list[SnapshotError] = []


class BackupStore:
    """The objects of `cell` in `store`. Calls block. It has no state, so any thread may use it.

    `trust` signs manifests and markers, and says which ones count; without it, as in a cell without
    certificates, all do.
    """

    def __init__(self, store: ObjectStore, cell: str, trust: Trust | None = None) -> None:
        self.store = store
        self.cell = cell
        self._trust = trust

    @property
    def _strict(self) -> Trust | None:
        """The trust that takes nothing unsigned."""
        trust = self._trust
        return msgspec.structs.replace(trust, takes_unsigned=False) if trust is not None else None

    # --- segments

    def put_segment(self, path: Path) -> bool:
        """Store a segment's file; return False if the same segment was stored already.

        Verifies the file first, because the stored segment is never replaced and may become the
        only copy. Looks for the object first, because a store without conditional writes would
        overwrite it.

        Raises:
            SegmentClash: other bytes are stored under its name.
            SnapshotMissing, SnapshotCorrupt, SnapshotForeign, SnapshotUnsupported: of the file.
        """
        verify_segment(path, self.cell)
        name = layout.segment_object(self.cell, path.name)
        if self._has_segment(name, path):
            return False
        if self.store.put_file(name, path, if_absent=True):
            return True
        if not self._has_segment(name, path):
            raise SnapshotMissing(path.name, f"{self.store.url} had it a moment ago")
        return False

    def _has_segment(self, name: str, path: Path) -> bool:
        entry = self.store.head(name)
        if entry is None:
            return False
        size = path.stat().st_size
        if entry.size != size or self._stored_digest(name, path, size) != _digest_of(path):
            text = f"has another segment under this name, of {entry.size} bytes (ours: {size})"
            raise SegmentClash(path.name, f"{self.store.url} {text}")
        return True

    def _stored_digest(self, name: str, path: Path, size: int) -> bytes:
        if size <= COMPARED_BYTES_MAX:
            get = partial(self.store.get, name, COMPARED_BYTES_MAX)
            return hashlib.sha256(_whole(path.name, get)).digest()
        beside = path.with_name(f"{path.name}.stored{UNFINISHED}")
        try:
            _whole(path.name, partial(self.store.get_file, name, beside))
            return _digest_of(beside)
        finally:
            beside.unlink(missing_ok=True)

    def segments(self) -> dict[str, ObjectEntry]:
        """Return the stored segments by the names of their files."""
        prefix = layout.segments_prefix(self.cell)
        return {entry.name[len(prefix) :]: entry for entry in self.store.list(prefix)}

    def fetch_segment(self, name: str, directory: Path) -> SegmentFile:
        """Fetch a segment into `directory`, verify it, and store it durably under its name.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotForeign, SnapshotUnsupported: see there.
        """
        if layout.parse_segment_name(name) is None:
            raise SnapshotMissing(name, "no segment has such a name")
        object_name = layout.segment_object(self.cell, name)
        entry = _whole(name, partial(self.store.head, object_name))
        if entry is not None and entry.size > SEGMENT_FILE_BYTES_MAX:
            raise SnapshotCorrupt(name, f"{entry.size} bytes are stored, larger than any")
        with self._fetched(object_name, directory / name) as unfinished:
            file = verify_segment(unfinished, self.cell)
            header = file.header
            inside = layout.segment_name(header.generation, header.number, header.stream)
            if inside != name:
                raise SnapshotCorrupt(name, f"its content belongs to {inside}")
        return msgspec.structs.replace(file, path=directory / name)

    # --- snapshots

    def put_snapshot(
        self, file: SnapshotFile, manifest: Manifest, progress: Tell | None = None
    ) -> None:
        """Store a snapshot, then its manifest; may be repeated. Its segments must be stored
        already.

        Raises:
            SnapshotCorrupt: another object is stored under its name.
        """
        at, header = (manifest.cell, *manifest.place), file.header
        is_there = at == (self.cell, header.generation, header.term, header.index)
        is_same = manifest.checksum == file.checksum.hex()
        invariant(is_there and is_same, "a manifest of another snapshot")
        if verify_snapshot(file.path, self.cell).checksum != file.checksum:
            raise SnapshotCorrupt(file.path.name, "another one has taken its place on the disk")
        name = layout.snapshot_object(*at)
        self.store.put_file(name, file.path, progress=progress)
        found = self.store.head(name)
        if found is None or found.size != file.file_bytes:
            size = found.size if found is not None else 0
            raise SnapshotCorrupt(name, f"{size} of {file.file_bytes} bytes were stored")
        if self._trust is not None:
            manifest = msgspec.structs.replace(manifest, revoked=sorted(self._trust.revoked()))
        name = layout.manifest_object(*at)
        self.store.put(name, self._encoded(name, manifest))

    def _encoded(self, name: str, value: Manifest | Generation) -> bytes:
        """Return a manifest or marker as it is stored, signed if this cell has certificates."""
        return encode(value, partial(self._trust.sign, name) if self._trust is not None else None)

    def manifests(self) -> tuple[list[Manifest], list[SnapshotError]]:
        """Return the manifests, newest first, and the errors of those that cannot be read or do not
        count. What a certificate has signed does not count if any manifest says that it is revoked.
        """
        found, doubted, skipped = self._judged(self._trust)
        found.sort(key=lambda one: one.position, reverse=True)
        return found, skipped + [error for _, error in doubted]

    def _judged(
        self, trust: Trust | None
    ) -> tuple[list[Manifest], list[tuple[Manifest, SnapshotError]], list[SnapshotError]]:
        """Return the manifests that count, those that do not, and why, and the errors of those that
        cannot be read."""
        signed: list[tuple[Manifest, str]] = []
        doubted: list[tuple[Manifest, SnapshotError]] = []
        skipped: list[SnapshotError] = []
        for entry in self.store.list(layout.snapshots_prefix(self.cell)):
            place = layout.parse_manifest_object(entry.name)
            if place is None:
                continue
            try:
                manifest, body = self._read(entry.name, Manifest, MANIFEST_BYTES_MAX)
                if manifest.place != place:
                    raise SnapshotCorrupt(entry.name, "it is the manifest of another snapshot")
            except ObjectMissing:
                continue  # a pruning deleted it after the listing
            except SnapshotError as error:
                skipped.append(error)
                continue
            try:
                signed.append((manifest, trust.check(entry.name, body) if trust else ""))
            except SnapshotUntrusted as error:
                doubted.append((manifest, error))
        revoked = {digest for manifest, signer in signed if signer for digest in manifest.revoked}
        for manifest, signer in signed:
            if signer in revoked:
                name = layout.manifest_object(self.cell, *manifest.place)
                text = f"the certificate that signed it was revoked later: {signer}"
                doubted.append((manifest, SnapshotUntrusted(name, text)))
        return [one for one, signer in signed if signer not in revoked], doubted, skipped

    def _read(self, name: str, kind: type[M], bytes_max: int) -> tuple[M, bytes]:
        """Return the manifest or marker at `name`, and the bytes that a signature is in."""
        content = _whole(name, partial(self.store.get, name, bytes_max))
        return decode(content, name, self.cell, kind), body_of(content)

    def _read_marker(self, name: str, trust: Trust | None) -> Generation:
        """Return the marker of a generation, if it counts."""
        marker, body = self._read(name, Generation, GENERATION_BYTES_MAX)
        if trust is not None:
            trust.check(name, body)
        return marker

    def fetch_snapshot(self, manifest: Manifest, directory: Path) -> SnapshotFile:
        """Fetch a snapshot into `directory`; verify the file, and compare it with its manifest.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotForeign, SnapshotUnsupported: see there.
        """
        at = manifest.place
        path = directory / layout.snapshot_name(manifest.term, manifest.index)
        name = layout.snapshot_object(self.cell, *at)
        entry = _whole(path.name, partial(self.store.head, name))
        if entry is not None and entry.size != manifest.file_bytes:
            text = f"{entry.size} bytes are stored, its manifest says {manifest.file_bytes}"
            raise SnapshotCorrupt(path.name, text)
        with self._fetched(name, path) as unfinished:
            file = verify_snapshot(unfinished, self.cell)
            header = file.header
            inside = (header.generation, header.term, header.index)
            if inside != at or file.checksum.hex() != manifest.checksum:
                raise SnapshotCorrupt(name, "it is not the snapshot of its manifest")
        return msgspec.structs.replace(file, path=path)

    @contextlib.contextmanager
    def _fetched(self, name: str, path: Path) -> Iterator[Path]:
        """Fetch an object to a temporary file; rename it after the body of this context verified
        it.
        """
        unfinished = path.with_name(path.name + UNFINISHED)
        try:
            _whole(path.name, partial(self.store.get_file, name, unfinished))
            yield unfinished
            move_into_place(unfinished, path)
        except ObjectMissing as error:
            raise SnapshotMissing(path.name, f"{self.store.url} does not have it") from error
        finally:
            unfinished.unlink(missing_ok=True)

    # --- generations

    def generations(self) -> list[Generation]:
        """Return all markers that can be read, oldest first; `newest_generation` counts the others
        too.
        """
        found = []
        for entry in self.store.list(layout.generations_prefix(self.cell)):
            if layout.parse_generation_object(entry.name) is not None:
                with contextlib.suppress(SnapshotError, ObjectMissing):
                    found.append(self._read_marker(entry.name, self._trust))
        return sorted(found, key=lambda one: one.generation)

    def newest_generation(self) -> int:
        """Return the highest generation that was begun, 0 if none was. Uses only the names of the
        markers, so that a damaged marker counts.
        """
        numbers = (
            layout.parse_generation_object(entry.name)
            for entry in self.store.list(layout.generations_prefix(self.cell))
        )
        return max((number for number in numbers if number is not None), default=0)

    def begun_above(self, generation: int) -> int:
        """Return the highest generation above that one which a replica of this cell has begun, 0 if
        there is none. Without certificates every marker counts, by its name.

        Raises:
            SnapshotError: there are markers above it, and none of them is signed.
        """
        newest, refused = self.newest_generation(), list[SnapshotError]()
        if self._trust is None or newest <= generation:
            return newest if newest > generation else 0
        for entry in self.store.list(layout.generations_prefix(self.cell)):
            number = layout.parse_generation_object(entry.name)
            if number is not None and number > generation:
                try:
                    self._read_marker(entry.name, self._strict)
                except SnapshotError as error:
                    refused.append(error)
                else:
                    return newest
        raise refused[-1]

    def claim_generation(self, generation: Generation, *, unconditional: bool = False) -> None:
        """Begin a generation. Only the first caller succeeds; it may repeat the call.

        Raises:
            GenerationTaken: another restore was first.
            NotConditional: the store has no conditional writes; `unconditional` accepts that risk.
            SnapshotCorrupt: the existing marker cannot be read, so its owner is unknown.
        """
        invariant(generation.cell == self.cell, "a claim of another cell")
        name = layout.generation_object(self.cell, generation.generation)
        is_safe = self.store.conditional()
        if not is_safe and not unconditional:
            raise NotConditional(name, f"{self.store.url} does not honour conditional writes")
        is_there = not is_safe and self.store.head(name) is not None
        is_new = not is_there and self.store.put(
            name, self._encoded(name, generation), if_absent=is_safe
        )
        if is_new and is_safe:
            return
        # A restore that was overwritten may notice it here.
        found = self._read_marker(name, self._trust)
        if found.id != generation.id:
            who = f"by {found.by or 'somebody'} on {found.host or 'some machine'}"
            raise GenerationTaken(name, f"generation {found.generation} was begun {who}")

    # --- retention

    def prune(
        self,
        policy: SnapshotPolicy,
        now_ms: int,
        wanted: Collection[str],
        generation: int | None = None,
    ) -> Pruned:
        """Delete unneeded objects: manifests first, then their snapshots, then segments.

        `wanted` are the names of the segments in the cell's catalog. If a manifest cannot be read,
        its segments are unknown, so no segment is deleted. A snapshot that is missing, or has
        another size than its manifest says, does not count as kept; an older one is kept instead.
        Nor do manifests that no replica has signed, in a cell with certificates.

        `generation` is the generation of that catalog. If a later generation was begun, nothing is
        deleted: a restore may be fetching objects that this catalog does not contain.
        """
        manifests, doubted, skipped = self._judged(self._strict)
        others = [one for one, _ in doubted]
        listed = self.store.list(layout.snapshots_prefix(self.cell))
        places = ((layout.parse_snapshot_object(entry.name), entry) for entry in listed)
        stored = {place: entry for place, entry in places if place is not None}
        sizes = {place: entry.size for place, entry in stored.items()}
        every = [*manifests, *others]
        broken = {one.place for one in every if sizes.get(one.place) != one.file_bytes}
        old = snapshots_to_delete(manifests, policy, broken)
        # Of what does not count, nothing takes the place of what does; and it goes with time.
        newest = max((one.position for one in manifests), default=None)
        older = [one for one in others if newest is None or one.position < newest]
        aged = snapshots_to_delete([*manifests, *older], policy, broken)
        old += [one for one in aged if one in older]
        # A call may hang, so the generation is checked before each deletion.
        if self._is_over(generation):
            return Pruned(skipped=skipped)
        gone = [one.place for one in old]
        names = [layout.snapshot_object(self.cell, *place) for place in gone]
        self.store.delete([layout.manifest_object(self.cell, *place) for place in gone])
        self.store.delete(names)
        names = [name.rpartition("/")[2] for name in names]
        if skipped or self._is_over(generation):
            return Pruned(names, skipped=skipped)
        # Snapshots without a manifest: an upload or a pruning was interrupted.
        named = {one.place for one in every}
        orphans = [
            layout.snapshot_object(self.cell, *place)
            for place, entry in stored.items()
            if place not in named and entry.modified_ms < now_ms - GRACE_MS
        ]
        self.store.delete(orphans)
        kept = [one for one in every if one.place not in gone]
        ages = {name: entry.modified_ms for name, entry in self.segments().items()}
        segments = segments_to_delete(ages, kept, wanted, now_ms)
        if self._is_over(generation):
            return Pruned(names)
        self.store.delete([layout.segment_object(self.cell, name) for name in segments])
        return Pruned(names, segments)

    def _is_over(self, generation: int | None) -> bool:
        """Return whether a later generation than this one was begun."""
        return generation is not None and self.newest_generation() > generation

    # --- output

    def sign_output(
        self, ended_at_ms: int, launch: str, attempt: int, packed: PackedOutput, valid_s: int
    ) -> SignedPut | None:
        """Return a signed URL with which an executor may store the output of an attempt that ended
        at `ended_at_ms`; None if the store cannot sign URLs.
        """
        name = layout.output_object(self.cell, ended_at_ms, launch, attempt)
        return self.store.sign_put(name, packed.size, packed.sha256, valid_s)

    def put_output(self, ended_at_ms: int, launch: str, attempt: int, path: Path) -> None:
        """Store the packed output at `path` of an attempt; may be repeated."""
        name = layout.output_object(self.cell, ended_at_ms, launch, attempt)
        self.store.put_file(name, path)

    def fetch_output(
        self, ended_at_ms: int, launch: str, attempt: int, path: Path, bytes_max: int
    ) -> OutputHeader | None:
        """Write the verified output of an attempt to `path` and return its header; None if it is
        not stored.

        A transfer that breaks off is repeated once; if it breaks off again, the output counts as
        damaged. So does an output larger than `bytes_max`.

        Raises:
            OutputDamaged, SnapshotForeign, SnapshotUnsupported: the output must not be shown.
        """
        name = layout.output_object(self.cell, ended_at_ms, launch, attempt)
        whose = OutputHeader(self.cell, launch, attempt, bytes_max, 0)
        try:
            return _whole(name, partial(outputs.fetch, self.store, name, whose, path))
        except SnapshotCorrupt as error:
            raise OutputDamaged(name, str(error).partition(": ")[2]) from error

    def prune_outputs(self, ended_before_ms: int, count_max: int) -> int:
        """Delete at most `count_max` outputs of past UTC days, oldest first; return how many were
        deleted.
        """
        first_kept = ended_before_ms // DAY_MS
        old: list[str] = []
        for entry in self.store.list(layout.outputs_prefix(self.cell)):
            day = layout.parse_output_day(self.cell, entry.name)
            if day is not None and day >= first_kept:
                break  # names are in order of days
            if day is not None:
                old.append(entry.name)
            if len(old) >= count_max:
                break
        self.store.delete(old)
        return len(old)


def _whole(name: str, fetch: Callable[[], T]) -> T:
    """Return the result of `fetch`; repeat it once if the transfer breaks off.

    Raises:
        SnapshotCorrupt: it broke off again; the object counts as damaged.
        SnapshotRefused: the store does not permit reading this object.
    """
    try:
        with contextlib.suppress(ObjectDamaged):
            return fetch()
        return fetch()
    except StoreRefused as error:
        raise SnapshotRefused(name, str(error)) from error
    except ObjectDamaged as error:
        raise SnapshotCorrupt(name, str(error)) from error


def _digest_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
