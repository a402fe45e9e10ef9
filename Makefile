# Everything happens in .venv; nothing is installed elsewhere, except the distribution's packages by `make test` as root.

PYTHON ?= python3
PYTEST_ARGS ?= -q
BENCH_ARGS ?=

BIN := .venv/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint bench soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 chooses the interpreter, PYTEST_ARGS='-k spec' the tests."

demo: .venv/.ready-for-demo ## Set up .venv and run a 3-node Ray job on this machine
	$(BIN)/muster run --backend local --nodes 3 --python "$(CURDIR)/$(BIN)/python" -- python examples/hello_cluster.py

test: .venv/.ready-for-tests ## Set up everything, then lint, type-check and run all tests but the soak tests
	@.ci/system-packages
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: .venv/.ready-for-tests ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.ready-for-tests ## Measure agents, and bring-up side by side on the lab (root); writes bench/results
	@.ci/system-packages
	$(BIN)/python bench/agent.py
	$(BIN)/python bench/bringup.py $(BENCH_ARGS)

soak: .venv/.ready-for-tests ## Run the long tests
	@.ci/system-packages
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

clean: ## Remove .venv and caches
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A virtual environment, and in it a stamp for what is installed there. The stamps are older than pyproject.toml
# exactly when its dependencies may have changed.
$(BIN)/python:
	@.ci/make-venv "$(PYTHON)" .venv

.venv/.ready-for-demo: pyproject.toml | $(BIN)/python
	@echo "Installing Muster and Ray into .venv (a minute or two the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray]'
	@touch $@

.venv/.ready-for-tests: pyproject.toml | $(BIN)/python
	@echo "Installing Muster, Ray and the tools for tests into .venv (a minute or two the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray,dev]'
	@.ci/ray-extras $(BIN)/python .venv/ray-extras
	@touch $@ .venv/.ready-for-demo
