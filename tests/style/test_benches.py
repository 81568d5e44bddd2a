"""Benches have no unit tests: can each be imported after the product has changed?"""

from __future__ import annotations

import subprocess
import sys

from tests.style.tree import ROOT

IMPORT_ALL = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"


def test_every_bench_can_be_imported() -> None:
    paths = sorted((ROOT / "bench").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    assert names, "the benches were not found"
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
