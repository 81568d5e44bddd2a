"""A cell that takes tasks: gRPC servers on loopback that share one table of tasks.

It reads requests with the API's own structs, so a client that speaks another dialect fails here.
It starts nothing: a test says what became of a task.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import msgspec

from cron.api import tasks
from cron.api.checks import checked
from cron.api.rpc import Request, decode, encode
from cron.api.status import to_refusal
from cron.api.tasks import SubmitVerdict, TaskError, TaskSubmission, TaskView
from cron.errors import CronError, InvalidInput, NotLeader, NotNow, UnknownTask
from tests.fakes.ports import free_ports

REQUESTS: dict[str, type[Request]] = {
    "Submit": tasks.SubmitRequest,
    "Cancel": tasks.CancelRequest,
    "Get": tasks.TaskQuery,
    "Reschedule": tasks.RescheduleRequest,
    "RunNow": tasks.TaskNames,
}
NOW_MS = 1_795_186_800_000


class LostAnswer(Exception):
    """A test raises it after a call was handled: the client gets no answer."""


class Busy(Exception):
    """A test raises it: gRPC itself, or a proxy, refuses the call before a replica sees it."""


class TaskCell:
    """`calls` has (replica, method, request) of all calls that reached a replica; `tasks` the views
    by name. `leader` is the index of the replica that leads, -1 for none. `before` and `after` are
    called with the method and request of each call at the leader, and may raise; `judge` may
    refuse a task with a verdict. `metadata` is that of the last call."""

    def __init__(self, replicas: int = 1) -> None:
        self.ports = free_ports(replicas)
        self.leader = 0
        self.calls: list[tuple[int, str, Any]] = []
        self.tasks: dict[str, TaskView] = {}
        self.metadata: dict[str, Any] = {}
        self.before: Callable[[str, Any], None] = lambda method, request: None
        self.after: Callable[[str, Any], None] = lambda method, request: None
        self.judge: Callable[[TaskSubmission], SubmitVerdict | None] = lambda submission: None
        self.changes: list[tasks.TaskChange] = []
        """What a Watch tells of, by positions from 1 on."""
        self._digests: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._servers: dict[int, grpc.Server] = {}
        for index in range(replicas):
            self.start(index)

    @property
    def servers(self) -> str:
        """The comma list for a client."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def submits(self) -> list[list[TaskSubmission]]:
        """The tasks of each Submit that reached a replica."""
        return [list(request.tasks) for _, method, request in self.calls if method == "Submit"]

    def start(self, index: int) -> None:
        """Start a replica."""
        server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        handlers = {name: self._handler(index, name) for name in REQUESTS}
        watch = grpc.unary_stream_rpc_method_handler(partial(self._watch, index))
        handlers["Watch"] = watch
        generic = grpc.method_handlers_generic_handler(tasks.SERVICE, handlers)
        server.add_generic_rpc_handlers((generic,))
        assert server.add_insecure_port(f"127.0.0.1:{self.ports[index]}")
        server.start()
        self._servers[index] = server

    def stop(self, index: int) -> None:
        """Stop a replica; its connections end at once."""
        self._servers.pop(index).stop(0).wait()

    def close(self) -> None:
        """Stop all replicas."""
        for index in list(self._servers):
            self.stop(index)

    def _handler(self, index: int, method: str) -> Any:
        def serve(content: bytes, context: grpc.ServicerContext) -> bytes:
            self.metadata = dict(context.invocation_metadata())
            try:
                return self._answer(index, method, content)
            except CronError as error:
                code, details, metadata = to_refusal(error, self.servers.split(","))
                context.set_trailing_metadata(tuple(metadata))
                status = next(one for one in grpc.StatusCode if one.value[0] == code)
                context.abort(status, details)
            except LostAnswer:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
            except Busy:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(serve)

    def _watch(self, index: int, content: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer as a cell whose changes are all old: with those after a position, at once."""
        request = checked(decode(content, tasks.WatchRequest))
        self.calls.append((index, "Watch", request))
        after = [one for one in self.changes if int(one.position) > int(request.position or 0)]
        yield from map(encode, after if request.position else [tasks.TaskChange(position="0")])
        if not after:
            yield encode(tasks.TaskChange(position=str(len(self.changes))))

    def _answer(self, index: int, method: str, content: bytes) -> bytes:
        try:
            request: Any = decode(content, REQUESTS[method])
        except msgspec.DecodeError as error:
            raise InvalidInput(f"request cannot be read: {error}") from error
        self.calls.append((index, method, request))
        if index != self.leader:
            led = self.leader
            raise NotLeader(f"127.0.0.1:{self.ports[led]}" if led >= 0 else None)
        self.before(method, request)
        request = checked(request)
        with self._lock:
            answer = getattr(self, f"_{method.lower()}")(request)
        self.after(method, request)
        return encode(answer)

    def _submit(self, request: tasks.SubmitRequest) -> tasks.SubmitReport:
        return tasks.SubmitReport(tasks=[self._taken(one) for one in request.tasks])

    def _taken(self, one: TaskSubmission) -> SubmitVerdict:
        one = checked(one)
        name = one.name
        refused = self.judge(one)
        if refused is not None:
            return refused
        payload = tasks.canonical_payload(one.payload)  # type: ignore[arg-type]
        content = encode(msgspec.structs.replace(one, payload=msgspec.Raw(payload)))
        digest = hashlib.blake2b(content, digest_size=16).digest()
        is_new = self._digests.setdefault(name, digest)
        if is_new != digest:
            problem = TaskError("other_content", f"key {one.key} is of another task")
            return SubmitVerdict(task=name, error=problem)
        if name not in self.tasks:
            self.tasks[name] = TaskView(
                task=name,
                queue=one.queue or one.handler,
                key=one.key,
                handler=one.handler,
                state="waiting",
                at_ms=one.due_ms(NOW_MS),
                priority=one.priority,
                payload=msgspec.json.decode(payload),
                revision=len(self.tasks) + 1,
            )
        view = self.tasks[name]
        return SubmitVerdict(
            task=name,
            state=view.state,
            scheduled_at=tasks.show_iso_ms(view.at_ms),
            at_ms=view.at_ms,
            is_new=is_new is digest,
            revision=view.revision,
        )

    def _known(self, name: str) -> TaskView:
        if name not in self.tasks:
            raise UnknownTask(f"there is no task {name}")
        return self.tasks[name]

    def _get(self, request: tasks.TaskQuery) -> TaskView:
        return self._known(request.name)

    def _cancel(self, request: tasks.CancelRequest) -> tasks.TasksReport:
        open_ = [name for name in request.names if self._known(name).state != "cancelled"]
        return self._changed(open_, state="cancelled")

    def _runnow(self, request: tasks.TaskNames) -> tasks.TasksReport:
        return self._changed(request.names, state="due")

    def _changed(self, names: list[str], **fields: Any) -> tasks.TasksReport:
        for name in names:
            if not self._known(name).is_open:
                raise NotNow(f"task {name} is over: {self.tasks[name].state}")
            self.tasks[name] = msgspec.structs.replace(self.tasks[name], **fields)
        return tasks.TasksReport(count=len(names), tasks=[self.tasks[name] for name in names])

    def _reschedule(self, request: tasks.RescheduleRequest) -> TaskView:
        known = self._known(request.name)
        fields: dict[str, Any] = {"revision": known.revision + 1}
        if request.has_time:
            fields["at_ms"] = request.due_ms(NOW_MS)
        if request.priority >= 0:
            fields["priority"] = request.priority
        if request.payload is not msgspec.UNSET:
            fields["payload"] = msgspec.json.decode(request.payload)
        self.tasks[request.name] = msgspec.structs.replace(known, **fields)
        return self.tasks[request.name]

    def end(self, name: str, state: str = "succeeded", **fields: Any) -> None:
        """Say how a task ended."""
        with self._lock:
            self.tasks[name] = msgspec.structs.replace(self.tasks[name], state=state, **fields)


@contextmanager
def task_cell(replicas: int = 1) -> Iterator[TaskCell]:
    """A cell, stopped at the end."""
    cell = TaskCell(replicas)
    try:
        yield cell
    finally:
        cell.close()
