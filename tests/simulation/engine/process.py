"""One life of a replica: the real EngineLog, its two threads played by the world.

The event loop is a ProcessLoop. The tick thread is what `step` does: wake from the poller, tick,
wait again. While it works the world stands still, and what the work would have taken (syncs of a
slow disk) is added up: its messages leave later by that, and so does the next step begin.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from consensus.config import EngineConfig
from consensus.engine.handover import Failed
from consensus.engine.raft import LONGEST_S, Raft
from consensus.engine.replica import EngineLog
from tests.simulation.engine.applier import DigestState
from tests.simulation.engine.loop import ProcessLoop
from tests.simulation.engine.machine import Machine
from tests.simulation.engine.network import SimNetwork

if TYPE_CHECKING:
    from tests.simulation.engine.world import World


class Killed(BaseException):
    """The process dies at this very instruction."""


class Process:
    """The process on `machine`, from its start to its end, however that comes."""

    def __init__(self, world: World, machine: Machine, config: EngineConfig) -> None:
        self.world = world
        self.machine = machine
        self.config = config
        self.paused = False
        self.over = False
        self.lag_s = 0.0
        self.raft: Raft | None = None
        self._busy_until = 0.0
        self._next_step = math.inf
        self._worker_free_s = 0.0
        self.network = SimNetwork(world.fabric, machine.key, self.wake)
        self.loop = ProcessLoop(
            world.events,
            draw_lag_s=lambda: world.rng.random() * 0.001,
            aside=self.aside,
            inside=lambda: world.inside(self),
        )
        canon = world.ghosts.canon_of(machine)
        self.state = DigestState(machine.key, world.verdict, canon, world.profile.state_bytes)
        with world.inside(self):
            self.log = EngineLog(
                config,
                self.state,
                on_failure=self.failed,
                may_acknowledge=lambda entry: world.may_acknowledge(machine, entry),
            )

    def __repr__(self) -> str:
        return self.machine.key

    def start(self) -> None:
        """Begin to live."""
        self.machine.disk.before = self._work_on_disk
        self.spawn(self.log.start(), self._started)

    def spawn(
        self, coro: Coroutine[Any, Any, Any], told: Callable[[Any], None] = lambda result: None
    ) -> None:
        """Run `coro` on the event loop; `told` hears what it returned, or raised."""

        def done(task: Any) -> None:
            if task.cancelled() or self.over:
                return
            error = task.exception()
            if isinstance(error, Killed):
                self.world.kill(self.machine)
                return
            told(task.result() if error is None else error)

        with self.loop.running():
            task = self.loop.create_task(coro)
            task.add_done_callback(done)

    def _started(self, result: Any) -> None:
        if isinstance(result, BaseException):
            self.world.ended(self, result)

    def failed(self, error: BaseException) -> None:
        """EngineLog says that it cannot go on: the process ends."""
        self.world.events.after(0.0, self.world.ended, self, error)

    def end(self, *, power: bool) -> None:
        """Be gone, at once."""
        self.over = True
        self.loop.die()
        self.network.die(power=power)
        self.machine.process = None

    # --- the tick thread

    def adopt(self, raft: Raft) -> None:
        """Tick `raft` from now on."""
        self.raft = raft
        self.world.watch(self, raft)
        self.wake()

    def wake(self) -> None:
        """Let the tick thread come out of its poller soon."""
        self._step_at(self.world.events.now + 0.0001)

    def _step_at(self, time_s: float) -> None:
        time_s = max(time_s, self._busy_until)
        if time_s < self._next_step and not self.paused and not self.over:
            self._next_step = time_s
            self.world.events.at(time_s, self._step, time_s)

    def _step(self, time_s: float) -> None:
        raft = self.raft
        if time_s != self._next_step or self.paused or self.over:
            return
        self._next_step, pause_s = math.inf, 0.0
        if raft is None:
            return
        with self.working():
            try:
                if not raft.stopping:
                    self.network.poll(0.0)
                    self.network.wait_s = None
                    raft.doTick(LONGEST_S)
                    pause_s = self.network.wait_s or 0.0
                    self.world.ticked(self, raft)
                if raft.stopping:
                    self._finish(raft)
            except Killed:
                self.world.kill(self.machine)
            except Exception as error:  # noqa: BLE001 - as the tick thread does
                self._finish(raft, error)
        if not self.over and self.raft is not None:
            now = self.world.events.now
            self._step_at(max(self._busy_until, now) + pause_s)
            if self.network.has_news:
                self.wake()

    def _finish(self, raft: Raft, error: BaseException | None = None) -> None:
        self.raft = None
        try:
            raft.destroy()
        except OSError as failure:
            error = error or failure
        if error is not None:
            raft.handover.post(Failed(error))

    def join(self) -> None:
        """Wait for the tick thread's end: it was told to stop."""
        if self.raft is not None:
            with self.working():
                self._finish(self.raft)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Work in the tick thread."""
        self.lag_s = self.network.lag_s = 0.0
        disk = self.machine.disk
        disk.is_sending = True
        try:
            with self.world.inside(self):
                yield
        finally:
            disk.is_sending = False
        self._busy_until = self.world.events.now + self.lag_s
        self.lag_s = self.network.lag_s = 0.0

    # --- other threads and the disk

    def aside(self, work: Callable[[], Any], told: Callable[[Any], None]) -> None:
        """Do `work` as another thread would, and tell its result, or its error, in a while."""
        before, self.lag_s = self.lag_s, 0.0
        try:
            with self.world.inside(self):
                result = work()
        except Killed:
            self.world.events.after(0.0, self.world.kill, self.machine)
            return
        except Exception as error:  # noqa: BLE001 - told to who waits for it
            result = error
        took_s, self.lag_s = self.lag_s + self.world.draw_aside_s(), before
        self.network.lag_s = before
        self.world.events.after(took_s, self._tell, told, result)

    def work_later(self, work: Callable[[], None]) -> None:
        """Do `work` in a while, after what was given here before."""
        now = self.world.events.now
        self._worker_free_s = max(now, self._worker_free_s) + self.world.draw_aside_s()
        self.world.events.at(self._worker_free_s, self._work, work)

    def _work(self, work: Callable[[], None]) -> None:
        if self.over:
            return
        if self.paused:
            self.world.events.after(0.05, self._work, work)
            return
        before, self.lag_s = self.lag_s, 0.0
        try:
            with self.world.inside(self):
                work()
        except Killed:
            self.world.kill(self.machine)
        self.lag_s = self.network.lag_s = before

    def _tell(self, told: Callable[[Any], None], result: Any) -> None:
        if self.over:
            return
        if self.paused:
            self.world.events.after(0.05, self._tell, told, result)
            return
        with self.world.inside(self):
            told(result)

    def _work_on_disk(self, act: str, name: str) -> None:
        world = self.world
        if world.dies_at(self.machine, act):
            raise Killed
        if act in ("sync", "sync_names"):
            low, high = self.machine.sync_s
            self.lag_s += low + (high - low) * world.rng.random()
            self.network.lag_s = self.lag_s

    def stall_loop(self, seconds: float) -> None:
        """Let the event loop stand still, and nothing else."""
        self.loop.paused = True
        self.world.events.after(seconds, self._go_on)

    def _go_on(self) -> None:
        if not self.paused and not self.over:
            self.loop.resume()

    def stall_tick(self, seconds: float) -> None:
        """Let the tick thread stand still, and nothing else."""
        self._busy_until = self.world.events.now + seconds
        self._next_step = math.inf
        self._step_at(self._busy_until)

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = self.loop.paused = True
        self._next_step = math.inf

    def resume(self) -> None:
        """SIGCONT."""
        self.paused = False
        self.loop.resume()
        self.wake()
