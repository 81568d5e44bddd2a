"""launcher.client.intake with moto's SQS: messages become tasks, once each."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from cron.api.tasks import SubmitVerdict, TaskError
from cron.errors import NotAllowed
from launcher.client.cell import Cell, Place
from launcher.client.core import Core, Settings
from launcher.client.errors import BadTask, Denied
from launcher.client.intake import REASON, Intake, QueuePlace, find_queue
from tests.fakes.ports import free_ports
from tests.fakes.s3_server import CREDENTIALS, S3Server
from tests.fakes.task_cell import TaskCell, task_cell
from tests.unit.https_rig import HttpsSite
from tests.unit.relay_rig import POINTS, numbers, run, run_killed

HIDDEN_S = 600
"""How long a message is hidden that was received: no intake receives it twice in a test."""


class ElasticMq(S3Server):
    """A real server of SQS, whose FIFO queues deduplicate: the jars in the folder ELASTICMQ."""

    def start(self) -> None:
        jars = Path(os.environ["ELASTICMQ"]) / "lib"
        self._process = subprocess.Popen(
            [
                *("java", "-Drest-sqs.bind-hostname=127.0.0.1", "-Drest-stats.enabled=false"),
                *(f"-Drest-sqs.bind-port={self.port}", "-Dnode-address.host=127.0.0.1"),
                *(f"-Dnode-address.port={self.port}", "-cp", f"{jars}/*"),
                "org.elasticmq.server.Main",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait("?Action=ListQueues")


def elasticmq() -> S3Server:
    """ElasticMQ; the test is skipped where it is not."""
    if not os.environ.get("ELASTICMQ") or not shutil.which("java"):
        pytest.skip("ELASTICMQ names no folder with lib/*.jar of org.elasticmq:elasticmq-server")
    return ElasticMq()


@pytest.fixture(
    scope="module", params=["moto", pytest.param("elasticmq", marks=pytest.mark.nightly)]
)
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    patch = pytest.MonkeyPatch()
    for name, value in CREDENTIALS.items():
        patch.setenv(name, value)
    server = S3Server(free_ports(1)[0]) if request.param == "moto" else elasticmq()
    server.start()
    yield server
    server.stop()
    patch.undo()


class Queue:
    """A queue with a dead-letter queue."""

    def __init__(self, sqs: Any, name: str, server: S3Server) -> None:
        self.sqs, self._server = sqs, server
        end = ".fifo" if name.endswith(".fifo") else ""
        more = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if end else {}
        dead = f"{name.removesuffix(end)}-dead{end}"
        self.dead = sqs.create_queue(QueueName=dead, Attributes=more)["QueueUrl"]
        asked = sqs.get_queue_attributes(QueueUrl=self.dead, AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": asked["Attributes"]["QueueArn"], "maxReceiveCount": 1000}
        settings = {"VisibilityTimeout": str(HIDDEN_S), "RedrivePolicy": json.dumps(policy)}
        self.url = sqs.create_queue(QueueName=name, Attributes=settings | more)["QueueUrl"]

    @property
    def place(self) -> QueuePlace:
        path = self.url.split("/", 3)[3]
        return find_queue(f"sqs://127.0.0.1:{self._server.port}/{path}")

    @property
    def argument(self) -> str:
        return f"sqs://{self.place.url.removeprefix('http://')}"

    def send(self, *bodies: str, **more: str) -> list[str]:
        """Send messages; return their ids."""
        sent = [self.sqs.send_message(QueueUrl=self.url, MessageBody=b, **more) for b in bodies]
        return [one["MessageId"] for one in sent]

    def hide_for(self, seconds: int) -> None:
        """Hide for so long what is received from now on: a killed intake's come back after it."""
        attributes = {"VisibilityTimeout": str(seconds)}
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes=attributes)

    def left(self) -> tuple[int, int]:
        """How many messages there are, and how many of them are hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        visible, hidden = (int(answer["Attributes"][name]) for name in names)
        return visible + hidden, hidden

    def dead_letters(self) -> list[Any]:
        """What can be received from its dead-letter queue."""
        found: list[Any] = []
        while True:
            answer = self.sqs.receive_message(
                QueueUrl=self.dead,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                WaitTimeSeconds=0,
                VisibilityTimeout=HIDDEN_S,
            )
            if not answer.get("Messages"):
                return found
            found += answer["Messages"]


@pytest.fixture
def queue(server: S3Server, request: pytest.FixtureRequest) -> Iterator[Queue]:
    sqs = boto3.session.Session().client(
        "sqs", endpoint_url=server.endpoint, region_name="us-east-1"
    )
    name = f"orders-{os.urandom(4).hex()}{getattr(request, 'param', '')}"
    yield Queue(sqs, name, server)
    sqs.close()


@pytest.fixture
def cell() -> Iterator[TaskCell]:
    with task_cell() as cell:
        yield cell


@pytest.fixture
def core(cell: TaskCell) -> Iterator[Core]:
    core = Core(Cell(Place([cell.servers], None, "")), Settings(5.0))
    yield core
    core.close()


def test_messages_become_tasks_and_are_deleted(cell, core, queue):
    ids = queue.send(*(json.dumps({"number": number}) for number in range(25)))
    intake = Intake(queue.place, core, "h", {"priority": 3, "tenant": "acme"})
    assert intake.turn() == (25, 0, 0)
    assert numbers(cell) == list(range(25))
    assert {view.key for view in cell.tasks.values()} == set(ids)
    assert {(view.priority, view.task.split("/")[0]) for view in cell.tasks.values()} == {
        (3, "acme")
    }
    assert queue.left() == (0, 0)


@pytest.mark.parametrize("queue", ["", ".fifo"], indirect=True)
def test_bad_messages_go_to_the_dead_letter_queue_with_the_reason(cell, core, queue):
    more = {"MessageGroupId": "g"} if queue.url.endswith(".fifo") else {}
    (bad,) = queue.send("{", **more)
    problem = TaskError("other_content", "the key is of another task")
    cell.judge = lambda one: (
        SubmitVerdict(task=one.name, error=problem) if b"refuse" in bytes(one.payload) else None
    )
    queue.send('"refuse"', **more)
    queue.send('{"number": 1}', **more)
    intake = Intake(queue.place, core, "h", {})
    counts = intake.turn()
    while counts.total < 3:  # one after the other, of a group of a FIFO queue
        counts += intake.turn()
    assert counts == (1, 2, 0)
    dead = queue.dead_letters()
    reasons = {one["Body"]: one["MessageAttributes"][REASON]["StringValue"] for one in dead}
    assert "not JSON" in reasons["{"]
    assert "the key is of another task" in reasons['"refuse"']
    ids = {one["MessageAttributes"]["raftcron-message"]["StringValue"] for one in dead}
    assert bad in ids
    assert queue.left() == (0, 0)


def test_a_bad_message_that_cannot_be_put_aside_stops_no_other(cell, core, queue):
    if queue.url.endswith(".fifo"):
        pytest.skip("each group waits for its first message")
    queue.send("{", '{"number": 1}')
    gone = f"{queue.dead}-is-gone"
    assert Intake(queue.place, core, "h", {}, dead_letter=gone).turn() == (1, 1, 0)
    assert numbers(cell) == [1]
    assert queue.left() == (1, 1)


def test_messages_stay_while_no_replica_can_act(cell, core, queue):
    queue.send('{"number": 1}')
    core.settings = Settings(0.3)
    cell.leader = -1
    assert Intake(queue.place, core, "h", {}).turn() == (0, 0, 1)
    assert queue.left() == (1, 1)


def test_messages_are_not_put_aside_for_an_intake_that_may_not_submit(cell, core, queue):
    queue.send('{"number": 1}')

    def refuse(method: str, request: object) -> None:
        raise NotAllowed("the token may not submit")

    cell.before = refuse
    with pytest.raises(Denied):
        Intake(queue.place, core, "h", {}).turn()
    assert queue.dead_letters() == []


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(one, marks=[pytest.mark.nightly] if one != "carry-submitted" else [])
        for one in POINTS
    ],
)
def test_an_intake_that_is_killed_loses_and_doubles_nothing(cell, queue, point):
    queue.hide_for(1)
    queue.send(*(json.dumps({"number": number}) for number in range(5)))
    line = ("intake", queue.argument, "--handler", "h", "--once", "--server", cell.servers)
    run_killed(*line, failpoint=f"{point}=kill")
    until_s = time.monotonic() + 60
    while queue.left()[1] and time.monotonic() < until_s:
        time.sleep(0.05)
    done = run(*line, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["refused"] == 0
    assert numbers(cell) == list(range(5))
    assert queue.left() == (0, 0)


async def test_an_intake_with_a_token_alone_submits_over_https(tmp_path, queue, monkeypatch):
    door = HttpsSite(tmp_path)
    queue.send('{"number": 1}')
    monkeypatch.setenv("RAFTCRON_TOKEN", door.token)
    line = ("intake", queue.argument, "--handler", "h", "--once", "--tls", str(door.folder))
    async with door.serves() as one:
        server = f"https://127.0.0.1:{one.port}"
        done = await asyncio.to_thread(run, *line, "--server", server)
    assert (done.returncode, door.payloads()) == (0, [{"number": 1}]), done.stderr
    assert queue.left() == (0, 0)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            "sqs://sqs.eu-west-1.amazonaws.com/123/orders",
            QueuePlace(
                "https://sqs.eu-west-1.amazonaws.com/123/orders",
                "https://sqs.eu-west-1.amazonaws.com",
                "eu-west-1",
            ),
        ),
        (
            "sqs://127.0.0.1:9324/0/q?region=elastic",
            QueuePlace("http://127.0.0.1:9324/0/q", "http://127.0.0.1:9324", "elastic"),
        ),
        (
            "https://sqs.us-east-2.amazonaws.com/1/q.fifo",
            QueuePlace(
                "https://sqs.us-east-2.amazonaws.com/1/q.fifo",
                "https://sqs.us-east-2.amazonaws.com",
                "us-east-2",
            ),
        ),
    ],
)
def test_a_url_names_a_queue(text, place):
    assert find_queue(text) == place
    assert find_queue(text.replace("sqs://", "sqs://https://")).endpoint.startswith("https://")


@pytest.mark.parametrize("text", ["", "orders", "sqs://", "s3://a/b", "sqs://host"])
def test_what_is_no_url_of_a_queue_is_refused(text):
    with pytest.raises(BadTask, match="not the URL"):
        find_queue(text)


def test_a_queue_that_is_not_there_is_said(cell, server):
    url = f"sqs://127.0.0.1:{server.port}/123456789012/nothing"
    done = run("intake", url, "--handler", "h", "--once", "--server", cell.servers)
    assert done.returncode == 2
    assert "nothing" in done.stderr
