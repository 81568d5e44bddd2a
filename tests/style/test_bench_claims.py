"""What bench/README.md and the flood bench say of defaults is true of the product.

Fault 23: the README had another interval of snapshots than the product, and the flood was measured
without a buffer and with a thread pool for each handler, so that it showed less than it said.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Final

from bench import flood
from bench.launches_cell import Shape
from cron.keeping_config import SnapshotsConfig
from launcher.config import parse
from launcher.worker.registry import Registry
from tests.style.tree import ROOT

LEAST: Final = 'id = "e"\ndata = "d"\nleaders = ["127.0.0.1:7400"]\n'
SECTION: Final = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
TIMES: Final = re.compile(r"a snapshot every (\w+) seconds .*?(\d+) times the default frequency")
NUMBERS: Final = {"two": 2, "three": 3, "five": 5, "ten": 10}


def section(title: str) -> str:
    """A section of the benches' README, in one line."""
    text = (ROOT / "bench" / "README.md").read_text()
    return " ".join(dict(SECTION.findall(text))[title].split())


def executor_of(shape: Shape) -> dict[str, object]:
    """What a bench writes into its executor's configuration."""
    return tomllib.loads(shape.executor_text())


def test_the_readme_knows_the_interval_of_snapshots() -> None:
    found = TIMES.search(section("Snapshots and history"))
    assert found is not None, "it says how often the bench takes snapshots, and how often usual"
    assert NUMBERS[found[1]] * int(found[2]) == SnapshotsConfig().interval_s


def test_the_example_of_a_replica_knows_it_too() -> None:
    example = tomllib.loads((ROOT / "examples" / "replica.toml").read_text())
    assert example["snapshots"]["interval_s"] == SnapshotsConfig().interval_s


def test_a_flood_waits_at_an_executor_with_the_default_buffer() -> None:
    default = parse(LEAST.encode(), Path("/etc/raftcron/executor.toml")).worker_buffer
    assert default > 0, "with no buffer, nothing waits behind the order of service"
    assert executor_of(flood.SHAPE)["worker_buffer"] == default
    assert executor_of(Shape(kind="handler"))["worker_buffer"] == default


def test_one_thread_pool_serves_both_handlers_of_the_flood() -> None:
    (pool,) = flood.SHAPE.thread_pools
    module, _, name = pool.app.partition(":")
    registry = getattr(importlib.import_module(module), name)
    assert isinstance(registry, Registry)
    assert {one.served.name for one in registry} == set(flood.HANDLERS)
    assert (pool.processes, pool.threads) == (1, flood.THREADS)
    said = section("A flood by one tenant")
    assert f"one worker with {flood.THREADS} threads, which serves both handlers" in said
    assert f"with the default buffer, and {flood.SHAPE.slots} slots for commands" in said
