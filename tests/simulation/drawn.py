"""Which of many drawn cases are in `make test`; the others are nightly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def nightly_but(
    cases: Iterable[Any], is_smoke: Callable[[Any], bool], name: Callable[[Any], str] = str
) -> list[Any]:
    """Return the cases as parameters of a test; those that are no smoke are marked nightly."""
    return [
        pytest.param(case, id=name(case), marks=() if is_smoke(case) else pytest.mark.nightly)
        for case in cases
    ]
