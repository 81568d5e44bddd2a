"""docs/imports.md has the tables that the importers read by."""

from __future__ import annotations

from tests.style import imports_page


def test_the_page_of_imports_has_the_tables_of_the_importers() -> None:
    page = imports_page.PAGE.read_text(encoding="utf-8")
    assert page == imports_page.page(), "run: make docs"
    for name in imports_page.TABLES:
        assert page.count(imports_page.begin(name)) == 1
