"""The table of transitions, and the diagram that the documents show of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cron.launch_state import (
    ACTIVE,
    OPEN,
    REOPENABLE,
    TRANSITIONS,
    LaunchState,
    may_follow,
    mermaid,
)

DESIGN = Path(__file__).parents[2] / "cron" / "DESIGN.md"
BLOCK = re.compile(
    r"(<!-- begin: launch states[^>]*-->\n```mermaid\n)(.*?)(```\n<!-- end: launch states -->)",
    re.DOTALL,
)


def test_the_diagram_in_the_design_is_the_table(request: pytest.FixtureRequest) -> None:
    text = DESIGN.read_text()
    found = BLOCK.search(text)
    assert found is not None
    if request.config.getoption("--rewrite", default=False):
        DESIGN.write_text(BLOCK.sub(lambda match: match[1] + mermaid() + match[3], text))
        return
    assert found[2] == mermaid(), "pytest --rewrite tests/unit/test_launch_table.py"


def test_every_state_has_its_line_in_the_table() -> None:
    assert set(TRANSITIONS) == set(LaunchState)


def test_what_is_over_comes_back_only_as_due() -> None:
    for state in set(LaunchState) - OPEN:
        assert TRANSITIONS[state] <= {LaunchState.DUE}


def test_a_success_is_final() -> None:
    assert not TRANSITIONS[LaunchState.SUCCEEDED]
    assert LaunchState.SUCCEEDED not in REOPENABLE


def test_nothing_runs_that_was_not_begun() -> None:
    for before in LaunchState:
        if before is not LaunchState.BEGUN:
            assert not may_follow(before, LaunchState.LAUNCHED)
        if before not in ACTIVE:
            assert not may_follow(before, LaunchState.SUCCEEDED)
        if before not in ACTIVE | {LaunchState.DUE}:  # due where a restored cell begins (rule R13)
            assert not may_follow(before, LaunchState.LOST)
