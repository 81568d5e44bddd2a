"""A queue in PostgreSQL as River keeps it, for `bench.tasks_peers`: a table, a program that submits
and a worker.

A submit is one INSERT, a transaction by itself, that skips keys which are there. The worker takes
up to a hundred tasks with FOR UPDATE SKIP LOCKED in a transaction, and completes them in another.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Final

import psycopg

TABLE: Final = """
CREATE TABLE task (
  id bigserial PRIMARY KEY, key text NOT NULL UNIQUE, kind text NOT NULL, args jsonb NOT NULL,
  state text NOT NULL DEFAULT 'available', priority smallint NOT NULL DEFAULT 1,
  attempt smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now(),
  scheduled_at timestamptz NOT NULL, attempted_at timestamptz, finalized_at timestamptz);
CREATE INDEX ON task (state, priority, scheduled_at, id);
"""
SUBMIT: Final = """
INSERT INTO task (key, kind, args, scheduled_at)
SELECT key, 'noop', args::jsonb, now() + %s::interval
FROM unnest(%s::text[], %s::text[]) AS said (key, args) ON CONFLICT (key) DO NOTHING
"""
TAKE: Final = """
UPDATE task SET state = 'running', attempt = attempt + 1, attempted_at = now() WHERE id IN (
  SELECT id FROM task WHERE state = 'available' AND scheduled_at <= now()
  ORDER BY priority, scheduled_at, id LIMIT 100 FOR UPDATE SKIP LOCKED)
RETURNING id, args
"""
DELAYS: Final = {"0s": "0", "1d": "1 day"}
COMPLETE: Final = "UPDATE task SET state = 'completed', finalized_at = now() WHERE id = ANY(%s)"


def submit(options: argparse.Namespace) -> list[int]:
    """Submit calls of `batch` tasks one after the other, for some seconds or `count` tasks; return
    how long each call took, in us."""
    took: list[int] = []
    with psycopg.connect(options.server, autocommit=True) as connection:
        until = time.monotonic() + options.seconds
        while time.monotonic() < until and len(took) * options.batch < options.count:
            began = time.monotonic_ns()
            keys = [f"{options.name}-{len(took)}-{n}" for n in range(options.batch)]
            payloads = [json.dumps({"n": n}) for n in range(options.batch)]
            connection.execute(SUBMIT, (DELAYS[options.delay], keys, payloads))
            took.append((time.monotonic_ns() - began) // 1000)
    return took


def work(options: argparse.Namespace) -> None:
    """Run tasks until `count` of them are over."""
    done = 0
    with psycopg.connect(options.server, autocommit=True) as connection:
        while done < options.count:
            taken = connection.execute(TAKE).fetchall()
            if not taken:
                time.sleep(0.005)
                continue
            connection.execute(COMPLETE, ([number for number, _ in taken],))
            done += len(taken)


def main() -> None:
    """One program: print how long its calls took, and its CPU time for them, in us."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=["table", "submit", "work"], default="submit")
    parser.add_argument("--server", required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--count", type=int, default=1_000_000_000)
    parser.add_argument("--delay", default="0s")
    parser.add_argument("--name", default="")
    options = parser.parse_args()
    if options.what == "table":
        with psycopg.connect(options.server, autocommit=True) as connection:
            connection.execute(TABLE)
    elif options.what == "work":
        work(options)
    else:
        before = time.process_time()
        took = submit(options)
        print(json.dumps([took, round((time.process_time() - before) * 1_000_000)]))


if __name__ == "__main__":
    main()
