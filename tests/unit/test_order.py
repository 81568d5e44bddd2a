"""The order in which parallel tests begin (tests/conftest.py)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests.conftest import spread


def test_tests_that_compute_stand_between_files_of_tests_that_wait():
    names = [f"tests/{name}.py::test" for name in ("style/a", *(f"unit/{n}" for n in range(10)))]
    names += [f"tests/simulation/s.py::test[{number}]" for number in range(18)]
    items = [SimpleNamespace(nodeid=name, path=Path(name.partition("::")[0])) for name in names]
    order = "".join(item.nodeid.split("/")[1][1] for item in spread(items))
    assert order == "t" + "nii" * 9 + "n"
    assert spread(items[:1]) == items[:1]
    assert spread(items[11:]) == items[11:]
