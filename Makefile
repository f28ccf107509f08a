# Every target makes what it needs: a virtual environment in .venv, then the work itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Make reads a rule's prerequisites as it meets them: what they name stands above every rule.
WEB := src/treadle/server/console/index.html
WEB_SOURCES := $(shell find web -path web/node_modules -prune -o -type f -print)
# How tests are spread: each module whole in one process, in the order of tests/conftest.py. Many wait for leases and
# clocks rather than compute, so there is one process more than there are cores on the least machine.
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder
# Where a machine forbids files of bytecode, each of the many processes that tests and benchmarks start would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help house outage canaries demo test test-all replay-deps check sim kills races bulk flood programs api chaos bench bench-cluster web browser serve fmt clean

help:
	@echo "make demo   run real examples of every dialect on the embedded store"
	@echo "make test   everything CI runs: check, then the whole test suite"
	@echo "make test-all     the suite on every Python that is promised and installed"
	@echo "make replay-deps  golden journals with the oldest and the newest dependencies"
	@echo "make check  format, lint, types, import contracts"
	@echo "make sim    1,000 seeds of the fault simulator, with one core and with three"
	@echo "make kills  200 kills of owners and guests on one store"
	@echo "make races  every two calls that can meet, in every way, by owner and guest"
	@echo "make flood  10,000 requests at once, refused by the limit"
	@echo "make bulk   10,000 failed runs retried by one command, which is killed in between"
	@echo "make programs  1,000 generated durable functions against plain asyncio, with crashes"
	@echo "make api    the HTTP API asked at length by Schemathesis, out of its own description (API_EXAMPLES=200)"
	@echo "make house  the tests of all dialects, and those of the seeds, on PostgreSQL, their work done by a worker behind NATS (HOUSE=postgres: behind PostgreSQL)"
	@echo "make outage PostgreSQL restarted, cut off, stopped for 30 s under a running server (OUTAGE_S=30)"
	@echo "make canaries  every planted bug must be found within 50 seeds, with one core and with three"
	@echo "make chaos  servers, workers, PostgreSQL and NATS killed at random (CHAOS_S=60 CHAOS_SEED=…)"
	@echo "make bench  Treadle and its peers side by side (an hour; BENCH='--minutes 25'; BENCH=--quick: 3 minutes)"
	@echo "make bench-cluster  several members and workers on one PostgreSQL (40 minutes; BENCH=--quick: 3 minutes)"
	@echo "make web    build the console"
	@echo "make serve  a server with live examples, on http://127.0.0.1:8420"
	@echo "make fmt    format the code"

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --upgrade pip
	@$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo.py

check: $(READY)
	@$(BIN)/ruff format --check src tests examples benchmarks
	@$(BIN)/ruff check src tests examples benchmarks
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

# What is looked at and what is built need one core each.
test: $(READY)
	@$(MAKE) --no-print-directory -j2 check $(WEB) browser
	@$(BIN)/python -m pytest $(SPREAD) -rfEs

test-all: $(READY)
	@$(BIN)/python .ci/pythons.py all

replay-deps: $(READY)
	@$(BIN)/python .ci/pythons.py deps

sim: $(READY)
	@$(BIN)/python -m treadle.testing.sim --seeds 1000
	@$(BIN)/python -m treadle.testing.sim --seeds 1000 --cores 3
	@$(BIN)/python -m treadle.testing.sim --seeds 300 --limited
	@$(BIN)/python -m treadle.testing.sim --seeds 300 --limited --cores 3
	@$(BIN)/python -m treadle.testing.sim --seeds 300 --applications
	@$(BIN)/python -m treadle.testing.sim --seeds 300 --applications --cores 3

kills: $(READY)
	@TREADLE_KILLS=200 $(BIN)/python -m pytest -s tests/integration/test_kills.py

races: $(READY)
	@TREADLE_RACES=all $(BIN)/python -m pytest -q tests/probes/test_races.py tests/probes/test_races_house.py tests/probes/test_races_processes.py tests/probes/races_http.py

flood: $(READY)
	@TREADLE_FLOOD=10000 $(BIN)/python -m pytest tests/server/test_limits.py -k flood

bulk: $(READY)
	@TREADLE_BULK=10000 $(BIN)/python -m pytest -s tests/operations/test_bulk_many.py

programs: $(READY)
	@TREADLE_PROGRAMS=1000 $(BIN)/python -m pytest -q tests/dialects/functions/test_programs.py

API_EXAMPLES ?= 200
api: $(READY)
	@TREADLE_API_EXAMPLES=$(API_EXAMPLES) $(BIN)/python -m pytest -q tests/server/test_openapi.py

# For as long as one likes: make chaos CHAOS_S=3600 CHAOS_SEED=7
CHAOS_S ?= 60
CHAOS_SEED ?= 20261115
chaos: $(READY)
	@$(BIN)/python -m tests.chaos.chaos --seconds $(CHAOS_S) --seed $(CHAOS_SEED)

HOUSE ?= nats
house: $(READY)
	@TREADLE_HOUSE=$(HOUSE) $(BIN)/python -m pytest $(SPREAD) -rs tests/dialects tests/acceptance

OUTAGE_S ?= 30
outage: $(READY)
	@TREADLE_OUTAGE_S=$(OUTAGE_S) $(BIN)/python -m pytest -q tests/server/test_outage.py

canaries: $(READY)
	@$(BIN)/python -m treadle.testing.sim --canaries --seeds 50
	@$(BIN)/python -m treadle.testing.sim --canaries --seeds 50 --cores 3

bench: $(READY)
	@$(BIN)/python benchmarks/compare.py $(BENCH)

bench-cluster: $(READY)
	@$(BIN)/python benchmarks/cluster.py $(BENCH)

# The console is built with the system's Node, or where there is none that will do, with Node from PyPI.
$(WEB): $(READY) $(WEB_SOURCES)
	@$(BIN)/python web/build.py

web: $(WEB)

serve: $(READY) $(WEB)
	@$(BIN)/treadle serve --demo

# What the browser tests need beside Python: Chromium, from the system's packages.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "!! no Chromium and no way to install it: the browser tests will say that they did not run" >&2

fmt: $(READY)
	@$(BIN)/ruff format src tests examples benchmarks
	@$(BIN)/ruff check --fix src tests examples benchmarks

clean:
	rm -rf $(VENV) .venvs benchmarks/.cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
