"""Is the page about the commands what the commands say of themselves?"""

from __future__ import annotations

from tests.style.cli_page import PAGE, page


def test_the_page_about_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.style.cli_page"
