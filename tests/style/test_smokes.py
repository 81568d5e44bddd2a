"""Are the smokes of whole cells tests that there are?"""

from __future__ import annotations

import re

from tests.cluster.smokes import SMOKES
from tests.style.tree import ROOT


def test_every_smoke_is_a_test_of_its_file() -> None:
    for test in SMOKES.values():
        file, _, name = test.partition("::")
        function, _, parameter = name.partition("[")
        text = (ROOT / "tests" / "cluster" / file).read_text()
        assert re.search(rf"^(?:async )?def {function}\(", text, re.MULTILINE), test
        assert not parameter or f'"{parameter[:-1]}"' in text, test
