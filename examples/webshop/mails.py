"""What the shop does later: handlers, which `raftcron worker mails` runs."""

from __future__ import annotations

import msgspec
from raftcron import Context, Fatal, handler


class Order(msgspec.Struct):
    """What a confirmation needs to know."""

    number: int
    customer: str
    cents: int


@handler("shop.confirm", timeout="1m")
def confirm(order: Order, context: Context) -> str:
    """Confirm an order. The mail server gets the task's name, which is the same in every try."""
    if "@" not in order.customer:
        raise Fatal(f"{order.customer} is no address")
    context.log(f"to {order.customer}: order {order.number} over {order.cents / 100:.2f}")
    return f"confirmed order {order.number}"


@handler("shop.newsletter", timeout="1m")
def newsletter(customer: str) -> str:
    """Send the newsletter to one customer."""
    return f"sent to {customer}"
