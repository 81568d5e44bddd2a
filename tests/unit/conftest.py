"""What holds of all unit tests: the power stays on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_syncs() -> Iterator[None]:
    """A shared disk may take half a minute for a thousand syncs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda number: None)
        yield
