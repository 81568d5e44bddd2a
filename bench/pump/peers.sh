#!/bin/bash
# Measures PostgreSQL and Redis with their own tools, beside `python -m bench.pump`.
#
#   bench/pump/peers.sh [SECONDS]
#
# Run it by hand; it installs nothing. Both servers get a new directory, listen on a Unix socket
# alone, and are ended and removed at the end. PostgreSQL refuses to run as root: root starts it as
# the user `postgres`.
#
# PostgreSQL: 200,000 tasks of 200 tenants in three priorities, the first tenant owns half. A client
# of pgbench takes the oldest task of the highest priority with FOR UPDATE SKIP LOCKED, and
# completes it in a second transaction. Redis: redis-benchmark moves a task from one list to another
# with RPOPLPUSH; the append-only file is synced always, or each second.
set -u
seconds=${1:-10}
folder=$(mktemp -d /tmp/raftcron-peers-XXXXXX) || exit 1
server=
as_postgres=()

end() {
  if [ -n "$server" ]; then
    kill -INT "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    server=
  fi
}
trap 'end; rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

await() { # COMMAND...: until it succeeds, for ten seconds
  for _ in $(seq 100); do
    "$@" >/dev/null 2>&1 && return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  echo "$1: the server does not answer; its last lines:" >&2
  tail -5 "$folder/log" >&2
  return 1
}

postgres() {
  local programs
  programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
  if [ -z "$programs" ] || ! command -v pgbench psql >/dev/null; then
    echo "PostgreSQL is left out: it is not installed (Debian: apt install postgresql)"
    return
  fi
  if [ "$(id -u)" = 0 ]; then
    chown postgres: "$folder"
    as_postgres=(setpriv --reuid=postgres --regid=postgres --init-groups)
  fi
  cd "$folder" || return
  "${as_postgres[@]}" "$programs/initdb" -D "$folder/db" --auth trust --username postgres \
    >"$folder/log" 2>&1 || { tail -5 "$folder/log" >&2; return; }
  "${as_postgres[@]}" "$programs/postgres" -D "$folder/db" -c listen_addresses= \
    -c "unix_socket_directories=$folder" -c synchronous_commit=on -c max_connections=100 \
    -c shared_buffers=256MB >"$folder/log" 2>&1 &
  server=$!
  local to=(-h "$folder" -U postgres)
  await psql "${to[@]}" -c "SELECT 1" postgres || { end; return; }
  psql "${to[@]}" -q -v ON_ERROR_STOP=1 postgres <<'SQL'
CREATE TABLE job (id bigint PRIMARY KEY, tenant int NOT NULL, priority int NOT NULL,
  state int NOT NULL DEFAULT 0);
INSERT INTO job SELECT n, CASE WHEN n <= 100000 THEN 0 ELSE 1 + n % 199 END, n % 3
  FROM generate_series(1, 200000) AS n;
CREATE INDEX ON job (priority, id) WHERE state = 0;
VACUUM ANALYZE job;
CHECKPOINT;
SQL
  cat >"$folder/take.sql" <<'SQL'
WITH next AS (
  SELECT id FROM job WHERE state = 0 ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE job SET state = 1 FROM next WHERE job.id = next.id RETURNING job.id AS taken \gset
UPDATE job SET state = 2 WHERE id = :taken;
SQL
  echo "PostgreSQL, SKIP LOCKED, one task at a time, 32 clients; a transaction is a task:"
  pgbench "${to[@]}" -n -M prepared -f "$folder/take.sql" -c 32 -j 2 -T "$seconds" postgres |
    grep -E "^(tps|latency average|number of transactions)"
  end
}

redis() { # FSYNC
  if ! command -v redis-server redis-benchmark >/dev/null; then
    echo "Redis is left out: it is not installed (Debian: apt install redis-server redis-tools)"
    return
  fi
  mkdir "$folder/redis-$1"
  redis-server --port 0 --unixsocket "$folder/redis" --dir "$folder/redis-$1" --save "" \
    --appendonly yes --appendfsync "$1" >"$folder/log" 2>&1 &
  server=$!
  await redis-cli -s "$folder/redis" PING || { end; return; }
  redis-benchmark -s "$folder/redis" -q -n 200000 -c 50 LPUSH waiting task >/dev/null
  echo "Redis, RPOPLPUSH, appendfsync $1, 50 clients:"
  redis-benchmark -s "$folder/redis" -q -n 200000 -c 50 RPOPLPUSH waiting running | tail -1
  end
}

postgres
redis always
redis everysec
