"""Retries, dead letters, limits, gates and drains as the naive state has them."""

from __future__ import annotations

from fractions import Fraction

from cron.job import Job, Retry
from cron.launch_state import LaunchState as S
from cron.state import commands as c
from cron.state import pool
from cron.state.outcome import Verdict
from cron.state.retries import backoff_ms
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.status import Reason
from tests.batches import AttemptItem
from tests.model.naive_rows import Answer, NaiveLaunch, NaiveLetter, NaiveWorld

V = Verdict
HOUR_MS = 3_600_000


class NaivePool(NaiveWorld):
    """What follows the end of an attempt, and what operators say."""

    # ---- after an attempt

    def after_end(self, launch: NaiveLaunch, item: AttemptItem) -> None:
        """The launch has ended by `item`: it is due again, or dead, or just over."""
        name, job = self.name_and_job(item.key)
        tenant = name.split("/")[0]
        if item.state is S.SUCCEEDED:
            earned = self.retries_spent.get(tenant, Fraction(0)) - Fraction(1, 10)
            self.retries_spent[tenant] = max(Fraction(0), earned)
            self.release(tenant)
            return
        is_snooze = item.state is S.CANCELLED and item.reason is Reason.SNOOZE
        is_failure = item.state is S.FAILED
        is_letter = launch.was_dead and self.keeps_all
        if job is None or launch.cancel or not (is_snooze or is_failure):
            return
        tries = launch.tries + 1 if is_failure else launch.tries
        until_ms = self.at_ms + self.rest_ms(name, job.retry, item, tries)
        if is_failure and (self.is_fatal(job.retry, item) or tries >= job.retry.tries):
            self.give_up(launch, item, job, tries, item.reason, is_letter=is_letter)
        elif until_ms >= launch.deadline_ms:
            self.give_up(launch, item, job, tries, Reason.DEADLINE, is_letter=is_letter)
        elif is_failure and not self.pays(tenant):
            if self.keeps_all:
                waits_ms = min(until_ms + HOUR_MS, launch.deadline_ms)
                self.try_again(item.key, launch, waits_ms, tries).unpaid_ms = max(until_ms, 1)
            else:
                self.give_up(launch, item, job, tries, Reason.BUDGET, is_letter=is_letter)
        else:
            self.try_again(item.key, launch, until_ms, tries)

    def name_and_job(self, key: c.Key) -> tuple[str, Job | None]:
        found = self.job_of(key[0])
        assert found is not None
        return found[0], found[1].job

    def rest_ms(self, name: str, retry: Retry, item: AttemptItem, failures: int) -> int:
        if item.state is S.CANCELLED:
            return max(item.retry_after_ms, 1000)
        if item.retry_after_ms > 0:
            return item.retry_after_ms
        plain_ms = min(retry.backoff_ms * 2 ** (failures - 1), retry.backoff_max_ms)
        attempt = AttemptName(LaunchName(name, item.key[1], item.key[2]), item.attempt)
        # Where in this tenth it lies is the hash's matter and no rule.
        drawn_ms = backoff_ms(retry, failures, str(attempt))
        assert plain_ms <= drawn_ms <= plain_ms * 11 // 10
        return drawn_ms

    def is_fatal(self, retry: Retry, item: AttemptItem) -> bool:
        if item.reason is not Reason.NONE:
            return item.reason is Reason.FATAL
        is_listed = not retry.retry_codes or item.exit_code in retry.retry_codes
        return item.exit_code in retry.fatal_codes or not is_listed

    def limits_of(self, tenant: str) -> pool.Limits | None:
        return self.limits.get((tenant, "", -1), self.limits.get(("*", "", -1)))

    def pays(self, tenant: str) -> bool:
        """Whether the tenant may be one retry more ahead of its successes; then it is."""
        limits = self.limits_of(tenant)
        if limits is None or limits.retry_budget == 0:
            return True
        spent = self.retries_spent.get(tenant, Fraction(0)) + 1
        if spent > limits.retry_budget:
            return False
        self.retries_spent[tenant] = spent
        return True

    def release(self, tenant: str) -> None:
        """Who waits for a retry of this tenant's goes on, as far as there are any: the one that has
        rested first goes first."""
        waiting = sorted(
            (one.unpaid_ms, key)
            for key, one in self.open.items()
            if one.unpaid_ms and one.state is S.DUE
            if self.name_and_job(key)[0].split("/")[0] == tenant
        )
        for rested_ms, key in waiting:
            if not self.pays(tenant):
                return
            self.open[key].not_before_ms, self.open[key].unpaid_ms = rested_ms, 0

    def release_all(self) -> None:
        keys = [key for key, one in self.open.items() if one.unpaid_ms]
        for tenant in dict.fromkeys(self.name_and_job(key)[0].split("/")[0] for key in keys):
            self.release(tenant)

    def try_again(
        self, key: c.Key, launch: NaiveLaunch, not_before_ms: int, tries: int
    ) -> NaiveLaunch:
        again = NaiveLaunch(S.DUE, launch.deadline_ms, launch.attempt)
        again.not_before_ms, again.tries = not_before_ms, tries
        again.was_dead = launch.was_dead
        self.make_due(key, again)
        self.again.append(key)
        return again

    @property
    def keeps_all(self) -> bool:
        """From format 12 on: all that is lost leaves a letter, what was one before is one again,
        and nobody's letter goes by itself."""
        return self.format >= 12

    def give_up(
        self,
        launch: NaiveLaunch,
        item: AttemptItem,
        job: Job,
        tries: int,
        reason: Reason,
        *,
        is_letter: bool,
    ) -> None:
        if is_letter or self.is_worth_it(job, item.reason):
            self.bury(item.key, NaiveLetter(launch.attempt, tries, item.state, reason))

    def is_worth_it(self, job: Job, reason: Reason) -> bool:
        """Whether somebody said how often to try, so that a failure leaves a letter."""
        return (
            job.retry.tries > 1 or bool(job.work.handler) or reason in (Reason.RETRY, Reason.SNOOZE)
        )

    def after_loss(self, launch: NaiveLaunch, item: AttemptItem, *, is_late: bool) -> None:
        """The launch is lost and not tried again; a person decides, if none had it stopped."""
        _, job = self.name_and_job(item.key)
        if job is not None and not launch.cancel and self.keeps_all:
            reason = Reason.DEADLINE if is_late else Reason.EXECUTOR_LOST
            self.bury(item.key, NaiveLetter(launch.attempt, launch.tries, S.LOST, reason))

    def after_report(self, item: AttemptItem) -> None:
        """It is known after all what became of a lost attempt."""
        letter = self.dead.get(item.key)
        if letter is None or letter.state is not S.LOST or letter.attempt > item.attempt:
            return
        if not self.keeps_all:
            return
        del self.dead[item.key]
        _, job = self.name_and_job(item.key)
        is_snooze = item.state is S.CANCELLED and item.reason is Reason.SNOOZE
        is_failure = item.state is S.FAILED
        if job is None or not (is_failure or is_snooze):
            return
        if self.is_worth_it(job, item.reason):
            tries = letter.tries + is_failure
            self.bury(item.key, NaiveLetter(item.attempt, tries, item.state, item.reason))

    def after_skip(self, launch: NaiveLaunch, item: c.SkippedItem) -> None:
        """Keep a letter of a launch that failed, or was dead and redriven, whatever the reason of
        the skip. Any other launch leaves one only if it began before, and its deadline was over
        before it could begin again."""
        _, job = self.name_and_job(item.key)
        reason = item.reason
        if reason is Reason.FENCED:
            reason = Reason.DEADLINE  # its executor found that the time was over
        leaves_letter = launch.tries > 0 or launch.was_dead
        if launch.attempt > 0 and reason is Reason.DEADLINE:
            leaves_letter = True
        if job is None or not leaves_letter:
            return
        was_letter = launch.was_dead and self.keeps_all
        if was_letter or job.retry.tries > 1 or job.work.handler:
            self.bury(item.key, NaiveLetter(launch.attempt, launch.tries, S.SKIPPED, reason))

    def bury(self, key: c.Key, letter: NaiveLetter) -> None:
        self.dead[key] = letter
        while len(self.dead) > self.dead_kept and not self.keeps_all:
            del self.dead[next(iter(self.dead))]

    def groups(self) -> dict[c.Key, list[c.Key]]:
        """The launches that one letter stands for, by that which died last: all that ended alike of
        a job, the others before it, the oldest first."""
        if not self.keeps_all:
            return {key: [key] for key in self.dead}
        alike: dict[tuple[int, S, Reason], list[c.Key]] = {}
        for key, letter in self.dead.items():
            alike.setdefault((key[0], letter.state, letter.reason), []).append(key)
        return {keys[-1]: keys for keys in alike.values()}

    # ---- dead letters

    def redrive(self, command: pool.Redrive) -> Answer:
        return set(), [self.redrive_one(key) for key in command.keys]

    def redrive_one(self, key: c.Key) -> set[V]:
        if key not in self.dead:
            return {V.NOT_DEAD}
        _, job = self.name_and_job(key)
        if job is None:
            return {V.UNKNOWN_JOB}
        deadline_ms = self.at_ms + job.deadline_s * 1000
        redriven = NaiveLaunch(S.DUE, deadline_ms, self.dead[key].attempt, was_dead=True)
        self.make_due(key, redriven)
        self.again.append(key)
        return set()

    def dropdead(self, command: pool.DropDead) -> Answer:
        return set(), [self.drop_one(key) for key in command.keys]

    def drop_one(self, key: c.Key) -> set[V]:
        """Forget a letter, with all that it stands for."""
        group = self.groups().get(key)
        if group is None:
            return {V.NOT_DEAD}
        for one in group:
            del self.dead[one]
        return set()

    # ---- limits, gates, drains

    def setlimits_one(self, _: pool.SetLimits, item: pool.LimitItem) -> set[V]:
        objections = set()
        tenant, of, priority = item.scope
        if priority not in range(-1, 10) or (tenant and not of and priority >= 0):
            objections.add(V.BAD_LIMITS)
        if item.limits is not None and item.limits.retry_budget < 0:
            objections.add(V.BAD_LIMITS)
        if self.limits.get(item.scope) == item.limits:
            objections.add(V.ALREADY)
        if not objections:
            self.limits.pop(item.scope, None)
            if item.limits is not None:
                self.limits[item.scope] = item.limits
        return objections

    def forgetdebts(self, _: pool.ForgetDebts) -> Answer:
        self.retries_spent = {
            tenant: spent
            for tenant, spent in self.retries_spent.items()
            if (limits := self.limits_of(tenant)) is not None and limits.retry_budget
        }
        self.release_all()
        return set(), []

    def closegate(self, command: pool.CloseGate) -> Answer:
        if 0 < command.gate.until_ms <= self.at_ms:
            return {V.BAD_TIMES}, []
        self.gates = {
            number: until_ms
            for number, until_ms in self.gates.items()
            if until_ms == 0 or until_ms > self.at_ms
        }
        self.gates_ever += 1
        self.gates[self.gates_ever] = command.gate.until_ms
        return set(), []

    def liftgates(self, command: pool.LiftGates) -> Answer:
        return set(), [
            set() if self.gates.pop(number, None) is not None else {V.ALREADY}
            for number in command.numbers
        ]

    def drain(self, command: pool.Drain) -> Answer:
        mine = [number for number, one in self.executors.items() if one[0] == command.executor]
        if not mine:
            return {V.UNKNOWN_EXECUTOR}, []
        before = dict(self.drained)
        for number in mine:
            if command.is_over:
                self.drained.pop(number, None)
            else:
                self.drained.setdefault(number, command.by)
        return (set() if self.drained != before else {V.ALREADY}), []
