"""Names of files in a replica's directory and of a cell's objects in a store. Pure.

Lexical order is log order in both. Files and objects whose names do not parse, and copies in
subdirectories, belong to somebody else and are not touched.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_SNAPSHOT = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.snap")
_SEGMENT = re.compile(r"([0-9]{4,9})-([0-9]{10,18})-(runs|failures|tasks)\.seg")
_PLACE = r"cells/[^/]+/snapshots/([0-9]{4,9})-([0-9a-f]{16})-([0-9a-f]{16})"
_MANIFEST = re.compile(rf"{_PLACE}\.json")
_STORED = re.compile(rf"{_PLACE}\.snap")
_GENERATION = re.compile(r"cells/[^/]+/lineages/([0-9]{4,9})\.json")
_OUTPUT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})/.+\+a[1-9][0-9]*\.zst")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def snapshot_name(term: int, index: int) -> str:
    """Return the name of the local file of a snapshot at (term, index)."""
    return f"{term:016x}-{index:016x}.snap"


def parse_snapshot_name(name: str) -> tuple[int, int] | None:
    """Return (term, index) of a local snapshot's name, None if it is none."""
    found = _SNAPSHOT.fullmatch(name)
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def segment_name(generation: int, number: int, stream: str) -> str:
    """Return the name of a segment's file, the same on disks and in stores."""
    return f"{generation:04d}-{number:010d}-{stream}.seg"


def parse_segment_name(name: str) -> tuple[int, int, str] | None:
    """Return (generation, number, stream) of a segment's name, None if it is none."""
    found = _SEGMENT.fullmatch(name)
    if found is None:
        return None
    parts = (int(found[1]), int(found[2]), found[3])
    return parts if segment_name(*parts) == name else None


# --- objects


def cell_prefix(cell: str) -> str:
    """Return the prefix of all object names of a cell."""
    return f"cells/{cell}/"


def generation_object(cell: str, generation: int) -> str:
    """Return the name of the marker object of a generation."""
    return f"cells/{cell}/lineages/{generation:04d}.json"


def generations_prefix(cell: str) -> str:
    """Return the prefix of all names of markers of generations."""
    return f"cells/{cell}/lineages/"


def parse_generation_object(name: str) -> int | None:
    """Return the generation of a marker's name, None if it is none."""
    found = _GENERATION.fullmatch(name)
    return None if found is None or not _is_padded(found[1]) else int(found[1])


def _is_padded(generation: str) -> bool:
    """Return whether a name is in its canonical form, so that no two names mean the same."""
    return generation == f"{int(generation):04d}"


def snapshots_prefix(cell: str) -> str:
    """Return the prefix of all names of snapshots and manifests."""
    return f"cells/{cell}/snapshots/"


def snapshot_object(cell: str, generation: int, term: int, index: int) -> str:
    """Return the name of a snapshot's object."""
    return f"cells/{cell}/snapshots/{generation:04d}-{term:016x}-{index:016x}.snap"


def manifest_object(cell: str, generation: int, term: int, index: int) -> str:
    """Return the name of a snapshot's manifest."""
    return f"cells/{cell}/snapshots/{generation:04d}-{term:016x}-{index:016x}.json"


def parse_manifest_object(name: str) -> tuple[int, int, int] | None:
    """Return (generation, term, index) of a manifest's name, None if it is none."""
    return _position(_MANIFEST, name)


def parse_snapshot_object(name: str) -> tuple[int, int, int] | None:
    """Return (generation, term, index) of a stored snapshot's name, None if it is none."""
    return _position(_STORED, name)


def _position(pattern: re.Pattern[str], name: str) -> tuple[int, int, int] | None:
    found = pattern.fullmatch(name)
    if found is None or not _is_padded(found[1]):
        return None
    return (int(found[1]), int(found[2], 16), int(found[3], 16))


def segments_prefix(cell: str) -> str:
    """Return the prefix of all names of stored segments."""
    return f"cells/{cell}/segments/"


def segment_object(cell: str, name: str) -> str:
    """Return the name of a segment's object."""
    return f"cells/{cell}/segments/{name}"


def outputs_prefix(cell: str) -> str:
    """Return the prefix of all names of stored outputs."""
    return f"cells/{cell}/output/"


def output_object(cell: str, ended_at_ms: int, launch: str, attempt: int) -> str:
    """Return the name of an attempt's stored output. All characters of `launch` must be permitted
    in names.

    The name begins with the UTC day of the attempt's end, so that whole days can be deleted.
    """
    day = _EPOCH + timedelta(milliseconds=ended_at_ms)
    return f"{outputs_prefix(cell)}{day:%Y-%m-%d}/{launch}+a{attempt}.zst"


def parse_output_day(cell: str, name: str) -> int | None:
    """Return the day in an output's name, as days since 1970; None if it is no such name."""
    found = _OUTPUT.fullmatch(name.removeprefix(outputs_prefix(cell)))
    if found is None or not name.startswith(outputs_prefix(cell)):
        return None
    try:
        return (datetime.strptime(found[1], "%Y-%m-%d").replace(tzinfo=UTC) - _EPOCH).days
    except ValueError:
        return None
