"""The command alerts, before a service that a test plays."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cron.api.alerts import (
    AlertChange,
    AlertsReport,
    AlertView,
    ApplyAlertsReport,
    ChannelView,
    DeliveryView,
    MutesReport,
    MuteView,
    RuleView,
    TestAlertReport,
)
from tests.unit.api_rig import FakeBackend
from tests.unit.test_cli_tasks import asked, cli, rows

NOW_MS = 1_795_186_800_000
MUTE = MuteView(number=3, pattern="billing/*", since_ms=NOW_MS, until_ms=NOW_MS + 7_200_000,
                by="ada", reason="move")  # fmt: skip
FIRING = AlertView(
    number=17, rule="twice", when="failed:2", subject="default/backup", state="firing",
    since_ms=NOW_MS, value=2, is_told=True,
)  # fmt: skip
OVER = AlertView(
    number=16, rule="twice", when="failed:2", subject="acme/backup", state="resolved",
    since_ms=NOW_MS - 7_200_000, ended_ms=NOW_MS, value=2, is_told=True,
)  # fmt: skip
REPORT = AlertsReport(
    firing=[FIRING], closed=[OVER], firing_count=1, closed_count=12, mutes=[MUTE],
    rules=[RuleView(name="twice", when="failed:2", subjects=["default/backup"], to=["ops"])],
    channels=[ChannelView(name="ops", kind="mail", to=["ops@example.com"])],
)  # fmt: skip


async def test_apply_sends_the_file_and_prints_what_changed(tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text("# nothing\n")
    report = ApplyAlertsReport(
        changes=[
            AlertChange("added", "channel", "ops", "", "mail ops@example.com"),
            AlertChange("changed", "rule", "twice", "failed:2", "failed:3"),
            AlertChange("unchanged", "rule", "late"),
        ],
        notes=["no executor offers the handler mail"],
    )
    backend = FakeBackend(apply_alerts=report)
    result = await cli(backend, "alerts", "apply", str(file))
    assert result.stdout.splitlines() == [
        "channel ops added: mail ops@example.com",
        "rule twice changed: failed:2 -> failed:3",
    ]
    assert "note: no executor offers the handler mail" in result.stderr
    request = asked(backend, "apply_alerts")
    assert (request.file, request.text, request.is_dry_run) == (
        "alerts.toml", "# nothing\n", False,
    )  # fmt: skip
    plan = await cli(backend, "alerts", "apply", str(file), "--plan")
    assert "channel ops would be added: mail ops@example.com" in plan.stdout
    assert len(rows(await cli(backend, "alerts", "apply", str(file), "-o", "json"))) == 3


async def test_apply_of_what_is_there_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("")
    backend = FakeBackend(apply_alerts=ApplyAlertsReport())
    result = await cli(backend, "alerts", "apply", str(tmp_path / "a.toml"))
    assert result.stdout == "nothing changed\n"
    missing = await cli(backend, "alerts", "apply", str(tmp_path / "b.toml"))
    assert missing.exit_code == 2


async def test_list_shows_what_fires_and_what_is_muted() -> None:
    backend = FakeBackend(alerts=REPORT)
    result = await cli(backend, "alerts", "list")
    assert result.stdout.splitlines()[1].split()[:4] == ["17", "backup", "twice", "failed:2"]
    assert "note: mute 3: billing/* until" in result.stderr
    [row] = rows(await cli(backend, "alerts", "list", "-o", "json"))
    assert (row["number"], row["subject"], row["told"]) == (17, "default/backup", True)


async def test_list_and_history_say_what_became_of_messages_that_were_not_sent() -> None:
    told = [
        DeliveryView(channel="chat", state="sent", task="raftcron/alerts:17-firing-chat"),
        DeliveryView(channel="ops", state="waiting", detail="no executor serves mail"),
        DeliveryView(channel="pager", state="failed"),
    ]
    report = msgspec.structs.replace(
        REPORT,
        firing=[msgspec.structs.replace(FIRING, deliveries=told)],
        closed=[msgspec.structs.replace(OVER, deliveries=told[:1])],
        notes=["no executor serves mail, so nobody is told yet"],
    )
    backend = FakeBackend(alerts=report)
    result = await cli(backend, "alerts", "list")
    said = "ops: message waits, no executor serves mail; pager: message was given up"
    assert said in " ".join(result.stdout.split())
    assert "note: no executor serves mail, so nobody is told yet" in result.stderr
    [row] = rows(await cli(backend, "alerts", "list", "-o", "json"))
    assert [(one["channel"], one["state"]) for one in row["deliveries"]] == [
        ("chat", "sent"), ("ops", "waiting"), ("pager", "failed"),
    ]  # fmt: skip
    assert "message" not in (await cli(backend, "alerts", "history")).stdout


async def test_list_shows_rules_channels_and_mutes() -> None:
    backend = FakeBackend(alerts=REPORT)
    for option, said in (
        ("--rules", ["twice", "failed:2", "backup", "ops"]),
        ("--channels", ["ops", "mail", "ops@example.com"]),
        ("--mutes", ["3", "billing/*"]),
    ):
        result = await cli(backend, "alerts", "list", option)
        assert result.stdout.splitlines()[1].split()[: len(said)] == said


async def test_an_empty_cell_has_no_alerts() -> None:
    backend = FakeBackend(alerts=AlertsReport())
    said = await cli(backend, "alerts", "list")
    assert "no alert is open" in said.stdout + said.stderr


async def test_history_says_how_long_an_alert_lasted() -> None:
    backend = FakeBackend(alerts=REPORT)
    result = await cli(backend, "alerts", "history", "--limit", "1")
    assert "2h00m" in result.stdout
    assert "acme/backup" in result.stdout
    assert "11 more" in result.stderr
    assert asked(backend, "alerts").limit == 1


async def test_a_test_says_which_task_it_became() -> None:
    task = "raftcron/alerts:17-test-ops"
    backend = FakeBackend(test_alert=TestAlertReport(task=task, notes=["nobody offers mail"]))
    result = await cli(backend, "alerts", "test", "ops")
    assert f"raftcron task get {task}" in result.stdout
    assert "note: nobody offers mail" in result.stderr
    assert asked(backend, "test_alert").channel == "ops"


async def test_a_mute_has_an_end() -> None:
    backend = FakeBackend(mute_alerts=MUTE)
    result = await cli(backend, "alerts", "mute", "billing/*", "--for", "2h", "--reason", "move")
    assert "end it with: raftcron alerts unmute 3" in result.stdout
    request = asked(backend, "mute_alerts")
    assert (request.pattern, request.reason) == ("billing/*", "move")
    assert request.until_ms > 0
    assert not result.stderr
    noted = FakeBackend(mute_alerts=msgspec.structs.replace(MUTE, notes=["no job matches"]))
    result = await cli(noted, "alerts", "mute", "billing/*", "--for", "2h")
    assert "note: no job matches" in result.stderr
    endless = await cli(backend, "alerts", "mute", "billing/*")
    assert endless.exit_code == 2
    assert "--for 2h" in endless.stderr


async def test_mutes_end_by_number() -> None:
    backend = FakeBackend(unmute_alerts=MutesReport(mutes=[MUTE], unknown=[4]))
    result = await cli(backend, "alerts", "unmute", "3", "4")
    assert "mute 3 has ended: billing/*" in result.stdout
    assert result.exit_code == 3
    assert "mute 4: does not exist" in result.stderr
