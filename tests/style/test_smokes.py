"""Are the smokes of whole cells tests that there are?"""

from __future__ import annotations

import re

from tests.cluster.smokes import SMOKES
from tests.style.tree import ROOT


def test_every_smoke_is_a_test_of_its_file() -> None:
    for file, names in SMOKES.items():
        text = (ROOT / "tests" / "cluster" / f"{file}.py").read_text()
        found = set(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))
        assert set(names) <= found, file
