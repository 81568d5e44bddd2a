"""What the values of options may be."""

from __future__ import annotations

import pytest

from cron.api import limits as api_limits
from cron.cli import gates, limits, values
from tests.unit.api_rig import FakeBackend, run_cli, serving

HUGE = "9" * 30


async def usage_error(*arguments: str) -> str:
    """What a command says that asked nobody anything."""
    backend = FakeBackend()
    async with serving(backend) as server:
        result = await run_cli(*arguments, server=server)
    assert (result.exit_code, backend.calls) == (2, [])
    return result.stderr


@pytest.mark.parametrize("number", [HUGE, "-1", "1.5", "x", "1_0", "\u0663", "1000000001"])
@pytest.mark.parametrize("option", ["--concurrent", "--burst", "--waiting", "--retry-budget"])
async def test_a_number_out_of_bounds_is_told_with_its_bounds(option, number):
    said = await usage_error("limit", "set", "--all", option, number)
    assert f"Invalid value for '{option}': {number!r} is not a whole number from 0 to 1,0" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("limit", "set", "--all", "--weight", "10001"),
        ("limit", "set", "--priority", "10", "--rate", "1/s"),
        ("gate", "open", HUGE),
        ("gate", "open", "0"),
        ("queue", "--limit", "1001"),
        ("dead", "list", "--limit", HUGE),
    ],
)
async def test_so_is_each_other_number_of_the_pool(arguments):
    assert "is not a whole number from" in await usage_error(*arguments)


def test_the_bounds_are_those_of_the_server():
    assert values.COUNT_MAX == api_limits.NUMBER_MAX
    assert limits.WEIGHT_MAX == api_limits.WEIGHT_MAX
    assert gates.NUMBER_MAX == 1 << 62  # `checked_opening`


@pytest.mark.parametrize(
    "arguments",
    [
        ("dead", "drop", "--reason", "failed", "--tenant", ""),
        ("dead", "drop", "--reason", "failed", "--job", ""),
        ("dead", "redrive", "--handler", "", "--tenant", "acme"),
        ("dead", "redrive", "", "--tenant", "acme"),
        ("gate", "close", "--collection", "nightly", "--tenant", ""),
        ("gate", "close", "--collection", "nightly", "--job", ""),
        ("limit", "set", "--handler", "mail", "--tenant", "", "--concurrent", "1"),
        ("limit", "remove", "--tenant", "acme", "--pool", ""),
        ("queue", ""),
        ("pause", ""),
        ("resume", "", "--timeout", "5s"),
    ],
)
async def test_a_variable_that_is_not_set_does_not_mean_everything(arguments):
    """`--tenant "$TENANT"` of a script: it would act upon the launches of all tenants."""
    assert "it is empty, which would mean everything" in await usage_error(*arguments)
