"""Columns: what is written of the rows of a batch, and read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.protocol.columns import BadColumn, differences, full, row_numbers, short, sums

VALUES = st.lists(st.integers(-(1 << 62), 1 << 62), max_size=20)
ALIKE = st.builds(lambda value, count: [value] * count, st.integers(0, 9), st.integers(1, 20))


@given(VALUES)
def test_sums_undo_differences(values: list[int]) -> None:
    assert sums(differences(values)) == values


@given(st.one_of(VALUES, ALIKE), st.sampled_from([0, 1, 7]))
def test_what_is_written_short_is_read_in_full(values: list[int], default: int) -> None:
    assert full(short(values, default), len(values), default) == values
    times = short(values, default, is_times=True)
    assert full(times, len(values), default, is_times=True) == values


def test_equal_values_are_written_once_and_the_default_not_at_all() -> None:
    assert list(short([4, 4, 4], 1)) == [4]
    assert list(short([1, 1], 1)) == []
    assert list(short([1, 2], 1)) == [1, 2]
    assert list(short([100, 100], is_times=True)) == [100]
    assert list(short([100, 103, 101], is_times=True)) == [100, 3, -2]


@pytest.mark.parametrize("is_times", [False, True])
def test_a_column_that_does_not_fit_its_rows_is_refused(is_times: bool) -> None:
    with pytest.raises(BadColumn, match="2 values are not one for each of 3 rows"):
        full([1, 2], 3, is_times=is_times)


def test_rows_ascend_each_once_and_end_somewhere() -> None:
    assert row_numbers([0, 1, 5], 6) == [0, 1, 6]
    for column, error in (([], "no rows"), ([3, 0], "not ascending"), ([0, 7], "row 7 is above 6")):
        with pytest.raises(BadColumn, match=error):
            row_numbers(column, 6)
