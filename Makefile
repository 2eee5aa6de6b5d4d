# `make` lists the recipes. `make demo` and `make test` do all set-up by themselves.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= $(VENV)/bin/python
JOBS ?= 2
CMAKE ?= cmake
ARM_CXX ?= aarch64-linux-gnu-g++
export PATH := $(abspath $(dir $(PYTHON))):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup core proto demo test test-python test-native test-sanitizers fuzz check format bench docs wheel clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup:  ## virtual environment in .venv, packages, native core (done by the others when needed)
	@VENV=$(VENV) bash scripts/setup.sh

core: proto  ## (re)builds the native core in place
	@mkdir -p build
	@flock build/.lock $(PYTHON) setup.py -q build_ext --inplace > build/core.log 2>&1 || { cat build/core.log; exit 1; }

proto:  ## generates the gRPC stubs
	@if [ -f byteps_like/control/generate.py ]; then $(PYTHON) -P byteps_like/control/generate.py; fi

demo: setup  ## trains a real model: 2 workers, 2 servers, and shows it
	@$(PYTHON) examples/demo.py

test: setup test-native test-python  ## all tests

test-python:
	@$(PYTHON) -m pytest tests

test-native:
	@$(CMAKE) -S . -B build/native -G Ninja -DBYTEPS_LIKE_TESTS=ON -DBYTEPS_LIKE_PYTHON=OFF > build/configure-native.log
	@$(CMAKE) --build build/native --target native_tests -j $(JOBS)
	@build/native/native_tests

test-sanitizers:  ## the native tests under address+undefined and thread sanitizers
	@for kind in address,undefined thread; do \
	  $(CMAKE) -S . -B build/san-$${kind%%,*} -G Ninja -DBYTEPS_LIKE_TESTS=ON -DBYTEPS_LIKE_PYTHON=OFF \
	    -DBYTEPS_LIKE_SANITIZE=$$kind > build/configure-san.log && \
	  $(CMAKE) --build build/san-$${kind%%,*} --target native_tests -j $(JOBS) && \
	  echo "== native tests, $$kind sanitizer ==" && build/san-$${kind%%,*}/native_tests || exit 1; done

fuzz:  ## fuzzes the wire parser for FUZZ_SECONDS (clang)
	@$(CMAKE) -S . -B build/fuzz -G Ninja -DBYTEPS_LIKE_FUZZ=ON -DBYTEPS_LIKE_PYTHON=OFF \
	  -DCMAKE_CXX_COMPILER=$$(command -v clang++ || command -v clang++-14) > build/configure-fuzz.log
	@$(CMAKE) --build build/fuzz -j $(JOBS)
	@mkdir -p build/corpus && build/fuzz/frame_fuzz -max_total_time=$${FUZZ_SECONDS:-20} -print_final_stats=1 build/corpus tests/corpus/frame

check: setup  ## formatting, lint, types, layering
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@git ls-files '*.cc' '*.h' | xargs $(dir $(PYTHON))clang-format --dry-run -Werror
	@if command -v $(ARM_CXX) > /dev/null; then for source in csrc/kernels/*.cc; do \
	  $(ARM_CXX) -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I. $$source || exit 1; done; \
	  else echo "no $(ARM_CXX): the kernels are not checked for ARM"; fi

format:  ## formats everything
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .
	@git ls-files '*.cc' '*.h' | xargs $(dir $(PYTHON))clang-format -i

bench: setup  ## push_pull against gloo, on this host
	@$(PYTHON) bench/push_pull.py

docs: setup  ## regenerates the generated parts of docs/
	@$(PYTHON) -m byteps_like.config > docs/config.md

wheel: setup  ## wheel and sdist in dist/
	@$(PYTHON) -m build --no-isolation

clean:  ## removes build products (keeps .venv)
	@rm -rf build dist out byteps_like/_core*.so byteps_like/control/v1 *.egg-info
