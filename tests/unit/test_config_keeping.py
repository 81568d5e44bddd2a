"""What a replica's TOML file may say of object storage, snapshots and history."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cron.config import parse_replica_config
from cron.keeping_config import HistoryConfig, SnapshotsConfig, StorageConfig
from cron.storage.retention_planner import RetentionSettings
from cron.storage.storage import output_settings_of, settings_of
from tests.unit.test_config_replica import HEAD, PEERS, refusal

STORE = '[object_storage]\nurl = "file:///backups"\n'


def test_what_is_left_out_has_a_default() -> None:
    config = parse_replica_config(HEAD + PEERS, "r1.toml")
    assert config.object_storage.url == ""
    assert config.snapshots == SnapshotsConfig(600, 200_000, 3, 24, 7)
    assert config.history == HistoryConfig(65_536, 8 << 20, 86_400, 0, 0, 0, 0)
    assert settings_of(config) == RetentionSettings()


def test_the_example_shows_every_default() -> None:
    text = Path("examples/replica.toml").read_text()
    config = parse_replica_config(text, "r1.toml")
    assert config.object_storage == StorageConfig()
    assert config.snapshots == SnapshotsConfig()
    assert config.history == HistoryConfig()
    for table, kind in (("snapshots", SnapshotsConfig), ("history", HistoryConfig)):
        part = text.partition(f"[{table}]")[2].partition("\n[")[0]
        shown = re.findall(r"(?m)^(\w+) =", part)
        assert shown == list(kind.__struct_fields__)
    stored = re.sub(r"(?m)^# (?=\[object_storage\]|url =|output)", "", text)
    storage = parse_replica_config(stored, "r1.toml").object_storage
    assert storage.url.startswith("s3://bucket/")
    assert msgspec.structs.replace(storage, url="") == StorageConfig()
    part = stored.partition("[object_storage]")[2].partition("\n[")[0]
    assert re.findall(r"(?m)^(\w+) =", part) == list(StorageConfig.__struct_fields__)


def test_days_and_seconds_become_what_the_retention_planner_goes_by() -> None:
    text = (
        f"{HEAD}{PEERS}{STORE}[snapshots]\ninterval_s = 1\nentries = 5\n"
        "[history]\nsegment_rows = 10\nsegment_bytes = 1024\nsegment_age_s = 2\n"
        "keep_days = 30\nkeep_failed_days = 90\nlocal_days = 7\nkeep_runs = 100\n"
    )
    day_ms = 86_400_000
    assert settings_of(parse_replica_config(text, "r1.toml")) == RetentionSettings(
        "file:///backups", 1_000, 5, 10, 1024, 2_000, 30 * day_ms, 90 * day_ms, 7 * day_ms, 100
    )


@pytest.mark.parametrize(
    ("storage", "history", "keep_days"),
    [
        ("", "", 0),
        ("output_days = 7\n", "", 7),
        ("", "keep_days = 30\n", 30),
        ("", "keep_days = 30\nkeep_failed_days = 90\n", 90),
        ("output_days = 60\n", "keep_days = 30\nkeep_failed_days = 90\n", 60),
        ("output_days = 30\n", "keep_days = 30\n", 30),
        ("", "keep_runs = 100\nkeep_failed_days = 90\n", 0),
    ],
)
def test_output_is_kept_as_long_as_is_said_or_as_the_history(
    storage: str, history: str, keep_days: int
) -> None:
    text = f"{HEAD}{PEERS}{STORE}{storage}[history]\n{history}"
    settings = output_settings_of(parse_replica_config(text, "r1.toml"))
    assert settings.keep_ms == keep_days * 86_400_000


def test_output_stays_with_the_executors_where_that_is_said() -> None:
    text = f"{HEAD}{PEERS}{STORE}output = false\n"
    config = parse_replica_config(text, "r1.toml")
    assert not config.object_storage.output
    assert output_settings_of(config).folder == Path(config.data) / "outputs"
    assert config.object_storage.url == "file:///backups"


def test_a_store_has_one_name_however_it_is_written() -> None:
    text = '[object_storage]\nurl = "s3://bucket/a/?path_style=1&region=eu-central-1"\n'
    config = parse_replica_config(HEAD + PEERS + text, "r1.toml")
    assert config.object_storage.url == "s3://bucket/a?region=eu-central-1&path_style=1"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ('[object_storage]\nurl = "ftp://x"\n', "object_storage.url: ftp://x"),
        ('[object_storage]\nurl = "s3://key:secret@bucket"\n', "credentials do not belong"),
        ("[object_storage]\nurl = 7\n", "object_storage.url: expected `str`"),
        ("[object_storage]\nkey = 'x'\n", "object_storage.key: not a known key"),
        ("[snapshots]\ninterval = 1\n", "snapshots.interval: not a known key"),
        ("[snapshots]\ninterval_s = 0\n", "snapshots.interval_s: expected `int` >= 1"),
        ("[snapshots]\nlocal = 0\n", "snapshots.local: expected `int` >= 1"),
        ("[snapshots]\nremote_newest = 0\n", "snapshots.remote_newest: expected `int` >= 1"),
        ("[history]\nsegment_rows = 9\n", "history.segment_rows: expected `int` >= 10"),
        ("[history]\nsegment_bytes = 67108865\n", "history.segment_bytes: expected `int` <="),
        ("[history]\nkeep_days = -1\n", "history.keep_days: expected `int` >= 0"),
        ("[history]\nkeep_failed_days = 3\n", "keep_failed_days: 3, but all are kept for ever"),
        (
            "[history]\nkeep_days = 30\nkeep_failed_days = 29\n",
            "history.keep_failed_days: 29 is less than keep_days (30)",
        ),
        ("[history]\nlocal_days = 7\n", "history.local_days: 7, but there is no other place"),
        (
            f"{STORE}[history]\nkeep_days = 6\nlocal_days = 7\n",
            "history.local_days: 7 is more than keep_days",
        ),
        (f"{STORE}output = 1\n", "object_storage.output: expected `bool`"),
        (f"{STORE}output_days = -1\n", "object_storage.output_days: expected `int` >= 0"),
        (
            f"{STORE}output_days = 91\n[history]\nkeep_days = 30\nkeep_failed_days = 90\n",
            "object_storage.output_days: 91 is more than history",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tables: str, message: str) -> None:
    error = refusal(HEAD + PEERS + tables)
    assert message in str(error)
    assert "secret" not in str(error) + error.hint


def test_failures_may_be_kept_longer_than_a_number_of_launches() -> None:
    text = "[history]\nkeep_runs = 100\nkeep_failed_days = 90\n"
    history = parse_replica_config(HEAD + PEERS + text, "r1.toml").history
    assert (history.keep_runs, history.keep_failed_days) == (100, 90)


def test_reading_a_configuration_does_not_load_boto3() -> None:
    text = HEAD + PEERS + '[object_storage]\nurl = "s3://bucket"\n'
    code = (
        "import sys; from cron.config import parse_replica_config;"
        f"parse_replica_config({text!r}, 'r1.toml');"
        "print([name for name in ('boto3', 'botocore') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
