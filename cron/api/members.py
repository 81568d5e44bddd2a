"""The cell and its members: status, the replacement of replicas, the cell's clock."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from cron.api import checks
from cron.api.checks import Person, ReplicaId
from cron.api.rpc import Request, View
from cron.api.snapshots import KeepingView

STATUS_TIMEOUT_MS: Final = 3_000


class ClockRequest(Request, frozen=True, kw_only=True):
    """Set the cell's time back to the leader's clock, or only say what that would do."""

    is_dry_run: bool = False
    by: Person = ""


class ClockReport(View, frozen=True, kw_only=True):
    """What a reset of the cell's time does, or did.

    `cell_ms` is the cell's time before, `clock_ms` the leader's clock. `jobs` have horizons that go
    back. `spent` counts the instants after `clock_ms` whose launches have begun and are not
    repeated.
    """

    cell_ms: int
    clock_ms: int
    jobs: int = 0
    spent: int = 0
    is_done: bool = False


class ReplaceRequest(Request, frozen=True, kw_only=True):
    """Make room for a new disk under the id `replica`; the old one is shut out for good.

    `raft` and `client` are where the new one listens, "" for where the old one did. `is_confirmed`:
    also if the old one is connected to the leader.
    """

    replica: ReplicaId
    raft: Annotated[str, partial(checks.place, what="raft address")] = ""
    client: Annotated[str, partial(checks.place, what="client address")] = ""
    is_confirmed: bool = False
    by: Person = ""


class ReplaceReport(View, frozen=True, kw_only=True):
    """The id's incarnation that waits for its disk, and the addresses where the others expect it.

    `was_open`: it waited for one already, and nothing was changed.
    """

    replica: str
    incarnation: int = 0
    member_state: str = ""
    raft: str = ""
    client: str = ""
    was_open: bool = False


class GrowRequest(Request, frozen=True, kw_only=True):
    """Add the replica `replica` to the cell; `peers` of all replicas must name it."""

    replica: ReplicaId
    by: Person = ""


class GrowReport(View, frozen=True, kw_only=True):
    """The replica that was added, or was there already (`was_there`), its incarnation and what it
    is, and the addresses where the others expect it."""

    replica: str
    incarnation: int = 0
    member_state: str = ""
    raft: str = ""
    client: str = ""
    was_there: bool = False


class JoinProgress(View, frozen=True):
    """How far a replica that does not vote yet has come, as `consensus.cell.Joining` says."""

    stage: str
    done: int = 0
    goal: int = 0
    text: str = ""


class OverloadView(View, frozen=True, kw_only=True):
    """More falls due than can begin: since when, where most of it waits, and how many instants were
    skipped for it."""

    since_s: int
    queue: str
    skipped: int = 0


class TaskCounts(View, frozen=True, kw_only=True):
    """How many tasks wait, have a launch that is due and has not begun, and run or rest between two
    attempts."""

    waiting: int = 0
    due: int = 0
    running: int = 0


class StatusRow(View, frozen=True, kw_only=True):
    """A replica or an executor, as the one that was asked sees it.

    `kind` is replica or executor. `role` of a replica is leader, follower, learner (it does not
    vote yet) or unreachable; of an executor connected, in-doubt or lost. `applied` is a log index,
    `digest` the hex digest of the state there; equal positions must have equal digests. `since_ms`
    is when it took that role. `clock_offset_ms` is its wall clock minus that of the replica that
    was asked, `wall_ms` what a replica's clock said.

    `incarnation` counts the disks that stood for a replica's id, `member_state` is votes, joining
    or open ("" while the cell is not founded), `joining` how far it is until it votes. `matched` is
    the log index up to which the leader knows it to have the leader's log, None where it does not.
    `keeping` is of snapshots and history, of replicas alone. `format` is the newest format of the
    log that a replica can apply. `overload` and `tasks` are of the leader alone, None where there
    is no overload, or no queue of tasks. `http` is where a replica serves HTTP, "" where it does
    not. `certificate_ends_ms` and `authority_ends_ms` are when a replica's certificate and that of
    the cell's authority end, 0 without TLS. `disk_used_percent` is how full the disk of its data
    is, 0 if it is not known. An executor that `refuses_commands` would start none.
    """

    kind: str
    id: str
    address: str = ""
    pid: int = 0
    role: str = ""
    term: int = 0
    applied: int = 0
    digest: str = ""
    version: str = ""
    leader: str = ""
    clock_offset_ms: int | None = None
    tzdata: str = ""
    since_ms: int = 0
    slots: int = 0
    running: int = 0
    ledger: str = ""
    note: str = ""
    wall_ms: int = 0
    incarnation: int = 0
    member_state: str = ""
    matched: int | None = None
    joining: JoinProgress | None = None
    keeping: KeepingView | None = None
    format: int = 0
    overload: OverloadView | None = None
    tasks: TaskCounts | None = None
    http: str = ""
    certificate_ends_ms: int = 0
    authority_ends_ms: int = 0
    disk_used_percent: int = 0
    refuses_commands: bool = False


class StatusRequest(Request, frozen=True, kw_only=True):
    """Ask for the state of the whole cell. Any replica answers, within about a second."""

    def timeout_ms(self) -> int:
        """Return how long to wait: a replica that is dead for longer is not back soon."""
        return STATUS_TIMEOUT_MS


UNREACHABLE: Final = "unreachable"
LEARNER: Final = "learner"
OUTDATED: Final = "outdated"
"""It leads the log, which is older than what executors were ordered: it launches nothing."""
WAITING: Final = "waiting"
"""Its disk has no room: it takes no part, and says so."""


class StatusReport(View, frozen=True, kw_only=True):
    """All replicas, by id, then all executors."""

    rows: list[StatusRow] = []

    def is_cut_off(self) -> bool:
        """Return whether the replica that says this reached no majority: another one may."""
        replicas = [row for row in self.rows if row.kind == "replica"]
        return 2 * sum(row.role == UNREACHABLE for row in replicas) > len(replicas)
