"""What launches of a job need, and in which flows they wait. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from cron.job import COMMAND, Job
from cron.scheduler.flows import FlowKey
from cron.scheduler.places import Need, Wanted
from launcher.protocol.names import split_job_name

FLOW_KEYS_MAX: Final = 100_000
PATIENT_S: Final = 15
"""A job is patient if its instants are so far apart and may begin so late: its rows wait apart from
those of other jobs (`due`)."""


class Placed(NamedTuple):
    """What launches of a job need, and in which flows they wait. `is_usual`: a launch needs one
    slot and nothing else, and waits neither for other launches nor for its jitter."""

    wanted: Wanted
    live: FlowKey
    late: FlowKey
    is_usual: bool


def placed_of(name: str, job: Job) -> Placed:
    """Return what launches of a job need, and in which flows they wait."""
    tenant, _ = split_job_name(name)
    work, every_s = job.work, job.schedule.every_s
    needs = (work.user, bool(work.secrets), job.pool == COMMAND and not job.each)
    needed = (job.pool, job.where, work.cpu_milli, work.memory_bytes, *needs)
    is_patient = job.deadline_s >= PATIENT_S and not 0 < every_s < PATIENT_S
    priority = min(max(work.priority, 0), 9)
    alike = (tenant, priority, needed, job.parts, job.each, job.is_limited, is_patient)
    placed = _placed_alike(*alike)
    return placed._replace(is_usual=False) if job.follows or job.jitter_s else placed


@lru_cache(FLOW_KEYS_MAX)
def _placed_alike(
    tenant: str,
    priority: int,
    needed: tuple[str, str, int, int, str, bool, bool],
    parts: int,
    each: str,
    is_limited: bool,
    is_patient: bool,
) -> Placed:
    """Return one object for all jobs that are alike: flows are compared for each launch."""
    wanted = Wanted(need := Need(*needed), parts, each)
    live = FlowKey(tenant, need.pool, priority, wanted, False, is_limited, is_patient)
    late = FlowKey(tenant, need.pool, priority, wanted, True, is_limited)
    is_usual = not (is_limited or wanted.has_parts or need.takes_resources)
    return Placed(wanted, live, late, is_usual)
