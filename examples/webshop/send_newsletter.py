"""Send the newsletter to all customers tomorrow at nine: `python send_newsletter.py`.

It may be run again after a failure: a task whose key is known is not submitted twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from datetime import UTC, datetime, time, timedelta

from mails import newsletter
from raftcron import Client

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")


def send(client: Client, issue: str, at: datetime) -> int:
    """Submit a task for each customer; return how many there are."""
    with contextlib.closing(sqlite3.connect(DATABASE)) as connection:
        customers = connection.execute("SELECT DISTINCT customer FROM orders").fetchall()
    tasks = client.submit_many(
        (newsletter, customer, {"key": f"{issue}-{_short(customer)}", "at": at, "tries": 3})
        for (customer,) in customers
    )
    return len(tasks)


def _short(customer: str) -> str:
    """A key has plain characters, and at most 100 with its queue."""
    return hashlib.sha256(customer.encode()).hexdigest()[:24]


if __name__ == "__main__":
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    with Client() as client:
        sent = send(client, f"news-{tomorrow}", datetime.combine(tomorrow, time(9), UTC))
    print(f"tasks that are waiting: {sent}")
