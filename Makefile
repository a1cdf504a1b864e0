# Every target does its own set-up: a virtual environment in .venv, filled from pyproject.toml under constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo readme docs test test-slow test-deploy check audit sbom lock fuzz chaos chaos-deploy soak mutants bench bench-peers format clean

# The demo: five methods on rotated digits until they have converged, three seeds: one table, and a report to open.
DEMO := local fedavg fedavg_tuned ifca,k=4 fesem,k=4
demo: $(READY)
	@rm -rf runs/demo
	@$(BIN)/kinfolk compare demo $(DEMO:%=-a %) --seeds 3 --out runs/demo
	@$(BIN)/kinfolk report runs/demo --out runs/demo/report.html

# Runs the demo and puts its table and figure into the README.
readme: demo
	$(BIN)/python benchmarks/readme.py runs/demo

# The documentation as a site in build/site, strictly and without a network; docstrings and notebooks become pages.
docs: $(READY)
	$(BIN)/python docs/site/build_site.py

# Style, types, tests, doctests, README commands, configs. loadgroup: what a module's fixture makes is made in
# one process.
PYTEST := $(BIN)/pytest -n auto --dist loadgroup
test: check
	$(PYTEST)

# The rest of what CI runs: every option of every algorithm, two ranks for every algorithm, runs that are killed.
test-slow: $(READY)
	$(PYTEST) -m slow tests

# Between organisations: real certificates, real processes. Each engine lives in an environment of its own.
DEPLOY := build/deploy
DEPLOY_FLOWER := build/deploy-flower
test-deploy: $(DEPLOY)/.ready $(DEPLOY_FLOWER)/.ready
	$(DEPLOY)/bin/pytest -m deploy tests/deploy
	$(DEPLOY_FLOWER)/bin/pytest -m deploy tests/deploy

$(DEPLOY)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEPLOY)
	$(DEPLOY)/bin/pip install --quiet --constraint constraints.txt --editable ".[dev,nvflare]"
	@touch $@

$(DEPLOY_FLOWER)/.ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(DEPLOY_FLOWER)
	$(DEPLOY_FLOWER)/bin/pip install --quiet --constraint constraints-flower.txt --editable ".[flower]" pytest pytest-xdist hypothesis
	@touch $@

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Known weaknesses of our code (Bandit) and of what it needs (pip-audit, where PyPI's advisories can be reached).
audit: $(READY)
	$(BIN)/python tests/supply/audit.py

# What a plain installation consists of, as CycloneDX: build/sbom.json.
sbom: $(READY)
	$(BIN)/python tests/supply/sbom.py

# requirements.lock: every hash that PyPI has of the versions in constraints.txt. torch is not locked: which of its
# builds is wanted (CPU, CUDA, ROCm) is the machine's affair, and each has a hash of its own.
LOCK := build/lock
lock:
	@$(PYTHON) -m venv $(LOCK)
	@$(LOCK)/bin/pip install --quiet uv
	@grep -v '^torch==' constraints.txt | $(LOCK)/bin/uv pip compile --quiet --no-deps --no-annotate --generate-hashes \
		--custom-compile-command 'make lock' --output-file requirements.lock -

# Kills runs at random on every engine with every method, and compares their ends (some 20 minutes; CHAOS="--engine loop").
chaos: $(READY)
	PYTHONPATH=tests/helpers $(BIN)/python tests/chaos/chaos.py $(CHAOS)

# The same over NVFlare, with real processes and certificates (an hour on two cores; CHAOS="--runs 2 --parallel 1").
chaos-deploy: $(DEPLOY)/.ready
	PYTHONPATH=tests/helpers $(DEPLOY)/bin/python tests/chaos/deploy.py $(CHAOS)

# A thousand rounds on every engine, with memory and descriptors flat (minutes; SOAK="--engine loop").
soak: $(READY)
	PYTHONPATH=tests/helpers $(BIN)/python tests/chaos/soak.py $(SOAK)

# Breaks the code on purpose, place by place: each break must make a test fail. ONLY=word tries some of them.
mutants: $(READY)
	$(BIN)/python tests/mutants.py $(ONLY)

# Fuzzes every place where bytes come in for so many seconds each: a table. ONLY=word tries some of them.
SECONDS ?= 60
fuzz: $(READY)
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[fuzz]" || echo "without Atheris"
	@PYTHONPATH=src:tests/fuzz OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/long.py $(SECONDS) $(ONLY)

# Speed, as ratios from one run on this machine.
bench: $(READY)
	$(BIN)/python benchmarks/engines.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .mypy_cache .ruff_cache

# First what is locked, each file by its hash; then torch, and what pyproject.toml asks for and the lock lacks yet.
$(READY): pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

PEERS := benchmarks/peers/.venv
# Kinfolk beside pfl, Flower and a bare loop; they live in an environment of their own.
bench-peers: $(READY) $(PEERS)/.ready
	$(BIN)/python benchmarks/peers/compare.py --repeat 3

$(PEERS)/.ready: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --requirement $<
	@touch $@
