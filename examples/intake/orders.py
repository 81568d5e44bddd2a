"""Orders that arrive in a queue of SQS, faster for minutes than anything behind it could bear.

    raftcron worker orders --executor cell/executor-1/workers.sock
    raftcron intake sqs://sqs.eu-west-1.amazonaws.com/123456789012/orders --handler order.place
    aws sqs send-message --queue-url https://sqs.eu-west-1.amazonaws.com/123456789012/orders \\
        --message-body '{"number": 7, "cents": 4200}'

The payload of a task is the body of its message. A body that does not fit `Order` fails its task at
once, which `raftcron dead` lists; one that is no JSON goes to the dead-letter queue.
"""

from __future__ import annotations

import msgspec
from raftcron import Fatal, handler


class Order(msgspec.Struct):
    """The body of a message."""

    number: int
    cents: int


@handler("order.place", timeout="1m")
def place(order: Order) -> str:
    """Place an order. SQS may deliver a message twice; its task runs once."""
    if order.cents <= 0:
        raise Fatal("an order costs something")
    return f"placed order {order.number}"
