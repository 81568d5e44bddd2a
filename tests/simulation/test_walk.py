"""The path of one launch through the code: short, and as cron/DESIGN.md says."""

from __future__ import annotations

from tests.simulation.walk import DESIGN, FUNCTIONS_MAX, walk, written


def test_one_launch_passes_through_a_hundred_functions_at_most_and_the_design_names_them() -> None:
    functions = walk()
    assert len(functions) <= FUNCTIONS_MAX
    assert {file.split("/")[0] for file, _ in functions} == {"cron", "launcher"}
    text = DESIGN.read_text()
    assert text == written(text, functions), "run `make docs`"
