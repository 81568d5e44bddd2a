# `make help` lists what there is.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RATE ?= 1000
SECONDS ?= 20
KIND ?= handler
SEEDS ?= 0-199
ROUNDS ?= 100
export PYTHONTZPATH :=

.PHONY: help setup run test nightly check unit simulate simulate-launches soak fuzz cluster bench \
  bench-flood bench-keeping bench-launches bench-reconnect lock proto wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready ## make .venv with the command raftcron in it

$(VENV)/.ready: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: setup ## three replicas and an executor run examples/crontab on this machine; Ctrl-C ends it
	@exec $(BIN)/raftcron dev examples/crontab

check: setup ## style, types, layers and the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 2 -m "not nightly" tests/style tests/unit

test: check ## what must pass before a merge: and model, interaction, simulation, conformance, cluster
	$(BIN)/pytest -q -n 2 -m "not nightly" tests/model tests/interaction tests/simulation
	$(BIN)/pytest -q -n 2 -m "not nightly" --dist loadfile tests/conformance tests/cluster

nightly: setup ## the tests that are long or depend on the machine's speed
	$(BIN)/pytest -q -n 2 -m nightly --dist loadfile tests

unit: setup ## only the fast tests
	$(BIN)/pytest -q tests/unit

simulate: setup ## the log on simulated machines: 200 seeds, or SEED=7 with its trace; MUTANT=name
	$(BIN)/python -m tests.simulation.engine $(if $(SEED),$(SEED) --trace,--seeds $(SEEDS)) \
	  $(if $(MUTANT),--mutant $(MUTANT))

simulate-launches: setup ## one run of the launch protocol by its seed, with its trace: SEED=1
	$(BIN)/python -m tests.simulation $(or $(SEED),1)

soak: setup ## kill, cut power, stop, part and fill replicas: ROUNDS=100, and 2,000 seeds
	$(BIN)/python -m tests.soak.engine --rounds $(ROUNDS) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.simulation.engine --seeds 1000-2999

fuzz: setup ## a minute of every fuzzer
	$(BIN)/python -m tests.fuzz.journal 60
	$(BIN)/python -m tests.fuzz.frames 60

cluster: setup ## only the tests with real processes
	$(BIN)/pytest -q -n 2 --dist loadfile tests/cluster

bench: setup ## everything that is measured, one after the other; writes bench/README.md
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.keeping
	$(BIN)/python -m bench.pump
	$(BIN)/python -m bench.launches --bend
	$(BIN)/python -m bench.flood
	$(BIN)/python -m bench.starts --executor --readme
	$(BIN)/python -m bench.reconnect --readme

bench-keeping: setup ## only snapshots and history, up to ten million launches
	$(BIN)/python -m bench.keeping

bench-launches: setup ## no-op handlers through the whole path: RATE=10000 SECONDS=60 KIND=handler
	@$(BIN)/python -m bench.launches --kind $(KIND) --rate $(RATE) --seconds $(SECONDS)

bench-flood: setup ## one tenant floods one handler: how late the others are before and during it
	$(BIN)/python -m bench.flood

bench-reconnect: setup ## a leader dies, and 1,000 or 10,000 executors come back at once
	$(BIN)/python -m bench.reconnect --readme

lock: ## write requirements.lock anew from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --group dev pyproject.toml \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url -o requirements.lock

proto: ## generate the gRPC code with a pinned generator in an environment of its own
	@test -x .proto-venv/bin/python || $(PYTHON) -m venv .proto-venv
	@.proto-venv/bin/python -m pip install --quiet grpcio-tools==1.76.0 setuptools mypy-protobuf==3.6.0
	.proto-venv/bin/python -m grpc_tools.protoc -I . --python_out=. --grpc_python_out=. --mypy_out=. \
	  --plugin=protoc-gen-mypy=.proto-venv/bin/protoc-gen-mypy \
	  launcher/rpc/v1/pool.proto cron/api/v1/admin.proto

wheel: setup ## build the wheel
	$(BIN)/python -m hatchling build -t wheel

clean: ## remove what was made
	rm -rf $(VENV) .proto-venv dist build data .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache
