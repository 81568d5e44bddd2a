"""The tests with real processes that `make test` runs: one story each.

All others in this folder are nightly. What a story proves by real processes alone is here; orders
of faults are drawn in the simulation.
"""

from __future__ import annotations

from typing import Final

SMOKES: Final[dict[str, str]] = {
    "a crontab is applied and runs": (
        "test_dev_cell.py::test_the_example_launches_within_seconds_and_for_ends_it"
    ),
    "the leader is killed": (
        "test_dev_harness.py::test_ledger_and_witness_agree_over_the_death_of_a_leader"
    ),
    "a replica is replaced from its peers": (
        "test_replace.py::test_a_dead_replica_is_replaced_under_load_with_two_commands"
    ),
    "an executor is killed": (
        "test_failover_executor.py::"
        "test_what_ran_on_an_executor_that_was_killed_is_lost_dead_and_not_run_again[alone]"
    ),
    "the spawner is killed": (
        "test_executor_deaths.py::test_a_dead_spawner_is_replaced_and_what_it_ran_is_interrupted"
    ),
    "a lease is lost": (
        "test_executor_commands.py::test_guarded_commands_end_when_the_leader_answers_no_more"
    ),
    "an executor is drained": (
        "test_drain.py::"
        "test_a_drained_executor_ends_with_nothing_lost_and_works_again_when_it_is_back"
    ),
    "a handler runs": ("test_workers.py::test_a_handlers_launch_runs_and_every_answer_tells_of_it"),
    "a launch is a request to a server": (
        "test_targets.py::test_launches_are_requests_and_their_answers_are_the_ends"
    ),
    "tasks outlive a leader": (
        "test_tasks.py::test_tasks_run_once_over_the_death_of_a_leader_and_cancelled_ones_never"
    ),
    "calls over HTTP reach the leader, and the next one": (
        "test_http.py::test_any_replica_answers_over_http_and_again_after_the_leaders_death"
    ),
    "output outlives its executor": (
        "test_outputs.py::test_output_is_shown_when_its_executor_is_gone_for_good"
    ),
    "all disks are lost and the cell is restored": (
        "test_restore.py::test_all_disks_are_lost_and_nothing_that_ran_runs_again[file]"
    ),
    "TLS and roles": "test_tls_cell.py::test_a_cell_with_certificates_works_and_fails_over",
    "a disk is full": (
        "test_replica_room.py::"
        "test_a_full_disk_ends_a_replica_which_then_waits_for_room_and_catches_up"
    ),
    "an alert outlives the leader that raised it": (
        "test_alerts.py::test_an_alert_is_one_mail_though_the_leader_dies_that_raised_it"
    ),
    "a program submits over the death of a leader": (
        "test_client.py::test_a_client_loses_and_doubles_nothing_over_the_death_of_the_leader"
    ),
}
"""A test by its story."""
