"""A payload over its bound, as users meet it: the line, the size, the bound, and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron import limits
from cron.crontab.reader import read_file
from launcher.limits import DETAIL_BYTES_MAX
from launcher.worker.outcome import Retry, of_value
from tests.unit.api_rig import run_cli

BOUND = limits.PAYLOAD_BYTES_MAX
LONGEST = "x" * (BOUND - 2)
JOB = '[[job]]\nname = "a"\nschedule = "@daily"\nhandler = "h"\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "jobs.toml",
            f'# one\n{JOB}payload = "{LONGEST}y"\n',
            f"line 6, column 1: payload has {BOUND + 1} bytes, more than {BOUND}",
        ),
        (
            "jobs.toml",
            f'{JOB}[job.payload]\nkey = "{LONGEST}"\n',
            f"line 5, column 1: payload has {BOUND + 8} bytes, more than {BOUND}",
        ),
        (
            "tab",
            f'# one\n#: name=a handler=h\n@daily "{LONGEST}y"\n',
            f"line 3, column 65537: line has {BOUND + 8} bytes, more than 65536",
        ),
    ],
)
async def test_lint_names_line_size_and_bound_of_a_payload_and_nothing_else(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    result = await run_cli("lint", str(path))
    assert result.exit_code == 2
    assert f"{name} {said}\n  hint: " in result.stdout + result.stderr
    assert "0 jobs, 1 error, 0 warnings" in result.stdout + result.stderr


def test_a_payload_of_just_the_bound_makes_a_job() -> None:
    reading = read_file("jobs.toml", f'{JOB}payload = "{LONGEST}"\n'.encode())
    assert reading.problems == []
    [job] = reading.jobs
    assert len(job.work.payload) == BOUND


@pytest.mark.parametrize("last", ["", "@daily z\n"])
def test_the_options_of_a_line_that_is_too_long_are_not_blamed(last: str) -> None:
    long = "x" * limits.CRONTAB_LINE_BYTES_MAX
    [problem] = read_file("tab", f"#: handler=h\n@daily {long}\n{last}".encode()).problems
    assert problem.line == 2
    assert problem.hint == "put a command into a script, a payload into a job file (.toml)"


def test_options_that_have_no_job_are_still_told() -> None:
    [problem] = read_file("tab", b"#: handler=h\n").problems
    assert "the end of the file follows the options of line 1" in problem.message


@pytest.mark.parametrize("said", ["y" * DETAIL_BYTES_MAX, "y" * (DETAIL_BYTES_MAX + 1)])
def test_a_result_over_its_bound_is_cut_with_a_mark(said: str) -> None:
    for kept in (of_value(said).detail, of_value(Retry(reason=said)).detail):
        assert len(kept) == DETAIL_BYTES_MAX
        assert kept.endswith("..." if len(said) > DETAIL_BYTES_MAX else "yyy")
