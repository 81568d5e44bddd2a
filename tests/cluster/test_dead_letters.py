"""A poisoned handler ends in dead letters, is mended, and is redriven with one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell
from tests.cluster.worker_rig import Shop, handler_job

pytestmark = pytest.mark.timeout(180)

POISON = """
@handler("poison")
def poison(payload: None, context: Context):
    with Witnessed(context):
        recipe = (FOLDER / "recipe").read_text()
        context.log(f"try {context.attempt} reads {recipe}")
        if recipe == "bad":
            raise ValueError("the recipe is bad")

@handler("fatal")
def fatal(payload: None, context: Context):
    with Witnessed(context):
        raise Fatal("of no use")
"""
LAUNCHES = 12
"""More than `dead redrive` does without --yes."""
TRIES = 3


def test_a_poisoned_handler_is_mended_and_redriven_with_one_command(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path, POISON) as shop:
        cell = shop.cell
        shop.make("recipe", "bad")
        retries = ("retries = 2", 'backoff = "1s"', 'backoff-max = "1s"', 'deadline = "1h"')
        shop.apply(handler_job("sick", "poison", *retries) + handler_job("sad", "fatal", *retries))
        shop.serve()
        names = shop.trigger("sick", times=LAUNCHES)
        (other,) = shop.trigger("sad")
        shop.wait_over()
        letters = {row["launch"]: row for row in cell.rows("dead", "list", "--handler", "poison")}
        assert set(letters) == set(names)
        for row in letters.values():
            assert (row["reason"], row["tries"], row["attempt"]) == ("raised", TRIES, TRIES), row
            assert "ValueError: the recipe is bad" in row["detail"]
        assert "raised" in cell.cli("dead", "list").stdout
        shown = cell.cli("dead", "show", names[0]).stdout
        assert "ValueError: the recipe is bad" in shown
        assert f"try {TRIES} reads bad" in shown, "the end of its last output"
        (fatal,) = cell.rows("dead", "list", "--reason", "fatal")
        assert (fatal["launch"], fatal["tries"]) == (other, 1), "fatal is never tried again"

        shop.make("recipe", "good")
        plan = cell.rows("dead", "redrive", "--handler", "poison", "--dry-run")
        assert {row["launch"] for row in plan} == set(names)
        refused = cell.cli("dead", "redrive", "--handler", "poison", expect=None)
        assert refused.returncode != 0
        assert f"{LAUNCHES} dead letters need --yes" in refused.stderr
        assert len(cell.rows("dead", "list")) == LAUNCHES + 1, "nothing has happened so far"
        cell.cli("dead", "redrive", "--handler", "poison", "--yes")
        for name in names:
            assert shop.wait_row(name, "succeeded").attempt == TRIES + 1
        cell.cli("dead", "drop", other)
        assert cell.rows("dead", "list") == []
        assert "no dead letters" in cell.cli("dead", "list").stdout

        told = cell.rows("history", "sick", "--limit", "1000")
        tries = {name: sorted((r["attempt"], r["state"]) for r in told if r["launch"] == name)
                 for name in names}  # fmt: skip
        failed = [(attempt, "failed") for attempt in range(1, TRIES + 1)]
        assert all(rows == [*failed, (TRIES + 1, "succeeded")] for rows in tries.values()), tries
        witnessed = [run.attempt for run in shop.runs() if run.launch == names[0]]
        assert witnessed == [1, 2, 3, 4]
        assert shop.wrong() == []
        assert cell.cli("audit").returncode == 0
