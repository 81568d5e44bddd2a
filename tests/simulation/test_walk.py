"""The path of one launch through the code, as cron/DESIGN.md says."""

from __future__ import annotations

from tests.simulation.walk import DESIGN, walk, written


def test_the_design_names_the_functions_that_one_launch_passes_through() -> None:
    functions = walk()
    assert {file.split("/")[0] for file, _ in functions} == {"cron", "launcher"}
    text = DESIGN.read_text()
    assert text == written(text, functions), "run `make docs`"
