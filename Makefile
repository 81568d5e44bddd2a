# `make help` lists what there is.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RATE ?= 1000
SECONDS ?= 20
KIND ?= handler
SEEDS ?= 0-199
ROUNDS ?= 100
BASE ?= a8027c6
PAIRS ?= 5
MINIO ?= $(shell command -v minio)
# Where ElasticMQ, a real SQS server, is kept; empty for none. Maven fetches it once.
ELASTICMQ ?= $(if $(and $(shell command -v java),$(shell command -v mvn)),.cache/elasticmq)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Neither is quiet: a person sees which packages it gets, and which one takes long.
# uv installs packages several times as fast as pip does. It reads no settings of pip, so it is told
# the index. Where uv cannot be had or cannot reach the index, pip installs.
INDEX := $(PIP) config list | sed -n "s/.*\.index-url='\(.*\)'/\1/p" | tail -n 1
UV := UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$($(INDEX))}" $(BIN)/uv
install = $(UV) pip install --python $(BIN)/python --compile-bytecode $(1) || $(PIP) install $(1)
LOCK := $(UV) --quiet pip compile --universal --python-version 3.11 \
  --generate-hashes --no-header --no-annotate --no-emit-index-url
SHELL := bash
comma := ,
export PYTHONTZPATH :=
# A cell is many short processes: to compile all modules in each of them takes longer than its work.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help kubernetes setup setup-tests run test test-style test-cells test-units test-compiled \
  nightly check unit simulate simulate-launches soak fuzz \
  cluster bench bench-compare bench-console bench-flood bench-keeping bench-launches bench-memory bench-overload \
  bench-reconnect bench-scrape bench-tasks bench-killed bench-web deb docs image install install-files lock package-test proto sbom screenshots sdist sizes soak-tasks wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready ## make .venv with the command raftcron in it

$(VENV)/.ready: requirements-uv.lock requirements.lock pyproject.toml
	@echo "setting up $(VENV), a quarter of a minute or so, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@-$(PIP) install --require-hashes -r requirements-uv.lock
	@echo "installing what raftcron needs; each package is named"
	@$(call install,--require-hashes -r requirements.lock)
	@$(call install,--no-deps --no-build-isolation -e .)
	@touch $@

setup-tests: $(VENV)/.ready-tests ## and what the tests, checks and benchmarks need

$(VENV)/.ready-tests: $(VENV)/.ready requirements-dev.lock
	@echo "installing what the tests need, once"
	@$(call install,--require-hashes -r requirements-dev.lock)
	@touch $@

run: setup ## three replicas and an executor run examples/crontab on this machine; Ctrl-C ends it
	@exec $(BIN)/raftcron dev examples/crontab

check: setup-tests ## style, types, layers and the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -q -n 3 -m "not nightly" tests/style tests/unit

test: setup-tests ## what must pass before a merge: and models, stories, some of the seeds and cells
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "three runs of tests beside each other, some minutes; each is printed when it is over"
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target test-style test-cells test-units

# Cells and the browser mostly wait for something, and leave the processors to the tests that
# compute. These have less priority, because a leader that is kept waiting is replaced.
test-style:
	@$(BIN)/pytest -q -m "not nightly" tests/style

test-cells: test-compiled
	@$(BIN)/pytest -q -m "not nightly" tests/browser; sound=$$?; \
	  $(BIN)/pytest -q -n 2 -m "not nightly" --dist loadfile tests/conformance tests/cluster && \
	  exit $$sound

test-units: test-compiled
	@nice -n 5 $(BIN)/pytest -q -n 3 -m "not nightly" \
	  tests/unit tests/model tests/interaction tests/simulation

# One process compiles all tests, else each worker of pytest does. Those say what cannot be compiled.
test-compiled:
	@$(BIN)/pytest -qq --collect-only tests >/dev/null || true

nightly: setup-tests ## all other tests; MINIO=PROGRAM adds a real S3 server, SQS=URL or java and mvn one of SQS
	$(BIN)/pytest -q -n 2 -m nightly --timeout 300 \
	  --ignore tests/conformance --ignore tests/cluster tests
	$(BIN)/pytest -q -n 2 -m hypothesis --hypothesis-profile many --timeout 900 tests/unit tests/model
	MINIO="$(MINIO)" SQS="$(SQS)" $(if $(SQS),,$(if $(ELASTICMQ),$(BIN)/python -m \
	  tests.conformance.elasticmq_server $(ELASTICMQ))) $(BIN)/pytest -q -n 2 -m nightly \
	  --timeout 300 --dist loadfile tests/conformance tests/cluster

kubernetes: setup-tests ## target and manifests against a real API server; needs go, etcd, openssl
	$(BIN)/python -m tests.conformance.kubernetes_server $(or $(KUBERNETES_DIR),.cache/kubernetes)

unit: setup-tests ## only the fast tests
	$(BIN)/pytest -q tests/unit

simulate: setup-tests ## the log on simulated machines: 200 seeds, or SEED=7 with its trace; MUTANT=name
	$(BIN)/python -m tests.simulation.engine $(if $(SEED),$(SEED) --trace,--seeds $(SEEDS)) \
	  $(if $(MUTANT),--mutant $(MUTANT))

simulate-launches: setup-tests ## one run of the launch protocol by its seed, with its trace: SEED=1
	$(BIN)/python -m tests.simulation $(or $(SEED),1)

soak: setup-tests ## kill, cut power, stop, part and fill replicas: ROUNDS=100, and 2,000 seeds
	$(BIN)/python -m tests.soak.engine --rounds $(ROUNDS) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.simulation.engine --seeds 1000-2999

soak-tasks: setup-tests ## 100,000 tasks from eight programs; leaders, an executor, a disk die
	$(BIN)/python -m tests.soak.tasks

fuzz: setup-tests ## any bytes for each parser, a minute each: SECONDS=600 ONLY=http,pool
	@$(BIN)/python -m tests.fuzz $(subst $(comma), ,$(ONLY)) \
	  --seconds $(if $(filter file,$(origin SECONDS)),60,$(SECONDS))

cluster: setup-tests ## only the tests with real processes
	$(BIN)/pytest -q -n 2 --dist loadfile tests/cluster

bench: setup-tests ## everything that is measured, one after the other; writes bench/README.md
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.keeping
	$(BIN)/python -m bench.pump
	$(BIN)/python -m bench.launches --bend
	$(BIN)/python -m bench.flood
	$(BIN)/python -m bench.starts --executor --readme
	$(BIN)/python -m bench.reconnect --readme
	$(BIN)/python -m bench.web --readme

bench-compare: setup-tests ## this tree beside an older commit: BASE=a8027c6 PAIRS=5 ONLY=cpu-2000,late
	@$(BIN)/python -m bench.compare --base $(BASE) --pairs $(PAIRS) --only "$(ONLY)"

bench-keeping: setup-tests ## only snapshots and history, up to ten million launches
	$(BIN)/python -m bench.keeping

bench-launches: setup-tests ## no-op handlers through the whole path: RATE=10000 SECONDS=60 KIND=handler
	@$(BIN)/python -m bench.launches --kind $(KIND) --rate $(RATE) --seconds $(SECONDS)

bench-flood: setup-tests ## one tenant floods one handler: how late the others are before and during it
	$(BIN)/python -m bench.flood

bench-overload: setup-tests ## ten times what a cell bears: FACTOR=10 SECONDS=300 KIND=command BUSY=2, or NOOP=1
	@$(BIN)/python -m bench.overload --seconds $(if $(filter file,$(origin SECONDS)),300,$(SECONDS)) \
	  --kind $(if $(NOOP),noop,$(KIND)) --busy $(or $(BUSY),0) $(if $(FACTOR),--factor $(FACTOR))

bench-memory: setup-tests ## RSS of the replicas while launches go on: RATE=200 SECONDS=3600
	@$(BIN)/python -m bench.memory --rate $(if $(filter file,$(origin RATE)),200,$(RATE)) \
	  --seconds $(if $(filter file,$(origin SECONDS)),3600,$(SECONDS))

bench-web: setup-tests ## what 200 parallel HTTP requests do to the leader's launches
	$(BIN)/python -m bench.web --readme

bench-console: setup-tests ## sizes and times of the console's pages at 100,000 jobs
	$(BIN)/python -m bench.console --readme

bench-scrape: setup-tests ## what it costs the replicas that Prometheus scrapes them each second
	$(BIN)/python -m bench.scrape --readme

bench-tasks: setup-tests ## tasks from programs: rate, time, cost; PEERS=1: beside PostgreSQL and Celery
	$(BIN)/python -m $(if $(PEERS),bench.tasks_peers --readme,bench.tasks)

bench-killed: setup-tests ## which share of submits a cell takes whose leader is killed every 15 s
	$(BIN)/python -m bench.tasks_killed

bench-far: setup-tests ## ten million tasks on disk: TASKS=9900000, MEMORY=1 TASKS=999000, or RESTORE=1
	$(BIN)/python -m bench.far_tasks $(if $(TASKS),--tasks $(TASKS)) \
	  $(if $(MEMORY),--in-memory) $(if $(RESTORE),--restore)

bench-reconnect: setup-tests ## a leader dies, and 1,000 or 10,000 executors come back at once
	$(BIN)/python -m bench.reconnect --readme

docs: setup-tests ## write docs/cli.md, the schema of the API and the path of a launch from the code
	$(BIN)/python -m tests.style.cli_page
	$(BIN)/python -m tests.style.api_schema
	$(BIN)/python -m tests.style.access_table
	$(BIN)/python -m tests.style.imports_page
	$(BIN)/python -m tests.simulation.walk --write >/dev/null

screenshots: setup-tests ## take the pictures of docs/images from a local cell; needs chromium
	$(BIN)/python -m tests.browser.screenshots

sizes: setup-tests ## write the section "Sizes" of cron/DESIGN.md from the tree and from git
	$(BIN)/python -m tests.style.sizes

lock: setup ## write the lock files anew from pyproject.toml
	$(LOCK) pyproject.toml --group dev --group setup -o requirements-dev.lock
	$(LOCK) pyproject.toml --group setup --constraint requirements-dev.lock -o requirements.lock
	$(LOCK) pyproject.toml --constraint requirements.lock -o deploy/requirements.lock
	echo uv | $(LOCK) - -o requirements-uv.lock

proto: ## generate the gRPC code with a pinned generator in an environment of its own
	@test -x .proto-venv/bin/python || $(PYTHON) -m venv .proto-venv
	@.proto-venv/bin/python -m pip install --quiet grpcio-tools==1.76.0 setuptools mypy-protobuf==3.6.0
	.proto-venv/bin/python -m grpc_tools.protoc -I . --python_out=. --mypy_out=. \
	  --plugin=protoc-gen-mypy=.proto-venv/bin/protoc-gen-mypy \
	  launcher/protocol/v1/pool.proto
	.proto-venv/bin/python -m grpc_tools.protoc -I . --grpc_python_out=. launcher/protocol/v1/pool.proto

wheel: setup ## build the wheel
	$(BIN)/python -m hatchling build -t wheel

sdist: setup ## build the source distribution
	$(BIN)/python -m hatchling build -t sdist

sbom: setup ## write dist/raftcron-*.cdx.json, the libraries of an installation (CycloneDX)
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(BIN)/python deploy/sbom.py dist/raftcron-$(VERSION).cdx.json

BASE_IMAGE := $(if $(filter file,$(origin BASE)),,--build-arg BASE=$(BASE))
BUILDER ?= $(firstword $(foreach one,buildah podman docker,$(shell command -v $(one))) docker)

image: wheel ## build the container image: IMAGE=localhost/raftcron BASE=IMAGE-WITH-PYTHON
	$(BUILDER) build $(BASE_IMAGE) -t $(or $(IMAGE),localhost/raftcron):$(VERSION) \
	  -f deploy/Containerfile $(BUILD_OPTIONS) .

# The time that packages carry: that of the newest commit, so that the same commit gives the same
# bytes.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

deb: sdist ## build the Debian package, dist/*.deb; needs Debian 12, debhelper and python3-venv
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) deploy/deb.sh dist/raftcron-$(VERSION).tar.gz dist

package-test: setup-tests ## packages twice with equal bytes; install, upgrade, purge in a clean Debian
	$(BIN)/pytest -q -s -m nightly -p no:xdist tests/package

# Where `make install` puts things; DESTDIR goes before all of them.
DESTDIR ?=
PREFIX ?= /opt/raftcron
BINDIR ?= /usr/local/bin
UNITS ?= /usr/local/lib/systemd/system
DOCS ?= /usr/local/share/doc/raftcron
ETC ?= /etc/raftcron

install: wheel ## install on this machine: DESTDIR= PREFIX=/opt/raftcron; starts nothing
	$(BIN)/python deploy/environment.py --wheel dist/raftcron-$(VERSION)-py3-none-any.whl \
	  --lock deploy/requirements.lock --target $(DESTDIR)$(PREFIX) --at $(PREFIX)
	@$(MAKE) --no-print-directory install-files

# Units, examples of configuration, documents and the command, without the environment.
install-files:
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(UNITS) $(DOCS)/systemd)
	install -d -m 0750 $(DESTDIR)$(ETC)
	ln -sfn $(PREFIX)/bin/raftcron $(DESTDIR)$(BINDIR)/raftcron
	for unit in deploy/systemd/*.service; do \
	  sed 's|/opt/raftcron/|$(PREFIX)/|' $$unit > $(DESTDIR)$(UNITS)/$${unit##*/} || exit; \
	done
	for kind in replica executor; do \
	  sed 's|^data = "[^"]*"|data = "/var/lib/raftcron/'$$kind'"|' examples/$$kind.toml \
	    > $(DESTDIR)$(ETC)/$$kind.toml.example || exit; \
	done
	install -m 0644 examples/worker.env $(DESTDIR)$(ETC)/worker.env.example
	install -m 0644 deploy/systemd/*.conf $(DESTDIR)$(DOCS)/systemd
	install -m 0644 README.md CHANGELOG.md docs/*.md $(DESTDIR)$(DOCS)
	install -d $(DESTDIR)$(DOCS)/deploy $(DESTDIR)$(DOCS)/images
	ln -sfn . $(DESTDIR)$(DOCS)/docs
	ln -sfn ../systemd $(DESTDIR)$(DOCS)/deploy/systemd
	install -m 0644 $$(grep -ohE 'images/[a-z0-9-]+\.png' docs/*.md | sort -u | sed 's|^|docs/|') \
	  $(DESTDIR)$(DOCS)/images
	cp -R examples $(DESTDIR)$(DOCS)
	cp -R deploy/prometheus deploy/grafana deploy/compose deploy/kubernetes $(DESTDIR)$(DOCS)/deploy
	find $(DESTDIR)$(DOCS) -name __pycache__ -prune -exec rm -r {} +

clean: ## remove what was made
	rm -rf $(VENV) .proto-venv .cache dist build data .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache
