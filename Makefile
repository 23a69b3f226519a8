# How everything here is run, by people and by CI. `make help` lists it.
# A fresh machine needs Python 3.11 or newer; another interpreter: make test PYTHON=/path/to/python3.13

VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
# What is imported is compiled when it is; most modules never are.
INSTALL := $(PIP) install --no-compile
# For large environments: uv takes a quarter of pip's time. Of pip's configuration it gets the index alone.
INDEX = $(or $(UV_DEFAULT_INDEX),$(PIP_INDEX_URL),$(shell $(PY) -m pip config get global.index-url 2>/dev/null))
INTO = $(INSTALL) uv && $(if $(INDEX),UV_DEFAULT_INDEX='$(INDEX)') $(VENV)/bin/uv pip install --quiet --python
export UV_HTTP_TIMEOUT ?= 180
# Two more than there are cores: tests wait for timers and processes about as long as they compute.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 300
SLOPE_SECONDS ?= 1800
SOAK_HISTORIES ?= 3000
SOAK_RUNS ?= 10000
SPARKS ?= 4.0.5 4.1.4 4.2.1 4.3.0
ROOM ?=
VECTORS ?=
ARGS ?=

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)
endif
PYTHON_LOWEST ?= python3.11

# Tests start hundreds of processes; without bytecode, each compiles every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

# What an installation is made of, the sources of the optional extensions included.
TYPED := $(wildcard client/*/*.pxd)
INSTALLED := pyproject.toml setup.py $(wildcard wire/codec/speed/*.[ch]) $(TYPED) $(TYPED:.pxd=.py)
# PySpark has no wheel: its jars are not compressed a second time.
STORED := --config-settings-package 'pyspark:--build-option=--compression=stored'
# Rewritten when one of these is newer; as long as they stand, no target needs a network.
CORE := $(VENV)/.installed-core
TEST := $(VENV)/.installed-test
DEV := $(VENV)/.installed-dev
TYPESCRIPT := $(VENV)/typescript

TELL_CODEC := $(PY) -c 'import segstore._speed' 2>/dev/null || \
	echo "the codec's extension was not built, which takes a C compiler: the codec in Python will be used" >&2

# Tests of what is compiled, in Python; and of libraries in their lowest versions: construct, FastAPI, gRPC and pydantic.
# Tests of the codec itself compare the codecs by name. Floods, and the other loop, lead to no other code there.
IN_PYTHON := tests/wire/blocks tests/test_conformance.py tests/server/connection tests/client/segment \
	$(foreach flood,long_reads forgotten_writers,--ignore tests/server/connection/test_$(flood).py) -k "not uvloop"
LOWEST := tests/wire/schema tests/server/rest tests/client/controller

# Earlier versions of PySpark leave sockets to the garbage collector.
OF_SPARK := tests/spark tests/streams tests/pipeline tests/test_pipeline_session.py \
	-W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

.DEFAULT_GOAL := help
.PHONY: help setup sync serve test test-all test-long test-lowest test-spark audit lint bench conformance fuzz fuzz-native mutants wheels release-check binary image footprint docs page-picture cert proto soak spark-cluster clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-22s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(DEV) ## create .venv with what tests, lint and benchmarks need

serve: $(CORE) ## start the mock segment store; options: make serve ARGS="--port 0"
	@$(VENV)/bin/segstore serve $(ARGS)

test: $(TEST) ## run the tests that need Python alone; options for pytest in ARGS
	$(VENV)/bin/pytest -n $(WORKERS) --dist loadgroup -m "not long" $(ARGS)

test-all: test test-long test-lowest ## run every test; as root it installs chromium, tshark and junit5, unless NO_SYSTEM_PACKAGES=1

# Without the extension: most tests of tests/wire name the codecs that they compare.
test-long: ## run the rest of test-all: Spark, browsers, ZooKeeper, other languages, long runs, codec in Python
	@echo "installs from package registries into $(VENV): PySpark (with Java 17), documentation tools," \
		"schemathesis, moto, npm's packages for TypeScript and axe-core" >&2
	@VENV=$(VENV) tools/system_packages.sh chromium "tests of the live page"
	@VENV=$(VENV) tools/system_packages.sh tshark "tests of the Wireshark dissector"
	@VENV=$(VENV) tools/system_packages.sh junit5 "the test of a suite in Java" /usr/share/java/junit-jupiter-api.jar
	@$(MAKE) --no-print-directory --jobs 2 $(DEV) $(TYPESCRIPT)/.installed
	HYPOTHESIS_PROFILE=long $(VENV)/bin/pytest -n $(WORKERS) --dist loadgroup -m long $(ARGS)
	SEGSTORE_CODEC=python $(VENV)/bin/pytest -q -n $(WORKERS) -m "not long" $(IN_PYTHON)

test-lowest: | $(PY) ## run tests of schema, REST API and client with the lowest versions that pyproject.toml allows, in $(VENV)-lowest
	@if command -v $(PYTHON_LOWEST) >/dev/null; then \
		$(PYTHON_LOWEST) -m venv --without-pip $(VENV)-lowest && \
		$(PY) tools/lowest_versions.py pyproject.toml >$(VENV)-lowest/lowest.txt && \
		export PURE_PYTHON=1 && $(INTO) $(VENV)-lowest -c $(VENV)-lowest/lowest.txt --reinstall-package segstore -e '.[test]' && \
		$(VENV)-lowest/bin/pytest -q -n $(WORKERS) -m "not long" $(LOWEST) $(ARGS); \
		else echo "NOT RUN: $(PYTHON_LOWEST) is not here, for the tests with the lowest versions" >&2; fi

test-spark: $(DEV) ## run the tests of the pipeline with each PySpark of SPARKS, in an environment of its own; needs PyPI
	@status=0; for each in $(SPARKS); do \
		$(PY) -m venv $(VENV)-spark-$$each && \
		$(INTO) $(VENV)-spark-$$each $(STORED) -e '.[dev,spark]' "pyspark==$$each" && \
		$(VENV)-spark-$$each/bin/pytest -q $(OF_SPARK) $(ARGS) || { status=1; echo "PySpark $$each: failed" >&2; }; \
		rm -rf $(VENV)-spark-$$each; \
	done; exit $$status

audit: $(DEV) ## look up known vulnerabilities of the installed and the lowest allowed versions on PyPI
	@test -x $(VENV)-audit/bin/pip-audit || { $(PY) -m venv $(VENV)-audit && \
		$(INTO) $(VENV)-audit pip-audit; }
	$(PY) -m pip --disable-pip-version-check freeze --exclude-editable >$(VENV)-audit/installed.txt
	$(PY) tools/lowest_versions.py pyproject.toml >$(VENV)-audit/lowest.txt
	@status=0; for each in installed lowest; do \
		$(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps -r $(VENV)-audit/$$each.txt || { status=1; \
		echo "$$each versions: vulnerabilities found, or PyPI could not be reached" >&2; }; done; exit $$status

lint: $(DEV) ## ruff, and mypy --strict over all that ships
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(DEV) ## run the benchmarks, or some: make bench ARGS="codec server --quick"; the page: ARGS=--write-docs
	$(PY) -m bench $(ARGS)

conformance: $(CORE) ## run recorded vectors and conversations; another folder: VECTORS=DIR
	$(PY) -m tests.conformance $(ARGS) $(VECTORS)

fuzz: $(DEV) ## coverage-guided fuzzing of the codec for FUZZ_SECONDS
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m tests.fuzz $(ARGS)

fuzz-native: $(DEV) ## fuzzing of the codec's extension with AddressSanitizer and UBSan (gcc) for FUZZ_SECONDS
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m tests.fuzz.native $(ARGS)

mutants: $(DEV) ## mutation testing: changes to a module that its tests do not detect: ROOM=client/connection/pool.py ARGS="--sample 60"
	@$(PY) -c 'import mutmut' 2>/dev/null || $(INSTALL) 'mutmut>=3.8,<3.9'
	$(PY) tools/mutants.py $(ROOM) --workers $(WORKERS) $(ARGS)

wheels: $(DEV) ## a wheel for each CPython of this machine and a pure one, each tried in a clean environment; needs PyPI
	$(PY) tools/make_wheels.py $(ARGS)

footprint: $(CORE) ## what an installation weighs, by package, and the CPU time of imports and of a start; needs PyPI
	$(PY) tools/footprint.py $(ARGS)

release-check: $(DEV) ## a dry run of a release: sdist and wheels in an empty dist/, twine check --strict, links, version; needs PyPI
	$(PY) tools/release_check.py $(ARGS)

binary: $(CORE) ## one executable for machines without Python, in dist/, tried in an empty root directory; needs PyPI
	$(PY) tools/packaging/make_binary.py $(ARGS)

image: $(CORE) ## a container image from scratch, in dist/; needs buildah, root and PyPI
	$(PY) tools/packaging/make_image.py $(ARGS)

docs: $(DEV) ## write the generated pages of docs/ and build the site in build/site; a broken link fails
	$(PY) tools/make_docs.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet $(ARGS)
	@echo "the site is in build/site; to see it, search included: $(PY) -m http.server -d build/site"

page-picture: $(CORE) ## take the pictures of the live page and of the page of a trace, with chromium
	@VENV=$(VENV) tools/system_packages.sh chromium "the pictures of pages"
	$(PY) -m tools.make_page_picture $(ARGS)

cert: $(CORE) ## make certificates for trying TLS, in certs/; another folder: make cert ARGS=DIR
	@$(PY) -c 'import cryptography' 2>/dev/null || $(INSTALL) -e '.[cert]'
	@$(PY) tools/make_cert.py $(ARGS)

soak: $(DEV) ## long runs: random examples of the property tests, fuzzing (FUZZ_SECONDS), order, dispatch, judged runs (SOAK_RUNS), kills, memory (SLOPE_SECONDS), the official client (SOAK_SECONDS)
	HYPOTHESIS_PROFILE=search $(VENV)/bin/pytest -q -n $(WORKERS) --dist loadgroup -p no:rerunfailures -o asyncio_debug=true -m hypothesis
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m tests.fuzz
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m tests.fuzz.native
	$(PY) -m tests.soak.exactly_once
	$(PY) -m tests.soak.dispatch
	$(PY) -m tests.soak.killed
	$(PY) -m tests.soak.power_loss
	$(PY) -m tests.soak.processes
	$(PY) -m tests.soak.stream_sink
	$(PY) -m tests.soak.stream_spark
	$(PY) -m tests.soak.large_events
	$(PY) -m tests.soak.judged_runs --runs $(SOAK_RUNS)
	$(PY) -m tests.soak.memory_slope --seconds $(SLOPE_SECONDS)
	SEGSTORE_HISTORIES=$(SOAK_HISTORIES) $(VENV)/bin/pytest -q -p no:rerunfailures tests/server/coordination/test_histories.py
	SOAK_SECONDS=$(SOAK_SECONDS) $(PY) -m tests.soak $(ARGS)

spark-cluster: $(DEV) ## a master and two workers of Spark on this machine: a report on them, and a streaming round trip
	$(PY) -m tests.spark.cluster $(ARGS)

proto: $(DEV) ## compile the controller's API after a change of controller.proto
	$(PY) tools/make_proto.py

sync: $(DEV) ## write the types of the synchronous client after a change of the asyncio client
	$(PY) tools/make_sync.py

clean: ## remove what builds, tests and tools leave; .venv stays
	rm -rf build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache bench/results
	find . -path './.venv*' -prune -o -type d -name __pycache__ -print | xargs rm -rf

$(CORE): $(INSTALLED) | $(PY)
	@echo "installing segstore into $(VENV)"
	@$(INSTALL) -e .
	@$(TELL_CODEC)
	@touch $@

$(TEST): $(INSTALLED) | $(PY)
	@echo "installing segstore and what its tests need into $(VENV)"
	@$(INTO) $(PY) --only-binary pravega -e '.[test,clients]' || { $(INSTALL) -e '.[test]' && \
		echo "the official client has no wheel for this machine: its tests will be reported as not run" >&2; }
	@$(TELL_CODEC)
	@touch $(CORE) $@

$(DEV): $(INSTALLED) $(TEST)
	@echo "installing what all tests, lint and benchmarks need into $(VENV)"
	@if $(PY) -c 'import sys; from segstore.pipeline.session import JAVA, java_version as v; sys.exit((v() or 0) < JAVA)'; \
		then $(INTO) $(PY) $(STORED) 'segstore[dev,docs,spark]'; \
		else $(INTO) $(PY) 'segstore[dev,docs]' && \
		echo "Java 17 or newer is not here: tests with Spark will be reported as not run" >&2; fi
	@touch $(CORE) $(TEST) $@

$(TYPESCRIPT)/.installed: tests/typescript/package-lock.json | $(PY)
	@mkdir -p $(@D) && cp tests/typescript/package.json $< $(@D)
	@if command -v npm >/dev/null 2>&1 && npm ci --prefix $(@D) --no-audit --no-fund --silent --fetch-retries=1; then touch $@; \
		else echo "npm is not here, or could not install: the tests of the generated client will be reported as not run" >&2; fi

$(PY):
	@test -n "$(PYTHON)" || { echo "segstore needs Python 3.11 or newer and found none;" \
		"name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "segstore needs Python 3.11 or newer;" \
		"$(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 2; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) could not create $(VENV);" \
		"on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
