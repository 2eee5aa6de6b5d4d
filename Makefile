# `make` lists the recipes. `make demo` and `make test` do all set-up by themselves.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= $(VENV)/bin/python
JOBS ?= 2
CMAKE ?= cmake
ARM_CXX ?= aarch64-linux-gnu-g++
CLANG_TIDY ?= clang-tidy
READY := $(if $(wildcard $(PYTHON)),,setup-ci)
export PATH := $(abspath $(dir $(PYTHON))):$(PATH)
# Images of Python set it. Each of some hundred processes of the tests would compile all that it imports of ours anew,
# and pytest rewrite all tests in each of its own.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-rdma setup-ci core proto configure-tests demo test test-fast test-python test-native test-rdma sim sim-all soak \
  test-torch test-sanitizers build-native build-sanitizers test-python-versions build-fuzz fuzz check lint arm tidy format bench bench-server bench-codecs bench-training bench-placement bench-racks bench-consistency \
  bench-compression bench-elastic bench-rdma bench-tls bench-strangers docs wheel clean kernels test-gpu bench-gpu

help:  ## this list
	@echo "make RECIPE, where RECIPE is one of"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sed 's/^/  /' | expand -t 24

setup:  ## virtual environment in .venv, packages, native core (done by the others when needed)
	@VENV=$(VENV) bash scripts/setup.sh

setup-test:
	@VENV=$(VENV) bash scripts/setup.sh test

setup-rdma:
	@VENV=$(VENV) bash scripts/setup.sh test rdma

setup-ci:
	@VENV=$(VENV) bash scripts/setup.sh test ci

core: proto  ## (re)builds the native core in place
	@mkdir -p build
	@flock build/.lock $(PYTHON) setup.py -q build_ext --inplace > build/core.log 2>&1 || { cat build/core.log; exit 1; }

proto:  ## generates the gRPC stubs
	@$(PYTHON) -P byteps_like/control/generate.py

demo: setup  ## trains a real model: 2 workers, 2 servers, and shows it
	@$(PYTHON) examples/demo.py

test: setup-test test-native test-python  ## all tests

# These need the processors to themselves neither for time nor for ports.
IN_ONE_PROCESS := tests/unit tests/property tests/package
# And these take all processors and most of the memory.
ALONE := tests/fault/test_collectives_huge.py

# A file's tests stay together, or both processes would make what its tests share.
IN_FILES := --dist loadfile

test-python:  ## the Python tests alone, after `make setup`
	@$(PYTHON) -m pytest -n $(JOBS) $(IN_FILES) $(IN_ONE_PROCESS)
	@$(PYTHON) -m pytest -n $(JOBS) $(IN_FILES) --no-loadscope-reorder $(addprefix --ignore=,$(IN_ONE_PROCESS) $(ALONE)) tests
	@$(PYTHON) -m pytest $(ALONE)

# Native tests of many cases, which take longer than all the others together.
LONG_NATIVE := host:*,gpu*,merge:*,exchange*,offers:*,executor*,200*,link:*,codecs:*,coded:*

test-fast: $(READY) core  ## in two minutes: the Python tests that start no processes, and quick native tests as last built
	@$(PYTHON) -m pytest -n $(JOBS) $(IN_FILES) -m "not processes and not slow" $(IN_ONE_PROCESS)
	@[ ! -x $(CORE_BUILD)/native_tests ] || \
	  bash scripts/with_deadline.sh 100 $(CORE_BUILD)/native_tests --minimal --test-case-exclude='$(LONG_NATIVE)'

# In the build folder of the core, which is compiled once for the Python module and the tests.
CORE_BUILD = $(shell $(PYTHON) -c 'import sys; print("build/cmake-" + sys.implementation.cache_tag)')

configure-tests: core
	@$(CMAKE) -S . -B $(CORE_BUILD) -DBYTEPS_LIKE_TESTS=ON > build/configure-tests.log

build-native: configure-tests
	@flock build/.lock $(CMAKE) --build $(CORE_BUILD) --target native_tests -j $(JOBS)

test-native: build-native  ## the native tests alone, after `make setup`
	@bash scripts/with_deadline.sh 900 $(CORE_BUILD)/native_tests

sim: $(READY) core  ## 500 simulated jobs on a network that fails (seconds); make sim-all: 10,000
	@$(PYTHON) -m byteps_like chaos --sim --seeds 0:500 -j $(JOBS)
	@$(PYTHON) -m byteps_like chaos --sim --control --seeds 0:200 -j $(JOBS)

sim-all: $(READY) core
	@$(PYTHON) -m byteps_like chaos --sim --seeds 0:10000 -j $(JOBS)
	@$(PYTHON) -m byteps_like chaos --sim --control --seeds 0:5000 -j $(JOBS)

# Ten minutes tell whether memory grows; a release has an hour.
MINUTES ?= 5
soak: $(READY) core  ## kills workers, servers and schedulers of a job that checks its sums for MINUTES (5; before a release 60)
	@$(PYTHON) -m byteps_like chaos --minutes $(MINUTES) --every 2:8 --spawn 0.6 -n 6 -s 2 --max-growth 32 --max-descriptors 32

test-rdma: setup-rdma build-native  ## the native tests of RDMA, in a virtual machine that has it (x86_64, Debian packages; no root, no card)
	@bash scripts/rdma_vm.sh bash scripts/rdma_vm/tests.sh $(CORE_BUILD)/native_tests

test-torch: $(READY) core  ## PyTorch's own tests of torch.distributed, as torch ships them, over our backend (a minute)
	@$(PYTHON) -m tests.torch_suite --jobs $$((2 * $(JOBS)))

test-gpu: $(READY) core  ## the tests that need a GPU, and a summary of what they ran on (CUDA build of torch, the extra [cuda])
	@$(PYTHON) scripts/test_gpu.py

test-sanitizers: $(READY)  ## the native tests under address+undefined and thread sanitizers
	@JOBS=$(JOBS) bash scripts/test_sanitizers.sh

build-sanitizers: $(READY)
	@JOBS=$(JOBS) bash scripts/build_sanitized.sh thread native_tests
	@JOBS=$(JOBS) bash scripts/build_sanitized.sh address native_tests

test-python-versions: $(READY)  ## native core and torch-free tests with each Python 3.11-3.13 there is
	@bash scripts/test_python_versions.sh

# Those of codecs begin with real encodings, those of shards, of their stores and of exchanges with whole rounds, trainings
# and calls, which the targets write: formats may change.
FUZZ_TARGETS := frame payload shard store table exchange
FUZZ_BUILD := build/san-address-clang

build-fuzz: $(READY)
	@JOBS=$(JOBS) bash scripts/build_sanitized.sh address $(FUZZ_TARGETS:%=%_fuzz)

fuzz: build-fuzz  ## fuzzes the parser of frames, the codecs, a shard, its store and tables, and an exchange for FUZZ_SECONDS (clang)
	@mkdir -p $(FUZZ_TARGETS:%=build/corpus/%)
	@for target in payload shard store table exchange; do $(FUZZ_BUILD)/$${target}_fuzz --seeds=build/corpus/$$target; done
	@printf '%s\n' $(FUZZ_TARGETS) | xargs -P $(JOBS) -I TARGET bash -c ' \
	  $(FUZZ_BUILD)/TARGET_fuzz -max_total_time=$${FUZZ_SECONDS:-20} -artifact_prefix=build/TARGET- -print_final_stats=1 \
	    build/corpus/TARGET $$(ls -d tests/corpus/TARGET 2> /dev/null) > build/fuzz-TARGET.log 2>&1; \
	  status=$$?; echo "== TARGET =="; tail -n $$((status ? 60 : 6)) build/fuzz-TARGET.log; exit $$status'

check: setup lint arm tidy kernels  ## formatting, lint, types, layering, and what compilers for ARM, GPUs and clang-tidy say

lint:
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@git ls-files '*.cc' '*.h' | xargs $(dir $(PYTHON))clang-format --dry-run -Werror
	@$(PYTHON) -m pytest tests/package/test_layering.py

ARM_CHECK = xargs -P $(JOBS) -n 1 $(ARM_CXX) -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I.

arm:
	@if command -v $(ARM_CXX) > /dev/null; then \
	  printf '%s\n' csrc/kernels/*.cc csrc/kernels/crc32c/*.cc server/update/*.cc | $(ARM_CHECK) && \
	  printf '%s\n' compression/loops/*.cc | $(ARM_CHECK) -Wno-psabi -DBYTEPS_LIKE_ISA=scalar; \
	  else echo "no $(ARM_CXX): the kernels are not checked for ARM"; fi

tidy: $(READY)
	@if command -v $(CLANG_TIDY) > /dev/null; then mkdir -p build && \
	  $(CMAKE) -S . -B build/tidy/commands -DBYTEPS_LIKE_PYTHON=OFF -DBYTEPS_LIKE_PRECOMPILE=OFF \
	    > build/configure-tidy.log && \
	  $(PYTHON) scripts/tidy.py --clang-tidy $(CLANG_TIDY) --jobs $(JOBS); \
	  else echo "no $(CLANG_TIDY): the C++ core is not checked with it"; fi

kernels:  ## compiles the GPU kernels with nvcc and NVRTC for all architectures; shows their registers
	@$(PYTHON) scripts/check_kernels.py --jobs $(JOBS) --table

format:  ## formats everything
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .
	@git ls-files '*.cc' '*.h' | xargs $(dir $(PYTHON))clang-format -i

bench: setup  ## push_pull against gloo, on this host
	@$(PYTHON) -m bench.servers.push_pull

bench-server: setup  ## what push_pull by servers costs on this host, by size, memory and transport (some minutes)
	@$(PYTHON) -m bench.servers.route

bench-training: setup  ## training steps against gloo's DDP, on a lab of shaped links (root; a quarter of an hour)
	@$(PYTHON) -m bench.training.steps
	@$(PYTHON) -m bench.training.gpt

bench-compression: setup  ## codecs against fp32, bf16 and gloo, and training with them, on a lab (root; half an hour): docs/reference/compression-measured.md
	@$(PYTHON) -m bench.compression.reductions --rates none
	@$(PYTHON) -m bench.compression.reductions --plot docs/images/compression.png
	@$(PYTHON) -m bench.compression.reductions --route allreduce --servers 0 --rates 400mbit
	@$(PYTHON) -m bench.compression.blocksparse
	@$(PYTHON) -m bench.compression.training --plot docs/images/compression-training.png
	@$(PYTHON) -m bench.compression.page

bench-placement: setup  ## servers beside workers and on spare hosts against gloo and a ring, on a lab (root; some minutes)
	@$(PYTHON) -m bench.servers.placement

bench-racks: setup  ## servers with fast links, and racks with aggregators, against a ring, on a lab (root; some minutes)
	@$(PYTHON) -m bench.servers.racks

bench-consistency: setup  ## who waits for whom when ranks are slow, under every consistency, on a lab (root; ten minutes)
	@$(PYTHON) -m bench.consistency

bench-gpu: $(READY) core  ## kernels and staging against the GPU's own copies, a GPT step against gloo's DDP
	@$(PYTHON) -m bench.gpu

bench-codecs: setup  ## what every codec costs on one core, against streaming, a sum of fp32 and a cast to bf16
	@$(PYTHON) -m bench.compression.codecs

bench-rdma:  ## RDMA links against perftest's ib_write_bw and ib_send_lat, in the virtual machine of test-rdma (some minutes)
	@VENV=$(VENV) bash scripts/setup.sh rdma bench
	@$(PYTHON) -m bench.internals.rdma

bench-elastic: setup  ## what being elastic, copies of values and joining workers and servers cost, and how long nobody reads when a server dies, on a lab (root; some minutes)
	@$(PYTHON) -m bench.elastic.calm
	@$(PYTHON) -m bench.elastic.calm --rate none --hosts 2 --servers 1
	@$(PYTHON) -m bench.elastic.copies
	@$(PYTHON) -m bench.elastic.joins
	@$(PYTHON) -m bench.elastic.servers

bench-tls: $(READY) core  ## links with tls=on against links in the clear, over loopback, on two cores (a minute)
	@$(PYTHON) -m bench.internals.tls

bench-strangers: $(READY) core  ## members' way in past 1,500 strangers a second at each port, and what those cost (a minute)
	@$(PYTHON) -m bench.internals.strangers
	@$(PYTHON) -m bench.internals.strangers --one-port --tls

docs: setup  ## regenerates the generated parts of docs/
	@$(PYTHON) -m byteps_like.config > docs/reference/config.md

wheel: setup  ## wheel and sdist in dist/
	@rm -rf build/lib.* build/bdist.*
	@$(PYTHON) -m build --no-isolation --wheel --sdist --outdir dist .

clean:  ## removes everything that was generated (keeps .venv)
	@rm -rf build dist out byteps_like/_core*.so byteps_like/control/v1 *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
