# Two commands do everything on a machine with Python >= 3.11 and make:
#
#   make demo    environment, install, discovery on embedded data, the result shown
#   make test    lint, types, layers, tests (adds the development tools to the same environment)
#   make test-floors    the tests with the lowest, then with the newest versions of all dependencies
#   make locked    the environment, with only the files whose SHA-256 is in requirements.lock (make lock writes it)
#   make audit, make sbom    known vulnerabilities of the pinned versions; a CycloneDX bill of materials, sbom.json
#   make results    tables and figures of docs/results.md from results/; ADD="runs/studies more.jsonl" first adds cells of studies
#   make torture    all faults and attacks of docs/reliability.md; ITEM=9,10 some of them, SEED=7 others
#
# Both may be repeated: finished steps leave a stamp in .venv, and a finished demo is shown again, not run again.
#
#   PYTHON=python3.12   the interpreter the environment is made from
#   TORCH_INDEX=        the CUDA build of torch from PyPI instead of the small CPU build
#   WORKERS=8           more test processes

PYTHON      ?= python3
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
WORKERS     ?= 2

VENV := .venv
BIN  := $(VENV)/bin
AUDIT := .venv-audit
# Pinned versions, and silence unless something goes wrong.
PIP  := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
# Where that index cannot be reached pip goes on, without retries, with the indexes that are configured.
TORCH_PIP := $(PIP) --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) --retries 0)

.DELETE_ON_ERROR:
.PHONY: demo test test-all test-floors torture results lock locked audit sbom check format clean

# Two points: one point is only 4.5 of the 450 validation images.
demo: $(VENV)/runtime.stamp
	$(BIN)/pathgrow discover --delta 0.02 --out demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow"

test-all: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test-floors:
	$(PYTHON) scripts/test_versions.py lowest --workers $(WORKERS)
	$(PYTHON) scripts/test_versions.py newest --workers $(WORKERS)

torture: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests --torture results/reliability.json --item "$(ITEM)" --attack-seed $(or $(SEED),0)

results: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.results_page $(ADD)

# torch comes from an index of its own (see below), whose files PyPI does not list.
lock: $(AUDIT)/stamp
	grep -v -i '^torch\|^#' constraints.txt > $(AUDIT)/pins.txt
	$(AUDIT)/bin/uv pip compile --quiet --no-deps --generate-hashes --no-annotate --no-header --universal --python-version 3.11 $(AUDIT)/pins.txt -o $(AUDIT)/lock.txt
	{ head -1 requirements.lock; cat $(AUDIT)/lock.txt; } > $(AUDIT)/whole.txt && mv $(AUDIT)/whole.txt requirements.lock

locked: $(VENV)/torch.stamp
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .

# A release with known vulnerabilities: a mirror without the database has none, and then pip-audit skips every package.
KNOWN := https://pypi.org/pypi/jinja2/2.4.1/json

audit: $(AUDIT)/stamp
	@$(AUDIT)/bin/python -c 'import json, urllib.request as u; json.load(u.urlopen("$(KNOWN)", timeout=20))["vulnerabilities"][0]' 2>/dev/null || \
	  { echo "nothing was audited: the database of known vulnerabilities (https://pypi.org) cannot be reached from here"; exit 1; }
	$(AUDIT)/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

sbom: $(AUDIT)/stamp
	PYTHONWARNINGS=ignore $(AUDIT)/bin/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml --output-reproducible --of JSON -o sbom.json

$(AUDIT)/stamp:
	@$(PYTHON) -m venv --clear $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit cyclonedx-bom uv
	@touch $@

check: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) $(AUDIT) .venv-versions demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/created.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11: name a newer one, as in 'make $(MAKECMDGOALS) PYTHON=python3.12'"; exit 1; }
	@echo "setting up $(VENV), a minute or two the first time"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# torch comes first and alone: left to the resolver, Linux gets gigabytes of CUDA libraries for a CPU demo.
$(VENV)/torch.stamp: $(VENV)/created.stamp constraints.txt
	@$(TORCH_PIP) torch
	@touch $@

$(VENV)/runtime.stamp: $(VENV)/torch.stamp pyproject.toml
	@$(PIP) --editable .
	@touch $@

# Tests read real timm and transformers models; torchvision must come from where torch came from.
$(VENV)/dev.stamp: $(VENV)/runtime.stamp
	@$(TORCH_PIP) torchvision
	@$(PIP) --editable '.[dev,timm,transformers]'
	@touch $@
