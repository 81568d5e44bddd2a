"""What holds of all unit tests: the power stays on, and no call is being answered yet."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cron import origin


@pytest.fixture(autouse=True, scope="session")
def no_syncs() -> Iterator[None]:
    """A shared disk may take half a minute for a thousand syncs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda number: None)
        yield


@pytest.fixture(autouse=True)
def no_call() -> None:
    """A test that admits a call leaves the call's origin to the tests that come after it."""
    origin.CURRENT.set("")
