"""What `raftcron worker` is told, and what it hands to the process that it becomes."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from cron.cli.values import parse_size
from cron.errors import InvalidInput
from launcher.payloads import PAYLOADS
from launcher.worker.options import worker_options
from tests.unit.api_rig import run_cli

MIB = 1 << 20


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command becomes, in place of becoming it."""
    found: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda _, argv: found.append(argv))
    return found


async def test_it_becomes_a_worker_that_takes_all_that_it_was_told(became: list[Any]) -> None:
    result = await run_cli(
        "worker", "app.tasks", "--processes", "4", "--grace", "1m", "--memory-max", "512MiB",
        "--renew-after", "10000",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    [argv] = became
    assert argv[1:3] == ["-m", "launcher.worker"]
    options = worker_options(**json.loads(argv[3]))
    assert (options.app, options.processes, options.grace_ms) == ("app.tasks", 4, 60_000)
    assert (options.memory_max_bytes, options.renew_after) == (512 * MIB, 10_000)


async def test_without_bounds_no_process_is_renewed(became: list[Any]) -> None:
    await run_cli("worker", "app.tasks")
    options = worker_options(**json.loads(became[0][3]))
    assert (options.memory_max_bytes, options.renew_after) == (0, 0)


async def test_it_reads_the_stores_of_payloads_that_it_is_told(
    became: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PAYLOADS, "s3://old")
    await run_cli("worker", "app.tasks")
    assert os.environ[PAYLOADS] == "s3://old"
    urls = ("s3://bucket/prefix", "file:///srv/payloads")
    result = await run_cli("worker", "app.tasks", "--payloads", urls[0], "--payloads", urls[1])
    assert result.exit_code == 0, result.stderr
    assert os.environ[PAYLOADS] == ",".join(urls)
    assert len(became) == 2
    result = await run_cli("worker", "app.tasks", "--payloads", "bucket")
    assert (result.exit_code, len(became)) == (2, 2)
    assert "s3://bucket/prefix or file:///folder" in result.stderr


@pytest.mark.parametrize(
    "said", [("--memory-max", "512"), ("--memory-max", "much"), ("--renew-after", "0")]
)
async def test_what_is_no_bound_is_refused(became: list[Any], said: tuple[str, str]) -> None:
    result = await run_cli("worker", "app.tasks", *said)
    assert result.exit_code == 2
    assert said[1] in result.stderr
    assert became == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 * MIB), ("512M", 512 * MIB), ("1g", 1 << 30), ("2TB", 2 << 40), ("64k", 65536)],
)
def test_sizes_are_binary_in_every_spelling(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0M", "1.5G", "-1M", "12", "M", "9999T", "1 M x", "٣M"])
def test_what_is_no_size_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_size(text)
    assert text in caught.value.args[0]
    assert caught.value.hint
