# Every command does its own set-up:  make demo  ·  make test  ·  make quick (the tests in under a minute)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test pytest quick variants coverage lint ruff pyright pages docs format bench clean

demo: $(VENV)/.core
	$(BIN)/vitreous demo

# asserts of all test modules are rewritten once, also where the environment switches bytecode off; files stay on one worker
test pytest quick coverage: export PYTHONDONTWRITEBYTECODE =
PYTEST = $(BIN)/python -m pytest --dist worksteal
# one process more than there are cores: some tests wait for a browser, a cluster or a process
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# types are checked while the tests run: pyright uses one core
test: ruff
	@$(MAKE) --no-print-directory -j2 pyright pytest

pytest: $(VENV)/.dev
	$(PYTEST) -n $(WORKERS) --durations=15

# one case of every test function; no browser, no Ray, nothing slow
quick: $(VENV)/.dev
	VITREOUS_CHECK_SHAPES=0 $(PYTEST) -n auto --first-case -m "not slow and not browser and not ray" \
		-p no:schemathesis --durations=5

# the tests on one core, with other threads and kernels, SIGINT ignored, in random order, elsewhere; long
variants: $(VENV)/.dev
	tests/run_variants

coverage: $(VENV)/.dev
	$(PYTEST) -n auto --cov=vitreous --cov-report=term:skip-covered --cov-report=html:out/coverage

lint: ruff pyright

ruff: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

pyright: $(VENV)/.dev
	$(BIN)/pyright --warnings

# what is generated from the registries: catalogue, pages of methods, metrics and the command line
pages: $(VENV)/.dev
	$(BIN)/python -m vitreous.catalogue
	$(BIN)/python docs/methods_page.py --missing
	$(BIN)/python docs/metrics_page.py
	$(BIN)/python docs/datasets_page.py
	$(BIN)/python docs/cli_page.py
	$(BIN)/python docs/precision_page.py

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet, warnings such as broken anchors do not count

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.core
	$(BIN)/python benchmarks/run --size ti --quick

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache out
