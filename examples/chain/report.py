"""The three steps of a report: handlers, which `raftcron worker report` runs.

Each step finds in `context.results` what the steps that it comes after have returned: texts of at
most 1 KiB. What is longer, a step stores itself, and returns where it is.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

from raftcron import Context, Fatal, handler

SALES = Path(__file__).with_name("sales.csv")
FOLDER = Path(os.environ.get("REPORTS", "reports"))


@handler("report.fetch", timeout="1m")
def fetch(day: str) -> str:
    """Return what each branch sold on a day, in cents, as JSON."""
    with SALES.open(newline="") as file:
        sold = {
            row["branch"]: int(row["cents"]) for row in csv.DictReader(file) if row["day"] == day
        }
    if not sold:
        raise Fatal(f"nothing was sold on {day}")  # the steps after it are cancelled
    return json.dumps(sold)


@handler("report.total", timeout="1m")
def total(context: Context) -> str:
    """Return the sum of all branches."""
    sold = json.loads(_results(context)["report.fetch"])
    return f"{sum(sold.values()) / 100:.2f} EUR"


@handler("report.publish", timeout="1m")
def publish(day: str, context: Context) -> str:
    """Write the report of a day; return the name of its file."""
    results = _results(context)
    sold = json.loads(results["report.fetch"])
    lines = [f"{branch}: {cents / 100:.2f} EUR" for branch, cents in sold.items()]
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{day}.txt"
    file.write_text("\n".join([f"Sales of {day}", *lines, f"all: {results['report.total']}", ""]))
    return file.name


def _results(context: Context) -> dict[str, str]:
    """Return the results of earlier steps by handler; a task's name is `default/HANDLER:DAY`."""
    return {
        name.partition("/")[2].partition(":")[0]: text for name, text in context.results.items()
    }
