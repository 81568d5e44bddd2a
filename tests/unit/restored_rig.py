"""A State as a restore writes it, and what executors remember of the life before."""

from __future__ import annotations

import msgspec

from cron.job import Job, OnLost
from cron.leader.recovery import Gathered, gather, recover_items, resolve_to
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.state import Restored
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch
from tests.unit.state_rig import T0, StateRig, job

OLD = Epoch(1, 1, "r1")
BASE = 10**12
"""Where the log of the second life begins."""


def retrying(one: Job) -> Job:
    """The same job, which would rather run twice than not at all."""
    return msgspec.structs.replace(one, on_lost=OnLost.RETRY)


class RestoredRig(StateRig):
    """A cell with the job `backup` and two executors, up to its snapshot; then `restore` it."""

    def __init__(self, *jobs: Job) -> None:
        super().__init__()
        self.put(*(jobs or (job(),)))
        self.join("e1", "l1")
        self.join("e2", "l2")
        self.memories: dict[int, dict[str, RowReport]] = {1: {}, 2: {}}
        self.snapshot_index = 0

    def restore(self, second: int) -> RestoredRig:
        """What `raftcron restore` does to State; its leader claims at `second`."""
        state = self.state
        self.snapshot_index = state.index
        self.to(second)
        state.restored = Restored(2, state.index, state.at_ms, self.at_ms, "ada")
        state.index = self.base = BASE
        state.epoch = Epoch(2, 0, "")
        self.epoch = Epoch(2, 7, "r2")
        self.append(c.Claim("2026b", "0.1.0", c.FORMAT))
        return self

    def remember(
        self,
        second: int,
        status: Status = Status.ENDED,
        *,
        executor: int = 1,
        attempt: int = 1,
        name: str = "backup",
        trigger: int = 0,
        begun: int | None = None,
        exit_code: int = 0,
        part: int = 1,
    ) -> None:
        """Let an executor remember an attempt of the instant `second` after T0."""
        launch = LaunchName(f"default/{name}", T0 + second, trigger)
        at_ms = (T0 + second) * 1000
        index = self.snapshot_index + 10 if begun is None else begun
        name = AttemptName(launch, attempt, part)
        fact = RowReport(
            index,
            len(self.memories[executor]),
            status,
            Reason.NONE,
            exit_code,
            at_ms if status in (Status.ENDED, Status.ACCEPTED, Status.INTERRUPTED) else 0,
            at_ms + 500 if status is Status.ENDED else 0,
        )
        self.memories[executor][str(name)] = msgspec.structs.replace(
            fact, name=str(name), epoch=str(OLD)
        )

    def gathered(self) -> Gathered:
        return gather(self.state, self.memories)

    def resolve(self) -> int:
        """Account for everything as the leader does; return up to which second after T0."""
        gathered = self.gathered()
        to_s = resolve_to(gathered, self.at_ms // 1000)
        items = tuple(recover_items(self.state, gathered, to_s))
        verdicts = self.items(c.Recover(items, (1, 2)))
        assert set(verdicts) <= {Verdict.ACCEPTED}, verdicts
        assert self.answer(c.Resolve(to_s)).verdict is Verdict.ACCEPTED
        return to_s - T0
