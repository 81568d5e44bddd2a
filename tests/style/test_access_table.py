"""Does docs/security.md say who may do what, as it is?"""

from __future__ import annotations

from tests.style import access_table
from tests.style.access_table import BEGIN, END, PAGE, page


def test_the_table_of_permissions_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text == page(), "python -m tests.style.access_table"


def test_the_pages_that_need_a_call_are_pages() -> None:
    assert access_table.SHOWN_BY.keys() <= access_table.PAGES.keys()
