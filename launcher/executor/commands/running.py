"""The commands of this host: those that wait, the order to the spawner for each one, its control
group.

As many run as the executor has slots. The leader is offered as many more as end within a moment,
so that no slot is idle while an end is on its way there and the next command on its way back. How
many that is follows from how long commands have held their slots lately, those included that still
run: behind long commands nothing waits here.

A command whose job declares cpu or memory gets a control group (`cgroups.py`) before it is ordered.
The group is removed when the command is over: until then it shows whether the command was killed at
its memory limit. Where no control group holds its memory, the reaper watches it (`reaper.py`).

A command does not inherit the executor's environment. It gets SHELL, PATH, HOME, LOGNAME and USER,
then the variables of the crontab, then the secrets that its job names (`../secrets.py`), then those
that describe the launch. While its secrets are read it has its slot. Its directory is `cwd`, or
HOME, which the crontab may set (crontab(5)). If the directory does not exist, the launch fails, as
with Debian's cron.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from launcher import logs
from launcher.clock import boot_ms, wall_ms
from launcher.config import ExecutorConfig
from launcher.executor.attempt import Attempt
from launcher.executor.commands.cgroups import ControlGroups, Usage
from launcher.executor.commands.trees import LEDGER_MARK
from launcher.executor.outputs import Outputs
from launcher.executor.refusals import LEASE_OVER
from launcher.executor.rows import ENDED, INTERRUPTED
from launcher.executor.rules import COMMANDS
from launcher.executor.secrets import Found, SecretReader, SecretRefused, Secrets
from launcher.executor.waiting import AHEAD_US, Group
from launcher.limits import GROUP_SLOTS_MAX
from launcher.protocol.limits import ACCOUNTS_MAX
from launcher.protocol.names import format_time
from launcher.protocol.reports import Accounts
from launcher.protocol.status import Limiting, Reason
from launcher.protocol.tracing import place_of
from launcher.protocol.work import WorkSpec

log = logs.get()

PATH: Final = "/usr/bin:/bin"
ROOT: Final = "root"
"""What `users` of a configuration must list for commands with user id 0."""
RUNS_NOTHING: Final = (
    "it runs as root, and `users` of its configuration lists nobody: each command fails; list the "
    "users of jobs there, or root, or run the executor as another user"
)
KEPT_MS: Final = 2_000
"""What commands took counts for about so long."""
WORKS_MAX: Final = 1_000
"""Works that a spawner remembers; after these it begins anew."""
EVENTS_GAP_MS_MAX: Final = 100
"""For so long at most, events of the spawner gather; then they make one turn. Half of what a group
offers ahead (AHEAD_US), so that the leader refills it in time."""
START_MS_MIN: Final = 0.5
"""A spawner takes at least so long to start a command."""
ENDS_MIN: Final = 8
"""If fewer commands than this end soon, or ended in this time, no more are offered than run."""
WATCHED: Final = "its memory is looked at each second, and its limit is"
NO_SECRETS: Final[Found] = {}
_CANNOT_START = {int(Reason.USER): 126}
"""Exit codes of shells for a command that could not be started; 127 for any other reason."""


class Account(NamedTuple):
    """A user of this host."""

    name: str
    uid: int
    gid: int
    home: str


class UserRefused(Exception):
    """This executor must not, or cannot, run a command as that user; reason `user`."""

    reason = Reason.USER


@lru_cache(maxsize=256)
def account_of(name: str) -> Account:
    """Return the account `name`. Cached until the executor is restarted.

    Raises:
        UserRefused: there is none.
    """
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError) as error:
        raise UserRefused(f"user {name} does not exist on this host") from error
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


@lru_cache(maxsize=1)
def own_account() -> Account:
    """Return the account of this process, also if the host has no name for it."""
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, os.getgid(), "/")
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def choose_account(user: str, allowed: tuple[str, ...]) -> Account:
    """Return the account for work with this `user`, "" for the executor's own.

    Raises:
        UserRefused: the account is another one, and this executor is not root or does not allow it;
            or its user id is 0, and `allowed` does not list "root".
    """
    own = own_account()
    account = own
    if user not in ("", own.name):
        if own.uid != 0:
            text = f"user {user}: this executor runs as {own.name}; only root can switch"
            raise UserRefused(text)
        if user not in allowed:
            raise UserRefused(f"user {user} is not in `users` of this executor's configuration")
        account = account_of(user)
    if account.uid == 0 and ROOT not in allowed:
        text = f"user {user} is root, and" if user else "the job names no user, and"
        raise UserRefused(
            f"{text} this executor runs nothing as root: give the job another user=, or list root "
            "in `users` of the executor's configuration"
        )
    return account


def accounts(allowed: tuple[str, ...]) -> Accounts:
    """Return the accounts as which this executor runs commands, at most ACCOUNTS_MAX of them;
    `allowed` are `users` of its configuration."""

    def name_of(user: str) -> str:
        try:
            return choose_account(user, allowed).name
        except UserRefused:
            return ""

    own, names = name_of(""), dict.fromkeys(allowed[:ACCOUNTS_MAX])
    return Accounts(own, tuple(user for user in names if user != own and name_of(user)))


def environment_of(work: WorkSpec, account: Account, ledger: str = "") -> dict[str, str]:
    """Return the environment of a command in order, without the variables of its launch. The UUID
    `ledger` of the executor's ledger is in it: by it, an executor finds what it started."""
    marks = {LEDGER_MARK: ledger} if ledger else {}
    return {
        "SHELL": work.argv[0],
        "PATH": PATH,
        "HOME": account.home,
        "LOGNAME": account.name,
        "USER": account.name,
        **dict(work.env),
        **marks,
    }


def variables_of(attempt: Attempt) -> dict[str, str]:
    """Return the variables that describe the launch. They replace those of `environment_of`."""
    launch = attempt.name.partition("#")[0]
    scheduled_s, number, _, part = attempt.batch.tries(attempt.place)
    return {
        "RAFTCRON_LAUNCH": launch,
        "RAFTCRON_JOB": launch.partition("@")[0],
        "RAFTCRON_SCHEDULED_TIME": format_time(scheduled_s),
        "RAFTCRON_ATTEMPT": str(number),
        "RAFTCRON_PART": str(part),
        "RAFTCRON_EPOCH": attempt.epoch,
        "RAFTCRON_FENCE": str(attempt.index),
    }


def work_of(work: WorkSpec, config: ExecutorConfig, ledger: str = "") -> dict[str, Any]:
    """Return what the spawner needs to know of a command for all launches of it. A relative `cwd`
    is below HOME.

    Raises:
        UserRefused: it must not run as its user.
    """
    account = choose_account(work.user, config.users)
    environment = environment_of(work, account, ledger)
    home = os.path.join("/", environment["HOME"])
    is_self = account.uid == own_account().uid
    return {
        "argv": list(work.argv),
        "env": environment,
        "cwd": os.path.join(home, work.cwd) if work.cwd else home,
        "stdin": work.stdin,
        "login": None if is_self else [account.name, account.uid, account.gid],
        "timeout_ms": work.timeout_ms,
        "guarded": work.guarded,
        "output_bytes_max": config.output_bytes_max,
        "term_grace_ms": config.term_grace_ms,
    }


class SlotPace:
    """How long commands hold a slot: the time for which slots were held, and how many commands
    ended in that time. Both are forgotten little by little. Pure; times in ms."""

    def __init__(self) -> None:
        self._held_ms = self._ends = 0.0
        self._held = self._since_ms = self._forgot_ms = 0

    def hold(self, held: int, now_ms: int, ended: int = 0) -> None:
        """Note that `held` slots are held from now on, and that so many commands have ended."""
        self._held_ms += self._held * max(0, now_ms - self._since_ms)
        self._held, self._since_ms = held, now_ms
        self._ends += ended

    def ahead(self, slots: int, now_ms: int) -> int:
        """Return how many commands end within AHEAD_US while all slots are held, but no more than
        have ended lately. Call `hold` first."""
        kept = max(0.0, 1 - (now_ms - self._forgot_ms) / KEPT_MS)
        self._forgot_ms = now_ms
        self._held_ms *= kept
        self._ends *= kept
        if self._ends < 1:
            return 0
        soon = slots * self._ends * AHEAD_US / 1_000 / max(self._held_ms, 1.0)
        return int(min(soon, self._ends))


class EventsGap:
    """For how long events of the spawner are left unread after a read: half the time for which it
    has commands to start, at the pace of its last starts since it had none. Pure; times in ms."""

    def __init__(self) -> None:
        self._start_ms = START_MS_MIN
        self._started = self._unstarted = self._read_ms = 0

    def after(self, started: int, unstarted: int, now_ms: int) -> int:
        """Return the gap after a read at `now_ms`, when the spawner has reported `started` starts
        in all and has `unstarted` commands still to start."""
        count, took_ms = started - self._started, now_ms - self._read_ms
        if count >= self._unstarted > 0:
            # It may have waited for commands meanwhile: a start took no longer than this.
            self._start_ms = min(self._start_ms, took_ms / count)
        elif count > 0 and self._unstarted:
            self._start_ms = (self._start_ms + took_ms / count) / 2
        if not unstarted:
            self._start_ms = START_MS_MIN  # the next commands may be started faster
        self._start_ms = max(self._start_ms, START_MS_MIN)
        self._started, self._unstarted, self._read_ms = started, unstarted, now_ms
        return int(min(unstarted * self._start_ms / 2, EVENTS_GAP_MS_MAX))


class Commands(Group):
    """The group of commands, whose slots the spawner has. It has the commands that were ordered and
    are not over, by name."""

    served: Final = ("",)

    def __init__(
        self,
        config: ExecutorConfig,
        outputs: Outputs,
        groups: ControlGroups,
        ledger: str,
        *,
        send: Callable[[list[list[Any]]], None],
        report: Callable[[Sequence[Attempt]], None],
    ) -> None:
        """`send` gets messages for the spawner, `report` attempts that are over."""
        super().__init__(COMMANDS)
        self.capacity = config.slots
        self._config = config
        self._ledger = ledger
        self._outputs = outputs
        self._control_groups = groups
        self._send = send
        self._report = report
        self._here: dict[str, Attempt] = {}
        self._groups: dict[str, str] = {}
        self._guarded: set[str] = set()
        self.unstarted = 0
        """How many were ordered, and the spawner did not report a start yet."""
        self.started = 0
        """How many starts it has reported, those that failed included."""
        self._works: dict[int, tuple[int, WorkSpec]] = {}
        self._secrets = SecretReader(Secrets(config))
        self._unread: dict[str, Attempt] = {}  # whose secrets are being read
        self._is_spawner_dead = False
        self._pace = SlotPace()
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, name: object) -> bool:
        return name in self._here

    @property
    def guarded(self) -> int:
        """How many of them must not outlive the executor's lease."""
        return len(self._guarded)

    @property
    def knows_secrets(self) -> bool:
        """Whether commands may name secrets here."""
        return bool(self._secrets)

    @property
    def accounts(self) -> Accounts:
        """The accounts as which commands run."""
        return accounts(self._config.users)

    @property
    def limiting(self) -> tuple[Limiting, Limiting]:
        """How commands are kept within the cpu and the memory that they declare."""
        held = self._control_groups.controllers
        cpu = Limiting.KERNEL if "cpu" in held else Limiting.NONE
        return cpu, Limiting.KERNEL if "memory" in held else Limiting.WATCHED

    # ---- slots

    def serving(self) -> Sequence[Commands]:
        """Return what takes launches: this."""
        return (self,)

    def handlers(self) -> list[str]:
        """Return nothing."""
        return []

    def offered(self, waiting_max: int) -> int:
        """Return how many slots it offers, 0 if no more than the leader knows."""
        slots = min(self.capacity + min(self.ahead, waiting_max), GROUP_SLOTS_MAX)
        return slots if slots > self.capacity and self.ahead >= ENDS_MIN else 0

    def room(self) -> int:
        """Return how many slots are free."""
        return self.capacity - len(self._here)

    def pace(self, now_ms: int) -> None:
        """Offer more or fewer slots if commands have become shorter or longer."""
        self._pace.hold(len(self._here), now_ms)
        self.set_ahead(self._pace.ahead(self.capacity, now_ms))

    def stood_in(self, count: int, since_ms: int, now_ms: int) -> None:
        """Count commands that were reported as done and not started (`start = "none"`) as if they
        had held slots from `since_ms` until `now_ms`."""
        self._pace.hold(min(count, self.capacity), since_ms)
        self._pace.hold(len(self._here), now_ms, count)

    def reason_to_refuse_all(self, now_ms: int, *, is_leased: bool) -> str:
        """Return why all commands that wait here are to be refused, or ""."""
        return "" if is_leased or not self.waiting else LEASE_OVER

    def give(self, some: list[Attempt], found: Found = NO_SECRETS) -> None:
        """Order the spawner to start commands. Those that cannot start are over. If they have
        secrets that are not `found` yet, these are read first."""
        orders: list[list[Any]] = []
        failed: list[Attempt] = []
        for attempt in some:
            if attempt.spec.secrets and not found:
                # Without a spawner, reading them is of no use: its commands are interrupted.
                if not self._is_spawner_dead:
                    self._unread[attempt.name] = attempt
                    self._secrets.read(attempt.spec.secrets, partial(self._have_read, attempt))
            else:
                try:
                    number = self._number(attempt.spec, orders)
                except UserRefused as error:
                    _fail(attempt, int(Reason.USER), str(error), wall_ms())
                    failed.append(attempt)
                    continue
                order = self._order(attempt, number)
                if found:
                    order["env"] = {**found, **order["env"]}
                orders.append(["start", order])
                self.unstarted += 1
            self._here[attempt.name] = attempt
            if attempt.spec.guarded:
                self._guarded.add(attempt.name)
        for attempt in failed:  # it is here if its secrets were read
            self._here.pop(attempt.name, None)
            self._guarded.discard(attempt.name)
        self._pace.hold(len(self._here), boot_ms())
        self._send(orders)
        if failed:
            self._report(failed)

    def _have_read(self, attempt: Attempt, answer: Found | SecretRefused) -> None:
        """Start a command with its secrets, or end it for want of them, unless it is over."""
        if self._unread.get(attempt.name) is not attempt:
            return
        del self._unread[attempt.name]
        if isinstance(answer, SecretRefused):
            _fail(attempt, int(Reason.SECRET), str(answer), wall_ms())
            self._leave(attempt)
        else:
            self.give([attempt], answer)

    def _leave(self, attempt: Attempt) -> None:
        """Report a command that the spawner never had, and that is over."""
        del self._here[attempt.name]
        self._guarded.discard(attempt.name)
        self._pace.hold(len(self._here), boot_ms())
        self._report((attempt,))

    def withdraw(self, name: str, detail: str) -> bool:
        """Refuse a command whose secrets are being read; return whether it was one."""
        attempt = self._unread.pop(name, None)
        if attempt is not None:
            attempt.refuse(detail)
            self._leave(attempt)
        return attempt is not None

    def withdraw_all(self, detail: str) -> None:
        """Refuse all commands whose secrets are being read."""
        for name in list(self._unread):
            self.withdraw(name, detail)

    def _number(self, work: WorkSpec, orders: list[list[Any]]) -> int:
        """Return the number of a work at the spawner, which is sent the work before its first start
        with it.

        Raises:
            UserRefused: it must not run as its user.
        """
        if (known := self._works.get(id(work))) is not None:
            return known[0]
        content = work_of(work, self._config, self._ledger)
        if len(self._works) >= WORKS_MAX:
            self._works.clear()
            orders.append(["forget"])
        number = len(self._works) + 1
        self._works[id(work)] = number, work  # which keeps its id
        orders.append(["work", number, content])
        return number

    def respawned(self) -> None:
        """Note that the spawner is another one, which knows no works."""
        self._works.clear()
        self._is_spawner_dead = False

    def spawner_died(self) -> None:
        """Note that commands which are not started yet will not be: `clear` ends them."""
        self._is_spawner_dead = True
        self._unread.clear()

    def _order(self, attempt: Attempt, number: int) -> dict[str, Any]:
        name = attempt.name
        order: dict[str, Any] = {
            "name": name,
            "work": number,
            "env": variables_of(attempt),
            "not_after_ms": attempt.not_after_ms,
            "output": self._outputs.stem(name),
        }
        work = attempt.spec
        if self._config.traces:
            order["env"]["TRACEPARENT"] = place_of(name, work.traceparent).traceparent
        if work.cpu_milli or work.memory_bytes:
            group = self._control_groups.enter(name, work.cpu_milli, work.memory_bytes)
            if group is not None:
                order["cgroup"] = self._groups[name] = group
            elif self._control_groups.problem and not self._has_warned:
                self._has_warned = True
                log.warning("launch.unlimited", launch=name, error=self._control_groups.problem)
            if work.memory_bytes and (group is None or not self._control_groups.holds_memory):
                order["memory_max"] = work.memory_bytes
        return order

    def receive(self, events: Iterable[Sequence[Any]], wall_ms: int) -> list[Attempt]:
        """Return the attempts that the spawner's events change, with the usage that the control
        groups of ended ones measured. Those that are over have no slot any more. Events about other
        names are ignored."""
        changed: list[Attempt] = []
        before = len(self._here)
        for verb, name, *rest in events:
            attempt = self._here.get(name)
            if attempt is None:
                continue
            changed.append(attempt)
            if verb != "ended":
                self.unstarted -= 1
                self.started += 1
            if verb == "started":
                attempt.pid, attempt.ticks, attempt.started_ms = rest
                continue
            del self._here[name]
            self._guarded.discard(name)
            group = self._groups.pop(name, "")
            if verb == "refused":
                attempt.refuse(rest[0])
            elif verb == "failed":
                _fail(attempt, rest[0], rest[1], wall_ms)
            else:
                attempt.status = ENDED
                attempt.exit_code, attempt.finished_ms = rest[0], rest[2]
                attempt.reason = Reason(rest[1])
                attempt.output_bytes, attempt.detail = rest[3:5]
                self._measure(attempt, group, *rest[5:])
            if group and verb != "ended":
                self._control_groups.left(group)
        self._pace.hold(len(self._here), boot_ms(), before - len(self._here))
        return changed

    def _measure(
        self, attempt: Attempt, group: str, cpu_ms: int, memory_peak: int, excess: int
    ) -> None:
        """Note what a command used, by its control group if it had one, otherwise by what the
        spawner says; and whether it was killed at its limit of memory."""
        usage = self._control_groups.left(group) if group else Usage()
        # An earlier reason counts. So does a success, although a part of the command was killed
        # (kernels without memory.oom.group).
        if (usage.oom_killed or excess) and attempt.exit_code and not attempt.reason:
            attempt.reason = Reason.MEMORY
            limit = size_said(attempt.spec.memory_bytes)
            attempt.detail = f"it was killed at its limit of memory, {limit}"
            if excess:
                attempt.detail = f"it had {size_said(excess)} and was killed: {WATCHED} {limit}"
        attempt.cpu_ms = -(-usage.cpu_usec // 1_000) or cpu_ms
        attempt.memory_peak_bytes = usage.memory_peak or memory_peak

    def clear(self) -> list[Attempt]:
        """Remove and return all commands, which ended with their spawner."""
        for group in self._groups.values():
            self._control_groups.left(group)
        ended = list(self._here.values())
        for attempt in ended:
            attempt.status = INTERRUPTED
        self._groups.clear()
        self._here.clear()
        self._unread.clear()
        self._guarded.clear()
        self.unstarted = 0
        self._pace.hold(0, boot_ms())
        return ended


def size_said(size: int) -> str:
    """Return bytes of memory as people read them."""
    return f"{size / (1 << 20):.6g} MiB" if size >= 1 << 20 else f"{size} bytes"


def _fail(attempt: Attempt, reason: int, detail: str, wall_ms: int) -> None:
    """End an attempt that could not be started."""
    attempt.status = ENDED
    attempt.exit_code = _CANNOT_START.get(reason, 127)
    attempt.reason, attempt.detail, attempt.finished_ms = Reason(reason), detail, wall_ms
