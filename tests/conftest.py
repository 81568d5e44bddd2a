"""What holds of all tests: how many examples are drawn, in which order parallel tests begin, and
that collections pass over old objects.

Each run says the same, however slow the machine is: `steady` draws the same few examples in each.
`make nightly` draws ten times as many of them (`many`). What nobody has seen is looked for by
`pytest -m hypothesis --hypothesis-profile=explore tests/unit tests/model`.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Generator, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from launcher.grpc_settings import EXPERIMENTS

# Before a test imports gRPC: as replicas and executors do.
os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)

SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "steady", max_examples=40, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.register_profile("many", settings.get_profile("steady"), max_examples=400)
settings.register_profile("explore", max_examples=400, deadline=None, suppress_health_check=SLOW)
settings.load_profile("steady")


COMPUTING = ("tests/model/", "tests/interaction/", "tests/simulation/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spread the tests that compute between the files of those that mostly wait for something, so
    that parallel workers leave no core idle. It comes after other tests were deselected."""
    if hasattr(config, "workerinput"):
        items[:] = spread(items)


def spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with those of COMPUTING in equal portions between the files of tests/unit.
    The last tenth of the files gets none: a long test at the end would keep one worker alone."""
    computing = [item for item in items if item.nodeid.startswith(COMPUTING)]
    others = [item for item in items if not item.nodeid.startswith(COMPUTING)]
    files = [list(tests) for _, tests in groupby(others, lambda item: item.path)]
    units = sum(tests[0].nodeid.startswith("tests/unit/") for tests in files)
    places = units * 9 // 10
    if not places:
        return items
    found, passed = list[pytest.Item](), 0
    for tests in files:
        found += tests
        if tests[0].nodeid.startswith("tests/unit/") and passed < places:
            first, passed = len(computing) * passed // places, passed + 1
            found += computing[first : len(computing) * passed // places]
    return found


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager's socket, which NOTIFY_SOCKET names to a process. It does not block."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made of the tests stays, so that no collection has to look for garbage in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What the tests are made of stays: no collection has to look at it."""
    gc.collect()
    gc.freeze()
