# Everything happens in .venv; nothing is installed elsewhere, except the distribution's packages by `make test` as root.

PYTHON ?= python3
PYTEST_ARGS ?= -q
BENCH_ARGS ?=
SLURM_RELEASES ?= installed 24.11 26.05

BIN := .venv/bin
OLDEST_RAY := 2.46.0
OLDEST := .venv-ray-oldest
DOCS := .venv-docs
DIST := .venv-dist
EXAMPLES := .venv-examples
ON_GLUSTERFS := run requeue spares succession services seeing

# Without bytecode files, each of the thousand processes that the tests start would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-examples test-ray-oldest test-slurm test-filesystems test-interpreters test-containers test-languages test-gvisor coverage dist docs lint lock bench sandbox-load chaos simulate failures clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 chooses the interpreter, PYTEST_ARGS='-k spec' the tests."

demo: .venv/.ready-for-demo ## Set up .venv and run a 3-node Ray job on this machine
	$(BIN)/muster run --backend local --nodes 3 --python "$(CURDIR)/$(BIN)/python" -- python examples/hello_cluster.py

test: .venv/.ready-for-tests ## Set up everything, then lint, type-check and run all tests but the long ones
	@.ci/system-packages
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n 4 --dist loadfile $(PYTEST_ARGS)

test-all: test ## Run also the slow tests, the examples, the oldest Ray, releases of Slurm, filesystems, other Pythons, Apptainer, languages, gVisor, 100,000 schedules and the chaos tests (over an hour)
	$(BIN)/python -m pytest -n 4 --dist loadfile -q -m slow
	@$(MAKE) --no-print-directory coverage test-examples test-slurm test-filesystems test-ray-oldest test-interpreters test-containers test-languages test-gvisor simulate chaos

coverage: .venv/.ready-for-tests ## Measure the line and branch coverage of agent, lifecycle, election and process
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -q tests/agent tests/lifecycle tests/election tests/process
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

test-filesystems: .venv/.ready-for-tests ## Run on filesystems that fail, and the lab on GlusterFS (root; over an hour)
	@.ci/system-packages
	@.ci/glusterfs-root .venv/filesystems/glusterfs
	$(BIN)/python -m pytest -n 4 --dist load -q -m filesystems tests/filesystems
	for caches in '' :5 :30; do $(BIN)/python -m pytest -q -m 'lab and not ray' --shared-filesystem "glusterfs$$caches" \
	  $(addprefix tests/lab/test_,$(addsuffix .py,$(ON_GLUSTERFS))) || exit 1; done

test-ray-oldest: $(OLDEST)/.ready-for-tests ## Run the bring-up tests with the oldest Ray that is supported
	@.ci/system-packages
	$(OLDEST)/bin/python -m pytest $(PYTEST_ARGS) -m ray tests/local/test_ray.py tests/lab/test_run.py

test-interpreters: .venv/.ready-for-tests ## Run nodes on each Python from 3.9 to 3.14 that this machine or Debian has
	@.ci/interpreters $(BIN)/python .venv/interpreters
	$(BIN)/python -m pytest $(PYTEST_ARGS) -rs -m interpreters --timeout 1800 tests/local/test_interpreters.py

test-containers: .venv/.ready-for-tests ## Run jobs in containers, with Charliecloud and with Apptainer from Debian
	@.ci/system-packages
	@.ci/apptainer $(BIN)/python .venv/apptainer
	$(BIN)/python -m pytest $(PYTEST_ARGS) -rs -m "" tests/lab/test_container.py tests/lab/test_apptainer.py tests/local/test_container.py

test-examples: $(EXAMPLES)/.ready-for-tests ## Run the examples with Ray's libraries, JAX, torch and a notebook, from .venv-examples
	$(EXAMPLES)/bin/python -m pytest $(PYTEST_ARGS) -rs -m "" tests/examples

test-languages: .venv/.ready-for-tests ## Run programs in every language of the sandbox, with Debian's and npm's packages
	@.ci/languages $(BIN)/python .venv/languages
	$(BIN)/python -m pytest $(PYTEST_ARGS) -rs -m "" tests/sandbox/test_every_language.py

test-gvisor: .venv/.ready-for-tests ## Run the tests of the sandbox in gVisor, with runsc from Debian
	@.ci/gvisor $(BIN)/python .venv/gvisor
	$(BIN)/python -m pytest $(PYTEST_ARGS) -rs -m "" tests/sandbox/test_gvisor.py tests/sandbox/engine/test_gvisor.py tests/sandbox/jail/test_gvisor.py
	$(BIN)/python -m pytest $(PYTEST_ARGS) -rs -m "" tests/sandbox/test_attacks.py -k gvisor

test-slurm: .venv/.ready-for-tests ## Run the tests that depend on Slurm with each release in SLURM_RELEASES (root)
	@.ci/system-packages mmdebstrap:mmdebstrap
	@PYTEST_ARGS='$(PYTEST_ARGS)' .ci/test-slurm $(BIN)/python $(SLURM_RELEASES)

docs: $(DOCS)/.ready ## Build the documentation site in site/, with a check of all links
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	@echo "The site is built: site/index.html"

dist: $(DIST)/.ready ## Build sdist and wheel in dist/, check them, and run the quick start with the wheel alone
	@.ci/dist "$(PYTHON)" $(DIST)/bin/python

lint: .venv/.ready-for-tests ## Check style, types and commit subjects
	@$(BIN)/python .ci/commit-subjects
	@$(BIN)/python .ci/class-names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/shellcheck $$(find bench examples src tests -name '*.sh') $$(grep -lE '^#!.*sh$$' .ci/*)

lock: .venv/.ready-for-tests ## Record the versions of all packages in .venv in constraints.txt, once tests have passed
	@.ci/lock $(BIN)/python .venv/ray-extras

bench: .venv/.ready-for-tests ## Measure agents, gathering, and bring-up side by side on the lab (root); writes bench/results
	@.ci/system-packages
	$(BIN)/python bench/agent.py
	$(BIN)/python bench/process.py
	PYTHONPATH=. $(BIN)/python bench/rendezvous.py
	$(BIN)/python bench/leader_scale.py
	$(BIN)/python bench/placement.py
	$(BIN)/python bench/spares.py
	$(BIN)/python bench/gcs_recovery.py
	$(BIN)/python bench/sandbox.py
	$(BIN)/python bench/gateway.py
	$(BIN)/python bench/endpoint.py
	PYTHONPATH=. $(BIN)/python bench/seeing.py
	PYTHONPATH=. $(BIN)/python bench/scale_views.py
	$(BIN)/python bench/bringup.py $(BENCH_ARGS)

sandbox-load: .venv/.ready-for-tests ## Load a sandbox for 10 minutes with 64 clients, hostile programs included, and verify every answer
	$(BIN)/python bench/sandbox_load.py

chaos: .venv/.ready-for-tests ## Kill 200 random processes of runs, with and without Ray (about 15 minutes)
	@.ci/system-packages
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

simulate: .venv/.ready-for-tests ## Try the protocol under 100,000 random schedules of faults (some minutes on 2 cores)
	$(BIN)/python -m tests.sim.simulate --schedules 100000 --jobs 2

failures: .venv/.ready-for-tests ## Inflict every fault on the lab, hold the bounds, write docs/reference/failures.md (root)
	@.ci/system-packages
	$(BIN)/python bench/failures.py

clean: ## Remove .venv and caches
	rm -rf .venv $(OLDEST) $(EXAMPLES) $(DOCS) $(DIST) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A virtual environment, and in it a stamp for what is installed there. The stamps are older than pyproject.toml or
# constraints.txt exactly when its packages may have changed.
$(BIN)/python:
	@.ci/make-venv "$(PYTHON)" .venv

.venv/.ready-for-demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Muster and Ray into .venv (a minute or two the first time) ..."
	@.ci/pip-install $(BIN)/python -e '.[ray]'
	@touch $@

.venv/.ready-for-tests: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Muster, Ray, torch and the tools for tests into .venv (a minute or two the first time) ..."
	@.ci/pip-install $(BIN)/python -e '.[ray,dev]'
	@.ci/ray-extras $(BIN)/python .venv/ray-extras
	@.ci/torch-cpu $(BIN)/python
	@touch $@ .venv/.ready-for-demo

$(OLDEST)/.ready-for-tests: pyproject.toml constraints.txt
	@.ci/make-venv "$(PYTHON)" $(OLDEST)
	@echo "Installing Muster, Ray $(OLDEST_RAY) and the tools for tests into $(OLDEST) ..."
	@.ci/pip-install $(OLDEST)/bin/python -e '.[ray,dev]' 'ray==$(OLDEST_RAY)'
	@touch $@

$(EXAMPLES)/.ready-for-tests: pyproject.toml constraints.txt .ci/example-packages
	@.ci/make-venv "$(PYTHON)" $(EXAMPLES)
	@echo "Installing Muster, Ray with its libraries, JAX and the tools for tests into $(EXAMPLES) ..."
	@.ci/pip-install $(EXAMPLES)/bin/python -e '.[ray,dev]'
	@.ci/example-packages $(EXAMPLES)/bin/python
	@touch $@

$(DOCS)/.ready: .ci/docs-requirements.txt
	@.ci/make-venv "$(PYTHON)" $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement .ci/docs-requirements.txt
	@touch $@

$(DIST)/.ready: .ci/dist-requirements.txt
	@.ci/make-venv "$(PYTHON)" $(DIST)
	@$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check --requirement .ci/dist-requirements.txt
	@touch $@
