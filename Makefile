# Two commands do all the set-up: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTEST := $(BIN)/python -m pytest
ARCHIVE := $(VENV)/share/maar/spark-classes.jsa
SECONDS ?=
JOBS ?= 5# component tests mostly wait for processes of their own: three more than two cores
SERIAL = $(shell grep -l 'mark\.serial' tests/component/*.py)

# Tests start hundreds of processes. Where the machine says that nobody may keep bytecode, each would compile maar anew.
test unit component: export PYTHONDONTWRITEBYTECODE :=
# And each would start NumPy's threads for linear algebra, which nobody uses: a tenth of a second of CPU.
test unit component: export OPENBLAS_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check style types unit component golden bench bench-compare docs fuzz mutants soak soak-metastore soak-plans soak-spark soak-stores lock clean system-packages

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(VENV)/.demo $(VENV)/.compiled ## run maar with sample programs on http://127.0.0.1:4040 (SECONDS=90: end by itself)
	@$(BIN)/maar demo $(if $(SECONDS),--seconds $(SECONDS))

test: $(VENV)/.dev system-packages ## everything that must pass: what CI runs
	@$(MAKE) --no-print-directory -j2 style $(VENV)/.compiled types unit $(ARCHIVE)
	@$(MAKE) --no-print-directory component

check: style types ## format, lint, layers, types

style: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev $(VENV)/.compiled ## decisions, models and golden files: no real parts, in parallel
	$(PYTEST) -n 2 --dist worksteal tests/model tests/compat tests/unit

component: $(VENV)/.dev $(VENV)/.compiled $(ARCHIVE) ## real disk, HTTP, S3 server, etcd, Spark and browser
	$(PYTEST) -n $(JOBS) --durations=15 --dist loadfile --no-loadscope-reorder -m "not serial" tests/component
	$(PYTEST) $(SERIAL)

golden: $(VENV)/.dev ## write the golden log and snapshot anew, as long as their format may change
	$(BIN)/python tests/compat/test_metastore_golden.py

bench: $(VENV)/.dev $(VENV)/.compiled ## every benchmark in order, in half an hour at most: a table, and its section of docs/numbers.md
	@$(BIN)/python tools/bench.py $(if $(ONLY),--only $(ONLY))

bench-compare: $(VENV)/.dev $(VENV)/.compiled ## this revision and another one in turns, and their ratios (REV=main, ONLY="push top", ROUNDS=3)
	@$(BIN)/python tools/bench.py --compare $(or $(REV),$(error REV=… says which revision)) --rounds $(or $(ROUNDS),3) $(if $(ONLY),--only $(ONLY))

docs: $(VENV)/.dev ## write what is made from the code: the reference of settings, ARCHITECTURE.md's pictures
	$(BIN)/python tools/settings_reference.py
	$(BIN)/python tools/pictures.py

fuzz: $(VENV)/.dev ## hostile bytes against the decoder for a minute (SECONDS=n)
	$(BIN)/python bench/fuzz_pprof.py --seconds $(or $(SECONDS),60)

mutants: $(VENV)/.dev ## plant small mistakes, one at a time, and see that a test catches each
	$(BIN)/python tools/mutants.py

soak: $(VENV)/.dev ## four workers and Spark under faults, then an audit of everything (SECONDS=300)
	PYTHONPATH=tests $(BIN)/python -m support.soak --seconds $(or $(SECONDS),300)

soak-metastore: $(VENV)/.dev system-packages ## three replicas over etcd under faults, by chance (SECONDS=600)
	PYTHONPATH=tests $(BIN)/python -m support.soak.metastore --seconds $(or $(SECONDS),600)

soak-plans: $(VENV)/.dev ## every order of executors, cleaners and leases that end, further than the tests go (JUMPS=3)
	PYTHONPATH=tests $(BIN)/python -m support.soak.plans --jumps $(or $(JUMPS),3)

soak-spark: $(VENV)/.dev ## a worker on a standalone Spark cluster under faults, by chance (SECONDS=600)
	PYTHONPATH=tests $(BIN)/python -m support.soak.spark --seconds $(or $(SECONDS),600)

soak-stores: $(VENV)/.dev ## four stores under load, wiped, cut off and damaged by chance, then each read alone (SECONDS=600)
	PYTHONPATH=tests $(BIN)/python -m support.soak.stores --seconds $(or $(SECONDS),600)

lock: ## write the lock files anew
	$(PYTHON) -m pip install -q pip-tools
	for extra in demo dev; do \
	  out=requirements$$( [ $$extra = dev ] && echo -dev ).lock; \
	  $(PYTHON) -m piptools compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host \
	    --allow-unsafe --strip-extras --no-header --no-annotate --build-deps-for=editable \
	    --extra $$extra -o $$out pyproject.toml; done

clean: ## remove what make made
	rm -rf $(VENV) .maar .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
	  || { echo "maar needs Python 3.11: install it (found: $$($(PYTHON) --version 2>&1 || echo none)), or set PYTHON=/path/to/python3.11"; exit 1; }
	@command -v java >/dev/null \
	  || { echo "maar needs Java 17 or later for Spark: install it (Debian: apt-get install openjdk-17-jre-headless) and try again"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.demo

# Spark's classes: its JVMs, here dozens of them, start with half the CPU. A JVM does without an archive of other jars.
$(ARCHIVE): requirements.lock | $(VENV)/.demo
	$(BIN)/python -m maar.runner.class_archive >/dev/null

# What Numba makes of these is cached beside them: here once, and in no process of the tests or the demo.
$(VENV)/.compiled: $(wildcard src/maar/pprof/*.py src/maar/block/*/*.py src/maar/query/decide/*.py) | $(VENV)/.demo
	$(BIN)/python -c "from maar.query.compiled import warm; warm()"
	@touch $@

# Debian's names of what the tests need beside Python: a browser for the page, etcd for the log.
SYSTEM_PACKAGES := $(if $(shell command -v chromium),,chromium) \
  $(if $(shell command -v etcd),,etcd-server) $(if $(shell command -v etcdctl),,etcd-client)

system-packages: ## a browser for the page's tests and an etcd for the log's, installed when we may
	@[ -z "$(strip $(SYSTEM_PACKAGES))" ] || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(SYSTEM_PACKAGES) >/dev/null; \
	  else echo "the tests need a browser and an etcd: install Debian's $(strip $(SYSTEM_PACKAGES)) (as root) and try again"; exit 1; fi; }
