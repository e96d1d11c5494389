# Needs python3 (3.11 or later) and make; everything else is installed into .venv from requirements.lock.

PYTHON ?= python3
# Test processes: one for each core where tests compute, more where they wait for leases and servers.
WORKERS ?= auto
WAITERS ?= 3
# `make run ONCE=1` ends after the demonstration; the exit code says whether it went as it must.
ONCE ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
CODE := schemas kernel workers sdk/src examples bench tests
# The parts that must be covered whole, branch by branch.
COVERED := --cov=schemas --cov=kernel/domain
PURE := tests/unit tests/property tests/golden
SERVED := tests/contract tests/integration tests/conformance tests/scenario tests/reference tests/sdk tests/fault
SOAK_SECONDS ?= 1800
# The seed of a soak; empty: a fresh one, which is printed.
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help venv run test lint types tidy pure clients suite soak coverage format mutants bench lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: .venv/installed ## make .venv with the exact versions of requirements.lock

# The stamp is the last thing written, so an installation that was cut off is done anew.
.venv/installed: requirements.lock pyproject.toml sdk/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Stepwell needs Python 3.11 or later: make PYTHON=...")'
	@echo "installing into .venv"
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable . --editable ./sdk
	@touch $@

run: venv ## start the stack and an agent, kill the agent half-way, see it resume (ONCE=1: then exit)
	@ONCE='$(ONCE)' $(BIN)/python -m examples.demo

test: lint types tidy pure clients suite ## everything that must pass: lint, types, rules, all tests, coverage of the pure parts

lint: venv ## check style and layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Pyright comes whole from its wheel, and Node.js from another; the variable keeps it from asking for newer ones.
types: venv ## check the types
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

tidy: venv ## check the rules that are particular to this repository
	$(BIN)/pytest -q tests/tidy

pure: venv ## run the tests without servers; the pure parts must be covered whole
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 5 $(COVERED) --cov-report= $(PURE)
	$(BIN)/coverage report --fail-under 100

clients: venv ## install what tests use as its users do into .cache: the reference clients, LiteLLM
	@$(BIN)/python -m tests.clients

# A file's tests share its servers, so they stay on one worker. What measures how long it waits runs after the others, at
# once; what measures speed runs alone, last.
suite: venv clients ## run the tests with real servers, from outside, and with the reference clients
	$(BIN)/pytest -n $(WAITERS) --dist loadfile -m 'not waits and not alone and not soak' --durations 15 $(SERVED)
	$(BIN)/pytest -n 0 -m waits tests/conformance
	$(BIN)/pytest -n 0 -m alone $(SERVED)

soak: venv ## half an hour of faults of every kind under load, then the slow fault tests (SEED=1: repeat a run)
	$(BIN)/python -m tests.fault.soak $(SOAK_SECONDS) $(SEED)
	STEPWELL_TEST_SEED=$(SEED) $(BIN)/pytest -v -m soak $(SERVED)

coverage: venv ## run all tests and show what of the whole code they miss
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m 'not waits and not soak' --cov --cov-report=
	$(BIN)/pytest -n 0 -m waits --cov --cov-append --cov-report term-missing:skip-covered tests/conformance

format: venv ## lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutants: venv ## break the code on purpose, one way at a time: a named test must fail each time
	$(BIN)/python -m tests.mutants

bench: venv ## measure ratios on this machine, in about four minutes; fails where one is below its bar
	$(BIN)/python -m bench
	$(BIN)/python -m bench.bench_policy
	$(BIN)/python -m bench.bench_library

lock: ## write requirements.lock anew with the newest versions that pyproject.toml allows
	@set -eu; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(PYTHON) -m venv "$$folder"; \
	"$$folder/bin/python" -m pip --disable-pip-version-check --no-input --quiet install --editable '.[dev-servers,test,build]' \
	  --editable './sdk[langgraph,mcp,openai-agents,pydantic-ai]'; \
	{ echo '# Exact versions of everything, for any registry. Written by `make lock`; not edited by hand.'; \
	  "$$folder/bin/python" -m pip --disable-pip-version-check freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^ ]+$$'; \
	} > "$$folder/requirements.lock"; \
	mv "$$folder/requirements.lock" requirements.lock
	@echo "$$(grep -c == requirements.lock) packages in requirements.lock"

clean: ## remove what was made here; data of `stepwell dev` stays
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov build dist
	find $(wildcard $(CODE)) -name __pycache__ -type d -prune -exec rm -rf {} +
