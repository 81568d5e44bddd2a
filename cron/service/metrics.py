"""The numbers of one replica, as Prometheus reads them.

A scrape reads them from State and from counters. The histograms alone are kept up to date between
scrapes, with one addition for each entry or batch. Numbers of the whole cell come from its leader
alone, so that they can be added up over replicas.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from consensus.histogram import Histogram
from cron.launch_state import LaunchState
from cron.service.alert_deliveries import failed_deliveries, oldest_delivery_ms
from cron.service.members import task_counts
from cron.service.replica import Replica
from cron.state.alerts import SELF
from cron.state.own import users_counts
from launcher.protocol.status import Reason

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
JOB_LABEL: Final = "job_name"
"""Prometheus itself gives each series a label `job`."""
SERIES_MAX: Final = 1_000
"""Pools or executors that have series of their own; names of executors and handlers are people's.
"""

_S, _R = LaunchState, Reason
_NOTHING_ENDED: Final = dict.fromkeys(
    [
        *((_S.SUCCEEDED, _R.NONE), (_S.FAILED, _R.NONE), (_S.FAILED, _R.TIMEOUT)),
        *((_S.SKIPPED, one) for one in (_R.MISSED, _R.OVERLAP, _R.DEADLINE, _R.OVERLOAD)),
        *((_S.SKIPPED, _R.NO_EXECUTOR), (_S.SKIPPED, _R.FULL), (_S.LOST, _R.EXECUTOR_LOST)),
    ],
    0,
)
_NO_JOB_ENDED: Final = dict.fromkeys((_S.SUCCEEDED, _S.FAILED, _S.SKIPPED, _S.LOST), 0)
"""Series that are there from the start. Prometheus sees no increase in a series that begins with 1:
nobody would be told of the first missed instant."""


class Machine(msgspec.Struct, frozen=True):
    """What a replica's numbers come from beside the replica: the data directory, how long syncs of
    the log took (None before it runs), when the certificate ends (None without one), and how many
    spans were sent and dropped (nothing where none are made)."""

    data: Path
    syncs: Callable[[], Histogram | None] = lambda: None
    certificate_end_s: Callable[[], int | None] = lambda: None
    spans: Mapping[str, int] = {}


class Metrics:
    """The metrics of one replica."""

    def __init__(self, replica: Replica, machine: Machine) -> None:
        self._replica = replica
        self._machine = machine
        self._crowd: list[int] = []
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)

    async def text(self) -> tuple[str, bytes]:
        """Return the content type, and all metrics as text."""
        await self._replica.job_series.read()
        if self._replica.leader.epoch is not None:
            self._crowd = await self._replica.activity.crowd.next_day(self._replica.clock.wall_ms())
        families = list(self.families())  # here: State belongs to the loop's thread
        return CONTENT_TYPE, await asyncio.to_thread(self._written, families)

    def _written(self, families: list[Metric]) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected([*families, *self.of_disk()]))
        return generate_latest(registry) + generate_latest(self._process)

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of raftcron as they are now."""
        replica = self._replica
        state, leads = replica.state, replica.leader.epoch is not None
        yield _number("raftcron_is_leader", "1 if this replica leads the cell, otherwise 0.", leads)
        yield _number(
            "raftcron_term",
            "Raft's term, as this replica knows it.",
            replica.log.leadership.term,
        )
        yield _number(
            "raftcron_log_applied_index",
            "Index of the last log entry that this replica applied.",
            state.index,
        )
        backup = state.history.backup
        if backup.taken_ms:
            age_ms = replica.clock.wall_ms() - backup.taken_ms
            text = "Age of the newest snapshot in object storage; absent where there is none."
            yield _number("raftcron_backup_age_seconds", text, age_ms / 1000)
        yield from self._of_machine()
        yield from self._of_launches()
        yield from self._of_log()
        yield from self._of_jobs()
        if leads:
            yield from self._of_cell()

    def _of_launches(self) -> Iterator[Metric]:
        replica = self._replica
        launches = CounterMetricFamily(
            "raftcron_launches",
            "Launches and skipped instants that ended, as applied since this process started.",
            labels=("state", "reason"),
        )
        for (one, reason), count in sorted((_NOTHING_ENDED | replica.activity.ended).items()):
            launches.add_metric((one.label, reason.label), count)
        yield launches
        retried = CounterMetricFamily(
            "raftcron_retried_attempts",
            "Attempts that did not succeed and that another one follows by itself.",
            labels=("state", "reason"),
        )
        none = {(_S.FAILED, _R.NONE): 0, (_S.LOST, _R.EXECUTOR_LOST): 0}
        for (one, reason), count in sorted((none | replica.activity.retried).items()):
            retried.add_metric((one.label, reason.label), count)
        yield retried
        yield _histogram(
            "raftcron_launch_lateness_seconds",
            "How long after their scheduled time first attempts started, once they ended.",
            replica.activity.lateness,
        )

    def _of_log(self) -> Iterator[Metric]:
        replica = self._replica
        syncs = self._machine.syncs()
        if syncs is not None:
            text = "How long it took to write and sync one frame of the Raft log."
            yield _histogram("raftcron_log_fsync_seconds", text, syncs)
        yield _histogram(
            "raftcron_apply_seconds",
            "How long it took to apply one log entry.",
            replica.applier.durations,
        )
        yield _histogram(
            "raftcron_turn_seconds",
            "How long turns of the leader took, from the plan until its entry was applied.",
            replica.leader.pace.durations,
        )

    def _of_machine(self) -> Iterator[Metric]:
        end_s = self._machine.certificate_end_s()
        if end_s is not None:
            text = "When the certificate of this replica ends, as Unix time; absent without TLS."
            yield _number("raftcron_certificate_expiry_timestamp_seconds", text, end_s)
        yield _number(
            "raftcron_clock_offset_seconds",
            "How far the clock of this replica is ahead of the median of all replicas' clocks.",
            self._replica.cluster_status.off_by() / 1000,
        )

        if self._machine.spans:
            spans = CounterMetricFamily(
                "raftcron_spans",
                "Spans that were sent to the collector, or dropped; absent without `traces`.",
                labels=("result",),
            )
            for result, count in self._machine.spans.items():
                spans.add_metric((result,), count)
            yield spans

    def of_disk(self) -> Iterator[Metric]:
        """Yield the size of the disk. The system may take its time to answer: a thread asks it."""
        disk = shutil.disk_usage(self._machine.data)
        yield _number(
            "raftcron_disk_free_bytes",
            "Free bytes of the file system with the data directory.",
            disk.free,
        )
        yield _number(
            "raftcron_disk_size_bytes",
            "Size of the file system with the data directory.",
            disk.total,
        )

    def _of_jobs(self) -> Iterator[Metric]:
        """Yield the series of jobs that ask for them."""
        launches = CounterMetricFamily(
            "raftcron_job_launches",
            "As raftcron_launches_total, of one job.",
            labels=(JOB_LABEL, "state"),
        )
        jobs = list(self._replica.job_series.listed())
        if not jobs:
            return
        for name, series in jobs:
            for one, count in {**_NO_JOB_ENDED, **series.ended}.items():
                launches.add_metric((name, one.label), count)
        yield launches
        yield _series(
            "raftcron_job_success_timestamp_seconds",
            "When the newest launch of a job that succeeded ended, as Unix time.",
            JOB_LABEL,
            ((name, one.succeeded_ms / 1000) for name, one in jobs if one.succeeded_ms),
        )
        yield _series(
            "raftcron_job_duration_seconds",
            "How long the newest attempt of a job ran.",
            JOB_LABEL,
            ((name, one.ran_ms / 1000) for name, one in jobs if one.ran_ms is not None),
        )

    def _of_cell(self) -> Iterator[Metric]:
        replica, state = self._replica, self._replica.state
        yield _series(
            "raftcron_replica_reachable",
            "1 if the replica answered the leader when it asked last, otherwise 0.",
            "replica",
            sorted(replica.cluster_status.reachable().items()),
        )
        yield _number(
            "raftcron_overloaded",
            "1 while more falls due than can begin, otherwise 0.",
            replica.leader.overload.view is not None,
        )
        running, waiting, oldest_ms = self._queued()
        yield _series(
            "raftcron_running_launches",
            "Launches of a pool that run.",
            "pool",
            running.items(),
        )
        yield _series(
            "raftcron_queue_depth", "Launches that wait in a pool.", "pool", waiting.items()
        )
        now_ms = replica.clock.wall_ms()
        yield _series(
            "raftcron_oldest_waiting_seconds",
            "For how long the oldest launch of a pool has waited; 0 if none waits.",
            "pool",
            (
                (pool, max(0, now_ms - oldest_ms[pool]) / 1000 if pool in oldest_ms else 0)
                for pool in waiting
            ),
        )
        counts = task_counts(state, replica.leader.indexes.tasks.count_unbegun())
        yield _series(
            "raftcron_tasks",
            "Tasks of users' queues that are not over, by state.",
            "state",
            (("waiting", counts.waiting), ("due", counts.due), ("running", counts.running)),
        )
        yield from self._of_letters()
        yield from self._of_alerts()
        yield from self._of_crowd()
        pool = replica.leader.pool
        yield _number("raftcron_executors_connected", "Connected executors.", pool.count)
        yield _series(
            "raftcron_executor_lease_seconds",
            "How long the leader still waits for a connected executor that stays silent.",
            "executor",
            ((one.executor, pool.lease_ms(one) / 1000) for one in pool.sessions()[:SERIES_MAX]),
        )
        certified = [one for one in pool.sessions() if one.certificate_ends_ms]
        yield _series(
            "raftcron_executor_certificate_expiry_timestamp_seconds",
            "When the certificate of a connected executor ends, as Unix time.",
            "executor",
            (
                (one.executor, one.certificate_ends_ms / 1000)
                for one in nsmallest(SERIES_MAX, certified, key=attrgetter("certificate_ends_ms"))
            ),
        )

    def _of_letters(self) -> Iterator[Metric]:
        state = self._replica.state
        yield _number(
            "raftcron_dead_letters",
            "Dead letters: launches and tasks that were given up and wait for a person.",
            users_counts(state).dead,
        )
        yield _series(
            "raftcron_dead_letters_full_ratio",
            "How full the pile of dead letters of a tenant's tasks is; at 1 it hands over no more.",
            "tenant",
            (
                (tenant, state.piles.permille(tenant) / 1000)
                for tenant in nlargest(SERIES_MAX, state.piles, key=state.piles.permille)
            ),
        )

    def _of_alerts(self) -> Iterator[Metric]:
        state, now_ms = self._replica.state, self._replica.clock.wall_ms()
        yield _number(
            "raftcron_alerts_firing",
            "Alerts that fire, muted ones included.",
            state.alerts.open_count,
        )
        failed = CounterMetricFamily(
            "raftcron_alert_deliveries_failed",
            "Messages about alerts and launches that were given up.",
        )
        failed.add_metric((), failed_deliveries(state))
        yield failed
        text = (
            "For how long the oldest message about an alert or a launch has waited or failed, of"
            " the newest 10,000; 0 if none does."
        )
        since_ms = oldest_delivery_ms(state)
        age_ms = max(0, now_ms - since_ms) if since_ms else 0
        yield _number("raftcron_alert_oldest_delivery_seconds", text, age_ms / 1000)

    def _of_crowd(self) -> Iterator[Metric]:
        if not self._crowd:
            return  # they are being counted
        most = max(self._crowd)
        minute_s = self._replica.clock.wall_ms() // 60_000 * 60
        yield _number(
            "raftcron_crowded_minute_launches",
            "The most launches that fall due in one minute of the next 24 hours; counted every ten"
            " minutes.",
            most,
        )
        yield _number(
            "raftcron_crowded_minute_timestamp_seconds",
            "When that minute begins, as Unix time.",
            minute_s + self._crowd.index(most) * 60,
        )

    def _queued(self) -> tuple[Counter[str], Counter[str], dict[str, int]]:
        """Return how many launches run and wait in each pool, those of the cell itself left out,
        the longest queues only, and since when the oldest of each waits."""
        queues = self._replica.leader.queues
        running, waiting, oldest_ms = Counter[str](), Counter[str](), dict[str, int]()
        for depth in queues.depths() if queues is not None else ():
            if depth.tenant == SELF:
                continue
            running[depth.pool] += depth.running
            waiting[depth.pool] += depth.waiting
            if depth.waiting:
                before_ms = oldest_ms.get(depth.pool, depth.oldest_ms)
                oldest_ms[depth.pool] = min(before_ms, depth.oldest_ms)
        shown = Counter(dict(waiting.most_common(SERIES_MAX)))
        return Counter({pool: running[pool] for pool in shown}), shown, oldest_ms


class _Collected:
    """What a registry asks for its metrics."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _number(name: str, text: str, value: float) -> Metric:
    metric = Metric(name, text, "gauge")
    metric.add_sample(name, {}, float(value))
    return metric


def _series(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    metric = Metric(name, text, "gauge")
    for value, number in values:
        metric.add_sample(name, {label: value}, float(number))
    return metric


def _histogram(name: str, text: str, values: Histogram) -> Metric:
    bounds = [*(str(bound_ms / 1000) for bound_ms in values.bounds_ms), "+Inf"]
    buckets = list(zip(bounds, accumulate(values.counts), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=values.sum_ms / 1000)
