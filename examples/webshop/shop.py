"""A web shop in which an order and the task that confirms it are one transaction.

    raftcron dev --data cell                         # a cell, in a terminal of its own
    raftcron worker mails --executor cell/executor-1/workers.sock
    raftcron relay sqlite:shop.db                    # after the shop made the file
    python shop.py
    curl -d '{"customer": "ada@example.com", "cents": 4200}' http://127.0.0.1:8000/orders

If the shop dies between the order and the answer, both are there or neither is. If the relay or
the cell is down, tasks wait in shop.db.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import make_server

import msgspec
from mails import Order, confirm
from raftcron import outbox

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")


class NewOrder(msgspec.Struct):
    """The body of a request."""

    customer: str
    cents: int


def create_tables() -> None:
    """Create the shop's table and the outbox, where they are not there."""
    with contextlib.closing(sqlite3.connect(DATABASE)) as connection, connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, customer, cents)"
        )
        outbox.create_table(connection)


def place_order(connection: sqlite3.Connection, new: NewOrder) -> Order:
    """Store an order, and the task that confirms it in ten seconds."""
    with connection:  # one transaction
        values = (new.customer, new.cents)
        row = connection.execute("INSERT INTO orders (customer, cents) VALUES (?, ?)", values)
        order = Order(row.lastrowid or 0, new.customer, new.cents)
        if order.cents <= 0:
            raise ValueError("an order costs something")  # neither the order nor the task is there
        outbox.submit(connection, confirm, order, key=f"order-{order.number}", delay="10s")
    return order


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer one request: POST /orders."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    try:
        new = msgspec.json.decode(environ["wsgi.input"].read(length), type=NewOrder)
        with contextlib.closing(sqlite3.connect(DATABASE)) as connection:
            status, answer = "201 Created", msgspec.json.encode(place_order(connection, new))
    except ValueError as error:  # of msgspec, too
        status, answer = "400 Bad Request", msgspec.json.encode({"error": str(error)})
    start_response(status, [("Content-Type", "application/json")])
    return [answer + b"\n"]


if __name__ == "__main__":
    create_tables()
    with make_server("127.0.0.1", 8000, application) as server:
        server.serve_forever()
