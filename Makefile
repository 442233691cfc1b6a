# make demo: a fresh machine to an answer. make test: everything that proves it works.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv install demo up triton down test lint drift breaking proto sdk check kernels pythons clean \
  docs bench rerank-table statistics load-test chaos rolling replicas soak largest containers upgrade attack fuzz fuzz-readers schemathesis gateway-questions locks \
  vulnerabilities sbom train-pointer notebooks typescript console console-pictures node

# Python 3.11 or newer; PYTHON=... names one.
# A name may be there and not run (a shim of pyenv without its version), so each is tried.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
  "$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null && command -v "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
CLIENT := clients/python
TYPESCRIPT := clients/typescript
# Tests of what is computed with NumPy, SciPy, numba, OpenBLAS, PyTorch or oneDNN; the others never see a kernel.
NUMERIC := tests/unit/core tests/unit/lab/similarities tests/unit/lab/studies tests/unit/evaluator \
  $(addprefix tests/unit/orchestrator/,audits ensembles expressions test_ask_exposure.py test_found_pool.py \
    test_policy.py) \
  $(addprefix tests/unit/retriever/backends/,bm25 dense splade segments/test_impacts.py test_hybrid.py \
    test_selection.py) \
  tests/unit/reranker/backends tests/unit/generator/pointer
# Tests there that need PyTorch, whose wheel is pinned for one Python, a tool of the repository, or a service.
ELSEWHERE := tests/unit/lab/similarities tests/unit/kit/compute/test_models.py tests/unit/kit/compute/test_placement.py \
  tests/unit/kit/compute/test_openvino_conversion.py \
  tests/unit/lab/studies/test_audit_studies.py tests/unit/client/test_generate_sync.py \
  tests/unit/client/test_measures_sdk.py \
  tests/unit/client/test_feedback_batches.py \
  tests/unit/lab/files/test_bundled_texts.py
PORTABLE := -e 'libs/core[compiled,formulas]' -e 'libs/lab[parquet,reports]' -e 'clients/python[parquet]' \
  -e 'libs/documents[hub,s3,sites]' -e 'libs/kit[jwt,redis,remote,sqlite,telemetry]' hypothesis pytest pytest-asyncio pytest-rerunfailures pytest-timeout \
  pytest-xdist tokenizers trustme

# A process of tests that dies, or hangs where no signal reaches it, ends the run: pytest-xdist would wait for it for ever.
PYTEST := -m pytest --dist loadgroup --reruns 1 --max-worker-restart 0 \
  -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true
NPM_CI := timeout 300 npm ci --ignore-scripts --fetch-retries=1 --fetch-timeout=30000

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where Python is kept from writing bytecode, each of the hundreds of processes of the tests compiles evenmesh again.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(BIN)/python ## Make the virtual environment

$(BIN)/python:
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "evenmesh needs Python 3.11 or newer; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV) || \
	  { echo "that Python cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }

install: $(STAMPS)/install ## Install evenmesh and its tools into it, pinned

# Done again only when what is installed has changed; our own code is installed editable.
$(STAMPS)/install: workspace.txt constraints.txt $(wildcard */pyproject.toml */*/pyproject.toml) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -r workspace.txt
	@mkdir -p $(STAMPS) && touch $@

demo: install ## Start a mesh, ask it, see who gets shown, stop it
	@$(BIN)/evenmesh demo

up: install ## Start a mesh in the background and keep it running
	@$(BIN)/evenmesh up --detach

triton: install ## Make the runtime of the Triton server now instead of at its first start
	$(BIN)/python -m evenmesh_generator.triton runtime

down: install ## Stop it
	@$(BIN)/evenmesh down

test: install node ## Prove that it works: unit, contract and integration tests, the real mesh among them
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -n 4 --no-loadscope-reorder

check: install ## Lint what changed and run the quick unit tests of its rooms
	@$(BIN)/python -m tests.check

kernels: install ## Run the numeric tests with other kernels of NumPy, OpenBLAS, PyTorch and oneDNN, and without numba
	OMP_NUM_THREADS=1 OPENBLAS_CORETYPE=Sandybridge NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" \
	  ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 NUMBA_DISABLE_JIT=1 \
	  $(BIN)/python $(PYTEST) -q -n 2 $(NUMERIC)

# The rooms without models, on every Python that runs here beside the one of $(VENV).
pythons: install ## Run the unit tests of core, lab, documents, kit and client on Python 3.12 to 3.14, where they are there
	@seen=$$("$(BIN)/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); only=$$seen; \
	for python in python3.12 python3.13 python3.14 $(wildcard $(HOME)/.pyenv/versions/3.1[234].*/bin/python); do \
	  version=$$("$$python" -c 'import sys, venv; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) || continue; \
	  case " $$seen " in *" $$version "*) continue ;; esac; seen="$$seen $$version"; \
	  echo "Python $$version: $$python"; \
	  [ -x ".venv-$$version/bin/python" ] || "$$python" -m venv ".venv-$$version"; \
	  ".venv-$$version/bin/python" -m pip install -q -c constraints.txt $(PORTABLE); \
	  OMP_NUM_THREADS=1 ".venv-$$version/bin/python" $(PYTEST) -q -n 2 -p no:cacheprovider \
	    tests/unit/core tests/unit/lab tests/unit/documents tests/unit/kit tests/unit/client $(ELSEWHERE:%=--ignore=%); \
	done; \
	[ "$$seen" != "$$only" ] || echo "no other Python runs here: these tests ran on $$only alone"

lint: install drift breaking ## ruff, mypy --strict, import-linter, buf, stub drift
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --no-namespace-packages --no-explicit-package-bases \
	  services/generator/evenmesh_generator/model_repository/model.py
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python -m tests.words
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos

docs: install ## Build the documentation into build/site, strictly and without the network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open build/site/index.html; for its search: python3 -m http.server --directory build/site"

notebooks: install ## Execute the notebooks again, with a mesh of their own (a quarter of an hour)
	@export EVENMESH_HOME=$$(mktemp -d) && trap '$(BIN)/evenmesh down; rm -rf "$$EVENMESH_HOME"' EXIT && \
	  export PATH="$(CURDIR)/$(BIN):$$PATH" && $(BIN)/evenmesh up --detach && \
	  $(BIN)/python examples/notebooks/execute.py

# Generates the stubs of protos/ into the folder $(1).
define generate
cd protos && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=$(1) --mypy_out=quiet:$(1) \
  --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) $$(find evenmesh -name '*.proto' | sort)
endef

# Generates the messages of text-embeddings-inference, which are no part of the contract, into the folder $(1).
TEI := evenmesh_kit/remote/tei
define generate_tei
cd libs/kit && ../../$(BIN)/python -m grpc_tools.protoc -I. --python_out=$(1) --mypy_out=quiet:$(1) $(TEI).proto
endef

proto: install ## Generate the stubs and the comments for OpenAPI again
	PATH="$(CURDIR)/$(BIN):$$PATH"; $(call generate,../$(CLIENT))
	PATH="$(CURDIR)/$(BIN):$$PATH"; $(call generate_tei,.)
	$(BIN)/python services/gateway/generate_descriptions.py

# Where npm is there, so that the tests of Node and of the console's accessibility run; they skip without it.
node:
	@{ command -v npm > /dev/null && $(MAKE) --no-print-directory $(STAMPS)/typescript $(STAMPS)/console; } || \
	  echo "npm is not here, or finds no registry: tests of the TypeScript client and of axe are skipped" >&2

$(STAMPS)/typescript: $(TYPESCRIPT)/package-lock.json $(TYPESCRIPT)/tsconfig.json $(shell find $(TYPESCRIPT)/src -name '*.ts')
	cd $(TYPESCRIPT) && $(NPM_CI) && npx tsc
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/console: console/package-lock.json
	cd console && $(NPM_CI)
	@mkdir -p $(STAMPS) && touch $@

typescript: install ## Generate and compile the TypeScript client (needs Node)
	cd $(TYPESCRIPT) && npm ci --ignore-scripts
	cd $(TYPESCRIPT) && ../../$(BIN)/buf generate ../../protos
	$(BIN)/python -m grpc_tools.protoc -I$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  --plugin=protoc-gen-es=$(TYPESCRIPT)/node_modules/.bin/protoc-gen-es --es_out=$(TYPESCRIPT)/src/gen \
	  --es_opt=target=ts,import_extension=js google/rpc/error_details.proto
	$(BIN)/python -m tests.made_files --write typescript
	cd $(TYPESCRIPT) && npx tsc

console: install $(STAMPS)/typescript $(STAMPS)/console ## Build the console into the gateway's package (needs Node)
	cd console && npx svelte-check --tsconfig tsconfig.json --fail-on-warnings && npx vite build
	$(BIN)/python -m tests.made_files --write console

console-pictures: install node ## Take the pictures of docs/guides/console.md in Chromium, from a mesh of their own
	$(BIN)/python -m tests.console_pictures

drift: install # The committed stubs are what the protos say
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; PATH="$(CURDIR)/$(BIN):$$PATH"; \
	($(call generate,$$out)); cd "$$out"; \
	for stub in $$(find evenmesh -type f | sort); do \
	  diff -q "$$stub" "$(CURDIR)/$(CLIENT)/$$stub" > /dev/null || { echo "$$stub is not what protos/ says: make proto" >&2; exit 1; }; \
	done; \
	for stub in $$(cd "$(CURDIR)/$(CLIENT)" && find evenmesh -name '*_pb2*.py*' -not -path '*/__pycache__/*'); do \
	  [ -f "$$stub" ] || { echo "$$stub has no proto any more: remove it" >&2; exit 1; }; \
	done; cd "$(CURDIR)"; ($(call generate_tei,$$out)); \
	for stub in $(TEI)_pb2.py $(TEI)_pb2.pyi; do \
	  diff -q "$$out/$$stub" "libs/kit/$$stub" > /dev/null || { echo "$$stub is not what its proto says: make proto" >&2; exit 1; }; \
	done; echo "stubs are what the protos say"
	$(BIN)/python $(CLIENT)/generate_sync.py --check
	$(BIN)/python -m tests.made_files
	$(BIN)/python services/gateway/generate_descriptions.py --check

sdk: install ## Generate the sync SDK again from the async one
	$(BIN)/python $(CLIENT)/generate_sync.py

breaking: install # The contract of main still holds
	@for ref in origin/main main; do \
	  if git cat-file -e "$$ref:protos/evenmesh" 2> /dev/null; then \
	    exec $(BIN)/buf breaking protos --against ".git#ref=$$(git rev-parse "$$ref"),subdir=protos"; \
	  fi; \
	done; echo "no protos on main yet: nothing to break"

bench: install ## Measure against the floors, side by side, and write docs/science/benchmarks.md
	$(BIN)/python -m benchmarks

rerank-table: install ## Every reranker on thirteen data sets beside the first stages (half an hour; goes on where it was stopped)
	$(BIN)/python -m benchmarks.rerank_table --out docs/science/reranking.md

statistics: install ## How often our intervals hold the true value, in simulation; writes docs/science/coverage.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.coverage --out docs/science/coverage.md

load-test: install ## Load a mesh of its own until it is full, and write docs/operate/bench-measured.md and capacity.md (an hour)
	$(BIN)/python -m benchmarks.load_test

chaos: install ## Kills, stops and a bad network for ten minutes, on every service and the database
	EVENMESH_CHAOS_S=600 $(BIN)/python -m pytest -s tests/faults/test_chaos.py

rolling: install ## Replace every service while 50 asks are in flight
	EVENMESH_ROLLING_ASKS=50 $(BIN)/python -m pytest -s tests/faults/test_rolling.py

replicas: install ## Kill and replace one of two of every service, ten times each, while 50 asks are in flight (an hour)
	EVENMESH_REPLICAS_ASKS=50 EVENMESH_REPLICAS_ROUNDS=10 $(BIN)/python -m pytest -n 0 -s tests/faults/test_mesh_replicas.py

largest: install ## The largest request that each method takes: CPU seconds and memory
	EVENMESH_LARGEST=1 $(BIN)/python -m pytest -s tests/faults/test_largest_requests.py

soak: install ## An hour of load: memory and descriptors
	EVENMESH_SOAK_MESH_S=$${EVENMESH_SOAK_MESH_S:-3600} $(BIN)/python -m pytest -s tests/faults/test_soak.py

containers: install ## Build the images with buildah, run the mesh from them within their memory, ask and end it
	$(BIN)/python -m tests.containers $(ARGS)

upgrade: install ## Open what the version of a commit wrote, and mix both versions: make upgrade FROM=COMMIT
	$(BIN)/python -m tests.upgrade $(FROM)

attack: install ## Ten minutes of everything that one tenant can do to another, on a real mesh
	$(BIN)/python -m tests.attack

fuzz: install ## Odd requests to every method and odd bytes to every reader, by the hundred thousand
	$(BIN)/python -m pip install -q -c constraints.txt atheris
	$(BIN)/python -m tests.fuzz rpcs --requests 200000
	$(BIN)/python -m tests.fuzz parsers --inputs 1000000

fuzz-readers: install ## Two hundred thousand odd inputs to each reader of documents, archives, sitemaps, feeds and sources
	$(BIN)/python -m pip install -q -c constraints.txt atheris
	$(BIN)/python -m tests.fuzz parsers --each 200000 --only document,part-of,archive,sitemap,feed-,sources

schemathesis: install ## Requests made from the gateway's OpenAPI document, a thousand for each operation
	$(BIN)/python -m pip install -q -c constraints.txt schemathesis
	$(BIN)/python -m tests.openapi_cases --examples 1000

gateway-questions: install ## A hundred questions asked over the gateway and over gRPC: the same answers, citations and exposure
	EVENMESH_TEST_EVERY_QUESTION=1 $(BIN)/pytest -n 0 tests/integration/test_gateway.py -k every_question

locks: install ## Write locks/ again: what each image installs, by version and hash
	$(BIN)/python -m pip install -q -c constraints.txt uv
	$(BIN)/python -m tests.locks

vulnerabilities: install ## Ask PyPI for known vulnerabilities of what images install (locks/) and of what is installed here
	$(BIN)/python -m pip install -q -c constraints.txt cyclonedx-bom pip-audit
	$(BIN)/python -m tests.vulnerabilities

sbom: install ## Write bills of materials (CycloneDX): build/sbom.cdx.json of what is installed here, build/sbom/ of each image
	$(BIN)/python -m pip install -q -c constraints.txt cyclonedx-bom pip-audit
	mkdir -p build/sbom
	$(BIN)/cyclonedx-py environment $(BIN)/python --output-format JSON --output-file build/sbom.cdx.json
	@for lock in locks/*.txt; do \
	  $(BIN)/cyclonedx-py requirements "$$lock" --output-format JSON --output-file "build/sbom/$$(basename "$$lock" .txt).cdx.json"; \
	done

train-pointer: install ## Train the bundled model further, into build/pointer (hours on two cores; interrupted, it goes on)
	$(BIN)/evenmesh train rankrag --recipe bundled --model bundled --output build/pointer \
	  $$(test -f build/pointer/checkpoint.pt && echo --resume)

clean: ## Remove caches and build outputs; .venv stays
	rm -rf console/node_modules $(TYPESCRIPT)/node_modules $(TYPESCRIPT)/dist $(STAMPS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
