"""Does the schema of the API say what its messages are?"""

from __future__ import annotations

from tests.style.api_schema import FILE, text


def test_the_schema_of_the_api_is_up_to_date() -> None:
    # A field that changed its name or type shows here: other programs know it by these.
    assert FILE.read_text(encoding="utf-8") == text(), "python -m tests.style.api_schema"
