# Everything runs in .venv, created with the first suitable Python and updated when a dependency changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo demo-language test test-core test-quick test-processes test-slow test-swarm test-long test-soak pictures-of-pages lint bench bench-gpu verify-figures constraints docs

VENV := .venv
STAMP := $(VENV)/.installed
SITE_VENV := .venv-site
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3)
# Test files run in parallel; a file's shared fixtures are made once. Processes wait for each other a third of the time.
AT_ONCE := --dist loadfile --no-loadscope-reorder --durations=10 --numprocesses
# On a loaded machine a peer or a browser may miss a clock: such a test is run up to twice more, and the report names it.
AGAIN := --reruns 2 -rR
# Reads pip's report of what it would install, and prints the pins that constraints.txt holds.
PINS := import json, sys; found = [item["metadata"] for item in json.load(sys.stdin)["install"]]; \
	pins = [x["name"] + "==" + x["version"] for x in found if x["name"] not in ("dalle-collab", "setuptools")]; \
	print(*sorted(pins, key=str.lower), sep="\n")
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

help:  ## Show these targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1 \t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 26

install: $(STAMP)  ## Install everything into .venv (about 6 GB); PYTHON=... chooses the Python

demo: $(STAMP)  ## Run the whole system, small, on this machine; then look at demo-output/
	$(VENV)/bin/dalle-collab demo run --output demo-output

demo-language: $(STAMP)  ## Train a small language model, compared with n-grams; then look at demo-language-output/
	$(VENV)/bin/dalle-collab demo language --output demo-language-output

# A part that fails does not keep the next from being run: each says what it found.
test: $(STAMP)  ## Run all tests but the long ones, the quick ones first
	@$(MAKE) --no-print-directory --keep-going --jobs=1 test-quick test-processes

test-core: $(STAMP)  ## Run the tests of the core alone: peers that train one thing together
	$(VENV)/bin/python -m pytest tests/pipelines/core -m "not long" $(AT_ONCE) 3 $(AGAIN)

test-quick: $(STAMP)
	$(VENV)/bin/python -m pytest -m "not slow" $(AT_ONCE) 3

# The swarms first; slow tests fill the gaps at the end. Their processes wait for clocks a fifth of the time.
test-processes: $(STAMP)
	$(VENV)/bin/python -m pytest -m "slow and not long" $(AT_ONCE) 4 $(AGAIN)

test-slow: $(STAMP)
	$(VENV)/bin/python -m pytest -m "slow and not swarm and not long" $(AT_ONCE) 3 $(AGAIN)

test-swarm: $(STAMP)
	$(VENV)/bin/python -m pytest -m "swarm and not long" $(AT_ONCE) 3 $(AGAIN)

test-long: $(STAMP)  ## Attack small swarms and a simulated large one, kill preparations; what is measured is not repeated
	$(VENV)/bin/python tests/long/simulation.py
	$(VENV)/bin/python tests/long/attack_matrix.py
	$(VENV)/bin/python tests/long/preparation.py
	$(VENV)/bin/python -m pytest -q -p no:xdist tests/long/two_anchors.py
	$(VENV)/bin/python -m pytest -m long -p no:xdist

test-soak: $(STAMP)  ## Let a small swarm train for 2,000 epochs and say what has grown in its processes
	$(VENV)/bin/python tests/long/soak.py

pictures-of-pages: $(STAMP)  ## Take pictures of all pages in each state of a run's life; then look at pages-output/index.html
	$(VENV)/bin/python tests/long/pictures_of_pages.py

lint: $(STAMP)  ## Check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# A benchmark is a file that knows --quick; other files there are what benchmarks share.
bench: $(STAMP)  ## Run all benchmarks; QUICK=1 for a short version
	@for file in $$(grep -l -e --quick tests/benchmarks/*.py); do \
		echo "$$file"; \
		$(VENV)/bin/python "$$file" $(if $(QUICK),--quick); \
	done

bench-gpu: $(STAMP)  ## Measure training and generation on a GPU, in at most 8 minutes and the cell that has begun
	$(VENV)/bin/python tests/benchmarks/gpu.py

verify-figures: $(STAMP)  ## Say which figures in the documents are not what the last benchmarks wrote
	$(VENV)/bin/python -m pytest -q -p no:xdist tests/test_measured_figures.py

docs: $(SITE_VENV)/.installed  ## Build the documents as a web site in site/
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --quiet --strict

# Nothing is installed: pip only says what it would install. The header of the file is kept.
constraints: $(STAMP)  ## Resolve setup.cfg's ranges again into constraints.txt; then run the tests
	{ grep '^#' constraints.txt; $(VENV)/bin/python -m pip install --quiet --dry-run --ignore-installed --report - '.[test]' \
		| $(VENV)/bin/python -c '$(PINS)'; } >constraints.new
	mv constraints.new constraints.txt

# A command that is found may still not run (pyenv's shims), and a Python without ensurepip cannot make a .venv.
$(STAMP): setup.py setup.cfg pyproject.toml constraints.txt tests/ancestor/requirements.txt
	@$(VENV)/bin/python -c '$(FITS)' 2>/dev/null && $(VENV)/bin/python -m pip --version >/dev/null 2>&1 || { \
		for python in $$(type -ap $(PYTHONS)); do \
			if "$$python" -c '$(FITS)' 2>/dev/null; then \
				echo "Making $(VENV) with $$python ($$("$$python" --version))"; \
				exec "$$python" -m venv --clear $(VENV); \
			fi; \
		done; \
		echo "None of $(PYTHONS) is a Python 3.11 to 3.13 with venv. Install one (Debian: apt-get install python3-venv), or name it: make install PYTHON=FILE" >&2; \
		exit 1; \
	}
	$(VENV)/bin/python -m pip install --quiet --upgrade pip 'setuptools>=77'
	$(VENV)/bin/python -m pip install --constraint constraints.txt --editable '.[test]'
	$(VENV)/bin/python -m pip install --no-deps --requirement tests/ancestor/requirements.txt
	@touch $@

$(SITE_VENV)/.installed: docs/requirements.txt
	python3 -m venv --clear $(SITE_VENV)
	$(SITE_VENV)/bin/python -m pip install --quiet --requirement docs/requirements.txt
	@touch $@
