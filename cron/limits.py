"""Limits of all input, with their arithmetic; for each limit a test reaches it."""

from __future__ import annotations

from typing import Final

CRONTAB_BYTES_MAX: Final = 64 << 20
"""One file: 100,000 jobs of a few hundred bytes each, twice over."""
UNIT_BYTES_MAX: Final = 1 << 20
"""One unit of systemd, which itself reads no longer line."""
UNITS_MAX: Final = 20_000
"""Units and drop-ins of one import: a machine has some hundreds."""
CRONTAB_LINE_BYTES_MAX: Final = 64 << 10
"""One line: Linux passes at most 128 KiB as one argument (MAX_ARG_STRLEN); half of it is plenty."""
JOB_FILE_CHARS_MAX: Final = 8 << 20
"""One job file in TOML: 80,000 jobs of 100 characters. tomllib reads half a million a second."""
JOB_FILE_DOTS_MAX: Final = 4
"""Dots of one key, of which a job needs two: tomllib takes a time that grows with their cube."""
JOB_FILE_ALL_DOTS_MAX: Final = 200_000
"""Dots of all keys: a few seconds, at 15 us for a key with four dots below a table with four."""
JOB_FILE_DEPTH_MAX: Final = 64
"""Lists and tables within each other: tomllib and JSON recurse for each."""
JOB_FILE_WORD_CHARS_MAX: Final = 256
"""A number, a date or a plain key. Python writes no number of more than 4,300 digits."""
CRONTAB_ERRORS_MAX: Final = 100
"""Errors reported of one file; the rest are counted."""
EXPRESSION_BYTES_MAX: Final = 256
"""Five fields; longer ones are refused before any work is done on them."""
WORK_BYTES_MAX: Final = 512 << 10
"""One job's command, environment and input, encoded: it travels with each of its starts, and the
pool sends messages of at most 2 MiB."""
JOBS_MAX: Final = 1_000_000
ENVIRONMENT_LINES_MAX: Final = 256
OPTION_VALUE_CHARS_MAX: Final = 256
JOB_BYTES_MAX: Final = 256 << 10
"""Command, standard input and environment of one job: far below one part of a change."""
JOBS_BYTES_MAX: Final = 256 << 20
"""The same of all jobs of a file. Each carries its environment, so that a small file may declare
much: 100,000 jobs with 2.5 KiB each."""
PERIOD_S_MIN: Final = 1
PERIOD_S_MAX: Final = 366 * 86_400
TIMEOUT_S_MAX: Final = 31 * 86_400
DEADLINE_S_MIN: Final = 1
DEADLINE_S_MAX: Final = 31 * 86_400
DEADLINE_S_DEFAULT_MIN: Final = 60
DEADLINE_S_DEFAULT_MAX: Final = 3600

JOBS_PER_ENTRY_BYTES_MAX: Final = 1 << 20
"""Encoded jobs in one part of a change; a larger change takes several entries."""
CATCHUP_ALL_MAX: Final = 100_000
"""Instants of a job that a catch-up examines one by one: a little more than a day of seconds."""
BACKFILL_MAX: Final = 10_000
"""Launches that one backfill may reopen."""
BACKFILL_WITHOUT_YES_MAX: Final = 10
PRUNE_WITHOUT_YES_MAX: Final = 10
"""Jobs that one apply removes without confirmation."""
REMOVED_AT_ONCE_MAX: Final = 1_000
"""Jobs that one request removes by name."""
ATTEMPTS_MAX: Final = 999_999_999
"""Attempts of one launch: nine digits, the most that its name can hold."""
SPANS_KEPT: Final = 256
"""Past schedules of one job that are kept for audits; the oldest are forgotten first."""
REMOVED_KEPT: Final = 100_000
"""Removed jobs that are kept for audits; those removed first are forgotten first."""
REVISIONS_KEPT: Final = 1_000
"""Changes whose author State keeps; the leader's log has a line for every change."""
REQUEST_IDS_KEPT: Final = 4_096
"""Manual triggers remembered, so that a repeated request is answered and not repeated."""
CHANGED_KEPT: Final = 20
"""Objects of one change that are kept with what they were before and are after it."""
CHANGED_CHARS_MAX: Final = 120
"""Characters of what an object of a change was, or is."""
FIELD_CHARS_MAX: Final = 1_000
"""Characters of one field of a job's definition, before or after a change."""
FIELDS_CHARS_MAX: Final = 4_000
"""Characters of all fields together that State keeps of one change."""
CHANGES_MERGED_MS: Final = 60_000
"""Changes of tasks of one queue, and manual launches of one job, by one caller within this time are
one row: programs make many, and they must not push out the changes of people."""
BINDINGS_MAX: Final = 10_000
"""Roles that are granted to names."""
EXECUTOR_GRANTS_MAX: Final = 10_000
"""Executors, and patterns of their ids, that something was granted to."""
TOKENS_MAX: Final = 10_000
"""Tokens; of more, those that expired or were revoked are forgotten."""
REVOKED_MAX: Final = 10_000
"""Revoked certificates; those that expired are forgotten."""
LIFE_ENTRIES: Final = 10**12
"""Log indexes reserved for each generation of a cell: at a hundred entries a second they last three
hundred years, and the indexes of two generations never overlap.
"""
LIVES_MAX: Final = 128
"""Generations of a cell: the most that a row's position in the index of history can hold."""
HELD_KEPT: Final = 64
"""End times of held slots of a job with `concurrency`; each time may hold any number of slots."""
LOST_KEPT: Final = 10_000
"""Lost launches for which a late result still makes an amendment (rule R9)."""
HISTORY_PAGE_MAX: Final = 20_000
"""Launches in one answer, about 20 MB; longer lists are asked for page by page."""
HISTORY_ROWS_MAX: Final = 100_000
"""Rows that one query may return."""
AUDIT_MS_MAX: Final = 15_000
"""How long a replica works on one audit; the answer says how many jobs are left. A client waits
longer than this before it asks another replica.
"""
RPC_BYTES_MAX: Final = 88 << 20
"""The largest message: a crontab of the largest size in base64, four bytes for three, and what is
around it."""
DETAIL_CHARS_MAX: Final = 200
"""Characters of a message about one attempt that did not succeed."""
RESULT_BYTES_MAX: Final = 1 << 10
"""The text that a handler returned, in UTF-8."""
ROW_TEXT_BYTES: Final = 256
"""A row of an entry with so much text, or several times as much, counts as several: 5,000 rows say
1.3 MB at most, of the 8 MiB that an entry of the log may have."""
NOTE_CHARS_MAX: Final = 500
"""Characters of the reason of a pause, or of the detail of an end."""
LIMITS_MAX: Final = 10_000
"""Scopes that have limits, for example tenants."""
GATES_MAX: Final = 1_000
"""Closed gates: each is compared with each job when it closes or opens."""
BUDGETS_KEPT: Final = 100_000
"""Tenants whose use of the retry budget is recorded; the first is forgotten first."""
DEAD_KEPT: Final = 100_000
"""Dead letters of tasks of all tenants, about 3 KB each beside their payloads. With more, a tenant
that has its share of them hands over no more tasks."""
TENANT_DEAD_MAX: Final = 10_000
"""Dead letters of a tenant's tasks: with more it hands over no more tasks until it has redriven or
dropped some."""
TENANT_DEAD_BYTES_MAX: Final = 64 << 20
"""The same for their payloads: a quarter of what a tenant's payloads may take."""
PAYLOAD_BYTES_MAX: Final = 256 << 10
"""Bytes of a handler's payload: the limit of SQS, and bounded memory for ten thousand launches."""
AHEAD_MS_MAX: Final = 60_000
"""How far a new entry's time may be ahead of a replica's clock for the replica to acknowledge it:
much more than synchronised clocks differ, and short enough to wait for.
"""
TASKS_WAITING_MAX: Final = 1_000_000
"""Tasks of a cell that wait: about 500 bytes each, and their payloads."""
TASKS_REMEMBERED_MAX: Final = 1_000_000
"""Ended tasks whose keys are remembered; of more, those that ended first are forgotten early."""
TASKS_SPILLED_MAX: Final = 10_000_000
"""Tasks on disk that wait for a time far ahead: 12 bytes of memory each."""
TASKS_LOADED_MAX: Final = 100_000
"""So many more tasks may wait in memory where they come back from disk: programs that submit as
many as they can must not hold them up."""
TASK_PAYLOADS_BYTES_MAX: Final = 512 << 20
"""Payloads of all tasks that are not over: a million of 500 bytes, or 2,000 of the largest."""
TASK_PAYLOADS_LOADED_MAX: Final = 64 << 20
"""So many more bytes of payloads where tasks come back from disk."""
TENANT_PAYLOADS_BYTES_MAX: Final = TASK_PAYLOADS_BYTES_MAX // 2
"""Of these, payloads of one tenant: its dead letters must not keep others from submitting."""
TASK_AHEAD_MS_MAX: Final = 3_650 * 86_400_000
"""How far ahead a task may be due: ten years."""
QUEUES_MAX: Final = 10_000
"""Queues of tasks, which every snapshot writes at once."""
LABELS_MAX: Final = 32
"""Labels of one task."""
TASK_LABELS_BYTES_MAX: Final = 2 << 10
"""All labels of one task in UTF-8: a thousand tasks fit into an entry of the log with them."""
LABEL_CHARS_MAX: Final = 100
"""Characters of a label's name or value, of a handler and of a collection."""
TASK_TEXT_CHARS_MAX: Final = 200
"""Characters of the name of whoever submitted or cancelled a task."""
PREDECESSORS_MAX: Final = 100
"""Tasks and groups that one task follows."""
PREDECESSORS_KEPT: Final = 1_000_000
"""Predecessors of all tasks that wait for any, counted once for each of these."""
GROUPS_MAX: Final = 100_000
"""Groups of tasks of a cell: about 500 bytes each."""
RESULTS_BYTES_MAX: Final = 64 << 20
"""Results of all tasks that are remembered; half of it is kept for tasks that have followers."""
WORK_RESULTS_BYTES_MAX: Final = 64 << 10
"""Results that one task gets of its predecessors, with their names."""
JOB_PREDECESSORS_MAX: Final = 20
"""Jobs that one job may follow."""
PAUSE_AFTER_MAX: Final = 1_000
JITTER_S_MAX: Final = 86_400
SECRETS_MAX: Final = 20
"""Secrets of one job."""
SECRET_NAME_CHARS_MAX: Final = 200
STEPS_KEPT: Final = 64
"""Changes between success and other ends that State remembers of a job that others follow."""
PARTS_MAX: Final = 100
"""Executors on which one launch may run at once."""

JOBS_MEASURED_MAX: Final = 1_000
"""Jobs of a cell that have metrics of their own: Prometheus keeps their series for weeks."""
HTTP_HEAD_BYTES_MAX: Final = 16 << 10
"""Request line and headers of one HTTP request: twice what browsers send."""
HTTP_BODY_BYTES_MAX: Final = 16 << 20
"""One HTTP request. Larger crontabs and job files are applied with the command line."""
HTTP_STRANGER_BYTES_MAX: Final = 64 << 10
"""One HTTP request whose credentials are not known to the replica that reads it."""
HTTP_BODIES_BYTES_MAX: Final = 64 << 20
"""Bodies of all HTTP requests that a replica holds at one time."""
HTTP_QUERY_FIELDS_MAX: Final = 1_100
"""Parameters of one query: the longest list has 1,000 values (`REMOVED_AT_ONCE_MAX`)."""
HTTP_CONNECTIONS_MAX: Final = 1_100
"""HTTP connections of one replica: 1,000 that are idle, and some more. Each is an open file."""
HTTP_READS_MAX: Final = 4
"""Reads over HTTP that a replica answers at one time; the others wait. They share the event loop
with the leader: with 8 of them it was measurably later."""
HTTP_CHANGES_MAX: Final = 16
"""Changes over HTTP at one time: each waits for the log most of its time."""
HTTP_LISTS_MAX: Final = 32
"""HTTP answers with many rows that are sent at one time: each holds its rows, 20 MB at most."""
HTTP_STREAMS_MAX: Final = 256
"""HTTP answers whose rows come one by one, such as the changes of tasks that a client watches."""
HTTP_EVENTS_MAX: Final = 1_000
"""Pages that are kept up to date at one time, an open stream each; of HTTP_CONNECTIONS_MAX the rest
is for requests."""
HEALTH_WATCHES_MAX: Final = 100
"""Streams of the health service of gRPC: each looks once a second."""
HTTP_WAITING_MAX: Final = 512
"""HTTP reads that wait, and changes; further ones are refused."""

CHANNELS_MAX: Final = 100
"""Channels of alerts."""
RULES_MAX: Final = 1_000
"""Rules of alerts: each job is compared with each of them once after they change."""
RULE_SUBJECTS_MAX: Final = 20
"""Patterns of one rule."""
RULE_CHANNELS_MAX: Final = 10
"""Channels that one rule, or one job, tells: each is a delivery."""
ADDRESSES_MAX: Final = 20
"""Addresses of one channel, or of one `MAILTO`."""
ADDRESS_CHARS_MAX: Final = 254
"""Characters of an address of mail (RFC 5321)."""
CONDITIONS_MAX: Final = 10
"""Conditions of alerts of one job."""
ALERT_LAUNCHES_MAX: Final = 60
"""Newest launches of a job whose ends a rule may count: one bit each."""
ALERT_AFTER_S_MAX: Final = 366 * 86_400
REMIND_S_MIN: Final = 300
"""The least time between two reminders of one rule: each is a delivery to each of its channels."""
"""The longest time that a condition of an alert may name."""
MUTES_MAX: Final = 1_000
"""Mutes of alerts: each open alert is compared with each of them."""
ALERTS_OPEN_MAX: Final = 20_000
"""Alerts that fire at one time: 200 bytes each, which every snapshot writes at once."""
ALERTS_CLOSED_KEPT: Final = 10_000
"""Alerts that are over and remembered; the oldest are forgotten first."""

CALENDARS_MAX: Final = 200
CALENDAR_DAYS_MAX: Final = 2_000
"""Each job that uses a calendar has its days: up to 4 KB in State."""
CALENDAR_NAME_CHARS_MAX: Final = 64
CALENDAR_RULE: Final = rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{CALENDAR_NAME_CHARS_MAX - 1}}}"
CALENDAR_HINT: Final = (
    f"use up to {CALENDAR_NAME_CHARS_MAX} of A-Z a-z 0-9 _ . - not beginning with . or -"
)
CALENDAR_FILE_BYTES_MAX: Final = 1 << 20
CALENDAR_FILE_LINES_MAX: Final = 50_000
CALENDAR_EVENTS_MAX: Final = 2_000
"""An event has some 25 lines; to read as many takes a replica some seconds beside its work."""
REVISIONS_OF_JOB: Final = 20
EARLIER_BYTES_MAX: Final = 64 << 20
"""Earlier revisions of all jobs: about 100,000 jobs of 600 bytes each."""
