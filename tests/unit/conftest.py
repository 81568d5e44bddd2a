"""What holds of all unit tests: the power stays on, people are patient, and no call is being
answered yet."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cron import origin
from cron.api import members, rpc


@pytest.fixture(autouse=True, scope="session")
def no_syncs() -> Iterator[None]:
    """A shared disk may take half a minute for a thousand syncs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda number: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """A machine that stands still for some seconds is no story of these tests: a call that does
    not say how long it waits waits for a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rpc, "TIMEOUT_MS", 60_000)
        patch.setattr(members, "STATUS_TIMEOUT_MS", 60_000)
        yield


@pytest.fixture(autouse=True)
def no_call() -> None:
    """A test that admits a call leaves the call's origin to the tests that come after it."""
    origin.CURRENT.set("")
