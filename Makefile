# Two commands on a machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported; most of what is installed never is.
PIP := $(BIN)/pip install --no-compile --quiet --disable-pip-version-check
# Processes find each other's bytecode, whatever the machine says: tests start hundreds, and each would compile all modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-federation lint types docs wheel bench evidence lock sbom clean

demo: $(VENV)/.installed  ## train on a generated federation of banks and write a report
	$(BIN)/isthmus demo --out runs/demo --force

test: $(VENV)/.installed-dev lint types  ## everything: lint, types, tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.installed-dev  ## killed and resumed runs, notebooks, pages of methods, encrypted sums, the wheel: some minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'slow and not processes' $(TESTS)

test-federation: $(VENV)/.installed-dev  ## federations and tables of real processes: some half an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m processes tests

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests benchmarks docs examples
	$(BIN)/ruff format --check src tests benchmarks docs examples

types: $(VENV)/.installed-dev
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict

wheel: $(VENV)/.installed-dev  ## the source archive, and the wheel built from it, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

bench: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/speed/rounds.py

evidence: $(VENV)/.installed  ## the papers' tables that are not run yet, in one process of low priority: days; stop and repeat at will
	export MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824; \
	grep -v '^#' benchmarks/papers/queue.txt | while IFS= read -r line; do \
		printf '%s\n' "$$line" | OMP_NUM_THREADS=1 xargs nice -n 19 $(BIN)/isthmus papers run --resume --jobs 1; done

# What users install, with the hashes of all platforms' files: with no extra (runtime) and with those of the images.
LOCKED := runtime federation ray
TOOLS := build/tools

lock: $(TOOLS)/.installed  ## write requirements/*.lock again, after a change of pyproject.toml or constraints.txt
	mkdir -p requirements
	for each in $(LOCKED); do \
		extra=$$(test $$each = runtime || echo --extra $$each); \
		$(TOOLS)/bin/uv pip compile pyproject.toml $$extra --constraint constraints.txt --universal --python-version 3.11 \
			--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --output-file requirements/$$each.lock \
			|| exit 1; \
	done

sbom: $(TOOLS)/.installed  ## write what a federation's processes are installed from, as CycloneDX JSON
	mkdir -p build
	$(TOOLS)/bin/cyclonedx-py requirements requirements/federation.lock --pyproject pyproject.toml \
		--output-reproducible --output-format JSON --output-file build/sbom.json

$(TOOLS)/.installed:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --disable-pip-version-check uv==0.13.9 cyclonedx-bom==7.5.0
	touch $@

# A machine with a wheel of torch at hand uses it; the constraints pin the tested set either way.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt torch==2.13.0
	$(PIP) -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
