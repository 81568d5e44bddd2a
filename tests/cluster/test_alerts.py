"""Alerts as people get them: a cell of real processes, its targets, and a real mail server."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from cron.errors import OutcomeUnknown, Unavailable
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.secured_cell import Secured
from tests.cluster.worker_rig import WITHIN_S
from tests.fakes.ports import free_ports
from tests.fakes.smtp_server import Received, SmtpServer

pytestmark = pytest.mark.timeout(240)

LEASES: Final = PATIENT.replace("= 12000", "= 50000").replace(
    "give_up_ms = 15000", "give_up_ms = 60000"
)
"""No command ends because a busy machine takes long to elect a leader."""
NEVER = "0 0 29 2 *"
TO = "ops@example.com"
CHANNEL = f'[[channel]]\nname = "ops"\nkind = "mail"\nto = ["{TO}"]\n'


def rule(name: str, when: str, *more: str) -> str:
    return "\n".join(
        ["[[rule]]", f'name = "{name}"', f'when = "{when}"', 'to = ["ops"]', *more, ""]
    )


class Watched:
    """A cell whose executor sends mail to a server, and a job whose end a test decides."""

    def __init__(
        self, make_cell: Callable[..., Cell], folder: Path, executor: str = "", **more: Any
    ) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self.server: SmtpServer | None = None
        config = folder / "targets.toml"
        config.write_text(
            f'[mail]\nserver = "127.0.0.1:{self.port}"\nfrom = "cron@example.com"\n'
            'recipients = ["*@example.com"]\ntls = "none"\n'
        )
        extra = f'targets = "{config}"\n{executor}'
        self.cell = make_cell(**{"replica_extra": PATIENT, "executor_extra": extra} | more)
        self.code = folder / "code"
        self.code.write_text("3")

    def start(self, alerts: str, jobs: str = "") -> Watched:
        """Start the cell and the mail server, with these alerts and jobs, and the job `one`."""
        self.serve()
        self.cell.start()
        self.cell.leader(within_s=2 * WITHIN_S)
        self.cell.wait_connected()
        self.wait_served()
        if alerts:
            self.apply(alerts)
        command = f"{NEVER} exit $(cat {self.code})"
        self.cell.apply(f"#: name=one\n{command}\n{jobs}")
        return self

    def serve(self) -> SmtpServer:
        """Start the mail server."""
        self.server = SmtpServer(port=self.port)
        return self.server

    def close(self) -> None:
        """End the mail server."""
        if self.server is not None:
            self.server.close()
            self.server = None

    def wait_served(self) -> None:
        """Return once the executor offers to send mail."""

        def offered() -> bool:
            rows = self.cell.rows("executors", expect=None)
            return any("mail" in group["handlers"] for row in rows for group in row["groups"])

        wait_until(offered, WITHIN_S, "the target mail")

    def apply(self, alerts: str) -> None:
        path = self.folder / "alerts.toml"
        path.write_text(alerts)
        self.cell.cli("alerts", "apply", str(path))

    def trigger(self, times: int = 1) -> None:
        """Launch the job, each time to its end."""
        code = 1 if int(self.code.read_text()) else 0
        for _ in range(times):
            self.cell.cli("trigger", "one", "--wait", expect=code)

    def received(self, number: int) -> list[Received]:
        """The mails, once there are so many."""
        assert self.server is not None
        server = self.server
        wait_until(lambda: len(server.received) >= number, 2 * WITHIN_S, f"{number} mails")
        return server.received

    def notes(self) -> list[str]:
        """What became of all attempts to tell of alerts."""
        return [row.detail for row in self.cell.history("raftcron/alerts:*")]

    def deliveries(self) -> list[str]:
        """The states of all launches that told of alerts."""
        wait_until(lambda: self.cell.history("raftcron/alerts:*"), WITHIN_S, "deliveries")
        return sorted(row.state for row in self.cell.history("raftcron/alerts:*"))


@pytest.fixture
def watched(make_cell: Callable[..., Cell], tmp_path: Path) -> Iterator[Watched]:
    one = Watched(make_cell, tmp_path)
    yield one
    one.close()


def subjects(mails: list[Received]) -> list[str]:
    return [str(mail.message["subject"]) for mail in mails]


FAILED = "[raftcron] one failed 2 times in a row"


def test_a_job_that_fails_twice_is_one_mail_and_its_success_another(watched: Watched) -> None:
    watched.start(CHANNEL + rule("twice", "failed:2"))
    watched.trigger(3)
    [mail] = watched.received(1)
    assert subjects([mail]) == [FAILED]
    assert mail.to == [TO]
    assert "Rule:            twice (failed:2)" in mail.text
    assert "raftcron why one" in mail.text
    watched.code.write_text("0")
    watched.trigger()
    mails = watched.received(2)
    assert subjects(mails)[1] == FAILED.replace("one", "RESOLVED: one")
    assert mails[0].message["references"] == mails[1].message["references"]
    assert len(mails) == 2
    # One more failure is none in a row, and says nothing.
    watched.code.write_text("3")
    watched.trigger()
    assert watched.cell.cli("alerts", "list").returncode == 0
    assert len(watched.received(2)) == 2


def test_an_alert_is_one_mail_though_the_leader_dies_that_raised_it(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    watched, died = Watched(make_cell, tmp_path), tmp_path / "died"
    cell = watched.cell
    cell.failpoints = dict.fromkeys(cell.replicas, f"after-alert=kill+file:{died}")
    try:
        watched.start(CHANNEL + rule("twice", "failed:2"))
        watched.trigger()
        cell.cli("trigger", "one", "--wait", expect=None)  # its leader dies beside it
        wait_until(died.exists, WITHIN_S, "the death of the leader")
        assert subjects(watched.received(1)) == [FAILED]
        wait_until(lambda: watched.deliveries() == ["succeeded"], WITHIN_S, "its delivery")
        assert subjects(watched.received(1)) == [FAILED]
    finally:
        watched.close()


class Point(NamedTuple):
    """A moment at which the leader dies: its failpoint, and while what the failpoint is armed."""

    job: str
    failpoint: str
    while_sending: bool = False


POINTS: Final = [
    Point("reported", "after-dispatch"),
    Point("decided", "before-alert"),
    Point("raised", "after-alert"),
    Point("planned", "before-begin"),
    Point("begun", "after-begin"),
    Point("launched", "after-launched"),
    Point("sent", "after-dispatch", while_sending=True),
]
"""From the report of a second failure to the report that its mail was accepted."""


class Mortal:
    """A cell whose leader dies at named points, and a job for each. The commands of the jobs end
    when and as a test says."""

    def __init__(self, make_cell: Callable[..., Cell], folder: Path) -> None:
        self.watched = Watched(make_cell, folder, replica_extra=LEASES)
        self.cell, self.folder = self.watched.cell, folder
        armed = {one.failpoint: self.switch(one.failpoint) for one in POINTS}
        text = ",".join(f"{name}=kill+file:{file}" for name, file in armed.items())
        self.cell.failpoints = dict.fromkeys(self.cell.replicas, text)
        for file in armed.values():
            file.touch()
        rules, jobs = [CHANNEL], []
        for job in (one.job for one in POINTS):
            os.mkfifo(self.fifo(job))
            rules.append(rule(job, "failed:2", f'jobs = ["{job}"]'))
            jobs.append(f"#: name={job} overlap=forbid\n{NEVER} exit $(cat {self.fifo(job)})\n")
        self.watched.start("".join(rules), "".join(jobs))
        assert self.watched.server is not None
        self.server = self.watched.server

    def switch(self, failpoint: str) -> Path:
        """The file that disarms a failpoint. The leader makes it when it dies there."""
        return self.folder / f"{failpoint}.off"

    def fifo(self, job: str) -> Path:
        """From where the command of a job reads its exit code."""
        return self.folder / f"{job}.fifo"

    def wait_row(self, job: str, state: str, number: int) -> None:
        """Return once so many launches of a job are in a state."""

        def found() -> bool:
            try:
                return len(self.cell.history(job, states=[state])) >= number
            except (Unavailable, OutcomeUnknown):
                return False

        wait_until(found, WITHIN_S, f"{number} launches of {job} {state}")

    def launch(self, job: str) -> None:
        """Launch a job, and return once the log knows that it runs."""
        wait_until(
            lambda: self.cell.cli("trigger", job, expect=None).returncode == 0,
            WITHIN_S,
            f"a launch of {job}",
        )
        self.wait_row(job, "launched", 1)

    def end(self, job: str, code: int) -> None:
        """End the command of a job."""

        def written() -> bool:
            with contextlib.suppress(OSError):  # nobody reads yet
                fifo = os.open(self.fifo(job), os.O_WRONLY | os.O_NONBLOCK)
                os.write(fifo, str(code).encode())
                os.close(fifo)
                return True
            return False

        wait_until(written, WITHIN_S, f"the command of {job}")

    def dies(self, failpoint: str, then: Callable[[], object]) -> None:
        """Arm a failpoint, do something, and start the leader again that died by it."""
        self.switch(failpoint).unlink()
        then()
        wait_until(self.switch(failpoint).exists, WITHIN_S, f"a death at {failpoint}")
        wait_until(lambda: any(map(self.cell.is_down, self.cell.replicas)), WITHIN_S, "a death")
        self.cell.start()
        self.cell.leader(within_s=2 * WITHIN_S)
        self.cell.wait_connected()

    def fails_twice(self, point: Point) -> None:
        """Have a job fail twice, while the leader dies at a point between that and the mail."""
        job, mails = point.job, len(self.server.received)
        self.launch(job)
        self.end(job, 3)
        self.wait_row(job, "failed", 1)
        self.launch(job)
        if point.while_sending:
            asked = self.server.asked
            self.server.hurried.clear()
            self.end(job, 3)
            wait_until(lambda: self.server.asked > asked, WITHIN_S, "a mail that is read")
            self.wait_row("raftcron/alerts:*", "launched", 1)
            self.dies(point.failpoint, self.server.hurried.set)
        else:
            self.dies(point.failpoint, lambda: self.end(job, 3))
        self.watched.received(mails + 1)


@pytest.mark.timeout(480)
def test_a_leader_that_dies_at_any_point_between_decision_and_delivery_tells_once(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    mortal = Mortal(make_cell, tmp_path)
    server = mortal.server
    try:
        for point in POINTS:
            mortal.fails_twice(point)
        # Each is over. What comes within a minute of the mail before is gathered, and then told.
        for point in POINTS:
            mortal.launch(point.job)
        first, second, *others = (point.job for point in POINTS)
        mortal.dies("before-alert", lambda: mortal.end(first, 0))
        mortal.dies("after-alert", lambda: mortal.end(second, 0))
        for job in others:
            mortal.end(job, 0)
        mortal.watched.received(2 * len(POINTS))
        sent = ["succeeded"] * 2 * len(POINTS)
        wait_until(lambda: mortal.watched.deliveries() == sent, WITHIN_S, "all deliveries")
        fired = [FAILED.replace("one", point.job) for point in POINTS]
        over = [FAILED.replace("one", f"RESOLVED: {point.job}") for point in POINTS]
        said = subjects(server.received)
        assert said[: len(POINTS)] == fired, "one mail for each, as it began"
        assert sorted(said) == sorted(fired + over), "and one for each end"
        ids = Counter(str(mail.message["message-id"]) for mail in server.received)
        assert set(ids.values()) == {1}
        assert len(server.received) == len(sent), "and nothing more"
    finally:
        mortal.watched.close()


def test_late_and_missed_launches_and_a_job_without_success_are_told(watched: Watched) -> None:
    rules = [
        rule("late", "late:1s", 'jobs = ["late"]'),
        rule("missed", "missed", 'jobs = ["missed"]'),
        rule("quiet", "no-success:3s", 'jobs = ["quiet"]'),
    ]
    jobs = (
        "#: name=late deadline=1m\n@every 5s true\n"
        "#: name=missed deadline=1s\n@every 5s true\n"
        "#: name=quiet\n@every 5s false\n"
    )
    watched.start(CHANNEL + "".join(rules), jobs)
    cell = watched.cell
    cell.kill(*cell.executors)
    wait_until(lambda: cell.history("missed", states=["skipped"]), WITHIN_S, "a missed instant")
    wait_until(lambda: len(cell.rows("alerts", "list")) >= 3, WITHIN_S, "alerts")
    cell.start(*cell.executors)
    wanted = {
        "[raftcron] late is more than 1 second late",
        "[raftcron] missed missed a launch",
        "[raftcron] quiet has not succeeded for 3 seconds",
    }
    server = watched.server
    assert server is not None
    wait_until(lambda: wanted <= set(subjects(server.received)), 2 * WITHIN_S, "three mails")


def test_a_backup_that_fails_is_told(make_cell: Callable[..., Cell], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("a file where a folder belongs")
    storage = f'\n[object_storage]\nurl = "file://{store}"\n'
    watched = Watched(make_cell, tmp_path, replica_extra=PATIENT + storage)
    try:
        watched.start(CHANNEL + rule("backup", "backup-failing:1s"))
        [mail] = watched.received(1)
        assert subjects([mail]) == ["[raftcron] backups fail for more than 1 second"]
    finally:
        watched.close()


def test_a_mail_server_that_is_away_slow_or_strict_gets_each_mail_once(watched: Watched) -> None:
    watched.start(CHANNEL + rule("twice", "failed:2"))
    watched.close()  # it is away
    watched.trigger(2)
    tries = "raftcron/alerts:*"
    wait_until(lambda: watched.cell.history(tries, states=["failed"]), WITHIN_S, "a failed try")
    server = watched.serve()
    server.hurried.clear()  # it is back, and slow
    wait_until(lambda: server.asked, WITHIN_S, "a mail that it reads")
    server.hurried.set()
    assert subjects(watched.received(1)) == [FAILED]
    server.refused[TO] = "451 try again later"
    watched.code.write_text("0")
    watched.trigger()
    wait_until(lambda: "451 try again later" in str(watched.notes()), 2 * WITHIN_S, "a 451")
    assert watched.cell.rows("dead", "list", expect=None) == []
    server.refused[TO] = "550 no such user"
    dead = wait_until(lambda: watched.cell.rows("dead", "list"), WITHIN_S, "a dead letter")
    assert "550 no such user" in str(dead)
    assert len(server.received) == 1


def test_tokens_may_mute_and_see_what_is_of_their_tenant_and_change_no_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured = Secured(tmp_path, replica_extra=PATIENT)
    monkeypatch.setenv("RAFTCRON_TLS", str(secured.person))
    eve = str(secured.certs.issued("person", "eve", cell="default"))
    with secured.cell as cell:
        cell.start(*cell.replicas)
        cell.leader()
        cell.cli("role", "grant", "ada", "admin")
        file = tmp_path / "alerts.toml"
        file.write_text(CHANNEL + rule("theirs", "missed", 'jobs = ["shop/*"]'))
        cell.cli("alerts", "apply", str(file))
        cell.cli("alerts", "mute", "shop/*", "--for", "1h", "--reason", "secret")
        roles = {"bill": ("operator", "--tenant", "billing"), "see": ("viewer",)}
        tokens = {
            name: cell.cli("token", "create", name, "--role", *role).stdout.strip()
            for name, role in roles.items()
        }

        def says(token: str, *command: str, expect: int = 0) -> str:
            with monkeypatch.context() as shown:
                shown.setenv("RAFTCRON_TOKEN", tokens[token])
                done = cell.cli("alerts", *command, "--tls", eve, expect=expect)
            return done.stdout + done.stderr

        said = says("bill", "mute", "billing/*", "--for", "1h")
        assert "mute 2: billing/* until" in said
        assert "by bill" in said
        assert "billing" in says("bill", "mute", "*/*", "--for", "1h", expect=7)
        says("bill", "unmute", "1", expect=7)
        says("bill", "apply", str(file), expect=7)
        says("bill", "test", "ops", expect=7)
        assert "secret" not in says("bill", "list", "--mutes")
        assert "theirs" not in says("bill", "list", "--rules")
        assert TO not in says("bill", "list", "--channels")
        assert "secret" in says("see", "list", "--mutes")
        says("see", "mute", "billing/*", "--for", "1h", expect=7)
        # Two files at once: one of them holds, whole.
        others = [tmp_path / "a.toml", tmp_path / "b.toml"]
        for other in others:
            other.write_text(CHANNEL.replace("ops", other.stem))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda one: cell.cli("alerts", "apply", str(one)), others))
        [channel] = cell.rows("alerts", "list", "--channels")
        assert channel["name"] in ("a", "b")
        assert cell.rows("alerts", "list", "--rules") == []


def test_mailto_sends_what_a_command_printed_or_that_it_failed(watched: Watched) -> None:
    jobs = (
        f"MAILTO={TO}\n#: name=says\n{NEVER} echo hello\n#: name=quiet\n{NEVER} true\n"
        f'#: name=fails\n{NEVER} false\nMAILTO=""\n#: name=off\n{NEVER} echo hello\n'
    )
    watched.start("", jobs)
    for job in ("says", "quiet", "fails", "off"):
        watched.cell.cli("trigger", job, "--wait", expect=None)
    assert set(subjects(watched.received(2))) == {
        "[raftcron] says succeeded",
        "[raftcron] fails failed with exit code 1",
    }
    assert len(watched.deliveries()) == 2
