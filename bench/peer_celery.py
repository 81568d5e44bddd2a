"""Celery with Redis, for `bench.tasks_peers`: its app, and a program that submits.

It runs in an environment of its own, without anything of this project.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import cache
from typing import Any


@cache
def made() -> Any:
    """Return the app, with its one task `noop`. Celery is not in this project's environment."""
    from celery import Celery  # type: ignore[import-not-found]

    app: Any = Celery("peer", broker=os.environ["PEER_BROKER"])
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,  # a task whose worker dies runs again, as ours may
        worker_prefetch_multiplier=16,
        broker_connection_retry_on_startup=True,
    )

    def noop(payload: dict[str, int]) -> None:
        """Take a payload and succeed."""

    app.task(noop, name="noop")
    return app


def __getattr__(name: str) -> Any:
    """Return the app as `bench.peer_celery.app`, where Celery looks for it."""
    if name != "app":
        raise AttributeError(name)
    return made()


def submit(options: argparse.Namespace) -> list[int]:
    """Submit calls of `batch` tasks one after the other, for some seconds or `count` tasks; return
    how long each call took, in us."""
    took: list[int] = []
    app = made()
    noop = app.tasks["noop"]
    with app.producer_pool.acquire(block=True) as producer:
        producer.connection.ensure_connection()
        until = time.monotonic() + options.seconds
        while time.monotonic() < until and len(took) * options.batch < options.count:
            began = time.monotonic_ns()
            for n in range(options.batch):
                task_id = f"{options.name}-{len(took)}-{n}"
                noop.apply_async(({"n": n},), task_id=task_id, producer=producer, retry=False)
            took.append((time.monotonic_ns() - began) // 1000)
    return took


def main() -> None:
    """One program: print how long its calls took, and its CPU time for them, in us."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--count", type=int, default=1_000_000_000)
    parser.add_argument("--delay", default="0s")  # until a worker runs, none of them is due
    parser.add_argument("--name", default="")
    options = parser.parse_args()
    before = time.process_time()
    took = submit(options)
    print(json.dumps([took, round((time.process_time() - before) * 1_000_000)]))


if __name__ == "__main__":
    main()
