"""What holds of all style tests: the sources are forgotten at their end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.style.tree import files, sources


@pytest.fixture(autouse=True, scope="package")
def forget() -> Iterator[None]:
    """The trees are some million objects, at which every later collection of garbage would look."""
    yield
    sources.cache_clear()
    files.cache_clear()
