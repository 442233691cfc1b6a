# make demo: a fresh machine to an answer. make test: everything that proves it works.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv install demo up triton down test lint drift breaking proto clean \
  bench load-test chaos rolling soak fuzz vulnerabilities sbom train-pointer

# Python 3.11 or newer; PYTHON=... names one.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps

export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(BIN)/python ## Make the virtual environment

$(BIN)/python:
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ragmesh needs Python 3.11 or newer; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV) || \
	  { echo "that Python cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }

install: $(STAMPS)/install ## Install ragmesh and its tools into it, pinned

# Done again only when what is installed has changed; our own code is installed editable.
$(STAMPS)/install: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@mkdir -p $(STAMPS) && touch $@

demo: install ## Start a mesh, ask it, see who gets shown, stop it
	@$(BIN)/ragmesh demo

up: install ## Start a mesh in the background and keep it running
	@$(BIN)/ragmesh up --detach

triton: install ## Make the runtime of the Triton server now instead of at its first start
	$(BIN)/python -m services.generator.triton runtime

down: install ## Stop it
	@$(BIN)/ragmesh down

test: install ## Prove that it works: unit, contract and integration tests, the real mesh among them
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: install drift breaking ## ruff, mypy --strict, import-linter, buf, stub drift
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@for model in services/generator/model_repository/*/1/model.py; do \
	  echo "mypy $$model"; $(BIN)/mypy --no-namespace-packages --no-explicit-package-bases "$$model"; \
	done
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos

# Generates the stubs of protos/ into the folder $(1).
define generate
cd protos && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=$(1) --mypy_out=quiet:$(1) \
  --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) $$(find ragmesh -name '*.proto' | sort)
endef

proto: install ## Generate the stubs again
	PATH="$(CURDIR)/$(BIN):$$PATH"; $(call generate,../src)

drift: install # The committed stubs are what the protos say
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; PATH="$(CURDIR)/$(BIN):$$PATH"; \
	($(call generate,$$out)); cd "$$out"; \
	for stub in $$(find ragmesh -type f | sort); do \
	  diff -q "$$stub" "$(CURDIR)/src/$$stub" > /dev/null || { echo "$$stub is not what protos/ says: make proto" >&2; exit 1; }; \
	done; \
	for stub in $$(cd "$(CURDIR)/src" && find ragmesh -name '*_pb2*.py*' -not -path '*/__pycache__/*'); do \
	  [ -f "$$stub" ] || { echo "$$stub has no proto any more: remove it" >&2; exit 1; }; \
	done; echo "stubs are what the protos say"

breaking: install # The contract of main still holds
	@for ref in origin/main main; do \
	  if git cat-file -e "$$ref:protos/buf.yaml" 2> /dev/null; then \
	    exec $(BIN)/buf breaking protos --against ".git#ref=$$(git rev-parse "$$ref"),subdir=protos"; \
	  fi; \
	done; echo "no protos on main yet: nothing to break"

bench: install ## Measure against the floors, side by side, and write docs/benchmarks.md
	$(BIN)/python -m benchmarks

load-test: install ## Load a mesh of its own until it is full, and write docs/bench.md and docs/capacity.md (an hour)
	$(BIN)/python -m benchmarks.load_test

chaos: install ## Kills, stops and a bad network for ten minutes, on every service and the database
	RAGMESH_CHAOS_S=600 $(BIN)/python -m pytest -s tests/faults/test_chaos.py

rolling: install ## Replace every service while 50 asks are in flight
	RAGMESH_ROLLING_ASKS=50 $(BIN)/python -m pytest -s tests/faults/test_rolling.py

soak: install ## An hour of load: memory and descriptors
	RAGMESH_SOAK_MESH_S=$${RAGMESH_SOAK_MESH_S:-3600} $(BIN)/python -m pytest -s tests/faults/test_soak.py

fuzz: install ## Odd requests to every method and odd bytes to every reader, by the hundred thousand
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz rpcs --requests 200000
	$(BIN)/python -m tests.fuzz parsers --inputs 1000000

vulnerabilities: install ## Ask PyPI for known vulnerabilities of what is installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[supply-chain]'
	$(BIN)/pip-audit --local --skip-editable

sbom: install ## Write build/sbom.cdx.json, a bill of materials (CycloneDX)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[supply-chain]'
	mkdir -p build
	$(BIN)/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-format JSON \
	  --output-file build/sbom.cdx.json

train-pointer: install ## Train the bundled model further, into build/pointer (hours on two cores; interrupted, it goes on)
	$(BIN)/ragmesh train rankrag --recipe bundled --model bundled --output build/pointer \
	  $$(test -f build/pointer/checkpoint.pt && echo --resume)

clean: ## Remove caches and build outputs; .venv stays
	rm -rf $(STAMPS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
