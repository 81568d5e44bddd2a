"""A majority of disks is put back to an older copy, and the executors remember more: no launch gets
the end of another one, and the cell launches nothing once those that know better have connected.

`SIM_SEED=1000 SIM_SEEDS=500 pytest <this file>` tries others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from cron.leader import older_log, settle
from cron.scheduler import older_log as judgement
from cron.scheduler import reports
from launcher.executor import rules
from tests.drawn import nightly_but
from tests.simulation.patching import patched
from tests.simulation.rollback import roll_back

FIRST = int(os.environ.get("SIM_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "40")))
FEW = 4
"""Seeds of `make test`; those of a mutant end with the first that misses it."""


@contextlib.contextmanager
def unproven() -> Iterator[None]:
    """No proof counts, as if the key had been drawn after the copy."""
    with patched(judgement, is_proven=lambda key, executor, ordered: False):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:FEW].__contains__))
def test_a_cell_that_was_set_back_stops_and_mixes_nothing_up(seed: int) -> None:
    world = roll_back(seed)
    assert world.mixed == []
    assert not world.knows or (world.stopped and world.late == []), world.knows


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:FEW].__contains__))
def test_no_launch_gets_the_end_of_another_also_where_nothing_is_proven(seed: int) -> None:
    with unproven():
        assert roll_back(seed).mixed == []


@contextlib.contextmanager
def no_names_at_executors() -> Iterator[None]:
    """Executors answer for a known row, whatever its name."""
    with unproven(), patched(rules, _is_other=lambda row, name: False):
        yield


@contextlib.contextmanager
def no_marks() -> Iterator[None]:
    """The leader takes reports of any life of the log for ends of its launches."""
    believes = {"has_ordered": lambda state, mark, begun: True}
    with unproven(), patched(reports, **believes), patched(settle, **believes):
        yield


@contextlib.contextmanager
def no_proofs() -> Iterator[None]:
    """The leader does not look at what executors were ordered."""
    with patched(older_log, contradiction=lambda state, executor, ordered: ("", False)):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [no_names_at_executors, no_marks, no_proofs])
def test_a_safeguard_that_is_switched_off_is_missed(
    mutant: Callable[[], AbstractContextManager[None]],
) -> None:
    for seed in SEEDS:
        with mutant():
            world = roll_back(seed)
        if world.mixed or (mutant is no_proofs and world.knows and world.late):
            break
    else:
        pytest.fail(f"nobody misses it: {len(SEEDS)} seeds are green")
