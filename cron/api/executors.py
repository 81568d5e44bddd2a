"""Executors: what is shown of them, and how they are drained."""

from __future__ import annotations

from typing import Annotated, Final

from cron.api.access import users
from cron.api.checks import ExecutorId, Person, between, bound, matching
from cron.api.launches import LaunchView
from cron.api.rpc import Request, View
from cron.errors import InvalidInput
from cron.executor_grants import ANY, ID_RULE, LABEL_RULE, POOL_RULE, ExecutorGrant, problem_of
from cron.where import EXECUTOR_LABEL
from launcher.protocol.limits import LABELS_MAX

RUNS_MAX: Final = 1_000
"""Open launches of one executor that one request shows."""


POOLS_MAX: Final = 100
"""Work pools of one grant."""


def _parts(texts: list[str]) -> list[str]:
    """Return labels `name=value`, or `name` without one, each once."""
    between(len(texts), 0, LABELS_MAX, "number of labels")
    for text in texts:
        name = _label(text.partition("=")[0])
        if name == EXECUTOR_LABEL:
            raise InvalidInput("label executor is the executor's id", "leave it out")
    return sorted({*texts})


def _pools(names: list[str]) -> list[str]:
    """Return work pools or patterns of them, each once."""
    between(len(names), 1, POOLS_MAX, "number of pools")
    return sorted({_pool(name) for name in names})


def _users(names: list[str]) -> list[str]:
    """Return users, of which `*` is every one."""
    return [ANY] if ANY in names else users(names)


_label = matching(LABEL_RULE, "label {} is not one of an executor", "such as zone=eu or ssd")
_pool = matching(
    POOL_RULE, "pool {} is not a work pool", "`command`, a handler, or a pattern such as mail*"
)


class GroupView(View, frozen=True, kw_only=True):
    """Worker processes of an executor that share their slots, and the handlers they serve.

    `slots` is how many launches run at once, `ahead` how many more may wait there. An executor of
    an older release says only the sum, and it is in `slots`. `open` launches were begun there and
    are not over; only in ExecutorDetail. `memory_limit` says how launches are kept within the
    memory that they declare, as in ExecutorView.
    """

    group: str
    slots: int = 0
    handlers: list[str] = []
    open: int = 0
    ahead: int = 0
    memory_limit: str = ""


class ExecutorView(View, frozen=True, kw_only=True):
    """An executor, as the leader sees it.

    `role` is connected or in-doubt; left, where one is drained that was drained before and is gone.
    `open` launches were begun there and are not over, `running` is what it last said that it runs.
    `labels` are `name=value`. `silent_ms` is since it was heard. `gets_work`: it is leased, its
    clock is right, and it is not drained. `note` says why not. `incarnation` is of its process,
    `joined_ms` when the log last let it in. `certificate_ends_ms` is when the certificate of a
    connected one ends; 0 without one. `labels` and `groups` are what the cell grants it,
    `not_granted` is what it claims beside that. `cpu_limit` and `memory_limit` say how commands
    are kept within what they declare: by the `kernel`, `watched` each second, or `none`; "" if it
    is not connected, or of an older release. With `refuses_commands` it
    has slots for commands and would start none, since it runs as root without `users`.
    """

    id: str
    role: str = ""
    host: str = ""
    address: str = ""
    pid: int = 0
    version: str = ""
    slots: int = 0
    open: int = 0
    running: int = 0
    labels: list[str] = []
    groups: list[GroupView] = []
    cpu_milli: int = 0
    memory_bytes: int = 0
    silent_ms: int | None = None
    clock_offset_ms: int | None = None
    connected_since_ms: int = 0
    drained_by: str = ""
    drained_ms: int = 0
    gets_work: bool = False
    ledger: str = ""
    note: str = ""
    incarnation: str = ""
    joined_ms: int = 0
    certificate_ends_ms: int = 0
    not_granted: list[str] = []
    cpu_limit: str = ""
    memory_limit: str = ""
    refuses_commands: bool = False

    @property
    def slots_in_all(self) -> int:
        """How many launches run at once: commands, and what its workers run."""
        return self.slots + sum(group.slots for group in self.groups)


class DuplicateIdView(View, frozen=True, kw_only=True):
    """A process that was refused because another one has its id.

    That was last `ago_ms` ago, and `times` in all. `held_by` says which process has the id.
    """

    executor: str
    host: str = ""
    pid: int = 0
    address: str = ""
    held_by: str = ""
    ago_ms: int = 0
    times: int = 0


class ExecutorsReport(View, frozen=True, kw_only=True):
    """All executors, by id, and the processes that were refused because another one has their
    id."""

    executors: list[ExecutorView] = []
    duplicate_ids: list[DuplicateIdView] = []


class ExecutorQuery(Request, frozen=True, kw_only=True):
    """An executor that is asked about, and how many of its launches are to be shown."""

    executor: ExecutorId
    limit: Annotated[int, bound(1, RUNS_MAX, "limit")] = 20


class ExecutorDetail(View, frozen=True, kw_only=True):
    """One executor with one ledger, and the attempts and parts that are open there, those that
    began first.

    `commands` of the open launches are commands, for which it has `slots`; the others are counted
    in their groups.
    """

    executor: ExecutorView
    commands: int = 0
    runs: list[LaunchView] = []


class ExecutorReport(View, frozen=True, kw_only=True):
    """What there is of one id, the connected one first, as of `now_ms`."""

    details: list[ExecutorDetail] = []
    duplicate_ids: list[DuplicateIdView] = []
    now_ms: int = 0


class ExecutorGrantRequest(Request, frozen=True, kw_only=True):
    """What executors of an id, or of a pattern of ids, get from now on, in place of an earlier
    grant. A label `name=*` has the value that the executor claims, `*` are all that it claims;
    `pools` may be patterns, `*` among `users` is every user."""

    executor: Annotated[str, matching(ID_RULE, "executor {} is not an id or a pattern of ids")]
    labels: Annotated[list[str], _parts] = []
    pools: Annotated[list[str], _pools]
    users: Annotated[list[str], _users] = []
    by: Person = ""

    def check(self) -> None:
        """Refuse what is too long together."""
        problem = problem_of(self.grant)
        if problem:
            raise InvalidInput(problem)

    @property
    def grant(self) -> ExecutorGrant:
        """What the cell keeps of it."""
        split = (one.partition("=") for one in self.labels)
        labels = tuple((name, value) for name, _, value in split)
        return ExecutorGrant(self.executor, labels, tuple(self.pools), tuple(self.users))


class ExecutorRevocation(Request, frozen=True, kw_only=True):
    """What was granted to an executor, or to a pattern of ids, is revoked."""

    executor: Annotated[str, matching(ID_RULE, "executor {} is not an id or a pattern of ids")]
    by: Person = ""


class ExecutorGrantView(View, frozen=True, kw_only=True):
    """What was granted to an executor, or to a pattern of ids; `labels` as in the request. `notes`
    say what may not be meant, where it was granted or revoked just now."""

    executor: str
    labels: list[str] = []
    pools: list[str] = []
    users: list[str] = []
    by: str = ""
    since_ms: int = 0
    notes: list[str] = []


class ExecutorGrantsReport(View, frozen=True, kw_only=True):
    """All grants, by id and pattern. While `claims_count`, nothing was ever granted, and all that
    executors claim counts."""

    grants: list[ExecutorGrantView] = []
    claims_count: bool = False


class DrainRequest(Request, frozen=True, kw_only=True):
    """An executor that is to get no more work, or work again where `is_over`."""

    executor: ExecutorId
    is_over: bool = False
    by: Person = ""
