# Everything is driven from here; `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A test that even its own time limit does not end: its process says where every thread stands and exits, and the run ends.
ENDS := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true --max-worker-restart 0
# Two fifths of what the suite takes is waiting for time to pass: three workers for two cores.
WORKERS ?= 3
# Tests wait for no disk where memory has room for what they write.
IN_MEMORY := $(shell { awk '/^MemAvailable/ {print $$2}' /proc/meminfo; df --output=avail /dev/shm; } 2> /dev/null | awk '$$1 + 0 > 12e6 {n++} END {if (n == 2) print "PYTEST_DEBUG_TEMPROOT=/dev/shm"}')
PROTOC := build/protoc/bin/python
SITE := build/site/venv/bin/zensical
# Without byte code every process compiles its libraries again: seconds at each start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install system servers test check unit golden crash integration airflow chain test-compose test-s3 tidb test-tidb mysql test-mysql kafka rows mutants bench campaign demo up down docs site screenshots proto lock clean

help:            ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

# uv reads constraints out of a pyproject.toml where it runs, and takes none without a hash.
$(STAMP): requirements.lock pyproject.toml
	@echo "installing the locked packages into $(VENV): two to five minutes, without a word" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if command -v uv > /dev/null; then \
	  uv --directory / pip install -q --python $(CURDIR)/$(BIN)/python --compile-bytecode --no-deps --require-hashes -r $(CURDIR)/requirements.lock && \
	  uv --directory / pip install -q --python $(CURDIR)/$(BIN)/python --no-deps --no-build-isolation -e $(CURDIR); \
	else \
	  $(BIN)/python -m pip install -q --no-deps --require-hashes -r requirements.lock && \
	  $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .; \
	fi
	@echo "compiling the kernels of the Pump: a minute, so that the first Pump starts at once" >&2
	@$(BIN)/python -m pump_service.process.compiler
	@touch $@

install: $(STAMP) ## Virtual environment from the lock (hashes checked)

system: $(STAMP)  ## MariaDB, PostgreSQL, etcd and Chromium, where they are missing
	@$(BIN)/python -m tests.stack.system --browser

servers: $(STAMP) # The same without the browser of the tests
	@$(BIN)/python -m tests.stack.system

check: $(STAMP) $(PROTOC) ## Format, lint, types, import contracts and circles, generated code, links of the site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/architecture/test_batch_side.py -q -k circle
	$(BIN)/python -m tests.architecture.proto_check $(PROTOC)
	@# Last, as its first run needs the package index: no other check waits for that.
	@$(MAKE) --no-print-directory $(SITE)
	$(PYTHON) -m tests.support.site $(SITE)

unit: $(STAMP)   ## Unit, property and architecture tests
	$(BIN)/pytest tests/unit tests/property tests/architecture -q -m "not slow"

golden: $(STAMP) ## Test vectors of the real thing (GOLDEN_DIR=... for others)
	$(BIN)/pytest tests/golden -q

crash: $(STAMP)  ## Frozen file systems and kill -9
	$(BIN)/pytest tests/crash -q -m "not slow"

integration: $(STAMP) system ## Real MariaDB, S3 server, Pumps, Spark
	$(BIN)/pytest tests/integration -q -m "not slow"

airflow: $(STAMP) system ## DAG tests
	$(BIN)/pytest tests/dags -q -m "not slow"

chain: $(STAMP) system ## The whole chain, small
	$(BIN)/pytest tests/e2e -q -m "not slow"

test-compose: $(STAMP) ## docker-compose.yaml for real, on the dockerd of DOCKER_HOST (KEEP=1 leaves it up)
	@$(BIN)/python -m tests.compose

test-s3: $(STAMP) ## The object store's contract on a server of yours (S3_ENDPOINT=http://…, S3_ACCESS_KEY, S3_SECRET_KEY)
	S3_ENDPOINT="$(S3_ENDPOINT)" S3_ACCESS_KEY="$(S3_ACCESS_KEY)" S3_SECRET_KEY="$(S3_SECRET_KEY)" $(BIN)/pytest tests/unit/objectstore -q

tidb:            ## A real TiDB for tests into build/tidb (needs Go; nothing else does)
	@tests/tidb/servers/build.sh build/tidb

test-tidb: $(STAMP) system tidb ## From a real TiDB to the target (HISTORIES=N generated ones, SEED=N the first)
	$(if $(HISTORIES),PUMPHOUSE_HISTORIES=$(HISTORIES)) $(if $(SEED),PUMPHOUSE_SEED=$(SEED)) $(BIN)/pytest tests/tidb -q -m "not slow"

mysql: $(STAMP)  ## A real MySQL for tests into build/mysql (root on a Debian, debootstrap; nothing else does)
	@$(BIN)/python -m tests.support.mysql

test-mysql: $(STAMP) system mysql ## What tests do with a MariaDB, with a MySQL
	$(BIN)/pytest --server mysql tests/integration tests/crash/test_capture_kill.py -q -m "not slow" -n $(WORKERS) --dist loadfile -rs

kafka: $(STAMP)  ## A real Kafka for tests into build/kafka (Maven; nothing else does)
	@$(BIN)/python -m tests.support.kafkabroker

test: $(STAMP) system ## All tiers (WORKERS=N pytest processes side by side, 3 where nothing is said)
	$(MAKE) check
	@$(BIN)/python -m tests.support.mysql --optional
	$(IN_MEMORY) $(BIN)/pytest tests -q -m "not slow" --ignore tests/bench -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ENDS)
	$(IN_MEMORY) $(BIN)/pytest --server mysql tests/integration tests/crash/test_capture_kill.py -q -m "mysql and not slow" -n $(WORKERS) --dist loadfile -rs $(ENDS)

rows: $(STAMP)   ## Requirement row -> tests
	@$(BIN)/python -m tests.support.rows

mutants: $(STAMP) system ## Break each mechanism of a list: is it seen? (ONLY=P6 for a part)
	@$(BIN)/python -m tests.mutants $(if $(ONLY),--only "$(ONLY)")

bench: $(STAMP) system ## Benchmarks (ONLY=<name prefix> for a part)
	$(BIN)/python -m tests.bench $(if $(ONLY),--only $(ONLY))

campaign: $(STAMP) system ## What takes long; adds to docs/reliability.json
	@$(BIN)/python -m tests.support.mysql --optional
	@$(BIN)/python -m tests.support.kafkabroker --optional
	PUMPHOUSE_CAMPAIGN=1 $(BIN)/pytest tests -q -m slow --ignore tests/bench
	PUMPHOUSE_CAMPAIGN=1 $(BIN)/pytest --server mysql tests/integration tests/tidb tests/crash/test_capture_kill.py -q -rs

demo: $(STAMP) servers ## The whole product on this machine, checked from end to end (KEEP=1 leaves it running, SEED=N repeats a kill)
	$(BIN)/python -m tests.e2e run $(if $(KEEP),--keep) $(if $(SEED),--seed $(SEED))

up: $(STAMP) servers ## The same stack to stay, with the UI
	$(BIN)/python -m tests.e2e up

down: $(STAMP)   ## End it
	$(BIN)/python -m tests.e2e down

docs: $(STAMP)   ## Write the pages of docs/ that come from the code again
	$(BIN)/python -m tests.support.generated_docs

$(SITE): locks/site.lock
	@test -x build/site/venv/bin/python || $(PYTHON) -m venv build/site/venv
	@build/site/venv/bin/pip install -q --no-deps --require-hashes -r locks/site.lock
	@touch $@

site: $(SITE)    ## The pages as a site in build/site/html, with search and diagrams (npm, if it is there, brings what draws them)
	@$(PYTHON) -m tests.support.site $(SITE) --diagrams

screenshots: $(STAMP) system ## Pictures of Airflow's UI in build/ui: a browser walks through it (five minutes)
	$(BIN)/pytest tests/ui -q
	@ls build/ui/*.png

# Generated code runs with the protobuf that generated it and with later ones: so the generator is an old one, apart.
$(PROTOC): locks/proto.lock
	@test -x $@ || $(PYTHON) -m venv build/protoc
	@build/protoc/bin/pip install -q --no-deps --require-hashes -r locks/proto.lock
	@touch $@

proto: $(PROTOC) ## Generate the protobuf modules again
	$(PROTOC) -m grpc_tools.protoc -Iinclude --python_out=include --pyi_out=include --grpc_python_out=include include/pumphouse/proto/*.proto

lock:            ## Resolve the locks again (needs uv)
	uv lock
	uv export --frozen --no-emit-project --no-annotate --no-header -q --all-extras --all-groups --no-group docs -o requirements.lock
	for part in pump spark; do uv export --frozen --no-emit-project --no-annotate --no-header -q --no-dev --extra $$part -o locks/$$part.lock; done
	uv export --frozen --no-emit-project --no-annotate --no-header -q --no-dev --extra airflow --extra kafka --group image -o locks/airflow.lock
	printf 'grpcio-tools==1.76.0\nprotobuf==6.33.6\n' | uv pip compile -q --python-version 3.11 --generate-hashes --no-annotate --no-header - -o locks/proto.lock
	uv pip compile -q --python-version 3.11 --generate-hashes --no-annotate --no-header --group docs -o locks/site.lock

clean:           ## Remove what was built
	rm -rf build dist .mypy_cache .ruff_cache .hypothesis
