"""What does it cost the replicas when Prometheus scrapes them each second?

    python -m bench.scrape [--rate 5000] [--seconds 20] [--pairs 6] [--readme]

Three replicas, an executor and no-op work, as in bench.launches. While launches go on at one rate,
windows with scraping and without follow each other: off, on, on, off, ... In windows with scraping
a process of its own asks all three replicas for `/metrics` once a second. Of each window the CPU
time of the three replicas is taken, for each launch that ended in it. Prints a row for each window
and the medians; with `--readme` it writes the table into README.md.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.launches import crontab
from bench.launches_cell import Running, Shape, ThreadPool, apply, running_cell
from bench.load import make_load
from bench.processes import cpu_us
from bench.section import figure, write_section
from cron.config import load_replica_config

README: Final = Path(__file__).resolve().parent / "README.md"
BEGIN: Final = "<!-- scrape: written by `python -m bench.scrape --readme` -->"
END: Final = "<!-- end of scrape -->"
WARM_UP_S: Final = 10
PERIOD_S: Final = 1.0
TIMEOUT_S: Final = 10
THREADS: Final = 8
_ENDED: Final = re.compile(r"^raftcron_launches_total\{[^}]*\} (\S+)$", re.MULTILINE)


class Window(msgspec.Struct, frozen=True):
    """What one window took: CPU of the replicas in µs, and launches that ended."""

    is_scraped: bool
    cpu_us: int
    launches: int
    seconds: float

    @property
    def each_us(self) -> float:
        """CPU of the replicas for each launch, in µs."""
        return self.cpu_us / max(1, self.launches)


def scraped(port: int) -> str:
    """Return what a replica answers to a scrape."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


def ended(port: int) -> int:
    """Return how many attempts and instants ended, as a replica has applied it."""
    return sum(int(float(count)) for count in _ENDED.findall(scraped(port)))


def scrape(ports: Sequence[int]) -> None:
    """Ask all replicas once a second, until the process is ended."""
    next_s = time.monotonic()
    while True:
        for port in ports:
            scraped(port)
        next_s += PERIOD_S
        time.sleep(max(0.0, next_s - time.monotonic()))


def window(running: Running, ports: Sequence[int], seconds: float, *, is_scraped: bool) -> Window:
    """Measure one window. The counts of launches are read before and after it, with and without
    scraping."""
    pids = list(running.replicas.values())
    scraper: subprocess.Popen[bytes] | None = None
    if is_scraped:
        words = [sys.executable, "-m", "bench.scrape", "--client", *map(str, ports)]
        scraper = subprocess.Popen(words)
        time.sleep(PERIOD_S)  # it starts beside the window
    before, began_s = ended(ports[0]), time.monotonic()
    used_us = sum(map(cpu_us, pids))
    try:
        time.sleep(seconds)
    finally:
        taken_us = sum(map(cpu_us, pids)) - used_us
        took_s = time.monotonic() - began_s
        if scraper is not None:
            if scraper.poll() is not None:
                raise RuntimeError("the scraper ended")
            scraper.kill()
            scraper.wait()
    return Window(is_scraped, taken_us, ended(ports[0]) - before, took_s)


def order(pairs: int) -> list[bool]:
    """Return which windows are scraped: off and on, then on and off, so that a trend adds to
    both."""
    return [is_on for pair in range(pairs) for is_on in ((False, True), (True, False))[pair % 2]]


def run(rate: int, seconds: float, pairs: int) -> list[Window]:
    """Return the windows of one run."""
    load = make_load(rate)
    pool = ThreadPool(threads=THREADS)
    shape = Shape(kind="handler", thread_pools=(pool,), http=True)
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name:
        folder = Path(name)
        with running_cell(folder, shape) as running:
            apply(running.client, crontab(load, shape))
            https = [load_replica_config(folder / f"{one}.toml").http for one in running.replicas]
            ports = [int(one.rpartition(":")[2]) for one in https]
            time.sleep(WARM_UP_S)
            windows = []
            for is_on in order(pairs):
                windows.append(window(running, ports, seconds, is_scraped=is_on))
                print(_line(windows[-1]), flush=True)
            return windows


def _line(one: Window) -> str:
    cores = one.cpu_us / one.seconds / 1e6
    cells = (figure(one.launches / one.seconds), figure(one.each_us), figure(100 * cores))
    return f"| {'each second' if one.is_scraped else 'none'} | {' | '.join(cells)} |"


def table(windows: Sequence[Window]) -> str:
    """Return the table of README.md: all windows, the medians, and what scraping adds."""
    lines = [
        "| scraping | launches/s | CPU of the replicas, µs/launch | % of a core |",
        "| --- | --: | --: | --: |",
        *map(_line, windows),
    ]
    off, on = (
        statistics.median(one.each_us for one in windows if one.is_scraped is is_on)
        for is_on in (False, True)
    )
    lines += ["", f"Medians: {figure(off)} µs without and {figure(on)} µs with scraping"]
    lines[-1] += f": {(on / off - 1) * 100:+.2f} %."
    return "\n".join(lines)


def main() -> None:
    """Measure, or be the scraper."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--client", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        scrape(options.client)
    written = table(run(options.rate, options.seconds, options.pairs))
    print(written)
    if options.readme:
        write_section(README, BEGIN, END, written)


if __name__ == "__main__":
    main()
