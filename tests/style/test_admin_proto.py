"""Does the text of the API say what its messages are?"""

from __future__ import annotations

from tests.style.admin_proto import FILE, text


def test_the_text_of_the_api_is_up_to_date() -> None:
    # A field that moved or changed its type shows here: other programs know it by its number.
    assert FILE.read_text(encoding="utf-8") == text(), "python -m tests.style.admin_proto"
