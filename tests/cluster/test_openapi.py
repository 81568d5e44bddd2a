"""Requests drawn from the OpenAPI document of a real cell: each answer is one that it describes.

Schemathesis draws them, good ones and bad ones, for every path but that of a stream. The cell has
no jobs at first and its executor nothing to do; what the requests change stays for the others.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
EXAMPLES: Final = 6
"""Of each path and method, good ones and bad ones each."""
SETTINGS: Final = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503]
"""
"""A replica without a leader, or with too much to do, says 503; 500 is a bug's answer."""


@pytest.mark.timeout(1_200)
def test_each_answer_is_one_that_the_document_describes(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(http=True, replica_extra=PATIENT).start()
    cell.leader()
    cell.wait_connected()
    bounds = ("--max-examples", str(EXAMPLES), "--seed", "17", "--request-timeout", "60")
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"http://127.0.0.1:{cell.ports.http[0]}/v1/openapi.json",
            "--checks",
            ",".join(CHECKS),
            "--phases",
            "fuzzing",
            "--exclude-path",
            "/v1/tasks/watch",
            *bounds,
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1_100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
    assert {row.role for row in cell.status() if row.kind == "replica"} == {"leader", "follower"}
