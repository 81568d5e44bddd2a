"""The table in `docs/security.md` of who may make which call.

`python -m tests.style.access_table` writes it; `test_access_table.py` compares it.
"""

from __future__ import annotations

from typing import Any, Final

from cron.access import PERMITTED, TOKEN_ROLES
from cron.api.rpc import Rpc
from cron.api.table import TABLE
from launcher.identity import PERSON, REPLICA
from tests.style.tree import ROOT

PAGE: Final = ROOT / "docs" / "security.md"
BEGIN: Final = "<!-- generated: python -m tests.style.access_table -->\n"
END: Final = "<!-- end of what is generated -->\n"


def page() -> str:
    """Return the page with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def table() -> str:
    """Return the table: a row for each call, in the order of the calls' own table."""
    heads = ("call", "is to", *(role.label for role in TOKEN_ROLES), "replica")
    rows = [_row(rpc) for rpc in TABLE.values()]
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _row(rpc: Rpc[Any, Any]) -> tuple[str, ...]:
    is_for_people = PERSON in rpc.roles
    may = [is_for_people and rpc.action in PERMITTED[role] for role in TOKEN_ROLES]
    action = rpc.action.value if is_for_people else "-"
    marks = ("yes" if one else "-" for one in (*may, REPLICA in rpc.roles))
    return (f"`{rpc.name}`", action, *marks)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
