"""The recorded reports of imports are true, where the other schedulers' repositories are at hand:
`DKRON=CLONE KUBERNETES_API=CLONE pytest -m nightly tests/conformance/test_other_examples.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conformance import other_examples

RECORDED = json.loads(other_examples.REPORTS.read_text())


def test_what_could_not_be_carried_over_is_recorded_of_each_example() -> None:
    assert len({one["of"] for one in RECORDED}) == len(RECORDED) > 20
    assert any(one.get("jobs") and one["not carried over"] for one in RECORDED)
    unknown = {line for one in RECORDED for line in one.get("not carried over", ())
               if "this key is not known" in line and "strange" not in line}  # fmt: skip
    assert {line.split(": ", 1)[1].split(" ")[0] for line in unknown} == {"limits:"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("variable", "reports", "tool"),
    [
        ("DKRON", other_examples.reports_of_dkron, "dkron"),
        ("KUBERNETES_API", other_examples.reports_of_kubernetes, "kubernetes"),
    ],
)
def test_examples_that_did_not_change_are_imported_as_recorded(variable, reports, tool) -> None:
    if not (clone := os.environ.get(variable)):
        pytest.skip(f"{variable} names no clone")
    recorded = {one["of"]: one for one in RECORDED if one["of"].startswith(f"{tool} ")}
    for found in reports(Path(clone)):
        known = recorded.get(found["of"])
        if known is not None and known.get("sha256") == found.get("sha256"):
            assert found == known
