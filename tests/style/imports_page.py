"""The tables in `docs/imports.md`: what becomes of each key of another scheduler.

`python -m tests.style.imports_page` writes them from the tables that the importers read by;
`test_imports_page.py` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cron.crontab import import_dkron, import_kubernetes
from cron.crontab.imported import Key, Treatment
from cron.crontab.systemd.keys import SERVICE, TIMER
from tests.style.tree import ROOT

PAGE: Final = ROOT / "docs" / "imports.md"
TABLES: Final[dict[str, Mapping[str, Key]]] = {
    "systemd": {**TIMER, **SERVICE},
    "dkron": import_dkron.KEYS,
    "Kubernetes": import_kubernetes.KEYS,
}
"""The tables, by the names of their marks in the page."""
END: Final = "<!-- end of what is generated -->\n"


def begin(name: str) -> str:
    """Return the mark before a table."""
    return f"<!-- generated: python -m tests.style.imports_page, {name} -->\n"


def table(rows: Mapping[str, Key]) -> str:
    """Return a table: the keys that have their treatment and reason in common are one row."""
    lines = ["| keys | here | |\n", "| --- | --- | --- |\n"]
    for treatment in Treatment:
        groups: dict[str, list[str]] = {}
        for name, key in rows.items():
            if key.treatment is treatment:
                groups.setdefault(key.why, []).append(name)
        for why, names in groups.items():
            lines.append(f"| {_listed(names)} | {treatment.value} | {why} |\n")
    return "".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """Return the page with its tables as they should be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, rows in TABLES.items():
        before, _, rest = text.partition(begin(name))
        _, _, after = rest.partition(END)
        text = f"{before}{begin(name)}{table(rows)}{END}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
