"""The templates of `examples/alerts`, each against a server that is as strict as its receiver."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher.targets.config import EXAMPLES, WebhookChannel, WebhookConfig
from launcher.targets.webhook import WebhookTarget
from launcher.worker.outcome import Ended
from launcher.worker.wire import Result
from tests.fakes.alert_receivers import GENIE_KEY, KEEPING, RECEIVERS, ROUTING_KEY, Receiver
from tests.fakes.bad_http import BadServer, bad_server
from tests.style.tree import ROOT
from tests.unit.targets_rig import OF_CELL, context_of, ended

FOLDER = ROOT / "examples" / "alerts"
SINCE, AT, LATER = "2026-11-20T15:00:00Z", "2026-11-20T15:01:00Z", "2026-11-20T16:00:00Z"
ALERT = {
    "number": 17, "kind": "failed", "when": "failed:2", "rule": "backups", "since": SINCE,
    "subjects": ["acme/backup"], "count": 1, "cell": "prod", "at": AT,
    "evidence": {"failures": 2, "launches": ["acme/backup@2026-11-20T15:00:00Z"]},
}  # fmt: skip
NAMES = [f"acme/job-{n}" for n in range(20)]
HOSTILE = '"}],<!channel> & <http://x|y> \\ {{ key }} {% raw %} \n\t\x00 \N{SNOWMAN}' + "\U0001f600"
ALERTS: dict[str, dict[str, Any]] = {
    "one": ALERT,
    "many": ALERT | {"subjects": NAMES, "count": 10_000},
    "bare": {"number": 1, "at": AT},
    "of the cell": ALERT | {"kind": "replica-away", "rule": "away", "subjects": ["raftcron/r2"]},
    "hostile": ALERT | {
        "rule": HOSTILE, "subjects": [HOSTILE], "cell": HOSTILE, "when": HOSTILE,
        "kind": HOSTILE, "evidence": {"detail": HOSTILE * 20, "launches": [HOSTILE]},
    },
    "long": ALERT | {
        "rule": "r" * 300, "subjects": ["acme/" + "x" * 400], "cell": "c" * 300,
        "evidence": {"detail": "\N{SNOWMAN}" * 30_000},
    },
}  # fmt: skip


class Stand:
    """A receiver, and the target that tells it as its example says."""

    def __init__(self, kind: str, server: BadServer, folder: Path, console: str = "") -> None:
        self.receiver: Receiver = RECEIVERS[kind]()
        url = self.receiver.serve(server)
        for name, text in (("key", ROUTING_KEY), ("headers", f"authorization: {GENIE_KEY}")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        said = documented(kind)
        (folder / "url").write_text(url + "".join(said.url.partition("{")[1:]))
        (folder / "url").chmod(0o600)
        channel = msgspec.structs.replace(
            said, template=str(FOLDER / said.template), url="", url_file="url",
            headers="headers" if said.headers else "", key="key" if said.key else "",
        )  # fmt: skip
        self.name = channel.name
        self._target = WebhookTarget(WebhookConfig(channel=(channel,), console=console), folder)

    def told(self, alert: dict[str, Any], state: str, **more: Any) -> Ended:
        """How a launch of the cell ends that tells of an alert."""
        said = {"channel": self.name, "alert": {**alert, "state": state, **more}}
        return ended(self._target, said, context_of(job=OF_CELL)[0])


def documented(kind: str) -> WebhookChannel:
    """The channel that the head of an example shows."""
    text = (FOLDER / f"{kind}.json.j2").read_text()
    head = re.search(r"^    \[\[webhook\.channel\]\]\n(?:^    .*\n|^ {6}.*\n)*", text, re.MULTILINE)
    assert head is not None, kind
    table = tomllib.loads(head[0].removesuffix(" -#}\n").replace(" -#}", ""))
    [channel] = table["webhook"]["channel"]
    return msgspec.convert(channel, WebhookChannel)


@pytest.fixture(params=EXAMPLES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad_server() as one:
        yield one


def test_there_is_an_example_for_each_receiver() -> None:
    assert sorted(str(one.relative_to(ROOT)) for one in FOLDER.iterdir()) == [
        "examples/alerts/alertmanager.json.j2",
        "examples/alerts/opsgenie.json.j2",
        "examples/alerts/pagerduty.json.j2",
        "examples/alerts/slack.json.j2",
        "examples/alerts/teams.json.j2",
    ]
    assert sorted(RECEIVERS) == list(EXAMPLES)


@pytest.mark.parametrize("console", ["", "https://cron.example.com"])
def test_a_receiver_takes_each_alert_its_end_and_a_test(
    kind: str, console: str, server: BadServer, tmp_path: Path
) -> None:
    stand = Stand(kind, server, tmp_path, console)
    for alert in ALERTS.values():
        assert stand.told(alert, "firing").result is Result.OK, stand.receiver.refused
        assert stand.told(alert, "resolved", at=LATER).result is Result.OK, stand.receiver.refused
    assert (
        stand.told({"number": 3, "at": AT, "since": AT, "kind": "test"}, "test").result is Result.OK
    )
    receiver = stand.receiver
    assert receiver.refused == []
    keeps = kind in KEEPING
    assert len(receiver.opened) == (20 + 1 + len(ALERTS) - 1 + 1) * keeps, "one of each name"
    lasting = 1 if kind == "alertmanager" else 0  # a test ends by itself there
    assert len(receiver.closed) == len(receiver.opened) - lasting
    assert len(receiver.open) == lasting


@pytest.mark.parametrize("kind", KEEPING)
def test_the_end_of_one_alert_closes_its_own_incident(
    kind: str, server: BadServer, tmp_path: Path
) -> None:
    stand = Stand(kind, server, tmp_path)
    assert stand.told(ALERTS["many"], "firing").result is Result.OK
    assert len(stand.receiver.open) == 21
    opened = stand.receiver.opened[7]
    assert (
        stand.told(ALERT, "resolved", number=99, subjects=[NAMES[7]], at=LATER).result is Result.OK
    )
    assert stand.receiver.closed == [opened]


def test_a_receiver_that_is_told_nonsense_says_so(server: BadServer, tmp_path: Path) -> None:
    # The servers of these tests are strict: what has another form is refused.
    for kind in EXAMPLES:
        receiver = RECEIVERS[kind]()
        url = receiver.serve(server)
        channel = WebhookChannel(name="ops", url=url)
        one = WebhookTarget(WebhookConfig(channel=(channel,)), tmp_path)
        said = {"channel": "ops", "alert": ALERT | {"state": "firing"}}
        assert ended(one, said, context_of(job=OF_CELL)[0]).result is Result.FATAL
        assert len(receiver.refused) == 1
