# `make demo` and `make test` need git, make and Python 3.9 or newer; they set up all the rest
# in .venv, again only when pyproject.toml has changed. Another Python: make clean test PYTHON=…

PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# Many tests wait for a disk or another process: two workers more than there are cores.
WORKERS = -n $(shell expr 2 + `getconf _NPROCESSORS_ONLN`) --dist worksteal
QUICK_TESTS := tests/meta/test_layout.py tests/meta/test_import.py tests/meta/test_public_names.py \
  tests/unit/core tests/unit/manager tests/unit/store tests/unit/workspace/tree \
  tests/unit/workspace/ignore tests/unit/session/tools

.DEFAULT_GOAL := help
.PHONY: help demo quick test faults agents check cov bench build matrix clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.package  ## Show what the library does, on a small agent
	$(BIN)/python -m agent_checkpoint.demo

quick: $(VENV)/.test  ## Run the unit tests, for every edit: less than a minute
	$(BIN)/python -m pytest $(WORKERS) -q -m "not slow" $(QUICK_TESTS)

test: $(VENV)/.test  ## Run all tests but the slow ones: less than five minutes on two cores
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

faults: $(VENV)/.faults  ## Run the slow tests, and break the stores at every point: kills, bad disks, lost power
	$(BIN)/python -m pytest $(WORKERS) -m slow --ignore=tests/crash
	$(BIN)/python -m pytest $(WORKERS) tests/crash tests/web/test_fuzzed_forms.py --full-faults

agents: $(VENV)/.test  ## Run published coding agents with our hook, against a scripted model (ONLY=claude-code,codex, SHORT=1, RECORD=1)
	$(BIN)/python -m pytest -n 2 -o faulthandler_timeout=600 tests/coding_agents --coding-agents $(or $(ONLY),all) \
	  $(if $(SHORT),-m "not long") $(if $(RECORD),--record-moments)

check: $(VENV)/.check  ## Lint, format check, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy scripts/test-wheel
	$(BIN)/lint-imports

cov: $(VENV)/.test  ## Run every test, the slow ones too, and fail under 95 % branch coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n auto
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=95

bench: $(BENCH)/.bench  ## Measure beside the peers, against the targets (QUICK=1, ONLY=P7,P8, KEEP=1)
	$(BENCH)/bin/python -m bench.run \
	  $(if $(QUICK),--quick) $(if $(ONLY),--only "$(ONLY)") $(if $(KEEP),--keep)

build: $(VENV)/.package  ## Build the wheel into dist/
	rm -rf dist
	$(PIP) wheel --no-deps --wheel-dir dist .
	@ls dist/*.whl

matrix: build  ## Test the built wheel on every Python found here
	$(BIN)/python scripts/test-wheel dist/*.whl

clean:  ## Remove everything that make has made
	rm -rf $(VENV) $(BENCH) bench/results dist build .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests scripts bench -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs the command and the page, the tests more, the linters most: three stamps, each on the last.

$(VENV)/.package: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { \
	  echo "'$(PYTHON)' is not Python 3.9 or newer: name one with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed, see above. Debian and Ubuntu keep it in a package of its own:" >&2; \
	  echo "'apt-get install python3-venv', or name another Python with PYTHON=…" >&2; exit 1; }
	@echo "Setting up $(VENV): once, for less than a minute."
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable '.[cli,web]'
	@touch $@

$(VENV)/.test: $(VENV)/.package
	$(PIP) install --editable '.[all]' --group test
	@touch $@

$(VENV)/.faults: $(VENV)/.test
	$(PIP) install --group faults
	@touch $@

$(VENV)/.check: $(VENV)/.test
	$(PIP) install --group check
	@touch $@

# The peers bring much with them: they have an environment of their own.

$(BENCH)/.bench: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "The peers need Python 3.10 or newer, '$(PYTHON)' is older: name one with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -m venv $(BENCH) || { rm -rf $(BENCH); exit 1; }
	@echo "Setting up $(BENCH): once, for about a minute."
	@$(BENCH)/bin/python -m pip --disable-pip-version-check -qq install --upgrade 'pip>=25.1'
	@$(BENCH)/bin/python -m pip --disable-pip-version-check -qq install --editable '.[fast,postgres,web]' --group bench
	@touch $@
