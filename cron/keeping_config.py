"""Configuration of storage and retention: [object_storage], [snapshots] and [history].

It must be the same on all replicas: any of them may lead, and the leader decides.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cron.errors import ConfigError
from snapshots.errors import BadStoreUrl
from snapshots.urls import check_url

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Days = Annotated[int, Meta(ge=0, le=36_500)]
SEGMENT_BYTES_MAX: Final = 64 << 20


class StorageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object storage of the cell.

    `url`: `s3://BUCKET/PREFIX?endpoint=…&region=…&path_style=1&sse=AES256`, or `file:///DIRECTORY`
    (a directory of this machine, for trials, or a network file system). Empty: no backups, so
    losing all three disks loses everything. Credentials come from the environment, as for any AWS
    client.

    `output`: whether the output of finished launches is uploaded, unchanged. It may contain
    secrets; the URL's `sse` encrypts it. Otherwise only the executors keep the newest outputs.
    Default true. `output_days`: output is deleted this many days after the UTC day on which the
    launch ended; 0 keeps it as long as the history: the longer of `keep_days` and
    `keep_failed_days`, for ever if `keep_days` is 0.
    """

    url: str = ""
    output: bool = True
    output_days: Days = 0


class SnapshotsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When snapshots are taken, and how many are kept.

    `interval_s`, `entries`: a snapshot is taken when this time has passed, or this many log entries
    were applied, since the last one. If all disks are lost, changes after the last uploaded
    snapshot are lost. Defaults 600 and 200000.

    `local`: how many snapshots each replica keeps on its disk. Default 3. `remote_newest`,
    `remote_daily`: object storage keeps this many newest snapshots, and the last snapshot of this
    many days. Defaults 24 and 7.
    """

    interval_s: Annotated[int, Meta(ge=1, le=86_400)] = 600
    entries: Count = 200_000
    local: Annotated[int, Meta(ge=1, le=100)] = 3
    remote_newest: Annotated[int, Meta(ge=1, le=10_000)] = 24
    remote_daily: Annotated[int, Meta(ge=0, le=10_000)] = 7


class HistoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How history is divided into segments, and how long it is kept.

    `segment_rows`, `segment_bytes`, `segment_age_s`: a segment is sealed when one of them is
    reached. Small segments cost requests, large ones memory. Defaults 65536 rows, 8 MiB, a day.

    `keep_days`: launches that ended earlier are deleted; 0 keeps them for ever. `keep_failed_days`:
    the same for launches that failed or were lost; at least `keep_days`, 0 means the same as
    `keep_days`. `keep_runs`: how many launches of each job are kept; older ones are deleted before
    `keep_days`, but failed ones not before `keep_failed_days`; 0 means no limit. A segment is
    deleted as a whole, when no launch in it must be kept, so a launch may be kept longer.

    `local_days`: segments older than this are kept in object storage only, and are read by `history
    --archive`; 0 keeps all segments on the replicas' disks. `keep_runs` applies to segments on the
    disks; segments in object storage only are deleted by `keep_days`.
    """

    segment_rows: Annotated[int, Meta(ge=10, le=1_000_000)] = 65_536
    segment_bytes: Annotated[int, Meta(ge=1024, le=SEGMENT_BYTES_MAX)] = 8 << 20
    segment_age_s: Annotated[int, Meta(ge=1, le=31 * 86_400)] = 86_400
    keep_days: Days = 0
    keep_failed_days: Days = 0
    keep_runs: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    local_days: Days = 0


def checked_storage(storage: StorageConfig, file: str) -> StorageConfig:
    """Return the configuration with its URL in normal form.

    Raises:
        ConfigError: the URL is not valid.
    """
    if not storage.url:
        return storage
    try:
        return msgspec.structs.replace(storage, url=check_url(storage.url))
    except BadStoreUrl as error:
        raise ConfigError(f"{file}: object_storage.url: {error}", error.hint) from error


def check_history(history: HistoryConfig, storage: StorageConfig, file: str) -> None:
    """Raise ConfigError if fields contradict each other."""
    keep, failed = history.keep_days, history.keep_failed_days
    if failed and not keep and not history.keep_runs:
        message = f"{file}: history.keep_failed_days: {failed}, but all are kept for ever"
        raise ConfigError(message, "set keep_days or keep_runs as well, or leave all out")
    if keep and failed and failed < keep:
        message = f"{file}: history.keep_failed_days: {failed} is less than keep_days ({keep})"
        raise ConfigError(message, f"at least {keep}: failures are kept longer")
    if history.local_days and not storage.url:
        message = f"{file}: history.local_days: {history.local_days}, but there is no other place"
        raise ConfigError(message, "name one in [object_storage], or use keep_days")
    longest = max(keep, failed)
    if keep and storage.output_days > longest:
        message = f"{file}: object_storage.output_days: {storage.output_days} is more than history"
        raise ConfigError(message, f"at most {longest}: output is found by its launch")
    if keep and history.local_days > keep:
        message = f"{file}: history.local_days: {history.local_days} is more than keep_days"
        raise ConfigError(message, f"at most {keep}")
